//! The futures of the Rust client: the verbs of the blocking one, holds across awaits, and futures
//! that are dropped.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use litelease_client::{
    Async, AsyncClient, Blocking, CancelResult, Client, Error, Grant, HoldOptions, ItemName, Loss,
    Mode, Pool, SendOptions, Value,
};
use litelease_proof::rig::{LONG, TestFolder, eventually};
use litelease_proof::server::{POOL, Server};
use serde_json::Value as Json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A server, and a blocking and an async client of it.
struct Scene {
    _place: TestFolder,
    server: Server,
    blocking: Client,
    client: AsyncClient,
}

impl Scene {
    fn new() -> Self {
        let place = TestFolder::new("WAL");
        let server = Server::start(&place.file, &[]);
        let key = server.access.trim().rsplit(' ').next().unwrap().to_owned();
        let url = format!("http://{}", server.address);
        let blocking = Client::with_key(&url, &key).unwrap();
        let client = Client::with_key(&url, &key).unwrap().into_async();
        Scene { _place: place, server, blocking, client }
    }

    /// Takes a name away from everybody.
    fn occupy(&self, name: &str) -> Grant {
        self.blocking.claim(name, "occupant", LONG, Duration::ZERO).unwrap()
    }

    fn is_free(&self, name: &str) -> bool {
        self.blocking.inspect(name).unwrap().lease.is_none()
    }

    fn has_waiters(&self, count: u32) -> bool {
        let text = self.server.client().ask("GET", "/metrics", &Json::Null, "").unwrap().body;
        let line = text.lines().find_map(|line| line.strip_prefix("litelease_waiters "));
        line == Some(&count.to_string())
    }
}

/// A runtime with one thread, and one for what blocks.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap()
}

/// Polls a future once, as a runtime would before it drops it.
fn poll_once(future: impl Future, then: impl FnOnce()) {
    let mut future = pin!(future);
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    then();
}

/// A mode whose answers this program waits for.
trait Waits: Mode {
    fn wait<T: Send + 'static>(answer: Self::Answer<T>) -> Result<T, Error>;
}

impl Waits for Blocking {
    fn wait<T: Send + 'static>(answer: Result<T, Error>) -> Result<T, Error> {
        answer
    }
}

/// Without any runtime.
impl Waits for Async {
    fn wait<T: Send + 'static>(mut answer: Self::Answer<T>) -> Result<T, Error> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => thread::park(),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Plays every verb once, and returns the answers.
fn play<M: Waits>(client: &Client<M>, pool: &Pool<M>) -> Vec<String> {
    fn get<M: Waits, T: Send + 'static>(answer: M::Answer<T>) -> T {
        M::wait::<T>(answer).unwrap()
    }
    let (ttl, none) = (LONG, Duration::ZERO);
    let mut answers = Vec::new();
    let mut note = |what: &dyn std::fmt::Debug| answers.push(format!("{what:?}"));
    let grant = get::<M, _>(client.claim_above("n", "a", ttl, none, 6));
    note(&(grant.lease.token, grant.is_trusted()));
    let busy = M::wait(client.claim("n", "b", ttl, none)).unwrap_err();
    note(&matches!(busy, Error::Busy(lease) if lease.owner == "a"));
    let grant = get::<M, _>(client.renew(&grant, ttl));
    get::<M, _>(client.attach(&grant, "here"));
    note(&get::<M, _>(client.value("n")));
    get::<M, _>(client.limit(&grant, Some(ttl), None));
    get::<M, _>(client.progress(&grant));
    get::<M, _>(client.checkpoint(&grant, 4711));
    note(&get::<M, _>(client.last_checkpoint("n")));
    note(&(get::<M, _>(client.requested("n")), get::<M, _>(client.last_checkpoint("none"))));
    note(&(get::<M, _>(client.request("n", "b", ttl)) <= ttl));
    note(&get::<M, _>(client.requested("n")).map(|request| request.requester));
    note(&get::<M, _>(client.hand_over(&grant, ttl)).token);
    let grant = get::<M, _>(client.claim("n", "b", ttl, none));
    note(&get::<M, _>(client.transfer(&grant, "c", ttl)).owner);
    note(&M::wait(client.end(&grant)).unwrap_err().to_string());
    note(&get::<M, _>(client.break_lease("n")));
    note(&get::<M, _>(client.inspect("n")));
    note(&get::<M, _>(client.names("")).len());
    let grant = get::<M, _>(client.claim("n", "a", ttl, none));
    note(&get::<M, _>(client.leases("")).len());
    note(&get::<M, _>(client.end(&grant)));
    get::<M, _>(client.release(&grant));
    note(&M::wait(client.claim("n", "a", Duration::from_millis(1), none)).unwrap_err().to_string());

    let held = get::<M, _>(client.hold("n", HoldOptions::new(ttl).owner("h")));
    held.check().unwrap();
    note(&(held.token(), held.owner().to_owned()));
    get::<M, _>(held.release());
    let slot = get::<M, _>(client.hold_slot("s", 2, HoldOptions::new(ttl), "why"));
    note(&get::<M, _>(client.slots("s")).iter().map(|slot| slot.note.clone()).collect::<Vec<_>>());
    note(&get::<M, _>(client.pools("")).iter().map(|pool| pool.in_use).collect::<Vec<_>>());
    note(&get::<M, _>(client.break_slot("s", slot.position, slot.held.token())));
    drop(slot);
    let slot = get::<M, _>(pool.hold(HoldOptions::new(ttl), "kept"));
    note(&slot.position);
    get::<M, _>(slot.held.release_within(ttl));

    let mail = client.queue("mail");
    let send = |body, options| get::<M, _>(mail.send_with(Value::from(body), options));
    let first = send("one", SendOptions::new().key("k"));
    note(&(send("one", SendOptions::new().key("k")) == first));
    let item = get::<M, _>(mail.receive(ttl, none)).unwrap();
    note(&(item.body.clone(), item.attempt, item.is_trusted()));
    note(&(get::<M, _>(mail.extend(&item.receipt, ttl)) <= ttl));
    note(&matches!(get::<M, _>(mail.cancel(ItemName::Key("k"))), CancelResult::Leased { .. }));
    get::<M, _>(mail.give_back(&item.receipt, none, Some("again")));
    let item = get::<M, _>(mail.receive_within(ttl, ttl, ttl)).unwrap();
    get::<M, _>(mail.bury(&item.receipt, Some("no")));
    note(&get::<M, _>(mail.items()).iter().map(|item| item.state.clone()).collect::<Vec<_>>());
    note(&(get::<M, _>(mail.redrive_one(item.id)), get::<M, _>(mail.redrive())));
    let item = get::<M, _>(mail.receive(ttl, none)).unwrap();
    let item = get::<M, _>(mail.keep(item, ttl));
    item.check().unwrap();
    get::<M, _>(mail.ack(&item.receipt));
    note(&M::wait(mail.ack(&item.receipt)).unwrap_err().to_string());
    note(&(get::<M, _>(mail.discard_one(1)), get::<M, _>(mail.discard())));
    note(&get::<M, _>(mail.info()).map(|info| info.visible));
    let id = get::<M, _>(mail.send("two"));
    note(&get::<M, _>(mail.cancel(ItemName::Id(id))));
    note(&get::<M, _>(mail.cancel(ItemName::Id(id))));
    note(&get::<M, _>(client.queues("")).len());
    note(&(get::<M, _>(mail.delete()), get::<M, _>(mail.delete())));
    note(&get::<M, _>(mail.receive(ttl, none)));
    answers
}

#[test]
fn both_modes_give_the_same_answers() {
    let answers = [false, true].map(|is_async| {
        let scene = Scene::new();
        scene.server.client().register(1);
        let pool = Pool::open(&format!("http://{}/l/{POOL}", scene.server.address)).unwrap();
        match is_async {
            false => play(&scene.blocking, &pool),
            true => play(&scene.client, &pool.into_async()),
        }
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0][0], "(7, true)");
    let threaded = Scene::new();
    // The blocking verbs work on a thread of a runtime, too.
    let grant = runtime().block_on(async { threaded.occupy("n") });
    threaded.blocking.release(&grant).unwrap();
}

#[test]
fn a_name_is_held_across_awaits_and_its_loss_is_a_future() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(2);
    runtime().block_on(async {
        let client = &scene.client;
        let held = client.hold("n", HoldOptions::new(ttl)).await.unwrap();
        for _ in 0..3 {
            sleep(ttl / 2).await;
            held.check().unwrap();
            client.attach(held.grant(), "still here").await.unwrap();
        }
        let busy = client.claim("n", "b", ttl, Duration::ZERO).await;
        assert!(matches!(busy, Err(Error::Busy(lease)) if lease.token == held.token()));
        held.release().await.unwrap();
        assert!(scene.is_free("n"));

        let held = client.hold("n", HoldOptions::new(ttl)).await.unwrap();
        let mut watch = client.watch_name("n");
        assert_eq!(watch.next().await.unwrap().unwrap().live[0].token, 2);
        let (lost, broken) = tokio::join!(held.lost(), client.break_lease("n"));
        assert_eq!((lost.reason, broken.unwrap().1), (Loss::Broken, 2));
        assert!(held.check().is_err());
        assert_eq!(watch.next().await.unwrap().unwrap().ended, ["n"]);
        // Dropped, and not waited for.
        let held = client.hold("n", HoldOptions::new(LONG)).await.unwrap();
        drop(held);
        eventually("a dropped hold is released", || scene.is_free("n"));
    });
}

#[test]
fn a_dropped_future_leaves_the_queue_and_what_arrives_late_is_given_back() {
    let scene = Scene::new();
    let client = &scene.client;
    // A future that was never polled sends nothing.
    drop(client.claim("never", "a", LONG, LONG));
    // Dropped while it waits.
    let first = scene.occupy("claimed");
    poll_once(client.claim("claimed", "a", LONG, LONG), || {
        eventually("the claim waits", || scene.has_waiters(1));
    });
    let second = scene.occupy("held");
    poll_once(client.hold("held", HoldOptions::new(LONG).wait(LONG)), || {
        eventually("the hold waits", || scene.has_waiters(1));
    });
    poll_once(client.queue("mail").receive(LONG, LONG), || {
        eventually("the receive waits", || scene.has_waiters(1));
    });
    eventually("they do not wait any more", || scene.has_waiters(0));
    scene.blocking.release(&first).unwrap();
    scene.blocking.release(&second).unwrap();
    // Dropped when it is granted, and before its caller has taken it.
    let granted = |name: &str| {
        eventually("it is granted", || scene.blocking.inspect(name).unwrap().lease.is_some());
    };
    poll_once(client.claim("taken", "a", LONG, LONG), || granted("taken"));
    poll_once(client.hold("kept", HoldOptions::new(LONG)), || granted("kept"));
    for name in ["claimed", "held", "taken", "kept"] {
        eventually("it is released", || scene.is_free(name));
    }
    // A release is sent, and completed without its caller.
    let grant = scene.occupy("released");
    poll_once(client.release(&grant), || ());
    eventually("it is released", || scene.is_free("released"));
    assert_eq!(scene.blocking.inspect("never").unwrap().token, None);
}

#[test]
fn an_item_and_a_slot_that_arrive_for_no_caller_are_given_back() {
    let scene = Scene::new();
    let mail = scene.client.queue("mail");
    let counts =
        || scene.blocking.queue("mail").info().unwrap().map(|info| (info.visible, info.leased));
    Async::wait(mail.send("hello")).unwrap();
    poll_once(mail.receive(LONG, LONG), || {
        eventually("it is delivered", || counts() == Some((0, 1)));
    });
    eventually("it is given back", || counts() == Some((1, 0)));
    let mut plain = scene.server.client();
    plain.register(1);
    let pool = Pool::open(&format!("http://{}/l/{POOL}", scene.server.address)).unwrap();
    let pool = pool.into_async();
    poll_once(pool.hold(HoldOptions::new(LONG), "late"), || {
        eventually("it is borrowed", || plain.in_use() == 1);
    });
    eventually("it is returned", || plain.in_use() == 0);
}

#[test]
fn a_runtime_ends_although_a_claim_waits() {
    let scene = Scene::new();
    let grant = scene.occupy("n");
    let runtime = runtime();
    let client = scene.client.clone();
    runtime.spawn(async move { client.claim("n", "a", LONG, LONG).await });
    runtime.block_on(async {
        while !scene.has_waiters(1) {
            tokio::task::yield_now().await;
        }
    });
    // With the claim on a thread of the runtime, this would last for as long as the claim waits.
    drop(runtime);
    eventually("it does not wait any more", || scene.has_waiters(0));
    scene.blocking.release(&grant).unwrap();
    eventually("it is released", || scene.is_free("n"));
}

#[test]
fn a_hundred_claims_at_once_are_granted_one_after_the_other() {
    let scene = Scene::new();
    let is_inside = Arc::new(AtomicBool::new(false));
    let tokens = runtime().block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..100 {
            let (client, is_inside) = (scene.client.clone(), is_inside.clone());
            tasks.spawn(async move {
                let options = HoldOptions::new(LONG).wait(LONG).owner(&format!("task {task}"));
                let held = client.hold("n", options).await.unwrap();
                assert!(!is_inside.swap(true, SeqCst), "two have it");
                // Others run meanwhile.
                client.progress(held.grant()).await.unwrap();
                held.check().unwrap();
                assert!(is_inside.swap(false, SeqCst));
                let token = held.token();
                held.release().await.unwrap();
                token
            });
        }
        tasks.join_all().await
    });
    let mut sorted = tokens.clone();
    sorted.sort();
    assert_eq!(sorted, (1..=100).collect::<Vec<i64>>());
    assert!(scene.is_free("n"));
}
