//! The request's side of a borrow: waits for the answer, and loses no slot whatever happens
//! meanwhile.
//!
//! The committer hands over the answers of a commit together: with one message, and one wake-up of
//! the thread that serves the connections.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::answer::{Answer, UndeliveredGrant};
use crate::job::{Answered, Id, Job, JobError, Jobs, WaitState};
use crate::response::Unsent;
use crate::timer::Timer;

/// A borrow that waits for its answer.
///
/// If it is dropped, either the committer fails to deliver the answer, or the answer is here
/// already. So a grant that no client takes is returned exactly once.
pub(crate) struct PendingGrant {
    answer: oneshot::Receiver<Result<Answer, JobError>>,
    jobs: Jobs,
    id: Id,
    sequence: u64,
    is_done: bool,
}

impl PendingGrant {
    pub(crate) fn new(
        answer: oneshot::Receiver<Result<Answer, JobError>>,
        jobs: Jobs,
        id: Id,
        sequence: u64,
    ) -> Self {
        PendingGrant { answer, jobs, id, sequence, is_done: false }
    }

    /// Waits for the answer: for about as long as `wait` says if there is one, and then the answer
    /// is `NoneFree`. If the committer serves the request just then, its answer counts.
    pub(crate) async fn wait(
        mut self,
        wait: Option<(Duration, &WaitState, &mut Timer)>,
    ) -> Result<Answer, JobError> {
        if let Some((wait, state, timer)) = wait {
            match timer.within(wait, &mut self.answer).await {
                Some(answered) => return self.finish(answered),
                None => {
                    if let Some(answer) = self.give_up(state) {
                        return answer;
                    }
                }
            }
        }
        let answered = (&mut self.answer).await;
        self.finish(answered)
    }

    fn finish(
        &mut self,
        answered: Result<Result<Answer, JobError>, oneshot::error::RecvError>,
    ) -> Result<Answer, JobError> {
        self.is_done = true;
        answered.unwrap_or(Err(JobError::Stopping))
    }

    /// Ends the wait. Returns the answer, or `None` if the committer is about to send it.
    fn give_up(&mut self, state: &WaitState) -> Option<Result<Answer, JobError>> {
        // The answer may be here already: that the server stops, or a grant.
        state.give_up().then(|| self.close().unwrap_or(Ok(Answer::NoneFree)))
    }

    /// Leaves the queue. Returns the answer if it has arrived before.
    fn close(&mut self) -> Option<Result<Answer, JobError>> {
        self.is_done = true;
        self.answer.close();
        let last = self.answer.try_recv().ok();
        if last.is_none() {
            // An error means that the committer is gone, and with it the queue.
            let _ = self.jobs.send(Job::Leave { id: self.id.clone(), sequence: self.sequence });
        }
        last
    }
}

impl Drop for PendingGrant {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let answer = self.close().and_then(Result::ok);
        let grant = answer.and_then(|answer| answer.undelivered(&self.id));
        drop(Unsent { jobs: self.jobs.clone(), grant });
    }
}

/// Delivers answers until the committer is gone.
pub(crate) async fn deliver_all(mut answers: mpsc::UnboundedReceiver<Vec<Answered>>, jobs: Jobs) {
    while let Some(answers) = answers.recv().await {
        deliver(answers, |grant| {
            // An error means that the committer is gone: then the lease expires.
            let _ = jobs.send(Job::GiveBack(grant));
        });
    }
}

/// Hands answers to their requests. Calls `give_back` for a grant whose client is gone, unless a
/// key keeps it.
pub(crate) fn deliver(answers: Vec<Answered>, mut give_back: impl FnMut(UndeliveredGrant)) {
    for Answered { id, reply, answer } in answers {
        if let Err(Ok(answer)) = reply.send(answer)
            && let Some(grant) = answer.undelivered(&id)
        {
            give_back(grant);
        }
    }
}

#[cfg(test)]
mod tests {
    //! The real committer and real requests under random schedules: clients come, hang up, run out
    //! of time and return slots, at any moment of the committer's work.

    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::collections::HashMap;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use litelease::Litelease;
    use litelease::rusqlite::Connection;
    use shuttle::rand::{Rng, thread_rng};
    use shuttle::scheduler::RandomScheduler;
    use tokio::sync::broadcast;

    use super::*;
    use crate::Options;
    use crate::access::Caller;
    use crate::answer::PoolAnswer;
    use crate::committer::{Committer, Served, slots};
    use crate::high_water::HighWater;
    use crate::job::{GrantJob, Receiver, Task, Wanted, Work, channel};
    use crate::metrics::Metrics;

    const SLOTS: i64 = 2;

    /// Clients that borrow, and the leases that they hold.
    struct Clients {
        id: Id,
        jobs: Jobs,
        answers: mpsc::UnboundedReceiver<Vec<Answered>>,
        waiting: Vec<Waiting>,
        /// Leases by their positions.
        held: HashMap<i64, String>,
        sequences: u64,
    }

    /// A borrow that polls for its answer, or one that will give up.
    struct Waiting {
        state: Asking,
        /// A key would keep the grant of a client that is gone, so one with a key stays until it is
        /// answered.
        has_key: bool,
    }

    enum Asking {
        Polling(Pin<Box<dyn Future<Output = Result<Answer, JobError>>>>),
        GivesUp(PendingGrant, WaitState),
    }

    impl Clients {
        /// Does one thing at random.
        fn step(&mut self) {
            match thread_rng().gen_range(0..8) {
                0..=2 => self.borrow(),
                3 => self.deliver(),
                4 => self.give_back(),
                _ if self.waiting.is_empty() => {}
                5 => self.hang_up(),
                _ => self.poll(),
            }
        }

        fn any(&mut self) -> Waiting {
            let at = thread_rng().gen_range(0..self.waiting.len());
            self.waiting.swap_remove(at)
        }

        fn hang_up(&mut self) {
            let one = self.any();
            if one.has_key {
                self.waiting.push(one);
            }
        }

        fn borrow(&mut self) {
            self.sequences += 1;
            let (reply, answer) = oneshot::channel();
            let (id, sequence) = (self.id.clone(), self.sequences);
            let pending_grant = PendingGrant::new(answer, self.jobs.clone(), id.clone(), sequence);
            let wait = (thread_rng().gen_range(0..4) > 0).then(WaitState::default);
            let gives_up = wait.clone().filter(|_| thread_rng().gen_range(0..2) == 0);
            let has_key = gives_up.is_some() && thread_rng().gen_range(0..2) == 0;
            let key = has_key.then(|| sequence.to_string());
            let wanted = Wanted::Slot { note: None };
            let job =
                GrantJob { id, wanted, ttl_ms: 3_600_000, key, wait, sequence, share: None, reply };
            assert!(self.jobs.send(Job::Grant(job)).is_ok());
            let state = match gives_up {
                Some(state) => Asking::GivesUp(pending_grant, state),
                None => Asking::Polling(Box::pin(pending_grant.wait(None))),
            };
            self.waiting.push(Waiting { state, has_key });
        }

        fn deliver(&mut self) {
            while let Ok(answers) = self.answers.try_recv() {
                deliver(answers, |grant| {
                    assert!(self.jobs.send(Job::GiveBack(grant)).is_ok());
                });
            }
        }

        /// Lets a waiting client poll for its answer, or give up.
        fn poll(&mut self) {
            let Waiting { state, has_key } = self.any();
            let mut asking = match state {
                Asking::Polling(asking) => asking,
                Asking::GivesUp(mut pending_grant, state) => match pending_grant.give_up(&state) {
                    Some(answer) => return self.receive(answer, has_key),
                    // The answer comes, and the client waits for it.
                    None => Box::pin(pending_grant.wait(None)),
                },
            };
            match asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => self.receive(answer, has_key),
                Poll::Pending => {
                    self.waiting.push(Waiting { state: Asking::Polling(asking), has_key });
                }
            }
        }

        fn receive(&mut self, answer: Result<Answer, JobError>, has_key: bool) {
            match answer {
                Ok(lent @ Answer::Pool(PoolAnswer::Lent { .. })) => self.hold(lent, has_key),
                Ok(Answer::NoneFree) => {}
                answer => panic!("{answer:?}"),
            }
        }

        fn hold(&mut self, lent: Answer, has_key: bool) {
            let Answer::Pool(PoolAnswer::Lent { borrowed, .. }) = &lent else { return };
            let (position, lease) = (borrowed.slot.position, borrowed.lease_id.clone());
            let response = lent.respond(&self.id, &self.jobs);
            if !has_key && thread_rng().gen_range(0..4) == 0 {
                // The connection breaks before the answer is sent.
                return drop(response);
            }
            if let crate::response::Body::Whole { unsent: Some(unsent), .. } = response.body {
                unsent.sent();
            }
            let twice = self.held.insert(position, lease);
            assert_eq!(twice, None, "slot {position} is lent out twice");
        }

        fn give_back(&mut self) {
            let Some(position) = self.held.keys().next().copied() else { return };
            let lease = self.held.remove(&position).unwrap_or_default();
            let (reply, _) = oneshot::channel();
            let work = move |file: &Served<'_>, id: &str, now_ms| {
                slots::return_slot(file, id, &lease, now_ms)
            };
            let (caller, scope) = (Caller::default(), litelease::Scope::Operate);
            let task = Task::Slot(self.id.clone(), Box::new(work));
            let job = Job::Work(Box::new(Work { caller, scope, task, reply }));
            assert!(self.jobs.send(job).is_ok());
        }

        /// Waits until as many slots are in use as are held.
        fn settle(&mut self) {
            for _ in 0..1_000 {
                let (reply, mut looked) = oneshot::channel();
                assert!(
                    self.jobs
                        .send(Job::Inspect { id: self.id.clone(), with_slots: true, reply })
                        .is_ok()
                );
                let state = loop {
                    self.deliver();
                    match looked.try_recv() {
                        Ok(Ok(Answer::Pool(PoolAnswer::Snapshot(state)))) => break state,
                        Ok(answer) => panic!("{answer:?}"),
                        Err(_) => shuttle::thread::yield_now(),
                    }
                };
                if (state.info.in_use, state.waiters) == (self.held.len() as i64, 0) {
                    return;
                }
            }
            panic!("a slot is in use that nobody has");
        }
    }

    fn play() {
        let folder = tempfile::tempdir().unwrap();
        let db = Litelease::from_connection(Connection::open_in_memory().unwrap());
        db.bootstrap().unwrap();
        db.pools().register("p", SLOTS).unwrap();
        let high_water = HighWater::beside(&folder.path().join("p")).unwrap();
        let (jobs, todo): (Jobs, Receiver<Job>) = channel();
        let (handed, answers) = mpsc::unbounded_channel();
        let (changes, metrics) = (broadcast::channel(16).0, Arc::new(Metrics::default()));
        let committer =
            Committer::new(db, high_water, None, &Options::default(), handed, changes, metrics);
        let committer = shuttle::thread::spawn(move || committer.work(&todo));
        let (waiting, held) = (Vec::new(), HashMap::new());
        let mut clients =
            Clients { id: Id::Pool("p".into()), jobs, answers, waiting, held, sequences: 0 };
        for _ in 0..40 {
            clients.step();
            shuttle::thread::yield_now();
        }
        // All clients hang up, give up or return, and every slot is free again.
        clients.waiting.retain(|one| one.has_key);
        while !clients.waiting.is_empty() {
            clients.poll();
            clients.deliver();
            shuttle::thread::yield_now();
        }
        clients.settle();
        while !clients.held.is_empty() {
            clients.give_back();
        }
        clients.settle();
        drop(clients);
        committer.join().unwrap();
    }

    fn lent(has_key: bool) -> Result<Answer, JobError> {
        let slot = litelease::SlotInfo { position: 0, token: 1, expires_at_ms: 150 };
        let borrowed = litelease::Borrowed { lease_id: "a".into(), slot };
        Ok(PoolAnswer::Lent { borrowed, ttl_ms: 50, has_key }.into())
    }

    #[test]
    fn a_grant_that_nobody_takes_is_given_back_unless_a_key_keeps_it() {
        shuttle::check_random(
            || {
                for has_key in [false, true] {
                    // The client is gone before the grant is delivered.
                    let (reply, gone) = oneshot::channel();
                    drop(gone);
                    let mut given_back = 0;
                    let answer = lent(has_key);
                    let id = Id::Pool("p".into());
                    deliver(vec![Answered { id, reply, answer }], |_| given_back += 1);
                    assert_eq!(given_back, usize::from(!has_key));

                    // The client is gone after that, and before it has read the answer.
                    let (jobs, todo): (Jobs, Receiver<Job>) = channel();
                    let (reply, answer) = oneshot::channel();
                    let pending_grant = PendingGrant::new(answer, jobs, Id::Pool("p".into()), 1);
                    assert!(reply.send(lent(has_key)).is_ok());
                    drop(pending_grant);
                    let left = todo.try_recv();
                    assert_eq!(matches!(left, Ok(Job::GiveBack(_))), !has_key);
                    assert!(todo.try_recv().is_err(), "once");
                }
            },
            1,
        );
    }

    #[test]
    fn no_slot_is_lost_or_lent_twice_whatever_happens_when() {
        let mut config = shuttle::Config::new();
        // SQLite needs more than the default.
        config.stack_size = 1024 * 1024;
        shuttle::Runner::new(RandomScheduler::new(300), config).run(play);
    }
}
