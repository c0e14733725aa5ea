//! Async callers that wait or go away: they cost no threads, and leave nothing behind.
//!
//! A test program of its own: it counts the threads of this process.

use std::fs;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use litelease_client::{Client, Error, HoldOptions, Pool};
use litelease_proof::rig::{LONG, TestFolder, eventually};
use litelease_proof::server::{POOL, Server};
use serde_json::Value as Json;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

const WAITERS: usize = 300;

fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

fn waiters(server: &Server) -> Option<usize> {
    let text = server.client().ask("GET", "/metrics", &Json::Null, "").unwrap().body;
    let count = text.lines().find_map(|line| line.strip_prefix("litelease_waiters "))?;
    count.parse().ok()
}

/// Counts how often a future is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Polls a future once, lets the client go on for so many steps of the scheduler, and drops it.
/// Returns its output if it was ready at once: then it is this caller's.
fn drop_after<T>(steps: usize, future: impl Future<Output = Result<T, Error>>) -> Option<T> {
    let (mut future, wakes) = (pin!(future), Arc::new(Wakes::default()));
    let waker = Waker::from(Arc::clone(&wakes));
    if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
        return Some(done.unwrap());
    }
    for _ in 0..steps {
        if wakes.0.load(SeqCst) > 0 {
            break;
        }
        std::thread::yield_now();
    }
    None
}

/// One test, because its parts count the threads of the same process.
#[test]
fn callers_that_wait_cost_no_threads_and_those_that_go_away_leave_nothing() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let key = server.access.trim().rsplit(' ').next().unwrap().to_owned();
    let url = format!("http://{}", server.address);
    let blocking = Client::with_key(&url, &key).unwrap();
    wait_in_order(&server, &blocking);
    leave_nothing(&server, &blocking, Client::with_key(&url, &key).unwrap());
}

fn wait_in_order(server: &Server, blocking: &Client) {
    let client = blocking.clone().into_async();
    let first = blocking.claim("n", "first", LONG, Duration::ZERO).unwrap();
    let before = threads().len();
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut claims = JoinSet::new();
        for number in 0..WAITERS {
            let client = client.clone();
            claims.spawn(async move {
                let grant = client.claim("n", &number.to_string(), LONG, LONG).await.unwrap();
                client.release(&grant).await.unwrap();
                (number, grant.lease.token)
            });
            // Each is in the queue before the next one comes.
            while waiters(server) != Some(number + 1) {
                tokio::task::yield_now().await;
            }
        }
        let during = threads();
        assert!(during.len() <= before + 2, "{before} threads before, and then {during:?}");
        client.release(&first).await.unwrap();
        let mut served = claims.join_all().await;
        served.sort();
        // Each grant has the next token.
        let expected = (0..WAITERS).map(|number| (number, 2 + number as i64));
        assert_eq!(served, expected.collect::<Vec<_>>());
    });
    assert!(threads().len() <= before + 2, "{:?}", threads());
}

fn leave_nothing(server: &Server, blocking: &Client, client: Client) {
    server.client().register(1);
    let client = client.into_async();
    let pool = Pool::open(&format!("http://{}/l/{POOL}", server.address)).unwrap().into_async();
    let mail = client.queue("mail");
    blocking.queue("mail").send("hello").unwrap();
    for round in 0..100 {
        // Most moments that matter are in the first few hundred steps.
        let steps = round * round / 2;
        for name in ["shared", &format!("claim {round}")] {
            let granted = drop_after(steps, client.claim(name, "a", LONG, LONG));
            granted.iter().for_each(|grant| blocking.release(grant).unwrap());
        }
        let options = HoldOptions::new(LONG).wait(LONG);
        drop_after(steps, client.hold(&format!("hold {round}"), options.clone()));
        drop_after(steps, pool.hold(options.clone(), "late"));
        drop_after(steps, client.hold_slot("slots", 2, options, "late"));
        if let Some(Some(item)) = drop_after(steps, mail.receive(LONG, LONG)) {
            blocking.queue("mail").give_back(&item.receipt, Duration::ZERO, None).unwrap();
        }
    }
    // The threads of a client end with its last task.
    drop((client, pool, mail));
    let ours = |name: &&String| name.starts_with("litelease");
    eventually("all tasks end, and the blocking client has its thread", || {
        let names = threads();
        names.iter().filter(ours).count() <= 1
    });
    assert_eq!(blocking.leases("").unwrap(), []);
    assert_eq!(blocking.slots("slots").unwrap(), []);
    assert_eq!(server.client().in_use(), 0);
    let info = blocking.queue("mail").info().unwrap().unwrap();
    assert_eq!((info.leased, info.visible + info.dead), (0, 1));
    assert_eq!(waiters(server), Some(0));
}
