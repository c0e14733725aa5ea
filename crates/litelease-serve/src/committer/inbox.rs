//! The jobs that were received and not done yet, and how long a batch waits for more of them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::job::{Id, Job, JobError, Read, Receiver, Reply, Reported};

/// How long a batch sleeps before it looks for the next job, and how often.
const BATCH_WAIT_STEP: Duration = Duration::from_micros(50);
const MAX_BATCH_WAIT_STEPS: u32 = 3;

/// How long a batch takes jobs. The jobs behind it, and the answers to those before, wait for its
/// commit. In tests, a slow machine must not change what a batch does.
const MAX_BATCH_TIME: Duration = Duration::from_millis(if cfg!(test) { 600_000 } else { 20 });

/// How long requests that only read are answered between two commits: inspections of pools, and
/// other reads.
pub(super) const MAX_READ_TIME: Duration = Duration::from_millis(10);

pub(super) struct Inbox {
    /// Jobs for the next commits, by clients that hold the lease, slot or delivery.
    held: VecDeque<Job>,
    /// Jobs for the next commits, by all other clients.
    others: VecDeque<Job>,
    /// The next job is one of `held`, if there is one.
    is_held_next: bool,
    /// Requests for the state of a pool, with its slots or without, answered after the commit.
    pub(super) inspections: VecDeque<(Id, bool, Reply)>,
    /// Requests that only read and need an access key, answered after the commit.
    pub(super) reads: VecDeque<(Read, Option<Reported>)>,
    /// Requests that ask whether the file can be written, answered after the commit.
    pub(super) readies: Vec<oneshot::Sender<Result<(), JobError>>>,
    max_batch: usize,
    /// How many jobs the last commit had, and how long committing them took.
    last_batch: (usize, Duration),
}

impl Inbox {
    pub(super) fn new(max_batch: usize) -> Self {
        Inbox {
            held: VecDeque::new(),
            others: VecDeque::new(),
            is_held_next: true,
            inspections: VecDeque::new(),
            reads: VecDeque::new(),
            readies: Vec::new(),
            max_batch: max_batch.max(1),
            last_batch: (0, Duration::ZERO),
        }
    }

    /// Adds a job for the next commits.
    pub(super) fn push(&mut self, job: Job) {
        match job.is_by_holder() {
            true => self.held.push_back(job),
            false => self.others.push_back(job),
        }
    }

    /// Adds jobs in front of those of their kind: they were decided on in vain.
    pub(super) fn push_again(&mut self, jobs: Vec<Job>) {
        for job in jobs.into_iter().rev() {
            match job.is_by_holder() {
                true => self.held.push_front(job),
                false => self.others.push_front(job),
            }
        }
    }

    /// Removes and returns the next job. Holders and other clients take turns, so that a renewal
    /// does not wait behind all jobs of other clients.
    pub(super) fn pop(&mut self) -> Option<Job> {
        let is_held = self.is_held_next && !self.held.is_empty() || self.others.is_empty();
        self.is_held_next = !is_held;
        if is_held { self.held.pop_front() } else { self.others.pop_front() }
    }

    /// Returns the jobs for the next commits by clients that hold nothing.
    pub(super) fn others(&self) -> impl Iterator<Item = &Job> {
        self.others.iter()
    }

    /// Checks whether a job waits for a commit.
    pub(super) fn has_jobs(&self) -> bool {
        !self.held.is_empty() || !self.others.is_empty()
    }

    /// Checks whether there is work without a new job.
    pub(super) fn has_more(&self) -> bool {
        self.has_jobs() || !self.inspections.is_empty() || !self.reads.is_empty()
    }

    /// Checks whether a batch takes no more jobs, after it has done this many since `started`.
    pub(super) fn is_full(&self, done: usize, started: Instant) -> bool {
        done >= self.max_batch || (done > 0 && started.elapsed() >= MAX_BATCH_TIME)
    }

    pub(super) fn committed(&mut self, jobs: usize, took: Duration) {
        self.last_batch = (jobs, took);
    }

    /// Receives another job for a batch in which `done` jobs were done since `started`.
    ///
    /// Clients that were answered together send their next requests together, one after the other.
    /// A commit after the first of them would make the others wait for the next commit. So a batch
    /// waits for as many jobs as the last one had: a few steps for each, because the clients may
    /// share our core, and in all no longer than a commit takes.
    pub(super) fn receive(
        &self,
        jobs: &Receiver<Job>,
        done: usize,
        started: Instant,
    ) -> Option<Job> {
        let (expected, patience) = self.last_batch;
        for step in 0..=MAX_BATCH_WAIT_STEPS {
            if let Ok(job) = jobs.try_recv() {
                return Some(job);
            }
            let expects_more = done < expected && started.elapsed() <= patience;
            if !expects_more || step == MAX_BATCH_WAIT_STEPS {
                break;
            }
            // Sleeping instead of blocking on the channel spares the senders a wake-up each.
            std::thread::sleep(BATCH_WAIT_STEP);
        }
        None
    }
}
