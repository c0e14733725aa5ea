//! Renewal: what keeps a lease alive, and when it should not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use litelease::{Lease, Litelease, Reason, RenewResult};
use litelease_hold::{
    Clock, Current, Due, HeldGrant, Hold, Keeper, Loss, Notice, Renewal, Rows, Window,
};
use litelease_proof::rig::{LONG, TestFolder, acquired};

use crate::{End::*, Protection::*, Two, both_halves, ms};

/// The work hangs, and the thread that renews does not.
#[test]
fn a_pulse_without_progress_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        let stuck = acquired(a.at(100).claim("import", "a", ms(50)));
        if protection == On {
            assert!(
                a.at(100).limit(("import", stuck.token), Some(ms(200)), None).unwrap().is_done()
            );
        }
        for now_ms in (120..10_000).step_by(20) {
            match a.at(now_ms).renew(&stuck, ms(50)).unwrap() {
                RenewResult::Renewed(_) => {}
                RenewResult::Rejected { reason: Reason::NoProgress, .. } => break,
                other => panic!("{other:?}"),
            }
        }
        // Out within the time that it has for progress, and one ttl.
        match b.at(100 + 200 + 50).claim("import", "b", ms(50)).unwrap().acquired() {
            Some(_) => Refused,
            None => Failed,
        }
    });
}

#[derive(Clone, Default)]
struct Stepped(Arc<AtomicU64>);

impl Clock for Stepped {
    fn now(&self) -> Duration {
        ms(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}

/// Renews in a real file, and counts its commits.
struct Counted {
    db: Litelease,
    clock: Stepped,
    commits: Arc<Mutex<usize>>,
}

impl Rows for Counted {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        let now_ms = self.clock.now().as_millis() as i64;
        let tx = self.db.transaction().unwrap();
        let renew = |due: &Due<'_>| {
            let renewed = tx.at(now_ms).renew(due.grant, due.grant.ttl).unwrap().renewed().unwrap();
            Ok(Renewal::whole(renewed.expires_at_ms))
        };
        let answers = due.iter().map(renew).collect();
        tx.commit().unwrap();
        *self.commits.lock().unwrap() += 1;
        answers
    }

    fn release(&mut self, _: &HeldGrant, _: Duration) -> Result<(), Loss> {
        Ok(())
    }

    fn read(&mut self, _: &HeldGrant) -> Current {
        Current::unknown()
    }

    fn hand_over(&mut self, _: &HeldGrant, _: Duration) -> Result<Option<Lease>, Loss> {
        Ok(None)
    }

    fn listen(&mut self, _: Notice) {}

    fn beside(&self) -> Option<Box<dyn Rows>> {
        None
    }

    fn is_moved(&mut self) -> bool {
        false
    }
}

/// A process has a hundred leases, and all are due at once. Each commit waits for the disk, so the
/// last renewals may come too late.
#[test]
fn a_renewal_storm_is_capped_at_one_commit_per_file() {
    both_halves(Capped, |protection| {
        let place = TestFolder::new("WAL");
        let db = place.open(LONG);
        let (clock, commits, ttl) = (Stepped::default(), Arc::new(Mutex::new(0)), ms(9_000));
        let (mut keepers, mut kept) = (Vec::new(), Vec::new());
        for number in 0..100 {
            let name = format!("feed/{number}");
            let lease = acquired(db.at(0).claim(&name, "a", ttl));
            let (owner, secret) = ("a".into(), String::new());
            let grant = HeldGrant { name, owner, token: lease.token, ttl, secret };
            let window = Window::new(ttl).unwrap();
            let hold = Hold::new(grant, window, Duration::ZERO, Renewal::whole(9_000));
            let open = || {
                let (clock, commits) = (clock.clone(), commits.clone());
                let rows = Counted { db: place.open(LONG), clock, commits };
                Ok::<_, ()>(Box::new(rows) as Box<dyn Rows>)
            };
            // A thread for each lease, or the keeper for all of them.
            if protection == Off || keepers.is_empty() {
                keepers.push(Arc::new(Keeper::new(Arc::new(clock.clone()))));
            }
            kept.push(keepers[keepers.len() - 1].keep("file", hold, open).unwrap());
        }
        clock.0.store(3_000, Ordering::SeqCst);
        keepers.iter().for_each(|keeper: &Arc<Keeper>| _ = keeper.step());
        assert!(kept.iter().all(|kept| kept.hold.expires_at_ms() == 12_000), "all are renewed");
        match *commits.lock().unwrap() {
            1 => Capped,
            100 => Failed,
            other => panic!("{other} commits"),
        }
    });
}

/// A court is booked until 250. The lease on it is renewed as long as the players play.
#[test]
fn renewing_past_the_logical_end_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        let booked = acquired(a.at(100).claim("court", "a", ms(50)));
        if protection == On {
            assert!(a.at(100).limit(("court", booked.token), None, Some(250)).unwrap().is_done());
        }
        for now_ms in (120..250).step_by(20) {
            let renewed = a.at(now_ms).renew(&booked, ms(50)).unwrap().renewed().unwrap();
            assert!(protection == Off || renewed.expires_at_ms <= 250);
        }
        // The next players are there at 250.
        match b.at(250).claim("court", "b", ms(50)).unwrap().acquired() {
            Some(_) => Refused,
            None => Failed,
        }
    });
}
