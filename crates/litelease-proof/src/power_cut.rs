//! Power cuts: a workload is recorded, and from every moment of it come files as a power cut may
//! leave them.
//!
//! Each is opened with plain SQLite after a simulated boot, must be whole, and must grant larger
//! tokens than all that were acknowledged before the cut. Some of them are where the workload goes
//! on, so that cuts follow cuts.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{Leases, Litelease};
use tempfile::TempDir;

use crate::boot::{Boot, pretend};
use crate::disk::{CUTS, Cut, Disk, Event, Image};
use crate::rig::Dice;
use crate::vfs;

pub(crate) const FILE: &str = "cut.sqlite3";
const TTL: Duration = Duration::from_millis(50);
/// A pool, and what its slots are told by.
const POOL: &str = "p";
const SLOT: &str = "a slot";

/// How a connection is set up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The journal mode.
    pub journal: &'static str,
    /// The `synchronous`.
    pub synchronous: &'static str,
}

impl Setting {
    /// Every setting that is looked at.
    pub fn all() -> impl Iterator<Item = Setting> {
        ["WAL", "DELETE", "TRUNCATE", "PERSIST"].into_iter().flat_map(|journal| {
            ["NORMAL", "FULL", "EXTRA"].map(|synchronous| Setting { journal, synchronous })
        })
    }

    /// Whether no acknowledged commit gets lost. This is the table that the store goes by, written
    /// again.
    pub fn is_strong(self) -> bool {
        match self.journal {
            "DELETE" => self.synchronous == "EXTRA",
            _ => self.synchronous != "NORMAL",
        }
    }

    /// Whether SQLite itself warns that a power cut can, if rarely, damage the file.
    pub fn may_be_damaged(self) -> bool {
        self.journal != "WAL" && self.synchronous == "NORMAL"
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.journal, self.synchronous)
    }
}

/// Whether the file learns that the machine was off. If not, there is no epoch: the negative
/// control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epoch {
    /// Each boot has a number of its own.
    On,
    /// All boots look the same.
    Off,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Workloads recorded.
    pub runs: u64,
    /// Different files looked at.
    pub images: u64,
    /// Files in which an acknowledged grant was missing.
    pub lost: u64,
    /// Files that SQLite found damaged, with the first complaint.
    pub damaged: u64,
    /// Files that granted a token again, or a smaller one.
    pub repeated: u64,
    /// The first thing that was wrong.
    pub first: Option<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { runs, images, lost, damaged, repeated, .. } = self;
        write!(
            f,
            "{images} files from {runs} runs: {lost} without an acknowledged grant, {damaged} damaged, \
             {repeated} with a token again"
        )
    }
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: Tally) {
        self.runs += other.runs;
        self.images += other.images;
        self.lost += other.lost;
        self.damaged += other.damaged;
        self.repeated += other.repeated;
        self.first = self.first.take().or(other.first);
    }
}

/// What was acknowledged, with how many events there were by then.
type Acknowledged = Vec<(usize, String, i64)>;

/// Cuts the power until there were so many different files, or the time is up.
pub fn cut_power(
    setting: Setting,
    epoch: Epoch,
    images: u64,
    until: Option<Instant>,
    seed: u64,
) -> Tally {
    let workload = |file: &Path, dice: &mut Dice| grants(file, setting, dice);
    cut_during(workload, &setting.to_string(), epoch, images, until, seed)
}

/// Cuts the power while several connections of different `synchronous` use one file, change it in
/// between, and grant inside transactions and outside. At the start of a boot, one of them calls
/// `bootstrap`, or none does; then they grant only in transactions that the library begins, and
/// outside.
pub fn cut_power_of_shared(
    journals: Journals,
    epoch: Epoch,
    images: u64,
    until: Option<Instant>,
    seed: u64,
) -> Tally {
    let workload = |file: &Path, dice: &mut Dice| shared_grants(file, journals, dice);
    cut_during(workload, &format!("shared, {journals:?}"), epoch, images, until, seed)
}

/// The journal modes of connections that share a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Journals {
    /// All use the write-ahead log.
    Wal,
    /// Each has a rollback journal of its own kind.
    Rollback,
}

impl Journals {
    /// The settings that a connection may have: first the strong ones, then the weak ones. Those
    /// that SQLite warns of are left out.
    fn settings(self) -> [&'static [(&'static str, &'static str)]; 2] {
        match self {
            Journals::Wal => [&[("WAL", "FULL"), ("WAL", "EXTRA")], &[("WAL", "NORMAL")]],
            Journals::Rollback => [
                &[("DELETE", "EXTRA"), ("TRUNCATE", "FULL"), ("PERSIST", "FULL")],
                &[("DELETE", "FULL")],
            ],
        }
    }

    /// Sets a connection up anew, so that it is strong or weak.
    fn set(self, conn: &Connection, is_strong: bool, dice: &mut Dice) {
        let settings = self.settings()[usize::from(!is_strong)];
        let (journal, synchronous) = settings[dice.below(settings.len() as u64) as usize];
        conn.execute_batch(&format!(
            "PRAGMA journal_mode = {journal}; PRAGMA synchronous = {synchronous}"
        ))
        .expect("pragmas");
    }
}

fn cut_during(
    workload: impl Fn(&Path, &mut Dice) -> Acknowledged,
    setting: &str,
    epoch: Epoch,
    images: u64,
    until: Option<Instant>,
    seed: u64,
) -> Tally {
    let mut dice = Dice::from(seed);
    let mut tally = Tally::default();
    let places = Places::new();
    let mut seen = HashSet::new();
    while tally.images < images && until.is_none_or(|until| Instant::now() < until) {
        let (mut files, mut known) = (Image::new(), BTreeMap::new());
        // A chain of boots, each on what the cut before has left.
        for boot in 1..=3 {
            let boots = [boot, boot + 1].map(|boot| match epoch {
                Epoch::On => Boot::Known(boot),
                Epoch::Off => Boot::Known(1),
            });
            pretend(Some(boots[0]));
            let (start, events, acknowledged) = places.record(&workload, &files, &mut dice);
            tally.runs += 1;
            pretend(Some(boots[1]));
            // Now and then a workload writes nothing at all.
            let count = (events.len() - start).max(1) as u64;
            let goes_on_at = start + dice.below(count) as usize;
            let mut disk = Disk::default();
            let mut told = known.clone();
            let mut acknowledged = acknowledged.into_iter().peekable();
            for (position, event) in events.iter().enumerate() {
                disk.follow(event);
                if position < start {
                    continue;
                }
                while let Some((_, name, token)) =
                    acknowledged.next_if(|(by_then, ..)| *by_then <= position + 1)
                {
                    let largest = told.entry(name).or_insert(0);
                    *largest = token.max(*largest);
                }
                for cut in cuts(&disk, event, position) {
                    let image = disk.cut(cut, &mut dice);
                    if seen.insert(key(&image, &told)) {
                        tally.images += 1;
                        places.check_image(&image, &told, &mut tally, || {
                            format!(
                                "{setting}, epoch {epoch:?}, seed {seed}, {cut:?} after {event}"
                            )
                        });
                    }
                }
                if position == goes_on_at {
                    files = disk.cut(Cut::Random, &mut dice);
                    known = told.clone();
                }
            }
            if !places.is_fine(&files, &known) {
                break;
            }
        }
    }
    pretend(None);
    tally
}

/// Which cuts to try after an event: those that can make a difference, and of the many some at each
/// moment.
pub(crate) fn cuts(disk: &Disk, event: &Event, position: usize) -> Vec<Cut> {
    match event {
        Event::Sync(_) | Event::SyncFolder => vec![Cut::LosesAll],
        _ if !disk.is_at_risk() => vec![],
        _ => {
            let in_turn = |at: usize| CUTS[at % CUTS.len()];
            vec![in_turn(2 * position), in_turn(2 * position + 1), Cut::Random, Cut::Random]
        }
    }
}

/// Tells images apart.
pub(crate) fn key(image: &Image, told: &BTreeMap<String, i64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    told.hash(&mut hasher);
    for (name, bytes) in image {
        (name, bytes.len()).hash(&mut hasher);
        // SQLite's pages are long: this is many times faster than hashing byte by byte.
        let mix = |sum: u64, word: &[u8]| {
            let word = word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        };
        bytes.chunks(8).fold(0, mix).hash(&mut hasher);
    }
    hasher.finish()
}

/// Where the workload runs and where files are looked at: in memory, if the system has such a
/// folder.
pub(crate) struct Places {
    _folder: TempDir,
    pub(crate) run: PathBuf,
    pub(crate) look: PathBuf,
}

impl Places {
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let folder = folder.expect("a temporary folder");
        let [run, look] = ["run", "look"].map(|name| folder.path().join(name));
        for path in [&run, &look] {
            fs::create_dir(path).expect("a folder");
        }
        Places { _folder: folder, run, look }
    }

    /// Records a few grants, with these files to begin with. Answers how many events put those
    /// there, too.
    fn record(
        &self,
        workload: impl Fn(&Path, &mut Dice) -> Acknowledged,
        files: &Image,
        dice: &mut Dice,
    ) -> (usize, Vec<Event>, Acknowledged) {
        put(&self.run, files);
        vfs::record(files);
        let start = vfs::position();
        let acknowledged = workload(&self.run.join(FILE), dice);
        (start, vfs::recorded(), acknowledged)
    }

    /// Whether nothing is wrong with a file, so that a workload can go on with it.
    fn is_fine(&self, image: &Image, told: &BTreeMap<String, i64>) -> bool {
        let mut tally = Tally::default();
        self.check_image(image, told, &mut tally, String::new);
        tally.first.is_none()
    }

    /// Opens a file as the next boot finds it.
    fn check_image(
        &self,
        image: &Image,
        told: &BTreeMap<String, i64>,
        tally: &mut Tally,
        case: impl Fn() -> String,
    ) {
        put(&self.look, image);
        let conn = Connection::open(self.look.join(FILE)).expect("opens");
        if let Err(complaint) = check(&conn) {
            tally.damaged += 1;
            tally.first.get_or_insert_with(|| format!("{}: {complaint}", case()));
            return;
        }
        let db = Litelease::from_connection(conn);
        // A purge takes rows away, and leaves the floor.
        let floor = "SELECT token_floor FROM litelease_meta";
        let floor: i64 = db.conn().query_row(floor, [], |row| row.get(0)).unwrap_or(0);
        let is_lost = |(name, largest): (&String, &i64)| {
            let newest = match name.as_str() {
                SLOT => db.pools().newest_token().unwrap_or(0),
                name => db.token(name).ok().flatten().unwrap_or(0),
            };
            newest.max(floor) < *largest
        };
        tally.lost += u64::from(told.iter().any(is_lost));
        for (name, largest) in told {
            match granted_after(&db, name) {
                Ok(Some(token)) if token > *largest => {}
                answer => {
                    // Where nothing is granted, no token comes back: then the file is damaged.
                    match answer {
                        Ok(_) => tally.repeated += 1,
                        Err(_) => tally.damaged += 1,
                    }
                    tally.first.get_or_insert_with(|| {
                        format!("{}: {largest} was acknowledged, then {answer:?}", case())
                    });
                    return;
                }
            }
        }
    }
}

/// What the next boot is granted.
fn granted_after(db: &Litelease, name: &str) -> litelease::Result<Option<i64>> {
    let now_ms = i64::MAX - 1_000;
    if name == SLOT {
        db.pools().at(now_ms).register(POOL, 1_000)?;
        return Ok(db.pools().at(now_ms).borrow(POOL, TTL)?.map(|lent| lent.slot.token));
    }
    Ok(db.at(now_ms).claim(name, "after", TTL)?.acquired().map(|lease| lease.token))
}

/// Lets SQLite look for damage.
pub(crate) fn check(conn: &Connection) -> Result<(), String> {
    // The file need not survive, and no other program uses it: this saves time.
    let quick = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF";
    let check = "PRAGMA integrity_check";
    let answer: Result<String, _> =
        conn.execute_batch(quick).and_then(|()| conn.query_row(check, [], |row| row.get(0)));
    match answer {
        Ok(answer) if answer == "ok" => Ok(()),
        Ok(complaint) => Err(complaint),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes these the files of the folder.
pub(crate) fn put(folder: &Path, image: &Image) {
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let name = format!("{FILE}{suffix}");
        let path = folder.join(&name);
        match image.get(&name) {
            Some(bytes) => fs::write(path, bytes).expect("writes"),
            None => drop(fs::remove_file(path)),
        }
    }
}

/// The workload: what it was granted, and when it knew.
fn grants(file: &Path, setting: Setting, dice: &mut Dice) -> Acknowledged {
    let flags = OpenFlags::default();
    let conn = Connection::open_with_flags_and_vfs(file, flags, vfs::NAME).expect("opens");
    let page_size = [512, 1024, 4096][dice.below(3) as usize];
    let Setting { journal, synchronous } = setting;
    // Either may come first: at the default it would be FULL while the journal mode changes.
    let mut pragmas = [format!("journal_mode = {journal}"), format!("synchronous = {synchronous}")];
    if dice.below(2) == 0 {
        pragmas.reverse();
    }
    let [first, second] = pragmas;
    conn.execute_batch(&format!(
        "PRAGMA page_size = {page_size}; PRAGMA {first}; PRAGMA {second}; PRAGMA wal_autocheckpoint = 9"
    ))
    .expect("pragmas");
    let mut db = Litelease::from_connection(conn);
    let mut acknowledged = Acknowledged::new();
    let mut now_ms = 0;
    // The first boot makes the table. Later ones may leave the record to the first grant.
    let mut is_recorded = db.token("x").is_err() || dice.below(2) == 0;
    if is_recorded {
        db.bootstrap().expect("bootstrap");
    }
    for _ in 0..8 {
        now_ms += 1_000;
        let name = ["x", "y"][dice.below(2) as usize];
        let lease = match dice.below(8) {
            // Inside a transaction order is promised only where the boot was recorded before.
            0 if is_recorded => {
                let tx = db.transaction().expect("a transaction");
                let lease = tx.at(now_ms).claim(name, "a", TTL).expect("a claim").acquired();
                tx.conn().execute_batch("CREATE TABLE IF NOT EXISTS mine (id)").expect("a table");
                tx.commit().expect("a commit");
                lease
            }
            1 => {
                let above = (dice.below(3) as i64) << 32 | dice.below(100) as i64;
                db.at(now_ms).claim_above(name, "a", TTL, above).expect("a claim").acquired()
            }
            2 => {
                db.at(now_ms).purge(now_ms).expect("a purge");
                None
            }
            3 => {
                let floor = db.token(name).expect("a token").unwrap_or(0) + dice.below(50) as i64;
                match db.raise_name(name, floor) {
                    // The floor of the file may be above it.
                    Ok(()) | Err(litelease::Error::FloorTooLow { .. }) => None,
                    Err(error) => panic!("{error}"),
                }
            }
            _ => db.at(now_ms).claim(name, "a", TTL).expect("a claim").acquired(),
        };
        let Some(lease) = lease else { continue };
        is_recorded = true;
        acknowledged.push((vfs::position(), lease.name.clone(), lease.token));
        match dice.below(4) {
            0 => {
                let handed_on = db.at(now_ms).transfer(&lease, "b", TTL).expect("a transfer");
                if let litelease::TransferResult::Transferred(lease) = handed_on {
                    acknowledged.push((vfs::position(), lease.name, lease.token));
                }
            }
            1 => drop(db.at(now_ms).release(&lease).expect("a release")),
            _ => {}
        }
    }
    acknowledged
}

/// The workload of connections that share a file. What was granted in a transaction is told after
/// its COMMIT.
fn shared_grants(file: &Path, journals: Journals, dice: &mut Dice) -> Acknowledged {
    let page_size = [512, 1024, 4096][dice.below(3) as usize];
    let mut open = |is_strong| {
        let flags = OpenFlags::default();
        let conn = Connection::open_with_flags_and_vfs(file, flags, vfs::NAME).expect("opens");
        conn.execute_batch(&format!("PRAGMA page_size = {page_size}")).expect("a page size");
        journals.set(&conn, is_strong, dice);
        conn.execute_batch("PRAGMA wal_autocheckpoint = 9").expect("a pragma");
        Litelease::from_connection(conn)
    };
    let mut handles = [open(true), open(false), open(false)];
    // Mostly the strong one is first, and often the weak ones grant nothing outside transactions.
    let first = &handles[dice.below(4).saturating_sub(1) as usize];
    let bootstraps = first.token("x").is_err() || dice.below(4) > 0;
    if bootstraps {
        first.bootstrap().expect("bootstrap");
    }
    first.pools().register(POOL, 1_000).expect("a pool");
    let kinds = [2, 4, 8][dice.below(3) as usize];
    // Later than everything that the boots before have left.
    let latest = "SELECT max(ifnull((SELECT max(updated_at_ms) FROM litelease_resources), 0),
        ifnull((SELECT max(expires_at_ms) FROM litelease_pool_slots), 0))";
    let latest: i64 = first.conn().query_row(latest, [], |row| row.get(0)).expect("a time");
    let mut acknowledged = Acknowledged::new();
    for now_ms in (1..9).map(|step| latest + 1_000 * step) {
        let which = dice.below(3) as usize;
        let db = &mut handles[which];
        if dice.below(4) == 0 {
            journals.set(db.conn(), dice.below(2) == 0, dice);
        }
        let name = ["x", "y"][dice.below(2) as usize];
        let told = match dice.below(kinds) {
            0 if bootstraps => {
                db.conn().execute_batch("BEGIN").expect("a transaction");
                let token = claim_and_perhaps_transfer(db, name, now_ms, dice);
                db.conn().execute_batch("COMMIT").expect("a commit");
                Some((name, token))
            }
            1 if bootstraps => {
                db.conn().execute_batch("BEGIN").expect("a transaction");
                let lent = db.pools().at(now_ms).borrow(POOL, TTL).expect("a borrow");
                db.conn().execute_batch("COMMIT").expect("a commit");
                lent.map(|lent| (SLOT, lent.slot.token))
            }
            0..=2 => {
                let tx = db.transaction().expect("a transaction");
                let token = claim_and_perhaps_transfer(&tx, name, now_ms, dice);
                tx.commit().expect("a commit");
                Some((name, token))
            }
            3 => {
                let tx = db.transaction().expect("a transaction");
                tx.at(now_ms).purge(now_ms).expect("a purge");
                tx.commit().expect("a commit");
                None
            }
            4 => {
                let above = (dice.below(3) as i64) << 32 | dice.below(100) as i64;
                let lease = db.at(now_ms).claim_above(name, "a", TTL, above).expect("a claim");
                lease.acquired().map(|lease| (name, lease.token))
            }
            5 => {
                let lent = db.pools().at(now_ms).borrow(POOL, TTL).expect("a borrow");
                lent.map(|lent| (SLOT, lent.slot.token))
            }
            _ => {
                let lease = db.at(now_ms).claim(name, "a", TTL).expect("a claim").acquired();
                lease.map(|lease| (name, lease.token))
            }
        };
        if let Some((name, token)) = told {
            acknowledged.push((vfs::position(), name.into(), token));
        }
    }
    acknowledged
}

fn claim_and_perhaps_transfer(db: &Leases, name: &str, now_ms: i64, dice: &mut Dice) -> i64 {
    let claimed = db.at(now_ms).claim(name, "a", TTL).expect("a claim");
    let lease = claimed.acquired().expect("nobody has it");
    match dice.below(3) {
        0 => {
            let handed_on = db.at(now_ms).transfer(&lease, "b", TTL).expect("a transfer");
            handed_on.transferred().expect("handed on").token
        }
        _ => lease.token,
    }
}
