//! The request's side of a borrow: it waits for its answer, and whatever happens to it, no slot is lost.
//!
//! The writer hands over the answers of a commit together: one message, and one wake-up of the thread that has all
//! connections.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::answer::Unsent;
use crate::job::{Answer, Answered, Id, Job, Jobs, Trouble};

/// A borrow under way.
///
/// Either the writer finds that nobody listens any more, or the answer is here when this is dropped: so a grant that
/// nobody takes is given back exactly once.
pub(crate) struct Ticket {
    answer: oneshot::Receiver<Result<Answer, Trouble>>,
    jobs: Jobs,
    id: Id,
    place: u64,
    is_done: bool,
}

impl Ticket {
    pub(crate) fn new(
        answer: oneshot::Receiver<Result<Answer, Trouble>>,
        jobs: Jobs,
        id: Id,
        place: u64,
    ) -> Self {
        Ticket { answer, jobs, id, place, is_done: false }
    }

    /// Waits for the answer. With a time, it is "nothing" when that is up.
    pub(crate) async fn wait(mut self, wait: Option<Duration>) -> Result<Answer, Trouble> {
        let Some(wait) = wait else {
            let answered = (&mut self.answer).await;
            self.is_done = true;
            return answered.unwrap_or(Err(Trouble::Stopping));
        };
        let answered = tokio::time::timeout(wait, &mut self.answer).await;
        match answered {
            Ok(answered) => {
                self.is_done = true;
                answered.unwrap_or(Err(Trouble::Stopping))
            }
            // A grant may have come in the same moment: it is taken or it was never sent.
            Err(_) => self.close().unwrap_or(Ok(Answer::Nothing)),
        }
    }

    /// Leaves the queue, and answers what has come before.
    fn close(&mut self) -> Option<Result<Answer, Trouble>> {
        self.is_done = true;
        self.answer.close();
        let last = self.answer.try_recv().ok();
        if last.is_none() {
            // Where the writer is gone, so is the queue.
            let _ = self.jobs.send(Job::Leave { id: self.id.clone(), place: self.place });
        }
        last
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let Some(Ok(Answer::Lent(lent))) = self.close()
            && !lent.has_key
        {
            let (jobs, id) = (self.jobs.clone(), self.id.clone());
            drop(Unsent { jobs, id, lease: Some(lent.borrowed.lease) });
        }
    }
}

/// Delivers answers until the writer sends no more.
pub(crate) async fn deliver_all(mut answers: mpsc::UnboundedReceiver<Vec<Answered>>, jobs: Jobs) {
    while let Some(answers) = answers.recv().await {
        deliver(answers, |id, lease| {
            // Where the writer is gone, the lease ends by itself.
            let _ = jobs.send(Job::GiveBack { id, lease });
        });
    }
}

/// Hands answers to their requests. A grant whose client is gone is to be given back, unless a key keeps it.
pub(crate) fn deliver(answers: Vec<Answered>, mut give_back: impl FnMut(Id, String)) {
    for Answered { id, reply, answer } in answers {
        if let Err(Ok(Answer::Lent(lent))) = reply.send(answer)
            && !lent.has_key
        {
            give_back(id, lent.borrowed.lease);
        }
    }
}
