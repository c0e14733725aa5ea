//! Jobs that requests send to the committer, and its answers.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

// Tests control the schedule of these channels.
#[cfg(test)]
use shuttle::sync::mpsc;
#[cfg(not(test))]
use std::sync::mpsc;

use litelease::{Scope, TickRequest};
use litelease_store::ManyItems;
use litelease_wire::{OverviewWaiter, Waiter};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::access::{Caller, Which};
use crate::answer::{Answer, UndeliveredGrant, seconds};
use crate::committer::{Done, Operator, Reader, Served};
use crate::shares::{Exceeded, Share};

/// The subject of a request, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Id {
    /// A pool: a UUID in lower case.
    Pool(Arc<str>),
    /// A name.
    Name(Arc<str>),
    /// A queue.
    Queue(Arc<str>),
}

impl Deref for Id {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Id::Pool(text) | Id::Name(text) | Id::Queue(text) => text,
        }
    }
}

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

/// A request that was decided on, and is answered once that is stored. One about a name can be
/// decided on again.
pub(crate) enum Asker {
    Reply(Reply),
    Grant(Box<GrantJob>),
    Work(Box<Work>),
}

impl Asker {
    pub(crate) fn into_reply(self) -> Reply {
        match self {
            Asker::Reply(reply) => reply,
            Asker::Grant(job) => job.reply,
            Asker::Work(work) => work.reply,
        }
    }
}

impl From<GrantJob> for Asker {
    fn from(job: GrantJob) -> Self {
        match job.wanted {
            Wanted::Name(_) => Asker::Grant(Box::new(job)),
            _ => Asker::Reply(job.reply),
        }
    }
}

impl From<Reply> for Asker {
    fn from(reply: Reply) -> Self {
        Asker::Reply(reply)
    }
}

/// One thing for the committer to do.
pub(crate) enum Job {
    Grant(GrantJob),
    /// Anything else that writes.
    Work(Box<Work>),
    /// A change of many items of a queue.
    Many(ManyJob),
    /// Reads a pool, and its slots only if they are wanted: there may be many.
    Inspect {
        id: Id,
        with_slots: bool,
        reply: Reply,
    },
    /// Runs another read.
    Read {
        read: Read,
        /// True for a short read that another job waits for.
        is_first: bool,
        /// The names that it reports.
        reported: Option<Reported>,
    },
    /// Asks whether the file can be written.
    Ready(oneshot::Sender<Result<(), JobError>>),
    /// A client has stopped waiting.
    Leave {
        id: Id,
        sequence: u64,
    },
    /// No client has received this grant.
    GiveBack(UndeliveredGrant),
    /// Answer all waiters, and grant nothing from now on.
    Stop,
}

/// The names that a request reports, and its client, unless that is known to be allowed to.
pub(crate) struct Reported {
    pub(crate) caller: Option<Caller>,
    pub(crate) names: Which,
}

/// Work for the next commit.
pub(crate) struct Work {
    pub(crate) caller: Caller,
    /// The scope that the client needs for the name or queue.
    pub(crate) scope: Scope,
    pub(crate) task: Task,
    pub(crate) reply: Reply,
}

/// A change, and its subject.
pub(crate) enum Task {
    /// A change of a pool.
    Pool(Id, OnId),
    /// A change of a slot, by its holder.
    Slot(Id, OnId),
    /// A change of a queue.
    Queue(Id, OnId),
    /// A change of a name.
    Name(Id, OnName),
    /// A change by the holder of the grant that has this secret.
    Grant(String, OnGrant),
    /// A change by the worker that has an item of this queue, or of that of its receipt.
    Receipt { queue: Option<Arc<str>>, receipt: String, work: OnId },
}

/// Changes a pool, a name or a queue.
pub(crate) type OnId = Box<dyn FnOnce(&Served<'_>, &str, i64) -> Done + Send>;

/// Changes a name. It is run again if the name was another one on the engine.
pub(crate) type OnName = Box<dyn Fn(&Served<'_>, &str, i64) -> Done + Send>;

/// Changes a grant, like [`OnName`].
pub(crate) type OnGrant = Box<dyn Fn(&Served<'_>, &litelease::Grant, i64) -> Done + Send>;

/// Reads, or takes the reason why that fails. Returns the function that sends the answer.
pub(crate) type Read = Box<dyn FnOnce(Result<&Reader<'_>, JobError>) -> SendAnswer + Send>;
pub(crate) type SendAnswer = Box<dyn FnOnce()>;

impl Job {
    /// Returns the subject of the job and the sender of its answer, or `None` if the job has no
    /// answer.
    pub(crate) fn into_reply(self) -> Option<(Id, Reply)> {
        match self {
            Job::Inspect { id, reply, .. } => Some((id, reply)),
            Job::Grant(job) => Some((job.id, job.reply)),
            Job::Many(job) => Some((Id::Queue(job.queue), job.reply)),
            Job::Work(work) => Some((work.task.id(), work.reply)),
            Job::Read { .. } | Job::Ready(_) | Job::Leave { .. } | Job::GiveBack(_) | Job::Stop => {
                None
            }
        }
    }

    /// Checks whether the client holds the subject of the job. Such a job is short, and it comes
    /// too late if the lease or the delivery has ended.
    pub(crate) fn is_by_holder(&self) -> bool {
        let Job::Work(work) = self else { return false };
        matches!(work.task, Task::Slot(..) | Task::Grant(..) | Task::Receipt { .. })
    }

    /// Checks whether the job could begin something. A file whose leases went elsewhere only ends
    /// what it has.
    pub(crate) fn begins_something(&self) -> bool {
        match self {
            Job::Work(work) => matches!(work.task, Task::Pool(..) | Task::Queue(..)),
            Job::Grant(_) | Job::Many(_) => true,
            _ => false,
        }
    }

    /// Returns the client, or one without a key.
    pub(crate) fn caller(&self) -> Caller {
        match self {
            Job::Work(work) => work.caller,
            Job::Grant(job) => job.caller(),
            Job::Many(many) => many.operator.caller,
            _ => Caller::default(),
        }
    }

    /// Checks whether access keys decide about the job.
    pub(crate) fn needs_keys(&self) -> bool {
        match self {
            Job::Work(work) => !matches!(work.task, Task::Pool(..) | Task::Slot(..)),
            Job::Grant(job) => !matches!(job.wanted, Wanted::Slot { .. }),
            Job::Many(_) => true,
            _ => false,
        }
    }
}

impl Task {
    /// Returns the subject of the task, if it is known before the task is done.
    fn id(&self) -> Id {
        match self {
            Task::Pool(id, _) | Task::Slot(id, _) | Task::Queue(id, _) => id.clone(),
            Task::Name(id, _) => id.clone(),
            Task::Grant(..) | Task::Receipt { .. } => no_id(),
        }
    }
}

/// Returns the id for jobs that are not about one pool or name.
pub(crate) fn no_id() -> Id {
    Id::Name("".into())
}

/// A borrow or a claim, which waits in a queue if the name or the slots are taken.
pub(crate) struct GrantJob {
    pub(crate) id: Id,
    pub(crate) wanted: Wanted,
    pub(crate) ttl_ms: i64,
    pub(crate) key: Option<String>,
    /// Set if the client waits when nothing is free.
    pub(crate) wait: Option<WaitState>,
    /// Larger than that of every earlier request: the order in which waiters are served.
    pub(crate) sequence: u64,
    /// Its share of the requests that its client may let wait, while it waits.
    pub(crate) share: Option<Share>,
    pub(crate) reply: Reply,
}

/// Decides between a client whose time to wait is over and the committer that is about to serve it.
///
/// Without it a grant could be committed while its client gives up. The client would be told no,
/// and an idempotency key would keep the grant for its whole ttl.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitState(Arc<AtomicU8>);

const WAITING: u8 = 0;
const BEING_SERVED: u8 = 1;
const GIVEN_UP: u8 = 2;

impl WaitState {
    /// Records that the client gives up. Returns false if the committer is serving it right now:
    /// then the committer's answer counts and is about to come.
    pub(crate) fn give_up(&self) -> bool {
        self.0.swap(GIVEN_UP, Ordering::AcqRel) == WAITING
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The kind of grant that a borrow or a claim wants.
pub(crate) enum Wanted {
    Slot {
        note: Option<String>,
    },
    NamedSlot(Box<NamedSlot>),
    Name(Box<Claim>),
    /// An item of a queue, for this client.
    Item(Box<Caller>),
}

/// A slot of the pool that has a name, for a client that must be allowed to claim the name.
pub(crate) struct NamedSlot {
    pub(crate) caller: Caller,
    pub(crate) name: Arc<str>,
    pub(crate) note: Option<String>,
}

/// A claim of a name.
#[derive(PartialEq)]
pub(crate) struct Claim {
    pub(crate) caller: Caller,
    pub(crate) owner: String,
    pub(crate) min_token: i64,
    /// The words of the client that waits: who it is, and why.
    pub(crate) note: Option<String>,
    /// When the request came.
    pub(crate) asked: Instant,
    /// The tick that it claims with the name.
    pub(crate) tick: Option<Box<TickWish>>,
}

/// A tick that a claim asks for, and the schedule that has planned it.
#[derive(PartialEq)]
pub(crate) struct TickWish {
    pub(crate) asked: TickRequest,
    pub(crate) schedule: Option<String>,
}

impl Claim {
    pub(crate) fn new(caller: Caller, owner: String, min_token: i64, note: Option<String>) -> Self {
        Claim { caller, owner, min_token, note, asked: Instant::now(), tick: None }
    }
}

impl GrantJob {
    /// Checks whether a client waits for the answer.
    pub(crate) fn has_client(&self) -> bool {
        let has_given_up = |wait: &WaitState| wait.0.load(Ordering::Acquire) == GIVEN_UP;
        !self.reply.is_closed() && !self.wait.as_ref().is_some_and(has_given_up)
    }

    /// Returns the client.
    pub(crate) fn caller(&self) -> Caller {
        match &self.wanted {
            Wanted::Slot { .. } => Caller::default(),
            Wanted::NamedSlot(slot) => slot.caller,
            Wanted::Name(claim) => claim.caller,
            Wanted::Item(caller) => **caller,
        }
    }

    /// Describes the request for operators, while its client waits.
    pub(crate) fn shown(&self) -> Option<Waiter> {
        let (note, claim) = match &self.wanted {
            Wanted::Name(claim) => (&claim.note, Some(claim)),
            Wanted::Slot { note } => (note, None),
            Wanted::NamedSlot(slot) => (&slot.note, None),
            Wanted::Item(_) => return None,
        };
        let waits_for = |claim: &Claim| {
            seconds(i64::try_from(claim.asked.elapsed().as_millis()).unwrap_or(i64::MAX))
        };
        self.has_client().then(|| Waiter {
            note: note.clone(),
            owner: claim.map(|claim| claim.owner.clone()),
            waits_for: claim.map(|claim| waits_for(claim)),
        })
    }

    /// Describes the request for the overview, while its client waits.
    pub(crate) fn overview(&self) -> Option<OverviewWaiter> {
        let Waiter { note, owner, waits_for } = self.shown()?;
        let who = owner.as_deref().and_then(litelease::Identity::parse);
        Some(OverviewWaiter {
            host: who.as_ref().map(|who| who.host.clone()),
            note,
            owner: owner.filter(|_| who.is_none()),
            pid: who.map(|who| i64::from(who.pid)),
            since_ms: waits_for.map(|waited| litelease::now_ms().saturating_sub(waited.ms)),
        })
    }

    /// Returns the tick that it claims with a name.
    pub(crate) fn tick(&self) -> Option<&TickWish> {
        match &self.wanted {
            Wanted::Name(claim) => claim.tick.as_deref(),
            _ => None,
        }
    }

    /// Begins to serve the request. Returns false if its client is gone or has given up.
    pub(crate) fn begin_serving(&self) -> bool {
        let wait = self.wait.as_ref();
        !self.reply.is_closed() && wait.is_none_or(|wait| wait.change(WAITING, BEING_SERVED))
    }

    /// Lets the request wait on, since nothing is free. Returns false if its client does not wait,
    /// or has given up meanwhile: then it needs an answer.
    pub(crate) fn keep_waiting(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.change(BEING_SERVED, WAITING))
    }

    /// Checks whether both are the same request, made twice.
    pub(crate) fn repeats(&self, other: &GrantJob) -> bool {
        let is_same_client = match (&self.wanted, &other.wanted) {
            (Wanted::Name(one), Wanted::Name(other)) => {
                one.caller == other.caller && one.owner == other.owner
            }
            (Wanted::Item(one), Wanted::Item(other)) => one == other,
            _ => true,
        };
        self.key.is_some() && self.key == other.key && is_same_client
    }
}

/// A change of many items of a queue, made in slices, one per commit.
pub(crate) struct ManyJob {
    pub(crate) operator: Operator,
    pub(crate) queue: Arc<str>,
    pub(crate) change: ManyItems,
    /// The id after which the next slice begins, if one was done.
    pub(crate) after: Option<i64>,
    /// How many items the earlier slices have changed.
    pub(crate) count: i64,
    /// The idempotency key.
    pub(crate) key: Option<String>,
    pub(crate) reply: Reply,
}

impl ManyJob {
    /// Checks whether this repeats an unfinished request, by its idempotency key.
    pub(crate) fn repeats(&self, job: &Job) -> bool {
        let Job::Many(other) = job else { return false };
        self.after.is_none()
            && other.after.is_some()
            && self.key.is_some()
            && self.key == other.key
            && (self.operator.caller, self.change) == (other.operator.caller, other.change)
            && self.queue == other.queue
    }
}

/// The reason why a job was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobError {
    NoSuchPool,
    /// The client uses its share of something already.
    TooMany(Exceeded),
    /// The ttl was over before the grant was stored.
    TooShort,
    /// The lease would end after the last representable time.
    TooLong,
    /// No larger token exists.
    Exhausted,
    /// The name belongs to the service.
    OfService,
    /// The row of this name, or the table of served grants, is damaged.
    Damaged,
    Database,
    /// The engine cannot be reached, or has not confirmed the change.
    Engine,
    /// Others change or lock the row of this name all the time. Nothing was stored.
    Contended,
    /// The leases of the file went to another place, which has this URL.
    Moved(&'static str),
    /// No server is known that writes to the engine.
    NoWriter,
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
