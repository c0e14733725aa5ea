//! How costs grow: a claim among ever more rows, a borrow from ever larger pools.

use std::path::Path;
use std::time::Duration;

use litelease::rusqlite::{Connection, StatementStatus};
use litelease::{ClaimResult, Litelease};
use litelease_store::LOWEST_FREE;

use crate::Result;
use crate::figure::{Figure, Reach, Rounds};
use crate::measure::cpu;
use crate::results::{Point, Series};

const ROUNDS: usize = 7;
/// So many calls are timed together.
const CALLS: u32 = 10_000;
const TTL: Duration = Duration::from_millis(1);

/// The processor time of a claim in files of 1 to 10 million rows, and B8, the last next to the
/// first.
pub(crate) fn claims(folder: &Path) -> Result<(Figure, Series)> {
    let sizes: Vec<u32> = (0..8).map(|power| 10_u32.pow(power)).collect();
    let mut files = Vec::new();
    for rows in &sizes {
        files.push(Claims::new(&folder.join(format!("{rows}.sqlite3")), *rows)?);
    }
    let times = in_turns(&mut files, Claims::round)?;
    let (one, many) = (&times[0], &times[times.len() - 1]);
    let ratios = Rounds::ratios(many, one)?;
    let [few, lots] = [one, many].map(|times| Rounds::new(times.clone()));
    let detail = format!(
        "{:.1} / {:.1} µs of CPU in WAL NORMAL, random names, {ROUNDS} rounds",
        lots?.median(),
        few?.median()
    );
    let what = "claim at 10,000,000 rows ÷ at 1 row: CPU time";
    let figure = ratios.figure("B8", what, Reach::AtMost(4.0), detail);
    Ok((figure, series("claim", "claim", &sizes, times)?))
}

/// The processor time of borrowing and returning in pools of 1 to 100,000 slots, half of which are
/// lent.
pub(crate) fn borrows() -> Result<Series> {
    let sizes: Vec<u32> = (0..6).map(|power| 10_u32.pow(power)).collect();
    let mut pools = Vec::new();
    for slots in &sizes {
        pools.push(half_full(*slots)?);
    }
    let times = in_turns(&mut pools, |db| {
        let (start, pools) = (cpu(), db.pools());
        for _ in 0..CALLS {
            let lent = pools.at(100).borrow("p", TTL)?.ok_or("the pool is full")?;
            pools.at(100).return_slot("p", &lent.lease_id)?;
        }
        Ok(micros(start))
    })?;
    series("borrow", "borrow + return", &sizes, times)
}

/// What SQLite does to find the lowest free slot, in steps of its virtual machine.
pub(crate) fn vm_steps(slots: u32) -> Result<f64> {
    let db = half_full(slots)?;
    let mut lowest = db.conn().prepare(LOWEST_FREE)?;
    let position: u32 = lowest.query_row([1], |row| row.get(0))?;
    match position == slots / 2 {
        true => Ok(f64::from(lowest.get_status(StatementStatus::VmStep))),
        false => Err(format!("slot {position} is not the lowest free one").into()),
    }
}

/// A file with so many leases, all of them over.
struct Claims {
    db: Litelease,
    rows: u32,
    now_ms: i64,
    random: u32,
}

impl Claims {
    fn new(file: &Path, rows: u32) -> Result<Self> {
        let db = Litelease::from_connection(Connection::open(file)?);
        db.conn().execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")?;
        db.bootstrap()?;
        db.conn().execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows})
             INSERT INTO litelease_resources (name, owner, token, lease_expires_at_ms, created_at_ms, updated_at_ms)
             SELECT printf('resource-%08d', i), 'worker-a', 1, 2, 1, 1 FROM n;
             PRAGMA wal_checkpoint(TRUNCATE)"
        ))?;
        Ok(Claims { db, rows, now_ms: 1_000, random: 1 })
    }

    /// Each claim finds a lease that is over, and is granted.
    fn round(&mut self) -> Result<f64> {
        let names: Vec<String> =
            (0..CALLS).map(|_| format!("resource-{:08}", self.next() % self.rows)).collect();
        let start = cpu();
        for name in &names {
            self.now_ms += 2;
            match self.db.at(self.now_ms).claim(name, "worker-b", TTL)? {
                ClaimResult::Acquired(_) => {}
                answer => return Err(format!("{answer:?}").into()),
            }
        }
        Ok(micros(start))
    }

    /// Numbers in no order, the same in every run.
    fn next(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}

/// A pool in memory whose lower half is lent out, and whose upper half was.
fn half_full(slots: u32) -> Result<Litelease> {
    let db = Litelease::from_connection(Connection::open_in_memory()?);
    db.bootstrap()?;
    db.pools().register("p", i64::from(slots))?;
    db.conn().execute_batch(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {slots})
         INSERT INTO litelease_pool_slots (slot, token, lease, expires_at_ms)
         SELECT 1 << 20 | i, i + 1, iif(i < {slots} / 2, 'lease' || i, NULL), iif(i < {slots} / 2, 1000000, NULL) FROM n;
         UPDATE litelease_pools SET used = {slots} / 2, newest = {slots};"
    ))?;
    Ok(db)
}

/// Rounds in which each has its turn, after one that does not count. The times of each, by rounds.
fn in_turns<T>(
    those: &mut [T],
    mut round: impl FnMut(&mut T) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let mut times = vec![Vec::new(); those.len()];
    for number in 0..=ROUNDS {
        for (one, times) in those.iter_mut().zip(&mut times) {
            let time = round(one)?;
            if number > 0 {
                times.push(time);
            }
        }
    }
    Ok(times)
}

fn series(plot: &'static str, name: &str, sizes: &[u32], times: Vec<Vec<f64>>) -> Result<Series> {
    let point = |(size, times): (&u32, Vec<f64>)| {
        let rounds = Rounds::new(times)?;
        Ok(Point { x: f64::from(*size), y: rounds.median(), range: Some(rounds.range()) })
    };
    let points = sizes.iter().zip(times).map(point).collect::<Result<_>>()?;
    Ok(Series { plot: plot.into(), name: name.into(), points })
}

/// Microseconds of processor time for each call since then.
fn micros(start: Duration) -> f64 {
    (cpu() - start).as_secs_f64() * 1e6 / f64::from(CALLS)
}
