//! The Rust client behind a network that loses, cuts, delays and replays answers, and a server that
//! restarts or stands still: no client ever trusts a lease while another one has been granted its
//! name.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use litelease::Litelease;
use litelease_client::{
    Cancel, CancelResult, Client, Error, Held, HoldOptions, ItemName, Loss, SendOptions, Value,
};
use litelease_proof::command::kill;
use litelease_proof::rig::{LONG, TestFolder, eventually, report};
use litelease_proof::server::Server;
use serde_json::Value::Null;

/// What a proxy does with the next answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It is passed on.
    None,
    /// The request is done, and the connection closed without an answer.
    Lose,
    /// Half of the answer is passed on.
    Cut,
    /// It is passed on that much later.
    Delay(Duration),
    /// The request is not passed on, and answered with the last answer to a request of the same
    /// path.
    Replay,
    /// It is passed on without the owner of the name, as a server answers if the name comes free
    /// just as the wait is over.
    Free,
}

/// The answers that came before, each with the path of its request.
type Answers = Vec<(String, String)>;

/// A proxy that passes requests on, and does to each answer what it is told.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    faults: Arc<Mutex<VecDeque<Fault>>>,
    /// What to do when no more faults are planned.
    usual: Arc<Mutex<Fault>>,
    requests: Arc<AtomicU64>,
    /// How many streams of events begin with a state in which nothing is live, as that of a replica
    /// that lags behind.
    lagging: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (faults, usual) = (Arc::default(), Arc::new(Mutex::new(Fault::None)));
        let (requests, kept, lagging) = (Arc::default(), Arc::default(), Arc::default());
        let proxy = Proxy { address, faults, usual, requests, lagging };
        let (faults, usual) = (proxy.faults.clone(), proxy.usual.clone());
        let (requests, lagging) = (proxy.requests.clone(), proxy.lagging.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let lagging = lagging.clone();
                let (faults, usual) = (faults.clone(), usual.clone());
                let (requests, kept): (_, Arc<Mutex<Answers>>) =
                    (requests.clone(), Arc::clone(&kept));
                // Either end may hang up at any time.
                thread::spawn(move || {
                    serve(client, server, &faults, &usual, &requests, &lagging, &kept)
                });
            }
        });
        proxy
    }

    pub(crate) fn plan(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    pub(crate) fn usually(&self, fault: Fault) {
        *self.usual.lock().unwrap() = fault;
    }
}

fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    faults: &Mutex<VecDeque<Fault>>,
    usual: &Mutex<Fault>,
    requests: &AtomicU64,
    lagging: &AtomicU64,
    kept: &Mutex<Answers>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    loop {
        let request = message(&mut client)?;
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        if path.starts_with("/v1/events?") {
            // Events are hints: what becomes of them must not matter, and they are not counted.
            let mut upstream = TcpStream::connect(server)?;
            upstream.write_all(request.as_bytes())?;
            let is_lagging = |left: u64| left.checked_sub(1);
            if lagging.fetch_update(SeqCst, SeqCst, is_lagging).is_ok() {
                lag_behind(&mut upstream, &mut client)?;
            }
            return io::copy(&mut upstream, &mut client).map(drop);
        }
        requests.fetch_add(1, SeqCst);
        let planned = faults.lock().unwrap().pop_front();
        let fault = planned.unwrap_or(*usual.lock().unwrap());
        if let Fault::Replay = fault {
            let old = kept.lock().unwrap().iter().find(|(of, _)| *of == path).cloned();
            let Some((_, answer)) = old else { return Ok(()) };
            client.write_all(answer.as_bytes())?;
            continue;
        }
        let mut upstream = TcpStream::connect(server)?;
        upstream.write_all(request.as_bytes())?;
        let answer = message(&mut upstream)?;
        kept.lock().unwrap().push((path, answer.clone()));
        match fault {
            Fault::None => client.write_all(answer.as_bytes())?,
            Fault::Lose | Fault::Replay => return Ok(()),
            Fault::Free => client.write_all(without_owner(&answer).as_bytes())?,
            Fault::Cut => return client.write_all(&answer.as_bytes()[..answer.len() / 2]),
            Fault::Delay(time) => {
                thread::sleep(time);
                client.write_all(answer.as_bytes())?;
            }
        }
    }
}

/// Passes the head of a stream on, and an event after it that is not the server's.
fn lag_behind(upstream: &mut TcpStream, client: &mut TcpStream) -> io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        upstream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    client.write_all(&head)?;
    let event = "event: state\ndata: {\"leases\":[]}\n\n";
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    match head.contains("transfer-encoding: chunked") {
        true => client.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()),
        false => client.write_all(event.as_bytes()),
    }
}

fn without_owner(answer: &str) -> String {
    let (head, _) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 409 "), "{answer}");
    let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
    let head: Vec<&str> = head.lines().filter(|line| !is_length(line)).collect();
    let body = r#"{"error":"the name did not come free in time"}"#;
    format!("{}\r\ncontent-length: {}\r\n\r\n{body}", head.join("\r\n"), body.len())
}

/// Reads a request or an answer with its body.
fn message(stream: &mut TcpStream) -> io::Result<String> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return Ok(text);
            }
        }
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend(&chunk[..read]),
        }
    }
}

/// A server, and its file as it is seen beside it.
struct Scene {
    place: TestFolder,
    server: Server,
}

impl Scene {
    fn new() -> Self {
        let place = TestFolder::new("WAL");
        let server = Server::start(&place.file, &[]);
        Scene { place, server }
    }

    /// A client behind a proxy of its own.
    fn client(&self) -> (Client, Proxy) {
        let proxy = Proxy::to(self.server.address);
        let key = self.server.access.trim().rsplit(' ').next().unwrap().to_owned();
        (Client::with_key(&format!("http://{}", proxy.address), &key).unwrap(), proxy)
    }

    fn wait_for_waiters(&self, count: usize) {
        eventually(&format!("{count} clients wait"), || {
            let metrics = self.server.client().ask("GET", "/metrics", &Null, "").unwrap();
            metrics.body.contains(&format!("litelease_waiters {count}\n"))
        });
    }

    fn db(&self) -> Litelease {
        self.place.open(Duration::from_secs(5))
    }
}

/// Short enough to see the end of, long enough for a busy machine to renew in time.
const TTL: Duration = Duration::from_secs(2);

fn options() -> HoldOptions {
    HoldOptions::new(TTL)
}

/// Watches a hold until it is lost, and checks that no larger token was granted while it was still
/// trusted.
#[track_caller]
fn lost_in_time(held: &Held, db: &Litelease, name: &str) -> Loss {
    let begin = Instant::now();
    loop {
        // Read first: what was granted before the check must make the check fail.
        let newest = db.token(name).unwrap().unwrap();
        match held.check() {
            Ok(()) => assert!(newest <= held.token(), "it is trusted while {newest} was granted"),
            Err(lost) => return lost.reason,
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it is never lost");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_lost_or_cut_answer_is_asked_for_again_and_nothing_is_granted_twice() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    proxy.plan(&[Fault::Lose, Fault::Cut, Fault::Lose]);
    let held = client.hold("x", HoldOptions::new(Duration::from_secs(30)).owner("a")).unwrap();
    assert_eq!((held.token(), proxy.requests.load(SeqCst)), (1, 4), "one grant, asked for 4 times");
    held.check().unwrap();
    let (other, _proxy) = scene.client();
    match other.hold("x", options()) {
        Err(Error::Busy(current)) => assert_eq!(current.owner, "a"),
        other => panic!("{other:?}"),
    }
    proxy.plan(&[Fault::Lose]);
    // The release was done, and only its answer is lost: the keeper asks again.
    let _ = held.release();
    let next = other.hold("x", options().wait(Duration::from_secs(30))).unwrap();
    assert_eq!(next.token(), 2);
}

/// It was once reported that the server cannot be reached.
#[test]
fn a_name_that_comes_free_just_as_the_wait_is_over_is_asked_for_once_more() {
    let scene = Scene::new();
    let (client, _proxy) = scene.client();
    let _held = client.hold("x", HoldOptions::new(Duration::from_secs(60)).owner("a")).unwrap();
    let (other, proxy) = scene.client();
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        proxy.plan(&[Fault::Free]);
        match other.hold("x", options().wait(wait)) {
            Err(Error::Busy(current)) => assert_eq!(current.owner, "a"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(proxy.requests.load(SeqCst), 4);
}

/// A waiter is granted the name by the release whose answer is lost. So the release that is asked
/// for again finds a successor: that is no rejection.
#[test]
fn a_release_whose_answer_was_lost_is_done_although_the_name_has_a_successor() {
    let scene = Scene::new();
    let (other, _proxy) = scene.client();
    let waits = |token| {
        let grant = other.claim("x", "b", LONG, LONG).unwrap();
        assert_eq!(grant.lease.token, token);
        other.release(&grant).unwrap();
    };
    let (client, proxy) = scene.client();
    let grant = client.claim("x", "a", LONG, Duration::ZERO).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waits(2));
        scene.wait_for_waiters(1);
        proxy.plan(&[Fault::Lose, Fault::Lose, Fault::Lose]);
        assert_eq!(client.end(&grant).unwrap(), ("x".to_owned(), 1));
        waiter.join().unwrap();
    });
}

/// The same for a hold. But a break by an operator is not taken for the release that was lost.
#[test]
fn a_hold_tells_a_release_whose_answer_was_lost_from_a_break() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    let (other, _proxy) = scene.client();
    let hold = |name: &str| client.hold(name, HoldOptions::new(LONG).owner("a")).unwrap();

    let held = hold("released");
    thread::scope(|scope| {
        let successor = scope.spawn(|| other.claim("released", "b", LONG, LONG).unwrap());
        scene.wait_for_waiters(1);
        proxy.plan(&[Fault::Lose]);
        held.release_within(LONG).unwrap();
        assert_eq!(successor.join().unwrap().lease.token, 2);
    });

    let (held, db) = (hold("broken"), scene.db());
    let _ = db.break_lease("broken").unwrap();
    assert_eq!(db.claim("broken", "b", LONG).unwrap().acquired().unwrap().token, 3);
    proxy.plan(&[Fault::Lose]);
    match held.release_within(LONG) {
        Err(Error::Lost(lost)) => assert!(matches!(lost.reason, Loss::Superseded { by: 3, .. })),
        other => panic!("{other:?}"),
    }
}

/// A holder that had two successors was told that an operator had broken its lease: the answer
/// did not say how far the token had grown. On a file it was told the newest token.
#[test]
fn a_holder_learns_the_newest_token_of_a_name_that_had_two_successors_and_is_free() {
    let scene = Scene::new();
    let (client, _proxy) = scene.client();
    let held = client.hold("n", HoldOptions::new(3 * TTL)).unwrap();
    let db = scene.db();
    let _ = db.break_lease("n").unwrap();
    let next = db.claim("n", "b", LONG).unwrap().acquired().unwrap();
    db.release(&next).unwrap();
    eventually("the hold is lost", || held.check().is_err());
    let loss = held.check().unwrap_err().reason;
    assert_eq!(loss, Loss::Superseded { by: next.token, owner: None });
}

/// It was reported at the next renewal: after a third of the ttl.
#[test]
fn a_hold_hears_of_a_break_or_a_transfer_before_its_next_renewal() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    let (other, _proxy) = scene.client();
    let ttl = Duration::from_secs(30);
    let hold = |name| client.hold(name, HoldOptions::new(ttl).owner("a")).unwrap();
    let (broken, handed) = (hold("broken"), hold("handed"));
    // The streams are open by then, or open later and begin with what is so.
    thread::sleep(Duration::from_secs(1));
    let _ = other.break_lease("broken").unwrap();
    other.transfer(handed.grant(), "b", ttl).unwrap();
    // A renewal would be due after 9 seconds at the earliest.
    let soon = Duration::from_secs(7);
    assert_eq!(broken.lost().wait_timeout(soon), Some(Loss::Broken));
    let owner = Some("b".into());
    assert_eq!(handed.lost().wait_timeout(soon), Some(Loss::Superseded { by: 2, owner }));
    assert_eq!(proxy.requests.load(SeqCst), 4, "two claims, and two renewals that say why");
}

/// A stream that a replica behind the others began with an old state ended the watch: a break after
/// that was noticed by the next renewal only.
#[test]
fn a_hold_hears_of_a_break_although_it_was_once_notified_for_nothing() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    proxy.lagging.store(1, SeqCst);
    let held = client.hold("x", HoldOptions::new(LONG)).unwrap();
    eventually("it was renewed for nothing", || proxy.requests.load(SeqCst) == 2);
    held.check().unwrap();
    let _ = scene.client().0.break_lease("x").unwrap();
    // A renewal would be due after 18 minutes.
    assert_eq!(held.lost().wait_timeout(LONG / 100), Some(Loss::Broken));
}

#[test]
fn renewals_survive_faults_that_are_shorter_than_the_trust_window() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    let held = client.hold("x", HoldOptions::new(3 * TTL)).unwrap();
    let late = Fault::Delay(Duration::from_millis(100));
    for _ in 0..3 {
        proxy.plan(&[Fault::Lose, Fault::Cut, Fault::Replay, late, Fault::None]);
    }
    eventually("a renewal through every fault, and the next one", || {
        held.check().unwrap();
        proxy.requests.load(SeqCst) > 1 + 5
    });
    held.check().unwrap();
    assert_eq!(scene.db().inspect("x").unwrap().unwrap().token, held.token());
}

#[test]
fn an_answer_that_comes_after_the_ttl_is_not_trusted() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    proxy.plan(&[Fault::Delay(TTL + Duration::from_millis(300))]);
    let db = scene.db();
    let claimed = thread::spawn(move || client.hold("x", options()).map(|held| held.token()));
    eventually("the server has granted it", || db.owner("x").unwrap());
    eventually("it is over", || db.owner("x").unwrap().is_none().then_some(()));
    let (other, _proxy) = scene.client();
    let second = other.hold("x", options()).unwrap();
    assert_eq!(second.token(), 2);
    match claimed.join().unwrap() {
        Err(Error::Lost(lost)) => {
            assert!(matches!(lost.reason, Loss::Expired | Loss::Superseded { by: 2, .. }));
        }
        other => panic!("{other:?}"),
    }
    second.check().unwrap();
}

// A client that counted its trust in a grant that was waited for from the answer to its first
// renewal, and not from the request, passed all other tests.
#[test]
fn a_grant_is_trusted_from_the_start_of_its_request_however_late_the_answer_comes() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    let (late, seconds) = (Duration::from_secs(1), Duration::from_secs);
    // What is read here is no later than it was: trust that is read late is only shorter.
    let (whole, slack) = (seconds(27), Duration::from_millis(50));
    proxy.plan(&[Fault::Delay(late)]);
    let held = client.hold("x", HoldOptions::new(seconds(30))).unwrap();
    assert!(held.trusted_for() <= whole - late + slack, "{:?}", held.trusted_for());
    proxy.plan(&[Fault::Delay(late)]);
    let slot = client.hold_slot("pool", 1, HoldOptions::new(seconds(30)), "").unwrap();
    let trusted_for = slot.held.trusted_for();
    assert!(trusted_for <= whole - late + slack, "{trusted_for:?}");

    // What comes so late that it may have been waited for is renewed before it is trusted, from the
    // start of that renewal.
    let (before, late) = (proxy.requests.load(SeqCst), Duration::from_millis(300));
    // Not as late as the next renewal is due, which would be sent meanwhile.
    proxy.plan(&[Fault::Delay(Duration::from_millis(1_100)), Fault::Delay(late)]);
    let held = client.hold("y", HoldOptions::new(seconds(3))).unwrap();
    let (trusted_for, requests) = (held.trusted_for(), proxy.requests.load(SeqCst) - before);
    assert_eq!(requests, 2, "a claim and a renewal");
    assert!(trusted_for <= Duration::from_millis(2_700) - late + slack, "{trusted_for:?}");
}

/// The client left, and its request stayed in the queue until the connection was closed: a grant
/// that came meanwhile lived for its whole ttl.
#[test]
fn a_wait_that_is_cancelled_leaves_the_queue_of_the_server() {
    let scene = Scene::new();
    let (client, _proxy) = scene.client();
    let client = Arc::new(client);
    let held = client.hold("x", options()).unwrap();
    let token = held.token();
    let slot = client.hold_slot("pool", 1, options(), "").unwrap();
    let cancel = Cancel::default();
    let wait = || options().wait(Duration::MAX).cancel(cancel.clone());
    let (name, pool) = (client.clone(), client.clone());
    let (of_name, of_slot) = (wait(), wait());
    let name = thread::spawn(move || name.hold("x", of_name).map(drop));
    let pool = thread::spawn(move || pool.hold_slot("pool", 1, of_slot, "").map(drop));
    scene.wait_for_waiters(2);
    cancel.cancel();
    assert!(matches!(name.join().unwrap(), Err(Error::Busy(_))));
    assert!(matches!(pool.join().unwrap(), Err(Error::NoneFree)));
    scene.wait_for_waiters(0);
    held.release().unwrap();
    slot.held.release().unwrap();
    assert_eq!(scene.db().token("x").unwrap(), Some(token));
}

/// The name comes free and the wait is cancelled at the same moment, in both orders and with every
/// delay between them.
#[test]
fn a_grant_that_comes_when_its_wait_is_cancelled_is_the_callers() {
    let scene = Scene::new();
    let (client, _proxy) = scene.client();
    let client = Arc::new(client);
    let mut granted = 0;
    for delay in 0..30 {
        let held = client.hold("x", options()).unwrap();
        let cancel = Cancel::default();
        let (waits, wait) = (client.clone(), options().wait(Duration::MAX).cancel(cancel.clone()));
        let waits = thread::spawn(move || waits.hold("x", wait));
        scene.wait_for_waiters(1);
        let pause = move |is_second| {
            if is_second {
                thread::sleep(Duration::from_micros(delay * 50));
            }
        };
        let is_first = delay % 2 == 0;
        let releases = thread::spawn(move || {
            pause(!is_first);
            held.release()
        });
        pause(is_first);
        cancel.cancel();
        let acquired = waits.join().unwrap();
        releases.join().unwrap().unwrap();
        granted += usize::from(acquired.is_ok());
        let owner = acquired.as_ref().ok().map(|held| held.owner().to_owned());
        assert_eq!(scene.db().owner("x").unwrap(), owner, "after {delay}");
        drop(acquired);
        eventually("it is released", || scene.db().owner("x").unwrap().is_none());
    }
    report(&format!("{granted} of 30 waits that were cancelled had a grant"));
}

/// The lease was ended and the answer lost. Asked again, the client said that the slot was not
/// held.
#[test]
fn a_break_of_a_slot_whose_answer_was_lost_is_done() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    let slot = client.hold_slot("pool", 1, HoldOptions::new(LONG), "").unwrap();
    let (operator, lossy) = scene.client();
    lossy.plan(&[Fault::Lose]);
    assert!(operator.break_slot("pool", 0, slot.held.token()).unwrap());
    assert_eq!(lossy.requests.load(SeqCst), 2);
    assert!(!operator.break_slot("pool", 0, slot.held.token()).unwrap(), "it is over");
    assert_eq!(scene.client().0.slots("pool").unwrap(), []);
    drop((slot, proxy));
}

#[test]
fn a_client_sees_who_holds_the_slots_of_a_name() {
    let scene = Scene::new();
    let (client, _proxy) = scene.client();
    assert_eq!((client.pools("").unwrap(), client.slots("pool").unwrap()), (vec![], vec![]));
    let options = || HoldOptions::new(Duration::from_secs(30));
    let _first = client.hold_slot("pool", 3, options(), "nightly import").unwrap();
    let second = client.hold_slot("pool", 3, options(), "").unwrap();
    let pools = client.pools("po").unwrap();
    assert_eq!((pools[0].name.as_str(), pools[0].in_use, pools[0].count), ("pool", 2, 3));
    assert_eq!(client.pools("x").unwrap(), []);
    let slots = client.slots("pool").unwrap();
    assert_eq!((slots[0].position, slots[0].note.as_deref()), (0, Some("nightly import")));
    assert_eq!((slots[1].position, slots[1].token), (1, second.held.token()));
    assert!(slots[1].expires_in.is_some());
}

#[test]
fn a_replayed_answer_prolongs_nothing() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    let held = client.hold("x", options()).unwrap();
    eventually("it was renewed", || (proxy.requests.load(SeqCst) > 1).then_some(()));
    // From now on each renewal is answered with what an earlier one was answered.
    proxy.usually(Fault::Replay);
    let (other, _proxy) = scene.client();
    let waits = thread::spawn(move || other.hold("x", options().wait(Duration::from_secs(60))));
    assert!(matches!(lost_in_time(&held, &scene.db(), "x"), Loss::CannotRenew { .. }));
    assert_eq!(waits.join().unwrap().unwrap().token(), 2);
}

#[test]
fn an_outage_longer_than_the_trust_window_is_a_loss_that_is_told_in_time() {
    let scene = Scene::new();
    let (client, proxy) = scene.client();
    let held = client.hold("x", options()).unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let tells = told.clone();
    held.on_lost(move |_| tells.store(true, SeqCst));
    let (other, _proxy) = scene.client();
    proxy.usually(Fault::Delay(Duration::from_secs(120)));
    let waits = thread::spawn(move || other.hold("x", options().wait(Duration::from_secs(60))));
    let db = scene.db();
    eventually("another one is granted it", || db.token("x").unwrap() != Some(1));
    assert!(held.check().is_err(), "another one was granted it");
    eventually("the callback is called", || told.load(SeqCst).then_some(()));
    drop(waits.join().unwrap().unwrap());
}

#[test]
fn a_server_that_restarts_takes_no_lease_away() {
    let scene = Scene::new();
    let ((client, _held), db) = (scene.client(), scene.db());
    let held = client.hold("x", HoldOptions::new(Duration::from_secs(9))).unwrap();
    let (waiting, _proxy) = scene.client();
    let waits = thread::spawn(move || waiting.hold("x", options().wait(Duration::from_secs(60))));
    let Scene { place, mut server } = scene;
    let address = server.address.to_string();
    for is_killed in [true, false] {
        match is_killed {
            true => server.kill(),
            false => assert!(server.stop()),
        }
        thread::sleep(Duration::from_millis(500));
        server = Server::at(&address, &place.file, &[]);
        let expiry = || db.inspect("x").unwrap().unwrap().expires_at_ms;
        let before = expiry();
        eventually("it is renewed", || {
            held.check().unwrap();
            expiry() > before
        });
    }
    held.release().unwrap();
    assert_eq!(waits.join().unwrap().unwrap().token(), 2, "the waiter has asked again");
    assert!(server.stop());
}

#[test]
fn a_server_that_stands_still_for_longer_than_the_ttl_loses_the_lease_in_time() {
    let scene = Scene::new();
    let (client, _proxy) = scene.client();
    let held = client.hold("x", options()).unwrap();
    let (other, _other) = scene.client();
    let waits = thread::spawn(move || other.hold("x", options().wait(Duration::from_secs(60))));
    thread::sleep(Duration::from_millis(200));
    let pid = scene.server.pid() as i32;
    kill(pid, libc::SIGSTOP);
    let lost = lost_in_time(&held, &scene.db(), "x");
    assert!(matches!(lost, Loss::CannotRenew { .. } | Loss::Expired), "{lost:?}");
    thread::sleep(TTL);
    kill(pid, libc::SIGCONT);
    let next = waits.join().unwrap().unwrap();
    assert_eq!(next.token(), 2);
    next.check().unwrap();
    assert!(held.check().is_err());
}

#[test]
fn under_random_faults_no_client_trusts_what_another_one_was_granted() {
    let scene = Scene::new();
    let (ends, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..3_u64)
        .map(|number| {
            let ((client, proxy), db) = (scene.client(), scene.db());
            let (ends, rounds) = (ends.clone(), rounds.clone());
            thread::spawn(move || {
                let mut dice = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                let mut throw = |sides: u64| {
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    dice % sides
                };
                while !ends.load(SeqCst) {
                    let faults: Vec<Fault> = (0..throw(4))
                        .map(|_| match throw(6) {
                            0 => Fault::Lose,
                            1 => Fault::Cut,
                            2 => Fault::Replay,
                            3 => Fault::Delay(Duration::from_millis(throw(900))),
                            _ => Fault::None,
                        })
                        .collect();
                    proxy.plan(&faults);
                    let ttl = Duration::from_millis(300 + throw(400));
                    let wait = Duration::from_millis(throw(500));
                    let Ok(held) = client.hold("x", HoldOptions::new(ttl).wait(wait)) else {
                        continue;
                    };
                    let until = Instant::now() + Duration::from_millis(throw(900));
                    while Instant::now() < until {
                        let newest = db.token("x").unwrap().unwrap();
                        match held.check() {
                            Ok(()) => assert!(newest <= held.token(), "trusted under {newest}"),
                            Err(_) => break,
                        }
                        thread::sleep(Duration::from_millis(1));
                    }
                    rounds.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    let start = Instant::now();
    let is_enough = || rounds.load(SeqCst) >= 5 || start.elapsed() > Duration::from_secs(60);
    while start.elapsed() < Duration::from_secs(4) || !is_enough() {
        thread::sleep(Duration::from_millis(50));
    }
    ends.store(true, SeqCst);
    for client in clients {
        client.join().unwrap();
    }
    let rounds = rounds.load(SeqCst);
    assert!(rounds >= 5, "only {rounds} holds");
}

#[test]
fn items_are_sent_received_and_acknowledged_once_whatever_becomes_of_the_answers() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &["--open"]);
    let proxy = Proxy::to(server.address);
    let client = Client::open(&format!("http://{}", proxy.address)).unwrap();
    let queue = client.queue("mail");
    let (visibility, now) = (Duration::from_secs(60), Duration::ZERO);
    for fault in [Fault::None, Fault::Lose, Fault::Cut, Fault::Replay] {
        proxy.plan(&[fault]);
        let id = queue.send("hello").unwrap();
        proxy.plan(&[fault]);
        let item = queue.receive(visibility, now).unwrap().unwrap();
        assert_eq!(
            (item.id, item.attempt, item.body.as_str()),
            (id, 1, Some("hello")),
            "{fault:?}"
        );
        assert!(item.is_trusted());
        proxy.plan(&[fault]);
        queue.ack(&item.receipt).unwrap();
        assert_eq!(queue.info().unwrap().unwrap().visible, 0, "{fault:?}: nothing was sent twice");
        let gone = queue.ack(&item.receipt).unwrap_err();
        assert!(matches!(gone, Error::Stale { reason } if reason == "gone"));
    }
    for fault in [Fault::None, Fault::Lose, Fault::Cut] {
        queue.send(vec![0, 255]).unwrap();
        let item = queue.receive(visibility, now).unwrap().unwrap();
        assert_eq!(item.body, Value::Blob(vec![0, 255]));
        assert!(queue.extend(&item.receipt, visibility * 2).unwrap() > visibility);
        proxy.plan(&[fault]);
        queue.give_back(&item.receipt, now, Some("busy")).unwrap();
        let item = queue.receive(visibility, now).unwrap().unwrap();
        assert_eq!(item.attempt, 2);
        proxy.plan(&[fault]);
        queue.bury(&item.receipt, None).unwrap();
        assert!(queue.receive(visibility, now).unwrap().is_none());
    }
    let later = SendOptions::new().delay(visibility).key("order-17");
    let id = queue.send_with(7, later).unwrap();
    assert_eq!(queue.send_with(8, later).unwrap(), id);
    let queues = client.queues("").unwrap();
    assert_eq!((queues[0].delayed, queues[0].dead), (1, 3));
    assert!(client.queue("nothing").info().unwrap().is_none());
}

#[test]
fn an_operator_looks_after_items_whatever_becomes_of_the_answers() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &["--open"]);
    let proxy = Proxy::to(server.address);
    let client = Client::open(&format!("http://{}", proxy.address)).unwrap();
    let queue = client.queue("mail");
    let (visibility, now) = (Duration::from_secs(60), Duration::ZERO);
    for fault in [Fault::None, Fault::Lose, Fault::Cut] {
        let ids = [queue.send("a").unwrap(), queue.send("b").unwrap(), queue.send("c").unwrap()];
        for _ in ids {
            let item = queue.receive(visibility, now).unwrap().unwrap();
            // A receipt is enough.
            client.queue("").bury(&item.receipt, Some("no")).unwrap();
        }
        let listed = |state: &str| {
            let items = queue.items().unwrap();
            items.into_iter().filter(|item| item.state == state).map(|item| item.id).collect()
        };
        let dead: Vec<i64> = listed("dead");
        assert_eq!(dead, ids);
        proxy.plan(&[fault]);
        assert!(queue.redrive_one(ids[0]).unwrap(), "{fault:?}");
        assert!(!queue.redrive_one(ids[0]).unwrap());
        proxy.plan(&[fault]);
        assert!(queue.discard_one(ids[1]).unwrap(), "{fault:?}");
        proxy.plan(&[fault]);
        assert_eq!(queue.redrive().unwrap(), 1, "{fault:?}");
        assert_eq!(queue.discard().unwrap(), 0);
        let item = queue.receive(visibility, now).unwrap().unwrap();
        let busy = queue.cancel(ItemName::Id(item.id)).unwrap();
        assert!(matches!(busy, CancelResult::Leased { expires_in } if expires_in <= visibility));
        queue.give_back(&item.receipt, now, None).unwrap();
        proxy.plan(&[fault]);
        assert_eq!(queue.cancel(ItemName::Id(item.id)).unwrap(), CancelResult::Cancelled);
        assert_eq!(queue.cancel(ItemName::Key("k")).unwrap(), CancelResult::NotFound);
        proxy.plan(&[fault]);
        assert!(queue.delete().unwrap(), "{fault:?}");
        assert!(!queue.delete().unwrap());
    }
}

#[test]
fn a_delivery_is_extended_while_it_is_kept_and_trusted_no_longer_than_the_server_granted() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &["--open", "--max-ttl", "2"]);
    let client = Client::open(&format!("http://{}", server.address)).unwrap();
    let queue = client.queue("mail");
    queue.send("hello").unwrap();
    // The server cuts the time to two seconds.
    let long = Duration::from_secs(60);
    let item = queue.receive(long, Duration::ZERO).unwrap().unwrap();
    assert!(item.expires_in <= Duration::from_secs(2), "{:?}", item.expires_in);
    eventually("it is not trusted for a minute", || !item.is_trusted());
    let item = eventually("the next delivery", || queue.receive(long, Duration::ZERO).unwrap());
    queue.give_back(&item.receipt, Duration::ZERO, None).unwrap();
    let visibility = Duration::from_millis(1500);
    let item = queue.receive(visibility, Duration::ZERO).unwrap().unwrap();
    let held = queue.keep(item, visibility).unwrap();
    let deadline = || place.open(Duration::from_secs(5)).queue("mail").items().unwrap()[0].clone();
    let first = deadline().visible_at_ms;
    eventually("it was extended twice", || {
        (deadline().visible_at_ms > first.map(|at_ms| at_ms + 600)).then_some(())
    });
    held.check().unwrap();
    assert!(held.lost().trusted_for() <= visibility);
    // Another worker's now: that is told, and the acknowledgement refused.
    queue.give_back(&held.receipt, Duration::ZERO, None).unwrap();
    let other = queue.receive(long, Duration::ZERO).unwrap().unwrap();
    eventually("it is lost", || held.check().err());
    let reason = held.lost().reason();
    assert!(matches!(reason, Some(Loss::Stale { .. })), "{reason:?}");
    let stale = queue.ack(&held.receipt).unwrap_err();
    assert!(matches!(stale, Error::Stale { reason } if reason == "delivered_again"));
    queue.ack(&other.receipt).unwrap();
}

#[test]
fn a_client_attaches_checkpoints_limits_and_hands_over() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &["--open"]);
    let client = Client::open(&format!("http://{}", server.address)).unwrap();
    let ttl = Duration::from_secs(60);
    let held = client.hold("n", HoldOptions::new(ttl).owner("a")).unwrap();
    assert_eq!(client.value("n").unwrap(), None);
    client.attach(held.grant(), "10.0.0.7:5000").unwrap();
    assert_eq!(client.value("n").unwrap(), Some("10.0.0.7:5000".into()));
    assert_eq!(client.last_checkpoint("n").unwrap(), None);
    client.checkpoint(held.grant(), 4711).unwrap();
    client.limit(held.grant(), Some(ttl), None).unwrap();
    client.progress(held.grant()).unwrap();
    assert!(client.requested("n").unwrap().is_none());
    assert!(client.request("n", "b", ttl).unwrap() <= ttl);
    let second = client.request("n", "c", ttl).unwrap_err();
    assert!(matches!(second, Error::RequestedBy { requester } if requester == "b"));
    assert_eq!(client.requested("n").unwrap().unwrap().requester, "b");
    let url = format!("http://{}", server.address);
    let heir = thread::spawn(move || {
        Client::open(&url).unwrap().claim("n", "b", ttl, Duration::from_secs(30)).unwrap()
    });
    assert_eq!(client.hand_over(held.grant(), ttl).unwrap().owner, "b");
    assert_eq!(heir.join().unwrap().lease.token, 2);
    let late = client.checkpoint(held.grant(), 1).unwrap_err();
    assert!(matches!(late, Error::Rejected { reason, .. } if reason == "superseded"));
    assert_eq!(client.last_checkpoint("n").unwrap().unwrap().value, Value::Integer(4711));
}
