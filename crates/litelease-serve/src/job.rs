//! What requests ask of the writer, and what it answers.

use std::sync::Arc;
use std::time::Duration;

// Tests run the exchange under schedules of their own.
#[cfg(test)]
use shuttle::sync::mpsc;
#[cfg(not(test))]
use std::sync::mpsc;

use litelease::{Borrowed, PoolInfo, SlotInfo, SlotRow};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// The id of a pool, as it is stored: a UUID in lower case.
pub(crate) type Id = Arc<str>;

pub(crate) use mpsc::{Receiver, RecvTimeoutError, channel};

/// Where requests leave their jobs.
pub(crate) type Jobs = mpsc::Sender<Job>;

/// Where one request waits for its answer.
pub(crate) type Reply = oneshot::Sender<Result<Answer, JobError>>;

/// Where answers are handed over, all of a commit together.
pub(crate) type Answers = UnboundedSender<Vec<Answered>>;

/// An answer on its way to its request.
pub(crate) struct Answered {
    pub(crate) id: Id,
    pub(crate) reply: Reply,
    pub(crate) answer: Result<Answer, JobError>,
}

/// One thing to do.
pub(crate) enum Job {
    Register {
        id: Id,
        count: i64,
        reply: Reply,
    },
    Delete {
        id: Id,
        reply: Reply,
    },
    Borrow(BorrowJob),
    Return {
        id: Id,
        lease: String,
        reply: Reply,
    },
    Renew {
        id: Id,
        lease: String,
        ttl_ms: i64,
        reply: Reply,
    },
    Look {
        id: Id,
        reply: Reply,
    },
    /// Asks whether something could be stored.
    Ready {
        reply: Reply,
    },
    /// A request no longer waits.
    Leave {
        id: Id,
        place: u64,
    },
    /// A grant that nobody has received.
    GiveBack {
        id: Id,
        lease: String,
    },
    /// Answer all who wait, and grant nothing any more.
    Stop,
}

impl Job {
    /// Returns the pool and the sender to answer, or `None` if the job has no answer.
    pub(crate) fn into_reply(self) -> Option<(Id, Reply)> {
        match self {
            Job::Register { id, reply, .. }
            | Job::Delete { id, reply }
            | Job::Return { id, reply, .. }
            | Job::Renew { id, reply, .. }
            | Job::Look { id, reply } => Some((id, reply)),
            Job::Borrow(borrow) => Some((borrow.id, borrow.reply)),
            Job::Ready { reply } => Some(("".into(), reply)),
            Job::Leave { .. } | Job::GiveBack { .. } | Job::Stop => None,
        }
    }
}

/// A borrow, and where it stands in the queue if it has to wait.
pub(crate) struct BorrowJob {
    pub(crate) id: Id,
    pub(crate) ttl_ms: i64,
    pub(crate) note: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) waits: bool,
    /// Larger than that of every request before.
    pub(crate) place: u64,
    pub(crate) reply: Reply,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Pool(PoolInfo),
    Deleted,
    Lent(Lent),
    /// Nothing is free.
    Nothing,
    Returned(bool),
    Renewed {
        lease: String,
        slot: SlotInfo,
        ttl_ms: i64,
    },
    /// The lease to renew is over.
    Over,
    State(State),
    /// Something could be stored.
    Ready,
}

/// A slot that was lent out by this job.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    pub(crate) borrowed: Borrowed,
    /// The ttl that was granted, or what is left of it where the lease was there already.
    pub(crate) ttl_ms: i64,
    /// Whether it stays when its client is gone.
    pub(crate) has_key: bool,
}

/// A pool with all that everybody may see of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) info: PoolInfo,
    pub(crate) slots: Vec<SlotRow>,
    pub(crate) waiters: usize,
    pub(crate) now_ms: i64,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobError {
    NoSuchPool,
    TooManyWaiters,
    /// The ttl was over before the grant was stored.
    TooShort,
    /// No larger token exists.
    Exhausted,
    Database,
    /// Nothing can be stored, for this reason.
    NotReady(&'static str),
    Stopping,
}

/// Waits for a job.
#[cfg(not(test))]
pub(crate) fn receive(jobs: &Receiver<Job>, patience: Duration) -> Result<Job, RecvTimeoutError> {
    jobs.recv_timeout(patience)
}

/// The same, where time is up whenever nothing is there.
#[cfg(test)]
pub(crate) fn receive(jobs: &Receiver<Job>, _: Duration) -> Result<Job, RecvTimeoutError> {
    shuttle::thread::yield_now();
    jobs.try_recv().map_err(|error| match error {
        mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
        mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
    })
}
