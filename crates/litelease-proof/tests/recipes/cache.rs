//! Cache: a value that may be answered from memory.

use litelease::{Cached, Litelease};
use litelease_proof::rig::{LONG, TestFolder, acquired};

use crate::{End::*, Protection::*, Two, both_halves, ms, number};

fn prices(db: &Litelease) -> Cached<i64> {
    db.cached("prices", ms(60_000), |conn| {
        Ok(conn.query_row("SELECT tea FROM prices", [], |row| row.get(0))?)
    })
    .unwrap()
}

/// A price changes, and a reader that has the old one in memory does not hear of it.
#[test]
fn a_missed_invalidation_is_waited_for() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        a.conn()
            .execute_batch("CREATE TABLE prices (tea); INSERT INTO prices VALUES (300)")
            .unwrap();
        let (reader, writer) = (prices(a), prices(b));
        assert_eq!(*reader.get().unwrap(), 300);

        let change = "UPDATE prices SET tea = 320";
        match protection {
            Off => drop(b.conn().execute(change, []).unwrap()),
            // Not committed before every reader has given up.
            On => writer.write(LONG, |tx| Ok(tx.conn().execute(change, []).map(drop)?)).unwrap(),
        }
        match *reader.get().unwrap() {
            320 => Refused,
            _ => Failed,
        }
    });
}

/// A writer waits for the readers that it has seen. Meanwhile one of them prolongs its read.
#[test]
fn a_renewal_racing_an_invalidation_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        assert!(a.at(100).read("prices", "web-1", ms(50)).unwrap().is_some());
        let writer = acquired(b.at(120).claim("prices", "admin", ms(1_000)));
        let seen = b.at(120).readers("prices").unwrap();
        let write_ms = seen[0].expires_at_ms;

        // The reader asks for another 50 ms.
        let answers_until_ms = match protection {
            Off => 140 + 50, // its own timer says yes to everything
            On => match a.at(140).read("prices", "web-1", ms(50)).unwrap() {
                Some(_) => 140 + 50,
                None => 100 + 50,
            },
        };
        assert!(!b.at(write_ms - 1).drained(("prices", writer.token)).unwrap());
        assert!(b.at(write_ms).drained(("prices", writer.token)).unwrap());
        if answers_until_ms > write_ms { Failed } else { Refused }
    });
}

/// The file is restored from a backup that was made before a reader was granted its read. The
/// restored file knows of no reader, and the reader goes on answering from memory.
#[test]
fn an_issuer_that_forgot_its_readers_lets_nobody_write() {
    both_halves(Refused, |protection| {
        let place = TestFolder::new("WAL");
        let before = place.open(LONG);
        let backup = place.folder.path().join("backup.sqlite3");
        before.conn().execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
        let now = litelease::now_ms();
        assert!(before.at(now).read("prices", "web-1", ms(60_000)).unwrap().is_some());

        let restored = Litelease::open(&backup).unwrap();
        if protection == On {
            restored.at(now).restore_fence().unwrap();
        }
        assert_eq!(number(&restored, "SELECT count(*) FROM litelease_resources"), 0);
        let writer = acquired(restored.at(now + 1).claim("prices", "admin", LONG));
        match restored.at(now + 2).drained(("prices", writer.token)).unwrap() {
            true => Failed, // it writes, and web-1 answers an old price for a minute
            false => Refused,
        }
    });
}
