//! Fencing token: the number that every target of the work compares.

use litelease::{AdmitResult, Gate, Guard, Litelease};
use litelease_proof::rig::{LONG, TestFolder, acquired};

use crate::{End::*, Protection::*, Two, both_halves, late, ms, write};

/// The holder writes to two tables. One of them was forgotten when the other was guarded.
#[test]
fn a_token_unchecked_at_one_target_is_checked_at_all_of_them() {
    both_halves(Refused, |protection| {
        let two = Two::new();
        two.table("orders", "import", On);
        two.table("outbox", "import", protection);
        let old = acquired(two.a.at(100).claim("import", "a", ms(50)));
        acquired(two.b.at(150).claim("import", "b", ms(50)));
        assert_eq!(late(write(&two.a, "orders", "import", old.token)), Refused);
        // The list of what is guarded is in the file. Compare it with the list of what is written.
        let guards = two.a.guards().unwrap();
        let is_guarded = guards.iter().any(|guard| guard.table == "outbox");
        assert_eq!(is_guarded, protection == On);
        late(write(&two.a, "outbox", "import", old.token))
    });
}

/// A file is restored from a backup. It has forgotten a grant, and gives its token to another
/// owner.
#[test]
fn a_token_going_backwards_after_issuer_rollback_is_refused() {
    both_halves(Refused, |protection| {
        let place = TestFolder::new("WAL");
        let lost = place.open(LONG);
        lost.conn().execute_batch("CREATE TABLE orders (text)").unwrap();
        lost.guard("orders", "import", &Guard::by_connection()).unwrap();
        let backup = place.folder.path().join("backup.sqlite3");
        lost.conn().execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
        let zombie = acquired(lost.at(100).claim("import", "a", ms(50)));

        let restored = Litelease::open(&backup).unwrap();
        if protection == On {
            restored.restore_fence().unwrap();
        }
        let current = acquired(restored.claim("import", "b", LONG));
        assert_eq!(current.token == zombie.token, protection == Off);
        // The zombie opens the file again, and goes on under the token that it has.
        let reopened = Litelease::open(&backup).unwrap();
        late(write(&reopened, "orders", "import", zombie.token))
    });
}

/// The leases move to a new file, which counts from 1. The numbers of two files say nothing about
/// which grant is the later one.
#[test]
fn incomparable_tokens_of_two_issuers_are_put_in_order() {
    both_halves(Refused, |protection| {
        let (old_file, new_file) = (Two::new(), Two::new());
        let gate = Gate::open(old_file.place.folder.path().join("gate.sqlite3")).unwrap();
        let mut zombie = acquired(old_file.a.at(100).claim("import", "a", ms(50)));
        for at_ms in [200, 300, 400] {
            zombie = acquired(old_file.a.at(at_ms).claim("import", "a", ms(50)));
            assert_eq!(gate.admit("import", zombie.token).unwrap(), AdmitResult::Admitted);
        }

        // The current owner has its grant from the new file.
        let seen = zombie.token;
        let current = acquired(match protection {
            Off => new_file.b.at(500).claim("import", "b", ms(50)),
            // Larger than what the target has seen: its answer to a token that is too small says
            // so.
            On => new_file.b.at(500).claim_above("import", "b", ms(50), seen),
        });
        let is_current_admitted = gate.admit("import", current.token).unwrap();
        match gate.admit("import", zombie.token).unwrap() {
            AdmitResult::Admitted => {
                assert_eq!(is_current_admitted, AdmitResult::Stale { newest: seen });
                Failed
            }
            AdmitResult::Stale { newest } => {
                assert_eq!(newest, current.token);
                Refused
            }
        }
    });
}
