//! The `Rows` of a client: the keeper renews and releases its grants through them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litelease_hold::{Clock, Current, Due, HeldGrant, Loss, Notice, Renewal, Rows, SystemClock};

use serde_json::Value;

use crate::client::{Client, from_now};
use crate::held_names::HeldNames;
use crate::kind::{GrantCall, Kind, loss, renewed_for};
use crate::mode::Mode;
use crate::transport::Transport;

/// The grants of one kind on a server.
pub(crate) struct ServerRows {
    transport: Arc<Transport>,
    held_names: Arc<HeldNames>,
    kind: Kind,
    /// The secrets of grants whose release was sent, and whose answer was lost.
    unanswered: Arc<Mutex<HashSet<String>>>,
    /// A handle other than the keeper's, so that a slow request delays none of the keeper's grants.
    is_beside: bool,
}

/// The shortest and the longest time that a request of the keeper may take.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

/// The longest time that a release may take, because the keeper's other grants wait meanwhile.
const LEFTOVER: Duration = Duration::from_secs(1);

impl ServerRows {
    pub(crate) fn new<M: Mode>(client: &Client<M>, kind: Kind) -> Self {
        ServerRows {
            transport: Arc::clone(&client.transport),
            held_names: Arc::clone(&client.held_names),
            kind,
            unanswered: Arc::default(),
            is_beside: false,
        }
    }

    /// Returns how long a request may take if its answer is useless after `left`. The keeper sends
    /// one request at a time, so there must be time for a few.
    fn timeout(&self, grant: &HeldGrant, left: Duration) -> Duration {
        let most = if self.is_beside { left } else { left.min(grant.ttl / 6) };
        most.clamp(TIMEOUT.0, TIMEOUT.1)
    }

    /// Sends a call on a grant once.
    fn call(&self, call: GrantCall, grant: &HeldGrant, timeout: Duration) -> Result<Value, Loss> {
        let HeldGrant { name, token, secret, .. } = grant;
        let request = self.kind.request(call, name, secret, timeout);
        let transport = Arc::clone(&self.transport);
        let sent = self.transport.wait(async move { transport.send(request).await });
        let answer = sent.and_then(|outcome| self.kind.read(secret, outcome));
        answer.map_err(|error| loss(*token, error))
    }

    fn renew_one(&self, due: &Due<'_>, timeout: Duration) -> Result<Renewal, Loss> {
        let ttl = due.grant.ttl;
        if due.progress.is_some() && matches!(self.kind, Kind::Name) {
            // The server counts the time from now on, so the lease ends at most a third of the ttl
            // late.
            self.call(GrantCall::Progress, due.grant, timeout)?;
        }
        let renewed = self.call(GrantCall::Renew(ttl), due.grant, timeout)?;
        let left = renewed_for(renewed).map_err(|error| loss(due.grant.token, error))?;
        Ok(Renewal { expires_at_ms: from_now(left), granted: (left < ttl).then_some(left) })
    }
}

impl Rows for ServerRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        // A renewal that the server refuses at once takes no time from the others. A server that
        // does not answer one request in time will not answer the next one, and the keeper must be
        // back when the first trust window ends. So from the first failure that may pass on, all
        // others together have as long as that request had.
        let (begin, mut failed) = (SystemClock.now(), None::<(Duration, Loss)>);
        let renew = |due: &Due<'_>| {
            let start = SystemClock.now();
            let within = due.trusted_for.min(due.answer_within);
            let mut left = within.saturating_sub(start.saturating_sub(begin));
            match &failed {
                Some((end, trouble)) if start >= *end => return Err(trouble.clone()),
                Some((end, _)) => left = left.min(*end - start),
                None => {}
            }
            let timeout = self.timeout(due.grant, left);
            let renewed = self.renew_one(due, timeout).map_err(|loss| match loss {
                // Its time is not over, so it did not expire: an operator has broken it.
                Loss::Expired if self.kind.is_slot() && !due.trusted_for.is_zero() => Loss::Broken,
                loss => loss,
            });
            if let Some(trouble) = renewed.as_ref().err().filter(|loss| loss.may_pass()) {
                let end = failed.take().map_or(start + timeout, |(end, _)| end);
                failed = Some((end, trouble.clone()));
            }
            renewed
        };
        due.iter().map(renew).collect()
    }

    fn release(&mut self, grant: &HeldGrant, time: Duration) -> Result<(), Loss> {
        let HeldGrant { token, secret, .. } = grant;
        if let Kind::Delivery = self.kind {
            // The worker acknowledges the item or gives it back.
            return Ok(());
        }
        let timeout = self.timeout(grant, if self.is_beside { time } else { LEFTOVER });
        let released = self.call(GrantCall::Release, grant, timeout).map(drop);
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        if released.as_ref().is_err_and(Loss::may_pass) {
            unanswered.insert(secret.clone());
            return released;
        }
        let was_sent = unanswered.remove(secret);
        match released {
            // Either the first request released it, or the lease has run out since.
            Err(Loss::ReleasedElsewhere | Loss::Expired) if was_sent => Ok(()),
            // A break would have left the next token without an owner. So the first request
            // released the lease, and another client has that token.
            Err(Loss::Superseded { by, owner: Some(_) }) if was_sent && by == token + 1 => Ok(()),
            released => released,
        }
    }

    /// Only renewals ask the server.
    fn read(&mut self, _: &HeldGrant) -> Current {
        Current::unknown()
    }

    fn hand_over(
        &mut self,
        _: &HeldGrant,
        _: Duration,
    ) -> Result<Option<litelease_core::Lease>, Loss> {
        Ok(None)
    }

    fn listen(&mut self, notice: Notice) {
        if let Kind::Name = self.kind {
            self.held_names.notify(notice);
        }
    }

    fn beside(&self) -> Option<Box<dyn Rows>> {
        let (transport, held_names) = (Arc::clone(&self.transport), Arc::clone(&self.held_names));
        let (kind, unanswered) = (self.kind.clone(), Arc::clone(&self.unanswered));
        Some(Box::new(ServerRows { transport, held_names, kind, unanswered, is_beside: true }))
    }

    fn is_moved(&mut self) -> bool {
        false
    }
}
