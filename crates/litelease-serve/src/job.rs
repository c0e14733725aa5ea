//! Jobs that requests send to the committer, and its answers.

use std::sync::Arc;
use std::time::Duration;

// Tests control the schedule of these channels.
#[cfg(test)]
use shuttle::sync::mpsc;
#[cfg(not(test))]
use std::sync::mpsc;

use litelease::{Borrowed, PoolInfo, Scope, SlotInfo, SlotRow};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::access::Caller;

/// The id of a pool as it is stored: a UUID in lower case.
pub(crate) type Id = Arc<str>;

pub(crate) use mpsc::{Receiver, RecvTimeoutError, channel};

/// Sends jobs to the committer.
pub(crate) type Jobs = mpsc::Sender<Job>;

/// Sends the answer to one request.
pub(crate) type Reply = oneshot::Sender<Result<Answer, JobError>>;

/// Sends the answers of one commit to the thread that serves the connections.
pub(crate) type Answers = UnboundedSender<Vec<Answered>>;

/// An answer, and the request to deliver it to.
pub(crate) struct Answered {
    pub(crate) id: Id,
    pub(crate) reply: Reply,
    pub(crate) answer: Result<Answer, JobError>,
}

/// One thing for the committer to do.
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
    Keep {
        id: Id,
        lease: String,
        reply: Reply,
    },
    Look {
        id: Id,
        reply: Reply,
    },
    /// Asks whether a client may do something with all names.
    Admit {
        caller: Caller,
        scope: Scope,
        reply: Reply,
    },
    /// Asks whether the file can be written.
    Ready {
        reply: Reply,
    },
    /// A client no longer waits.
    Leave {
        id: Id,
        place: u64,
    },
    /// No client has received this grant.
    GiveBack {
        id: Id,
        lease: String,
    },
    /// Answer all waiters, and grant nothing from now on.
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
            | Job::Keep { id, reply, .. }
            | Job::Look { id, reply } => Some((id, reply)),
            Job::Borrow(borrow) => Some((borrow.id, borrow.reply)),
            Job::Admit { reply, .. } | Job::Ready { reply } => Some(("".into(), reply)),
            Job::Leave { .. } | Job::GiveBack { .. } | Job::Stop => None,
        }
    }
}

/// A borrow, and its place in the queue if it has to wait.
pub(crate) struct BorrowJob {
    pub(crate) id: Id,
    pub(crate) ttl_ms: i64,
    pub(crate) note: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) waits: bool,
    /// Larger than the place of every earlier request.
    pub(crate) place: u64,
    pub(crate) reply: Reply,
}

/// The outcome of a job.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Pool(PoolInfo),
    Deleted,
    /// A slot was lent out.
    Lent {
        borrowed: Borrowed,
        /// The ttl that was granted, or what is left of it if a key found the lease of before.
        ttl_ms: i64,
        /// A key keeps the lease when its client is gone.
        has_key: bool,
    },
    /// No slot is free.
    Nothing,
    Returned(bool),
    Renewed {
        lease: String,
        slot: SlotInfo,
        ttl_ms: i64,
    },
    /// The slot is kept until it is returned.
    Kept,
    /// The lease to renew or keep is over.
    Over,
    State(State),
    /// The client may do what it has asked for.
    Admitted,
    /// The file can be written.
    Ready,
}

/// The public state of a pool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) info: PoolInfo,
    pub(crate) slots: Vec<SlotRow>,
    pub(crate) waiters: usize,
    pub(crate) now_ms: i64,
}

/// Why a job was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobError {
    NoSuchPool,
    TooManyWaiters,
    /// The ttl was over before the grant was stored.
    TooShort,
    /// No larger token exists.
    Exhausted,
    Database,
    /// The file cannot be written, for this reason.
    NotReady(&'static str),
    Stopping,
    /// The request has no access key.
    NoKey,
    /// There is no such access key, or it has expired or was removed.
    WrongKey,
    /// The access key does not allow this scope for the names of the request.
    NotAllowed(Scope),
}

/// Waits for a job.
#[cfg(not(test))]
pub(crate) fn receive(jobs: &Receiver<Job>, patience: Duration) -> Result<Job, RecvTimeoutError> {
    jobs.recv_timeout(patience)
}

/// In tests the time is up whenever no job is there.
#[cfg(test)]
pub(crate) fn receive(jobs: &Receiver<Job>, _: Duration) -> Result<Job, RecvTimeoutError> {
    shuttle::thread::yield_now();
    jobs.try_recv().map_err(|error| match error {
        mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
        mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
    })
}
