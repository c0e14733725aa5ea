//! The same HTTP in front of something else than the file: what benchmarks compare the service with.

use std::future::Future;
use std::io;

use litelease::{Borrowed, PoolInfo, SlotInfo};
use tokio::net::TcpListener;

use crate::Options;
use crate::job::{Answer, Answered, Answers, Job, JobError, Lent, Receiver};
use crate::server::run_before;

/// What keeps the slots instead of the file.
pub trait Keeper: Send + 'static {
    /// Does what was asked together, and answers in the same order once it is durable.
    fn commit(&mut self, asked: &[Ask]) -> io::Result<Vec<Told>>;
}

/// What it is asked.
pub enum Ask {
    /// Make a pool of so many slots.
    Register(i64),
    /// Lend the lowest free one for so many milliseconds.
    Borrow(i64),
    /// Take back the one with this lease.
    Return(String),
}

/// What it answers.
pub enum Told {
    /// There is the pool.
    Registered,
    /// This slot was lent out.
    Lent(Borrowed),
    /// None is free.
    Nothing,
    /// Whether it was still the borrower's.
    Returned(bool),
}

impl Told {
    /// A slot that was lent out.
    pub fn lent(lease: String, position: i64, token: i64, expires_at_ms: i64) -> Self {
        Told::Lent(Borrowed { lease, slot: SlotInfo { position, token, expires_at_ms } })
    }
}

/// Serves until `shutdown` is there. Nobody waits for a slot here, and there is one pool.
pub async fn run(
    listener: TcpListener,
    options: Options,
    mut keeper: impl Keeper,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    run_before(listener, options, shutdown, move |todo, answers, _, _| {
        work(&mut keeper, &todo, &answers);
    })
    .await
}

fn work(keeper: &mut impl Keeper, todo: &Receiver<Job>, answers: &Answers) {
    while let Ok(first) = todo.recv() {
        let (mut asked, mut askers) = (Vec::new(), Vec::new());
        for job in std::iter::once(first).chain(todo.try_iter()) {
            let (ask, id, reply, ttl_ms) = match job {
                Job::Register { id, count, reply } => (Ask::Register(count), id, reply, 0),
                Job::Borrow(borrow) => {
                    (Ask::Borrow(borrow.ttl_ms), borrow.id, borrow.reply, borrow.ttl_ms)
                }
                Job::Return { id, lease, reply } => (Ask::Return(lease), id, reply, 0),
                // Whoever asks for something else is told so when the reply is dropped.
                _ => continue,
            };
            asked.push(ask);
            askers.push((id, reply, ttl_ms));
        }
        let told = keeper.commit(&asked);
        let mut told = told.map(Vec::into_iter).ok();
        let answered = askers.into_iter().map(|(id, reply, ttl_ms)| {
            let told = told.as_mut().and_then(Iterator::next);
            Answered {
                id,
                reply,
                answer: told.map_or(Err(JobError::Database), |told| as_answer(told, ttl_ms)),
            }
        });
        if answers.send(answered.collect()).is_err() {
            return;
        }
    }
}

fn as_answer(told: Told, ttl_ms: i64) -> Result<Answer, JobError> {
    Ok(match told {
        Told::Registered => Answer::Pool(PoolInfo { count: 0, in_use: 0 }),
        Told::Lent(borrowed) => Answer::Lent(Lent { borrowed, ttl_ms, has_key: false }),
        Told::Nothing => Answer::Nothing,
        Told::Returned(returned) => Answer::Returned(returned),
    })
}
