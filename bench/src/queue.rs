//! What queues cost: the verbs next to the bare statements that keep the same rows, and how many
//! steps of SQLite's virtual machine a receive takes among many items.

use std::ptr;
use std::time::Duration;

use litelease::Litelease;
use litelease::rusqlite::{Connection, ffi};

use crate::Result;
use crate::workload::Raw;

const VISIBILITY: Duration = Duration::from_secs(3600);
const NAME: &str = "mail";
const BODY: &str = "{\"to\": \"alice@example.org\", \"template\": \"welcome\"}";

/// Sends, receives and acknowledges: three commits per round.
pub(crate) fn cycles(db: &Litelease, rounds: u32) -> Result<()> {
    let queue = db.queue(NAME);
    for _ in 0..rounds {
        queue.send(BODY)?;
        let item = queue.receive(VISIBILITY)?.ok_or("nothing to receive")?;
        if !item.ack()?.is_acknowledged() {
            return Err("a stale receipt".into());
        }
    }
    Ok(())
}

/// The least that keeps the same rows: a counter for ids and tokens, the item, its body, a random
/// receipt that the acknowledgement compares. It knows the number of its queue and the time, and
/// checks nothing else: no epoch, no limit of attempts, no reason for a refusal.
pub(crate) fn bare_cycles(db: &Litelease, rounds: u32) -> Result<()> {
    // The first use makes the tables, and the queue gets number 1.
    cycles(db, 1)?;
    let statement = |sql| Raw::new(db.conn(), sql);
    let [begin, commit] = [statement(c"BEGIN IMMEDIATE")?, statement(c"COMMIT")?];
    let count = statement(c"UPDATE main.litelease_queue_counter SET newest = ?1 WHERE id = 1")?;
    let newest = statement(c"SELECT newest FROM main.litelease_queue_counter WHERE id = 1")?;
    let send = statement(
        c"INSERT INTO main.litelease_queue_items (id, queue, visible_at_ms, attempts, sent_at_ms)
          VALUES (?1, 1, ?2, 0, ?2)",
    )?;
    let send_body =
        statement(c"INSERT INTO main.litelease_queue_bodies (id, body) VALUES (?1, ?2)")?;
    let next = statement(
        c"SELECT id, randomblob(16), attempts FROM main.litelease_queue_items
          WHERE queue = 1 AND visible_at_ms <= ?1 ORDER BY visible_at_ms, id LIMIT 1",
    )?;
    let deliver = statement(
        c"UPDATE main.litelease_queue_items SET visible_at_ms = ?2, attempts = ?3, token = ?4,
          deadline_ms = ?2, receipt = ?5 WHERE id = ?1",
    )?;
    let body = statement(c"SELECT id, body FROM main.litelease_queue_bodies WHERE id = ?1")?;
    let delete =
        statement(c"DELETE FROM main.litelease_queue_items WHERE id = ?1 AND receipt = ?2")?;
    let delete_body = statement(c"DELETE FROM main.litelease_queue_bodies WHERE id = ?1")?;
    let now_ms = |round| 1_800_000_000_000 + i64::from(round);
    for round in 0..rounds {
        begin.run(&[], None)?;
        let id = newest.row(&[])?.0 + 1;
        count.run(&[id], None)?;
        send.run(&[id, now_ms(round)], None)?;
        send_body.run(&[id], Some(BODY.as_bytes()))?;
        commit.run(&[], None)?;

        begin.run(&[], None)?;
        let (id, receipt, attempts) = next.row(&[now_ms(round)])?;
        let token = newest.row(&[])?.0 + 1;
        count.run(&[token], None)?;
        let deadline_ms = now_ms(round) + VISIBILITY.as_millis() as i64;
        deliver.run(&[id, deadline_ms, attempts + 1, token], Some(&receipt))?;
        std::hint::black_box(body.row(&[id])?);
        commit.run(&[], None)?;

        begin.run(&[], None)?;
        delete.run(&[id], Some(&receipt))?;
        delete_body.run(&[id], None)?;
        commit.run(&[], None)?;
    }
    Ok(())
}

/// What surrounds the item that is received.
#[derive(Clone, Copy)]
pub(crate) enum Around {
    /// So many items that are visible too.
    Visible(u32),
    /// So many that a worker has, so many that are delayed and so many that are dead.
    Hidden(u32),
}

/// Returns the steps of all statements of one receive.
pub(crate) fn vm_steps(around: Around) -> Result<f64> {
    let db = Litelease::from_connection(Connection::open_in_memory()?);
    db.bootstrap()?;
    // Compiles the statements, which look at the schema when they are new.
    cycles(&db, 2)?;
    fill(db.conn(), around)?;
    let queue = db.queue(NAME);
    queue.send(BODY)?;
    // The first one compiles what the fill has made stale.
    let mut steps = Vec::new();
    for _ in 0..2 {
        queue.send(BODY)?;
        take_steps(db.conn());
        let item = queue.receive(VISIBILITY)?.ok_or("nothing to receive")?;
        steps.push(take_steps(db.conn()));
        if !item.ack()?.is_acknowledged() {
            return Err("a stale receipt".into());
        }
    }
    Ok(f64::from(steps[1]))
}

fn fill(connection: &Connection, around: Around) -> Result<()> {
    const DELIVERED: &str = "i, randomblob(16), 4000000000000 + i";
    let shapes: &[(&str, &str, &str)] = match around {
        Around::Visible(_) => &[("1000 + i", "NULL, NULL, NULL", "NULL")],
        Around::Hidden(_) => &[
            ("NULL", DELIVERED, "'buried'"),
            ("4000000000000 + i", DELIVERED, "NULL"),
            ("4000000000000 + i", "NULL, NULL, NULL", "NULL"),
        ],
    };
    let (Around::Visible(count) | Around::Hidden(count)) = around;
    for (number, (visible_at_ms, delivery, ended)) in (1..).zip(shapes) {
        let first = number * 10_000_000;
        let attempts = u32::from(*delivery == DELIVERED);
        connection.execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             INSERT INTO litelease_queue_items (id, queue, visible_at_ms, attempts, token, receipt,
               deadline_ms, ended, sent_at_ms)
             SELECT {first} + i, 1, {visible_at_ms}, {attempts}, {delivery}, {ended}, 1000 FROM n;
             INSERT INTO litelease_queue_bodies (id, body)
             SELECT id, 'x' FROM litelease_queue_items WHERE id > {first};
             UPDATE litelease_queue_counter SET newest = {first} + {count}"
        ))?;
    }
    Ok(())
}

/// Returns the steps that all statements of a connection have made since the last call.
fn take_steps(connection: &Connection) -> u32 {
    let mut steps = 0;
    // SAFETY: the connection is open, and no statement is finalised meanwhile.
    unsafe {
        let mut statement = ffi::sqlite3_next_stmt(connection.handle(), ptr::null_mut());
        while !statement.is_null() {
            let made = ffi::sqlite3_stmt_status(statement, ffi::SQLITE_STMTSTATUS_VM_STEP, 1);
            steps += made.unsigned_abs();
            statement = ffi::sqlite3_next_stmt(connection.handle(), statement);
        }
    }
    steps
}
