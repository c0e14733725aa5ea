//! Jobs that were received and not done yet, and how long a batch waits for more of them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::job::{Id, Job, Receiver, Reply};

/// How long a batch sleeps before it looks for the next job, and how often.
const BATCH_WAIT_STEP: Duration = Duration::from_micros(50);
const MAX_BATCH_WAIT_STEPS: u32 = 3;

pub(super) struct Inbox {
    /// Jobs for the next commit.
    pub(super) todo: VecDeque<Job>,
    /// Requests for the state of a pool, answered after the commit.
    pub(super) looks: Vec<(Id, Reply)>,
    /// Requests that only read and need an access key, answered after the commit.
    pub(super) reads: Vec<Job>,
    /// Requests that ask whether the file can be written, answered after the commit.
    pub(super) readies: Vec<Reply>,
    max_batch: usize,
    /// How many jobs the last commit had, and how long committing them took.
    last_batch: (usize, Duration),
}

impl Inbox {
    pub(super) fn new(max_batch: usize) -> Self {
        Inbox {
            todo: VecDeque::new(),
            looks: Vec::new(),
            reads: Vec::new(),
            readies: Vec::new(),
            max_batch: max_batch.max(1),
            last_batch: (0, Duration::ZERO),
        }
    }

    pub(super) fn is_full(&self, done: usize) -> bool {
        done >= self.max_batch
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
