//! Session: whether a process is alive, with everything that depends on it.

use litelease::{HoldError, Session};
use litelease_proof::rig::{LONG, acquired, eventually};

use crate::{End::*, Protection::*, Two, both_halves, late, ms, number, write};

/// Nothing of the process can renew for longer than the ttl, as when it is stopped or suspended.
/// The session is over, its names are granted to others, and the process works on.
#[test]
fn a_pause_that_kills_the_session_is_told() {
    both_halves(Told, |protection| {
        let two = Two::new();
        two.table("work", "books", Off);
        let session = Session::open(&two.a, "worker-7", ms(1_000)).unwrap();
        let books = session.claim("books").unwrap();
        // The pause: every renewal waits for this transaction.
        two.b.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
        assert!(session.lost().wait_timeout(LONG).is_some());
        two.b.conn().execute_batch("ROLLBACK").unwrap();
        // From here on the keeper could renew again. It must not: the holder may have been told.
        eventually("the lease expires", || two.b.owner("books").unwrap().is_none());
        let next = acquired(two.b.claim("books", "b", LONG));
        write(&two.b, "work", "books", next.token).unwrap();

        let told = books.check();
        assert!(session.check().is_err() && told.is_err(), "both are lost together: {told:?}");
        if protection == On && told.is_err() {
            return Told; // and stops
        }
        write(&two.a, "work", "books", books.token()).unwrap();
        assert_eq!(number(&two.b, "SELECT count(*) FROM work"), 2, "by two workers");
        Failed
    });
}

/// A new deployment replaces the session of a process that hangs. The old process wakes up and
/// writes.
#[test]
fn an_old_session_that_believes_it_lives_is_refused() {
    both_halves(Refused, |protection| {
        let two = Two::new();
        two.table("work", "books", protection);
        let old = Session::open(&two.a, "worker-7", LONG).unwrap();
        let books = old.claim("books").unwrap();

        let new = Session::replace(&two.b, "worker-7", LONG).unwrap();
        assert!(matches!(old.claim("more"), Err(HoldError::Lost(_))), "it can claim nothing");
        let end = late(write(&two.a, "work", "books", books.token()));
        let books = new.claim("books").unwrap();
        write(&two.b, "work", "books", books.token()).unwrap();
        end
    });
}

/// A process comes back under the name that it had. Its predecessor is still there.
#[test]
fn a_duplicate_identity_on_reconnect_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        match protection {
            // The identity is the owner text: both have it, and share the lease and its token.
            Off => {
                let first = acquired(a.ensure("worker-7", "worker-7", LONG));
                let again = acquired(b.ensure("worker-7", "worker-7", LONG));
                assert_eq!(first.token, again.token);
                Failed
            }
            // The identity is a lease, and its owner text is made for this process.
            On => {
                let _first = Session::open(a, "worker-7", LONG).unwrap();
                match Session::open(b, "worker-7", LONG) {
                    Err(HoldError::Busy(_)) => Refused,
                    Ok(_) => Failed,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
}
