//! Lock: one owner at a time.

use litelease::{AdmitResult, Gate, Reason, ReleaseResult};
use litelease_proof::rig::acquired;

use crate::{End::*, Protection::*, Two, both_halves, late, ms, write};

/// The owner is paused between its last check and its write. Its lease expires, a successor is
/// granted the name and writes, and the owner goes on where it was.
#[test]
fn resume_after_a_pause_past_expiry_is_refused() {
    both_halves(Refused, |protection| {
        let two = Two::new();
        two.table("report", "lock", protection);
        let old = acquired(two.a.at(100).claim("lock", "a", ms(50)));
        write(&two.a, "report", "lock", old.token).unwrap();

        let new = acquired(two.b.at(150).claim("lock", "b", ms(50)));
        write(&two.b, "report", "lock", new.token).unwrap();
        late(write(&two.a, "report", "lock", old.token))
    });
}

/// Two processes were given the same owner text. The one whose lease has expired releases "its"
/// lock.
#[test]
fn release_by_the_wrong_holder_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        let old = acquired(a.at(100).claim("lock", "backup", ms(50)));
        let new = acquired(b.at(150).claim("lock", "backup", ms(50)));

        let released = match protection {
            Off => a.at(160).release_by_owner("lock", "backup").unwrap(),
            On => a.at(160).release(&old).unwrap(),
        };
        match b.at(160).inspect("lock").unwrap() {
            None => Failed,
            Some(current) => {
                assert_eq!(current, new, "untouched");
                let reason = Reason::Superseded { by: new.token };
                assert_eq!(
                    released,
                    ReleaseResult::Rejected { reason, current: Some(new.clone()) }
                );
                Refused
            }
        }
    });
}

/// The lock is fine, and so is its token; but the target is a file in a folder, which looks at
/// neither.
#[test]
fn a_target_without_a_fence_is_closed_by_a_gate() {
    both_halves(Refused, |protection| {
        let Two { a, b, place } = &Two::new();
        let target = place.folder.path().join("report.txt");
        let gate = Gate::open(place.folder.path().join("gate.sqlite3")).unwrap();
        let publish = |token: i64| {
            if protection == On && gate.admit("lock", token).unwrap() != AdmitResult::Admitted {
                return Refused;
            }
            std::fs::write(&target, format!("token {token}")).unwrap();
            Failed // if it is the old owner that gets here
        };
        let old = acquired(a.at(100).claim("lock", "a", ms(50)));
        let new = acquired(b.at(150).claim("lock", "b", ms(50)));
        publish(new.token);
        let end = publish(old.token);
        let newest = std::fs::read_to_string(&target).unwrap();
        assert_eq!(newest == format!("token {}", new.token), end == Refused);
        end
    });
}
