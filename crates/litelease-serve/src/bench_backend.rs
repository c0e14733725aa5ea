//! Serves the same HTTP in front of another store than the SQLite file, for benchmarks to compare
//! with. Behind the feature `bench-backend`.

use std::future::Future;
use std::io;

use litelease::{Borrowed, PoolInfo, SlotInfo};
use tokio::net::TcpListener;

use crate::Options;
use crate::job::{Answer, Answered, Answers, Job, JobError, Receiver};
use crate::server::{Front, run_before};

/// A store of slots.
pub trait Keeper: Send + 'static {
    /// Does the requests of one batch, and returns a reply to each, in order, once all are
    /// durable.
    fn commit(&mut self, requests: &[Request]) -> io::Result<Vec<Reply>>;
}

/// One request to the store.
pub enum Request {
    /// Create the pool, with so many slots.
    Register(i64),
    /// Lend the lowest free slot for so many milliseconds.
    Borrow(i64),
    /// Take back the slot with this lease.
    Return(String),
}

/// The reply to a request.
pub enum Reply {
    /// The pool exists.
    Registered,
    /// This slot was lent out.
    Lent(Borrowed),
    /// No slot is free.
    Nothing,
    /// The slot was returned: true if the lease was still live.
    Returned(bool),
}

impl Reply {
    /// Makes the reply of a slot that was lent out.
    pub fn lent(lease: String, position: i64, token: i64, expires_at_ms: i64) -> Self {
        Reply::Lent(Borrowed { lease_id: lease, slot: SlotInfo { position, token, expires_at_ms } })
    }
}

/// Serves until `shutdown` completes. There is one pool, and a borrow never waits.
pub async fn run(
    listener: TcpListener,
    options: Options,
    mut keeper: impl Keeper,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    run_before(listener, Front::of(options), shutdown, move |todo, answers, _, _| {
        work(&mut keeper, &todo, &answers);
    })
    .await
}

fn work(keeper: &mut impl Keeper, todo: &Receiver<Job>, answers: &Answers) {
    while let Ok(first) = todo.recv() {
        let (mut requests, mut askers) = (Vec::new(), Vec::new());
        for job in std::iter::once(first).chain(todo.try_iter()) {
            let (request, id, reply, ttl_ms) = match job {
                Job::Register { id, count, reply, .. } => (Request::Register(count), id, reply, 0),
                Job::Grant(borrow) => {
                    (Request::Borrow(borrow.ttl_ms), borrow.id, borrow.reply, borrow.ttl_ms)
                }
                Job::Return { id, lease, reply } => (Request::Return(lease), id, reply, 0),
                // Dropping the reply of any other job answers it with 503.
                _ => continue,
            };
            requests.push(request);
            askers.push((id, reply, ttl_ms));
        }
        let replies = keeper.commit(&requests);
        let mut replies = replies.map(Vec::into_iter).ok();
        let answered = askers.into_iter().map(|(id, reply, ttl_ms)| {
            let backend_reply = replies.as_mut().and_then(Iterator::next);
            Answered {
                id,
                reply,
                answer: backend_reply
                    .map_or(Err(JobError::Database), |reply| as_answer(reply, ttl_ms)),
            }
        });
        if answers.send(answered.collect()).is_err() {
            return;
        }
    }
}

fn as_answer(reply: Reply, ttl_ms: i64) -> Result<Answer, JobError> {
    Ok(match reply {
        Reply::Registered => Answer::Pool(PoolInfo { count: 0, in_use: 0 }),
        Reply::Lent(borrowed) => Answer::Lent { borrowed, ttl_ms, has_key: false },
        Reply::Nothing => Answer::Nothing,
        Reply::Returned(returned) => Answer::Returned(returned),
    })
}
