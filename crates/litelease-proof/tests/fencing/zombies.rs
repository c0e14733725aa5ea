//! Zombies: a real process is stopped at a random moment of its work, another one takes over, and
//! it goes on.
//!
//! `LITELEASE_ZOMBIES=5000 cargo test -p litelease-proof --test fencing zombies::` plays more
//! rounds.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use litelease::rusqlite::ErrorCode;
use litelease::{CheckpointResult, ClaimResult, Error, Guard, Lease, Litelease, ReleaseResult};
use litelease_proof::rig::{Dice, LONG, TestFolder, report, worker};

/// What happened in all rounds.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    /// Stopped while it blocked every other writer: no process could take over meanwhile.
    stopped_inside_a_write: u64,
    /// Wrote to the table without a guard after its successor had.
    written_where_nothing_guards: i64,
}

#[test]
fn a_writer_that_was_stopped_past_its_expiry_is_refused_by_guards_checkpoints_and_verbs() {
    let rounds = std::env::var("LITELEASE_ZOMBIES").ok().and_then(|rounds| rounds.parse().ok());
    let rounds = rounds.unwrap_or(40);
    let mut dice = Dice::new("zombies");
    for journal in ["WAL", "DELETE"] {
        let mut tally = Tally::default();
        let place = TestFolder::new(journal);
        let db = place.open(Duration::from_millis(10));
        db.conn()
            .execute_batch(
                "CREATE TABLE orders (token); CREATE TABLE diary (token);
                 CREATE TABLE ledger (token, lease_token INTEGER)",
            )
            .unwrap();
        db.guard("orders", "writer", &Guard::by_connection()).unwrap();
        db.guard("ledger", "writer", &Guard::by_column("lease_token")).unwrap();
        while tally.rounds < rounds / 2 {
            round(&place, &db, &mut dice, &mut tally);
        }
        // No guarded row was ever written by an older grant after a newer one's.
        assert_eq!(out_of_order(&db, "orders"), 0);
        assert_eq!(out_of_order(&db, "ledger"), 0);
        // Without a guard it is what the zombies do: else these rounds would prove nothing.
        tally.written_where_nothing_guards = out_of_order(&db, "diary");
        assert!(tally.written_where_nothing_guards > 0, "no zombie ever wrote: {tally:?}");
        report(&format!("zombies in {journal}: {tally:?}"));
    }
}

fn round(place: &TestFolder, db: &Litelease, dice: &mut Dice, tally: &mut Tally) {
    tally.rounds += 1;
    let program = env!("CARGO_BIN_EXE_worker");
    let zombie = worker(program, &["write", "writer", "zombie", "40"], &place.file);
    let mut zombie = Zombie(zombie);
    let mut lines = BufReader::new(zombie.0.stdout.take().unwrap()).lines();
    let mut says = || lines.next().unwrap().unwrap();
    let old: i64 = says().parse().unwrap();

    sleep(Duration::from_micros(dice.below(5_000)));
    zombie.signal("STOP");
    let lease = loop {
        match db.claim("writer", "successor", LONG) {
            Ok(ClaimResult::Acquired(lease)) => break lease,
            Ok(ClaimResult::Busy(_)) => sleep(Duration::from_millis(1)),
            // It holds a lock of SQLite's: let it get over that, and stop it again.
            Err(Error::Sqlite(error))
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) =>
            {
                tally.stopped_inside_a_write += 1;
                zombie.signal("CONT");
                sleep(Duration::from_micros(dice.below(2_000)));
                zombie.signal("STOP");
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(lease.token > old);
    take_over(db, &lease, &zombie);

    zombie.signal("CONT");
    assert_eq!(says(), "refused [true, true, true]");
    assert!(says().starts_with("rejected"), "its renewal");
    assert!(says().starts_with("rejected"), "its release");
    assert!(zombie.0.wait().unwrap().success());

    // The successor is what it was, and its checkpoint too.
    assert_eq!(db.inspect("writer").unwrap().as_ref(), Some(&lease));
    let last = db.last_checkpoint("writer").unwrap().unwrap();
    assert_eq!(last.token, lease.token);
    let released = db.release(&lease).unwrap();
    assert!(matches!(released, ReleaseResult::Released { .. }), "{released:?}");
}

/// Writes everywhere under the new grant. A stopped reader may still be in the way of a commit.
fn take_over(db: &Litelease, lease: &Lease, zombie: &Zombie) {
    let token = lease.token;
    let insert = |sql: &str| db.conn().execute(sql, [token]).map(drop).map_err(Error::from);
    let writes: [&dyn Fn() -> litelease::Result<()>; 5] = [
        &|| db.present(("writer", token)).map(|is_newest| assert!(is_newest)),
        &|| insert("INSERT INTO orders VALUES (?1)"),
        &|| insert("INSERT INTO ledger VALUES (?1, ?1)"),
        &|| insert("INSERT INTO diary VALUES (?1)"),
        &|| {
            let stored = db.checkpoint(("writer", token), token)?;
            assert_eq!(stored, CheckpointResult::Stored);
            Ok(())
        },
    ];
    for write in writes {
        while let Err(error) = write() {
            let Error::Sqlite(error) = error else { panic!("{error}") };
            assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "{error}");
            // It was stopped again with a lock in its hands, after the grant: it may go on a
            // little.
            zombie.signal("CONT");
            sleep(Duration::from_millis(1));
            zombie.signal("STOP");
        }
    }
}

/// How many rows were written under an older token than a row before them.
fn out_of_order(db: &Litelease, table: &str) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY rowid) AS newest FROM {table})
         WHERE token < newest"
    );
    db.conn().query_row(&sql, [], |row| row.get(0)).unwrap()
}

/// A process that is killed when a round ends early.
struct Zombie(Child);

impl Zombie {
    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
        assert!(sent.success(), "SIG{signal}");
    }
}

impl Drop for Zombie {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
