//! Jobs that requests send to the committer, and its answers.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

// Tests control the schedule of these channels.
#[cfg(test)]
use shuttle::sync::mpsc;
#[cfg(not(test))]
use std::sync::mpsc;

use litelease::rusqlite::types;
use litelease::{
    Borrowed, Checkpoint, Lease, LeaseRow, PoolInfo, Reason, Scope, SlotInfo, SlotRow, StaleReason,
};
use litelease_store::ManyItems;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::access::{Caller, Which};
use crate::queues;
use crate::shares::{Exceeded, Share};

/// What a request is about, as it is stored.
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

/// One thing for the committer to do.
pub(crate) enum Job {
    Register {
        caller: Caller,
        id: Id,
        count: i64,
        reply: Reply,
    },
    Delete {
        id: Id,
        reply: Reply,
    },
    Grant(GrantJob),
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
    /// Ends any holder's lease on a slot.
    BreakSlot {
        id: Id,
        position: i64,
        token: i64,
        reply: Reply,
    },
    /// A verb on a name, except a claim.
    Named(NamedJob),
    /// A verb on a queue, except a receive.
    Queued(QueueJob),
    /// A change of many items of a queue.
    Many(ManyJob),
    Keep {
        id: Id,
        lease: String,
        reply: Reply,
    },
    /// Reads a pool, and its slots only if they are wanted: there may be many.
    Look {
        id: Id,
        with_slots: bool,
        reply: Reply,
    },
    /// Reads leases on names.
    Leases {
        /// The client, if it is not known to be allowed to.
        caller: Option<Caller>,
        page: Page,
        reply: Reply,
    },
    /// Looks at queues, where there is no file to do it beside the committer.
    Queues {
        look: queues::Look,
        reply: Reply,
    },
    /// Reads the latest checkpoint of a name.
    LastCheckpoint {
        caller: Caller,
        name: Arc<str>,
        reply: Reply,
    },
    /// Asks whether a client has a valid access key, whatever that allows.
    AdmitKey {
        caller: Caller,
        reply: Reply,
    },
    /// Asks whether a client may do something.
    Admit {
        caller: Caller,
        scope: Scope,
        names: Which,
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
    GiveBack(Grant),
    /// Answer all waiters, and grant nothing from now on.
    Stop,
}

impl Job {
    /// Returns what the job is about and the sender to answer, or `None` if the job has no answer.
    pub(crate) fn into_reply(self) -> Option<(Id, Reply)> {
        match self {
            Job::Register { id, reply, .. }
            | Job::Delete { id, reply }
            | Job::Return { id, reply, .. }
            | Job::Renew { id, reply, .. }
            | Job::BreakSlot { id, reply, .. }
            | Job::Keep { id, reply, .. }
            | Job::Look { id, reply, .. } => Some((id, reply)),
            Job::Grant(job) => Some((job.id, job.reply)),
            Job::Queued(job) => Some((Id::Queue(job.queue.unwrap_or_default()), job.reply)),
            Job::Many(job) => Some((Id::Queue(job.queue), job.reply)),
            Job::Named(NamedJob { reply, .. })
            | Job::Leases { reply, .. }
            | Job::Queues { reply, .. }
            | Job::LastCheckpoint { reply, .. }
            | Job::AdmitKey { reply, .. }
            | Job::Admit { reply, .. }
            | Job::Ready { reply } => Some((no_id(), reply)),
            Job::Leave { .. } | Job::GiveBack(_) | Job::Stop => None,
        }
    }

    /// Checks whether the client holds what the job is about. Such a job is short, and it comes too
    /// late if the lease or the delivery has ended.
    pub(crate) fn is_by_holder(&self) -> bool {
        match self {
            Job::Return { .. } | Job::Renew { .. } | Job::Keep { .. } => true,
            Job::Named(job) => !matches!(job.verb, Verb::Break { .. } | Verb::Request { .. }),
            Job::Queued(job) => job.verb.receipt().is_some(),
            _ => false,
        }
    }

    /// Checks whether access keys decide about the job.
    pub(crate) fn needs_keys(&self) -> bool {
        matches!(
            self,
            Job::Named(_)
                | Job::Queued(_)
                | Job::Many(_)
                | Job::Grant(GrantJob {
                    wanted: Wanted::Name(_) | Wanted::Item(_) | Wanted::NamedSlot(_),
                    ..
                })
        )
    }
}

/// Returns an id for what is not about one pool or name.
pub(crate) fn no_id() -> Id {
    Id::Name("".into())
}

/// A borrow or a claim, and its place in the queue if it has to wait.
pub(crate) struct GrantJob {
    pub(crate) id: Id,
    pub(crate) wanted: Wanted,
    pub(crate) ttl_ms: i64,
    pub(crate) key: Option<String>,
    /// Set if the client waits for what is not free yet.
    pub(crate) wait: Option<WaitState>,
    /// Larger than the place of every earlier request.
    pub(crate) place: u64,
    /// What it takes of the places for requests that wait, while it does.
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
    /// Tells that the client gives up. Returns false if the committer serves it just now: then the
    /// committer's answer counts, and it is about to come.
    pub(crate) fn give_up(&self) -> bool {
        self.0.swap(GIVEN_UP, Ordering::AcqRel) == WAITING
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What a borrow or a claim asks for.
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

/// What the holder of a grant or an operator asks for.
pub(crate) struct NamedJob {
    pub(crate) caller: Caller,
    pub(crate) verb: Verb,
    pub(crate) reply: Reply,
}

/// A verb on a name, except a claim. `grant` is the secret that the answer to a claim has.
pub(crate) enum Verb {
    Renew { grant: String, ttl_ms: i64 },
    Release { grant: String },
    Transfer { grant: String, new_owner: String, ttl_ms: i64 },
    Break { name: String },
    Attach { grant: String, value: types::Value },
    Limit { grant: String, progress_within_ms: Option<i64>, max_time_ms: Option<i64> },
    Progress { grant: String },
    Checkpoint { grant: String, value: types::Value },
    Request { name: String, requester: String, within_ms: i64 },
    HandOver { grant: String, ttl_ms: i64 },
}

/// What a client of a queue asks for.
pub(crate) struct QueueJob {
    pub(crate) caller: Caller,
    /// The queue. `None`: that of the receipt.
    pub(crate) queue: Option<Arc<str>>,
    pub(crate) verb: QueueVerb,
    /// The idempotency key.
    pub(crate) key: Option<String>,
    pub(crate) reply: Reply,
}

/// A verb on a queue, except a receive.
pub(crate) enum QueueVerb {
    Send {
        body: types::Value,
        delay_ms: i64,
        key: Option<String>,
    },
    Ack {
        receipt: String,
    },
    Extend {
        receipt: String,
        visibility_ms: i64,
    },
    GiveBack {
        receipt: String,
        delay_ms: i64,
        note: Option<String>,
    },
    Bury {
        receipt: String,
        note: Option<String>,
    },
    /// Revives a dead item.
    Redrive {
        id: i64,
    },
    /// Deletes a dead item.
    Discard {
        id: i64,
    },
    Cancel(Meant),
}

/// A change of many items of a queue, of which a slice is done in each commit.
pub(crate) struct ManyJob {
    pub(crate) caller: Caller,
    pub(crate) queue: Arc<str>,
    pub(crate) change: ManyItems,
    /// The id after which the next slice begins, if one was done.
    pub(crate) after: Option<i64>,
    /// How many items the slices before have changed.
    pub(crate) count: i64,
    /// The idempotency key.
    pub(crate) key: Option<String>,
    pub(crate) reply: Reply,
}

impl ManyJob {
    /// Checks whether this repeats a request that is begun and not done, by its idempotency key.
    pub(crate) fn repeats(&self, job: &Job) -> bool {
        let Job::Many(other) = job else { return false };
        self.after.is_none()
            && other.after.is_some()
            && self.key.is_some()
            && self.key == other.key
            && (self.caller, self.change) == (other.caller, other.change)
            && self.queue == other.queue
    }
}

/// The item that a client means.
pub(crate) enum Meant {
    Id(i64),
    Key(String),
}

impl QueueVerb {
    /// Returns the receipt that the verb is about, if it is about one.
    pub(crate) fn receipt(&self) -> Option<&str> {
        match self {
            QueueVerb::Ack { receipt }
            | QueueVerb::Extend { receipt, .. }
            | QueueVerb::GiveBack { receipt, .. }
            | QueueVerb::Bury { receipt, .. } => Some(receipt),
            QueueVerb::Send { .. }
            | QueueVerb::Redrive { .. }
            | QueueVerb::Discard { .. }
            | QueueVerb::Cancel(_) => None,
        }
    }
}

/// Which leases to read.
pub(crate) struct Page {
    pub(crate) names: Which,
    pub(crate) after: Option<String>,
    pub(crate) limit: usize,
    /// Names that nobody has are wanted, too.
    pub(crate) all: bool,
}

/// A grant that can be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// A slot: it is returned.
    Slot { id: Id, lease: String },
    /// A lease on a name: it is released.
    Name(Lease),
    /// A lease that its new owner has fetched: it waits to be fetched again.
    Fetched(Lease),
    /// An item that was delivered: it is visible again since that time, and the attempt does not
    /// count.
    Item { id: Id, receipt: String, visible_at_ms: i64 },
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
    /// A name was granted.
    Granted {
        lease: Timed,
        /// The secret of the grant.
        grant: String,
        has_key: bool,
        /// It was transferred to its owner, who has fetched it.
        is_fetched: bool,
        /// The number of its row, if this is no answer that was given before.
        number: Option<i64>,
    },
    /// The name has a live lease.
    Busy(Timed),
    RenewedName {
        lease: Timed,
        grant: String,
    },
    Released {
        name: String,
        token: i64,
    },
    Transferred(Timed),
    Broken {
        name: String,
        owner: String,
        killed: i64,
    },
    Rejected {
        why: Why,
        current: Option<Timed>,
    },
    /// A name, whether it is live or not.
    Name {
        name: String,
        token: Option<i64>,
        current: Option<Timed>,
        waiters: usize,
    },
    /// Live leases, and the name to go on after if there may be more.
    Leases {
        leases: Vec<Timed>,
        next: Option<String>,
    },
    /// Names, whether they are live or not, and the name to go on after if there may be more.
    AllLeases {
        leases: Vec<AnyLease>,
        next: Option<String>,
    },
    /// Something was stored with a grant. The word says what.
    Stored {
        word: &'static str,
        name: String,
        token: i64,
    },
    /// The holder of a name is asked to give it up.
    Requested(Requested),
    /// Another client has asked for it before.
    RequestedBy(Requested),
    /// What a look at queues has seen.
    Queues(serde_json::Value),
    /// The latest checkpoint of a name, if there is one.
    Checkpoint {
        name: String,
        checkpoint: Option<Checkpoint>,
    },
    /// An item was sent, or one of that key was there.
    Sent {
        queue: String,
        id: i64,
    },
    /// An item was delivered.
    Delivered(Box<Delivered>),
    /// The delivery that was asked for again is over.
    NoItem,
    /// An item was changed. The word says how.
    ItemDone {
        word: &'static str,
        queue: String,
        id: i64,
    },
    Extended {
        queue: String,
        id: i64,
        deadline_ms: i64,
        left_ms: i64,
    },
    /// A receipt does not pass.
    StaleReceipt(Stale),
    /// So many items were changed. The word says how.
    Counted {
        word: &'static str,
        queue: String,
        count: i64,
    },
    /// A worker has the item, for so long.
    ItemLeased {
        left_ms: i64,
    },
    /// There is no such item.
    NoSuchItem,
    QueueDeleted {
        queue: String,
        is_done: bool,
    },
    /// The client may do what it has asked for.
    Admitted,
    /// The file can be written.
    Ready,
}

impl Answer {
    /// Returns the grant that is to be taken back if no client receives the answer. A key keeps its
    /// grant: the client will ask for it again.
    pub(crate) fn undelivered(self, id: &Id) -> Option<Grant> {
        match self {
            Answer::Lent { borrowed, has_key: false, .. } => {
                Some(Grant::Slot { id: id.clone(), lease: borrowed.lease_id })
            }
            Answer::Granted { lease, has_key: false, is_fetched, .. } => match is_fetched {
                true => Some(Grant::Fetched(lease.lease)),
                false => Some(Grant::Name(lease.lease)),
            },
            Answer::Delivered(item) if !item.has_key => Some(Grant::Item {
                id: id.clone(),
                receipt: item.receipt,
                visible_at_ms: item.was_visible_at_ms,
            }),
            _ => None,
        }
    }
}

/// A name of a page.
#[derive(Clone, Debug)]
pub(crate) enum AnyLease {
    Live(Timed),
    /// Nobody has it.
    Ended {
        row: LeaseRow,
        now_ms: i64,
    },
}

/// A delivery of an item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) queue: String,
    pub(crate) id: i64,
    pub(crate) receipt: String,
    pub(crate) attempt: i64,
    pub(crate) token: i64,
    pub(crate) deadline_ms: i64,
    pub(crate) left_ms: i64,
    pub(crate) body: types::Value,
    /// Since when the item was visible: its place in the order.
    pub(crate) was_visible_at_ms: i64,
    /// A key keeps the delivery when its client is gone.
    pub(crate) has_key: bool,
}

/// Why a receipt does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    Rule(StaleReason),
    /// It passes, but its deadline is over.
    Expired,
    /// It passes, but the item is dead.
    Dead,
}

/// An open request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requested {
    pub(crate) name: String,
    pub(crate) requester: String,
    pub(crate) token: i64,
    pub(crate) until_ms: i64,
    pub(crate) left_ms: i64,
}

/// What a lease has, besides who and until when.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Riders {
    /// The value, or NULL; `None` if it is too long for a page.
    pub(crate) value: Option<types::Value>,
    pub(crate) requested: Option<Requested>,
}

/// A lease, and the time that it has left.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timed {
    pub(crate) lease: Lease,
    pub(crate) left_ms: i64,
    /// What was attached to it and who has asked for it, where that was read and there is any.
    pub(crate) riders: Option<Box<Riders>>,
}

impl Timed {
    pub(crate) fn at(now_ms: i64, lease: Lease) -> Self {
        let left_ms = lease.expires_at_ms.saturating_sub(now_ms);
        Timed { lease, left_ms, riders: None }
    }

    /// Checks whether two leases differ in the time left only.
    pub(crate) fn is_same(&self, other: &Timed) -> bool {
        let requester = |timed: &Timed| {
            let requested = timed.riders.as_ref().and_then(|riders| riders.requested.as_ref());
            requested.map(|requested| (requested.requester.clone(), requested.until_ms))
        };
        let value = |timed: &Timed| timed.riders.as_ref().and_then(|riders| riders.value.clone());
        self.lease == other.lease
            && self.riders.is_some() == other.riders.is_some()
            && requester(self) == requester(other)
            && value(self) == value(other)
    }
}

impl Riders {
    /// Returns the riders of a lease, or nothing if it has none.
    pub(crate) fn of(
        value: Option<types::Value>,
        requested: Option<Requested>,
    ) -> Option<Box<Self>> {
        let is_plain = value == Some(types::Value::Null) && requested.is_none();
        (!is_plain).then(|| Box::new(Riders { value, requested }))
    }
}

/// Why a verb on a name was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Rule(Reason),
    /// No grant has this secret.
    UnknownGrant,
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
    /// The client uses its share of something already.
    TooMany(Exceeded),
    /// The ttl was over before the grant was stored.
    TooShort,
    /// The lease would end after the last representable time.
    TooLong,
    /// No larger token exists.
    Exhausted,
    /// What is stored for this name, or the table of served grants, is not as it should be.
    Damaged,
    Database,
    /// The engine has not confirmed what was done, or cannot be reached.
    Engine,
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
