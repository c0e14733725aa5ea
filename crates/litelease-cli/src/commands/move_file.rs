//! `litelease move`: the leases of a file go on at an engine that several machines share.

use std::time::{Duration, Instant};

use litelease::{
    Identity, LeaseRow, LeftBehind, Litelease, Liveness, RetireResult, Retirement, Status,
};
use litelease_cluster::{Cluster, Error};
use litelease_serve::{ClusterAccess, FileAccess};
use serde_json::json;

use crate::engine_url::EngineUrl;
use crate::exit::{Failure, Result, code};
use crate::output::{answer, complain, owner, printable};
use crate::target::Engine;
use crate::{Common, database};

/// Move the leases of a file to etcd or PostgreSQL: tokens go on there, and the file grants nothing
/// any more
///
/// First the engine is told to grant tokens above all of the file. Then the file is retired, in one
/// transaction: nothing is granted there any more, while holders keep what they have. A server of
/// the file sends its clients away, with the new place. Access keys are copied. Then this waits
/// until nothing in the file is live. Start programs with the new URL after that: until then
/// a name could have a holder in the file and one at the engine.
///
/// Every step may be repeated: if this is interrupted, run it again. Names are not copied: at the
/// engine they are free until they are claimed. There is no way back, so make a backup of the file
/// first if you want to try it.
///
/// Servers of the file and of the engine may run meanwhile. It refuses to move a file with guarded
/// tables, items in queues, or slots that are kept.
#[derive(clap::Args)]
#[command(
    name = "move",
    after_help = "Examples:
  litelease move --db app.sqlite3 --to etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/jobs
  litelease move --db app.sqlite3 --to postgres://app@db.example/app --break"
)]
pub(crate) struct Args {
    /// The URL of the engine; its password is in the file $LITELEASE_PASSWORD_FILE
    #[arg(long, value_name = "URL")]
    to: String,
    /// Do not wait for holders in the file that have died: end their leases. Only a holder that is
    /// seen to run prevents it: one in another container cannot be seen from here, and is broken
    /// although it may run
    #[arg(long = "break")]
    is_breaking: bool,
    /// Leave checkpoints and pools in the file: nothing of them is moved
    #[arg(long)]
    leave_behind: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let url = EngineUrl::read("--to", &args.to, true)?;
    let db = database::open_existing(common)?;
    db.bootstrap()?;
    let engine = Engine::new(url.clone());
    let tell = |text: String| {
        if !common.quiet && !common.json {
            complain(&format!("litelease: {text}"));
        }
    };
    if db.retirement()?.is_none() {
        args.check(&db, url.shown())?;
    }
    let retirement = retire(&db, engine.cluster()?, url.shown(), &tell)?;
    if retirement.moved_to != url.shown() {
        return Err(Failure::elsewhere(
            "Moved",
            format!(
                "this file was moved to {} already: give that URL",
                printable(&retirement.moved_to)
            ),
        ));
    }
    tell("step 2 of 3: nothing is granted in the file any more".into());
    // Once more: one may have been added since.
    copy_keys(&db, engine.cluster()?)?;
    until_nothing_is_live(&db, args.is_breaking, &tell)?;
    let (floor, to) = (retirement.floor, url.shown());
    let text = format!("moved to {to}: every token there is larger than {floor}");
    answer(common, json!({ "moved_to": to, "floor": floor }), &text)?;
    Ok(code::OK)
}

impl Args {
    /// Refuses a file that cannot be moved without breaking a promise or losing data, before any
    /// change.
    fn check(&self, db: &Litelease, to: &str) -> Result<()> {
        if let Some(guard) = db.guards()?.first() {
            return Err(guarded(&guard.table, &guard.name, to));
        }
        let behind = db.left_behind()?;
        if behind != LeftBehind::default() && !self.leave_behind {
            let LeftBehind { checkpoints, pools } = behind;
            return Err(refused(
                "LeftBehind",
                format!(
                    "the file has {checkpoints} checkpoints and {pools} pools, which stay in it: make those that you \
                     need anew with litelease serve --db {to}, then move with --leave-behind"
                ),
            ));
        }
        if self.is_breaking {
            let is_dead = |row| check_is_dead(row).map_err(|text| refused("Alive", text));
            live(db)?.iter().try_for_each(is_dead)?;
        }
        Ok(())
    }
}

/// Copies the access keys of the file's clients to the engine, unless they are there.
fn copy_keys(db: &Litelease, cluster: &Cluster) -> Result<()> {
    let keys = FileAccess::new(db).list()?.unwrap_or_default();
    if keys.is_empty() {
        return Ok(());
    }
    let other = ClusterAccess::new(cluster.clone()).add_all(&keys);
    let other = other.map_err(|error| Failure::failed("Engine", error))?;
    other.map_or(Ok(()), |name| {
        Err(Failure::failed(
            "AccessKeys",
            format!(
                "the engine has another access key called {}: remove one of the two with litelease access, and run \
                 this again",
                printable(&name)
            ),
        ))
    })
}

/// Refuses to break the lease of a process that runs: its command would still work while another
/// one is granted the name at the engine.
fn check_is_dead(row: &LeaseRow) -> std::result::Result<(), String> {
    let Some((who, _)) = &row.tenure else { return Ok(()) };
    match Identity::parse(who).map_or(Liveness::Unknown, |who| who.liveness()) {
        Liveness::Alive => Err(format!(
            "{} is held by {}, which still runs: end it first, or move without --break, which waits for it",
            printable(&row.name),
            owner(who)
        )),
        _ => Ok(()),
    }
}

fn refused(kind: &'static str, text: String) -> Failure {
    Failure::failed(kind, format!("nothing was moved: {text}"))
}

/// Makes the engine grant tokens above all of the file, and then retires the file. The other way
/// round, a crash in between would leave no record of how far the tokens of the file had come.
fn retire(
    db: &Litelease,
    cluster: &Cluster,
    to: &str,
    tell: &dyn Fn(String),
) -> Result<Retirement> {
    if let Some(retirement) = db.retirement()? {
        // A crash came after the second step. The first one was done; to be sure, and for a URL
        // that names another way to the same engine, it is done again.
        if retirement.moved_to == to {
            raise(cluster, retirement.floor)?;
        }
        return Ok(retirement);
    }
    loop {
        let floor = db.epoch()?.next_floor().ok_or_else(|| {
            Failure::failed("TokenExhausted", "the largest token there is was granted in this file")
        })?;
        raise(cluster, floor)?;
        copy_keys(db, cluster)?;
        tell(format!("step 1 of 3: {to} grants tokens above {floor}"));
        match db.retire(floor, to)? {
            RetireResult::Retired(retirement) => return Ok(retirement),
            // Another program was granted a token of a new epoch meanwhile.
            RetireResult::TooLow { .. } => {}
            RetireResult::InUse { items, kept, ticks } => {
                return Err(in_use(items, kept, ticks, to));
            }
            RetireResult::Guarded { table, name } => return Err(guarded(&table, &name, to)),
        }
    }
}

fn raise(cluster: &Cluster, floor: i64) -> Result<()> {
    let raised = match cluster.raise(floor) {
        Err(Error::NotBootstrapped) => {
            cluster.bootstrap()?;
            cluster.raise(floor)
        }
        raised => raised,
    };
    match raised {
        // It was raised before, or the engine has granted more.
        Ok(()) | Err(Error::FloorTooLow { .. }) => Ok(()),
        Err(error) => Err(not_taken(error)),
    }
}

fn not_taken(error: Error) -> Failure {
    let failure = Failure::from(error);
    Failure::elsewhere("Engine", format!("the engine did not take it: {failure}; run this again"))
}

fn guarded(table: &str, name: &str, to: &str) -> Failure {
    let (table, name) = (printable(table), printable(name));
    refused(
        "Guarded",
        format!(
            "the table {table} is guarded by {name}, and guards in a moved file accept its last holder for ever and \
             none from {to}: move the table first, or litelease guard remove {table}"
        ),
    )
}

fn in_use(items: i64, kept: i64, ticks: i64, to: &str) -> Failure {
    let text = match (items, kept) {
        (0, 0) => format!(
            "{ticks} names have ticks, which are not moved and would run again: once a server of {to} runs, skip \
             each there (litelease ticks skip NAME --server URL), forget it here (litelease ticks forget NAME), \
             and move then"
        ),
        (0, kept) => {
            format!("{kept} slots of pools are kept until they are returned: return them first")
        }
        (items, _) => format!(
            "its queues have {items} items, and queues work in a file only: let workers finish them, or discard \
             them, or keep the queues in a file of their own (litelease queue list)"
        ),
    };
    refused("InUse", text)
}

/// How often it looks whether something is still live.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it says so.
const REMINDER: Duration = Duration::from_secs(10);

fn until_nothing_is_live(db: &Litelease, is_breaking: bool, tell: &dyn Fn(String)) -> Result<()> {
    let watch = db.watch();
    let mut told: Option<(String, Instant)> = None;
    loop {
        let seen = watch.changes();
        database::check_moved(db)?;
        let live = live(db)?;
        let slots = db.slots_in_use()?;
        if live.is_empty() && slots == 0 {
            return Ok(());
        }
        if is_breaking {
            let is_dead = |row| {
                let still = |text| format!("the file grants nothing any more, but {text}");
                check_is_dead(row).map_err(|text| Failure::failed("Alive", still(text)))
            };
            live.iter().try_for_each(is_dead)?;
            for lease in &live {
                if let litelease::BreakResult::Broken { owner: who, token } =
                    db.break_lease(&lease.name)?
                {
                    let name = printable(&lease.name);
                    tell(format!("{name}: broken, token {token} of {} is superseded", owner(&who)));
                }
            }
            if slots > 0 {
                db.free_slots()?;
                tell(format!("{slots} slots of pools were taken back"));
            }
            continue;
        }
        let text = waiting_for(&live, slots);
        let is_due = |(before, at): &(String, Instant)| *before != text || at.elapsed() >= REMINDER;
        if told.as_ref().is_none_or(is_due) {
            tell(format!("step 3 of 3: waiting until nothing is live in the file: {text}"));
            told = Some((text, Instant::now()));
        }
        let next_ms = live.iter().filter_map(|row| row.tenure.as_ref()).map(|(_, ms)| *ms).min();
        let pause = if slots > 0 { PAUSE } else { REMINDER };
        watch.wait(seen, next_ms.unwrap_or(i64::MAX), pause);
    }
}

fn live(db: &Litelease) -> Result<Vec<LeaseRow>> {
    let now_ms = litelease::now_ms();
    let mut rows = db.list()?;
    rows.retain(|row| row.status(now_ms) == Some(Status::Live));
    Ok(rows)
}

/// Names the first holder, and counts the others.
fn waiting_for(live: &[LeaseRow], slots: i64) -> String {
    let first = live.first().and_then(|row| {
        let (who, _) = row.tenure.as_ref()?;
        Some(format!("{} is held by {}", printable(&row.name), owner(who)))
    });
    let others = live.len().saturating_sub(1);
    let mut parts: Vec<String> = first.into_iter().collect();
    if others > 0 {
        parts.push(format!("{others} other names are held"));
    }
    if slots > 0 {
        parts.push(format!("{slots} slots are lent out"));
    }
    parts.join(", ")
}
