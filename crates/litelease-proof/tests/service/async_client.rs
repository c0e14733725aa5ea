//! The futures of the Rust client: holds across awaits, and futures that are dropped at any time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::Duration;

use litelease_client::{AsyncClient, AsyncPool, Client, Error, Grant, HoldOptions, Loss};
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
        let client = AsyncClient::with_key(&url, &key).unwrap();
        Scene { _place: place, server, blocking, client }
    }

    /// Takes a name away from everybody.
    fn occupy(&self, name: &str) -> Grant {
        self.blocking.claim(name, "occupant", LONG, Duration::ZERO).unwrap()
    }

    fn is_free(&self, name: &str, token: i64) -> bool {
        let name = self.blocking.inspect(name).unwrap();
        name.lease.is_none() && name.token == Some(token)
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
        assert!(scene.is_free("n", 1));

        let held = client.hold("n", HoldOptions::new(ttl)).await.unwrap();
        let mut watch = client.watch_name("n").unwrap();
        assert_eq!(watch.next().await.unwrap().unwrap().live[0].token, 2);
        let (lost, broken) = tokio::join!(held.lost(), client.break_lease("n"));
        assert_eq!((lost.reason, broken.unwrap().1), (Loss::Broken, 2));
        assert!(held.check().is_err());
        assert_eq!(watch.next().await.unwrap().unwrap().ended, ["n"]);
        // Dropped, and not waited for.
        let held = client.hold("n", HoldOptions::new(LONG)).await.unwrap();
        let token = held.token();
        drop(held);
        eventually("a dropped hold is released", || scene.is_free("n", token));
    });
}

#[test]
fn what_arrives_after_its_future_was_dropped_is_given_back() {
    let scene = Scene::new();
    let client = &scene.client;
    // Nobody has polled it, so nothing is sent.
    drop(client.claim("never", "a", LONG, LONG));
    // Dropped while it waits.
    let first = scene.occupy("claimed");
    poll_once(client.claim("claimed", "a", LONG, LONG), || {
        eventually("the claim waits", || scene.has_waiters(1));
    });
    let second = scene.occupy("held");
    poll_once(client.hold("held", HoldOptions::new(LONG).wait(LONG)), || {
        eventually("the hold waits", || scene.has_waiters(2));
    });
    scene.blocking.release(&first).unwrap();
    scene.blocking.release(&second).unwrap();
    for name in ["claimed", "held"] {
        eventually("it is granted and released", || scene.is_free(name, 2));
    }
    // Dropped when it is granted, and nobody has taken it.
    let granted = |name: &str| {
        eventually("it is granted", || scene.blocking.inspect(name).unwrap().lease.is_some());
    };
    poll_once(client.claim("claimed", "a", LONG, LONG), || granted("claimed"));
    poll_once(client.hold("held", HoldOptions::new(LONG)), || granted("held"));
    for name in ["claimed", "held"] {
        eventually("it is released", || scene.is_free(name, 3));
    }
    // A release is sent, whoever waits for it.
    let grant = scene.occupy("claimed");
    poll_once(client.release(&grant), || ());
    eventually("it is released", || scene.is_free("claimed", 4));
    assert_eq!(scene.blocking.inspect("never").unwrap().token, None);
}

#[test]
fn an_item_and_a_slot_that_arrive_for_nobody_are_given_back() {
    let scene = Scene::new();
    let mail = scene.client.queue("mail");
    let visible = || scene.blocking.queue("mail").info().unwrap().map_or(0, |info| info.visible);
    poll_once(mail.receive(LONG, LONG), || {
        eventually("the receive waits", || scene.has_waiters(1));
    });
    runtime().block_on(mail.send("hello")).unwrap();
    let received = || {
        eventually("it is there", || visible() == 1);
        runtime().block_on(mail.receive(LONG, Duration::ZERO)).unwrap().unwrap()
    };
    let item = eventually("it was delivered before", || {
        let item = received();
        if item.attempt == 2 {
            return Some(item);
        }
        // The waiting receive has not had it yet.
        scene.blocking.queue("mail").give_back(&item.receipt, Duration::ZERO, None).unwrap();
        None
    });
    runtime().block_on(mail.ack(&item.receipt)).unwrap();
    runtime().block_on(async {
        let id = mail.send("last").await.unwrap();
        assert_eq!(mail.items().await.unwrap()[0].id, id);
        assert_eq!((mail.redrive().await.unwrap(), mail.discard().await.unwrap()), (0, 0));
        assert!(!mail.redrive_one(id).await.unwrap() && !mail.discard_one(id).await.unwrap());
        let cancelled = mail.cancel(litelease_client::ItemName::Id(id)).await.unwrap();
        assert_eq!(cancelled, litelease_client::CancelResult::Cancelled);
        let key = litelease_client::ItemName::Key("k");
        assert_eq!(mail.cancel(key).await.unwrap(), litelease_client::CancelResult::NotFound);
        assert!(mail.delete().await.unwrap() && !mail.delete().await.unwrap());
    });

    let mut plain = scene.server.client();
    plain.register(1);
    let pool = AsyncPool::open(&format!("http://{}/l/{POOL}", scene.server.address)).unwrap();
    poll_once(pool.hold(HoldOptions::new(LONG), "late"), || {
        eventually("it is borrowed", || plain.in_use() == 1);
    });
    eventually("it is returned", || plain.in_use() == 0);
    let slot = runtime().block_on(pool.hold(HoldOptions::new(LONG), "kept")).unwrap();
    assert_eq!((slot.position, plain.in_use()), (0, 1));
    runtime().block_on(slot.held.release()).unwrap();
    assert_eq!(plain.in_use(), 0);
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
    scene.blocking.release(&grant).unwrap();
    eventually("it is granted and released", || scene.is_free("n", 2));
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
    assert!(scene.is_free("n", 100));
}
