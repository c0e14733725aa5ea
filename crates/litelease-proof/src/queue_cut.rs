//! Power cuts with queues: a workload is recorded, and from every moment of it come files as a
//! power cut may leave them.
//!
//! Where commits survive, an item that was sent is there and one that was acknowledged is not.
//! Everywhere, no id and no token comes again, and no receipt passes whose delivery is lost or was
//! followed by another one.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{Error, Litelease};

use crate::boot::{Boot, pretend};
use crate::disk::{Cut, Disk, Image};
use crate::power_cut::{Epoch, FILE, Places, Setting, Tally, check, cuts, key, put};
use crate::rig::Dice;
use crate::vfs;

const VISIBILITY: Duration = Duration::from_millis(50);
const QUEUES: [&str; 2] = ["mail", "post"];

/// Something that a caller knows, from a moment on.
#[derive(Clone, Debug)]
enum Fact {
    Sent {
        id: i64,
    },
    Received {
        token: i64,
        receipt: String,
    },
    /// An acknowledgement, cancellation or deletion has begun: its outcome is unknown until it has
    /// returned.
    Ending {
        id: i64,
    },
    Ended {
        id: i64,
    },
}

type Facts = Vec<(usize, Fact)>;

impl Fact {
    /// The id or token that was given out.
    fn number(&self) -> Option<i64> {
        match self {
            Fact::Sent { id } => Some(*id),
            Fact::Received { token, .. } => Some(*token),
            Fact::Ending { .. } | Fact::Ended { .. } => None,
        }
    }
}

/// What is known at a moment.
#[derive(Clone, Default)]
struct Known {
    largest: i64,
    sent: BTreeSet<i64>,
    ended: BTreeSet<i64>,
    /// Receipts by the number of the delivery.
    receipts: BTreeMap<i64, String>,
}

impl Known {
    fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Sent { id } => {
                self.largest = self.largest.max(id);
                self.sent.insert(id);
            }
            Fact::Received { token, receipt } => {
                self.largest = self.largest.max(token);
                self.receipts.insert(token, receipt);
            }
            Fact::Ending { id } => _ = self.sent.remove(&id),
            Fact::Ended { id } => _ = self.ended.insert(id),
        }
    }

    /// Returns the counts of the known facts.
    fn counts(&self) -> BTreeMap<String, i64> {
        let counts = [self.largest, self.sent.len() as i64, self.ended.len() as i64];
        ["largest", "sent", "ended"].map(String::from).into_iter().zip(counts).collect()
    }
}

/// Cuts the power until there were so many different files, or the time is up.
pub fn cut_power_of_queues(
    setting: Setting,
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
        let (mut files, mut known) = (Image::new(), Known::default());
        // A chain of boots, each on what the cut before has left.
        for boot in 1..=3 {
            let boots = [boot, boot + 1].map(|boot| match epoch {
                Epoch::On => Boot::Known(boot),
                Epoch::Off => Boot::Known(1),
            });
            pretend(Some(boots[0]));
            put(&places.run, &files);
            vfs::record(&files);
            let start = vfs::position();
            let facts = work(&places.run.join(FILE), setting, &mut dice);
            let events = vfs::recorded();
            tally.runs += 1;
            // What the boots before were told is not told again, whether the cut has taken it or
            // not.
            let again = facts.iter().filter_map(|(_, fact)| fact.number());
            if let Some(number) = again.filter(|number| *number <= known.largest).min() {
                tally.repeated += 1;
                let largest = known.largest;
                let what = || format!("{setting}, seed {seed}: {number} after {largest}");
                tally.first.get_or_insert_with(what);
            }
            pretend(Some(boots[1]));
            let goes_on_at = start + dice.below((events.len() - start).max(1) as u64) as usize;
            let mut disk = Disk::default();
            let mut facts = facts.into_iter().peekable();
            let mut now = known.clone();
            for (position, event) in events.iter().enumerate() {
                disk.follow(event);
                if position < start {
                    continue;
                }
                while let Some((_, fact)) = facts.next_if(|(by_then, _)| *by_then <= position + 1) {
                    now.learn(fact);
                }
                for cut in cuts(&disk, event, position) {
                    // A few of them will do: a file with queues takes long to look at, and what the
                    // next boot makes of it matters more.
                    if dice.below(6) > 0 {
                        continue;
                    }
                    let image = disk.cut(cut, &mut dice);
                    if seen.insert(key(&image, &now.counts())) {
                        tally.images += 1;
                        let case = || {
                            format!(
                                "{setting}, epoch {epoch:?}, seed {seed}, {cut:?} after {event}"
                            )
                        };
                        check_image(&places.look, &image, &now, &mut tally, case);
                    }
                }
                if position == goes_on_at {
                    let cut = [Cut::Random, Cut::LosesAll][dice.below(2) as usize];
                    files = disk.cut(cut, &mut dice);
                    known = now.clone();
                }
            }
            let mut fate = Tally::default();
            check_image(&places.look, &files, &known, &mut fate, String::new);
            if fate.first.is_some() {
                break;
            }
            // What the cut took is not known to be there any more.
            if fate.lost > 0 {
                (known.sent, known.ended) = Default::default();
            }
        }
    }
    pretend(None);
    tally
}

/// Opens a file as the next boot finds it.
fn check_image(
    folder: &Path,
    image: &Image,
    known: &Known,
    tally: &mut Tally,
    case: impl Fn() -> String,
) {
    put(folder, image);
    let conn = Connection::open(folder.join(FILE)).expect("opens");
    if let Err(complaint) = check(&conn) {
        tally.damaged += 1;
        tally.first.get_or_insert_with(|| format!("{}: {complaint}", case()));
        return;
    }
    let db = Litelease::from_connection(conn);
    match judge(&db, known) {
        Ok(is_lost) => tally.lost += u64::from(is_lost),
        Err(Verdict::Repeated(what)) => {
            tally.repeated += 1;
            tally.first.get_or_insert_with(|| format!("{}: {what}", case()));
        }
        Err(Verdict::Damaged(error)) => {
            tally.damaged += 1;
            tally.first.get_or_insert_with(|| format!("{}: {error:?}", case()));
        }
    }
}

enum Verdict {
    Repeated(String),
    Damaged(Error),
}

impl From<Error> for Verdict {
    fn from(error: Error) -> Self {
        Verdict::Damaged(error)
    }
}

/// Says whether something that was told is not so any more, or what is worse than that.
fn judge(db: &Litelease, known: &Known) -> Result<bool, Verdict> {
    let repeated = |what: String| Err(Verdict::Repeated(what));
    db.bootstrap()?;
    let mut found = BTreeSet::new();
    for queue in QUEUES {
        found.extend(db.queue(queue).items()?.into_iter().map(|item| item.id));
    }
    let is_lost = !known.sent.is_subset(&found) || !known.ended.is_disjoint(&found);
    // At most the newest receipt of an item passes.
    let mut passing = BTreeMap::new();
    for (token, receipt) in &known.receipts {
        if let Some(item) = db.queue("").delivery(receipt)? {
            if item.token != *token {
                return repeated(format!("the receipt of {token} passes for {}", item.token));
            }
            if let Some(other) = passing.insert(item.id, token) {
                return repeated(format!("the receipts of {other} and {token} pass"));
            }
        }
    }
    // Every item is delivered once more: then no receipt of before passes.
    let late = i64::MAX - 1_000;
    for queue in QUEUES {
        db.queue(queue).at(late).redrive()?;
        for item in db.queue(queue).at(late).receive_many(usize::MAX, VISIBILITY)? {
            if item.token <= known.largest {
                return repeated(format!("token {} after {}", item.token, known.largest));
            }
        }
    }
    for (token, receipt) in &known.receipts {
        if db.queue("").ack(receipt)?.is_acknowledged() {
            return repeated(format!("the receipt of {token} passes after a delivery"));
        }
    }
    let id = db.queue("mail").send("after")?;
    match id > known.largest {
        true => Ok(is_lost),
        false => repeated(format!("id {id} after {}", known.largest)),
    }
}

/// The workload: what its callers know, and since when.
fn work(file: &Path, setting: Setting, dice: &mut Dice) -> Facts {
    let flags = OpenFlags::default();
    let conn = Connection::open_with_flags_and_vfs(file, flags, vfs::NAME).expect("opens");
    let page_size = [512, 1024, 4096][dice.below(3) as usize];
    let Setting { journal, synchronous } = setting;
    conn.execute_batch(&format!(
        "PRAGMA page_size = {page_size}; PRAGMA journal_mode = {journal}; PRAGMA synchronous = {synchronous};
         PRAGMA wal_autocheckpoint = 9"
    ))
    .expect("pragmas");
    let mut db = Litelease::from_connection(conn);
    // Later boots may leave the record to the first send.
    if db.token("x").is_err() || dice.below(2) == 0 {
        db.bootstrap().expect("bootstrap");
    }
    let mut facts = Facts::new();
    let mut receipts: Vec<(i64, String)> = Vec::new();
    // Later than everything that the boots before have left.
    let latest = "SELECT max(max(ifnull(visible_at_ms, 0), ifnull(deadline_ms, 0)))
        FROM litelease_queue_items";
    let mut now_ms: i64 = db
        .conn()
        .query_row(latest, [], |row| row.get::<_, Option<i64>>(0))
        .ok()
        .flatten()
        .unwrap_or(0);
    for _ in 0..8 {
        now_ms += 40;
        let name = QUEUES[usize::from(dice.below(4) == 0)];
        let body = vec![7u8; [1, 100, 3_000][dice.below(3) as usize]];
        match dice.below(8) {
            0..=2 => {
                let id = db.queue(name).at(now_ms).send(body).expect("a send");
                facts.push((vfs::position(), Fact::Sent { id }));
            }
            // Inside a transaction, too: the boot is recorded before it begins.
            3 => {
                let tx = db.transaction().expect("a transaction");
                let id = tx.queue(name).at(now_ms).send(body).expect("a send");
                let item = tx.queue(name).at(now_ms).receive(VISIBILITY).expect("a receive");
                let item = item.map(|item| (item.id, item.token, item.receipt.clone()));
                tx.commit().expect("a commit");
                facts.push((vfs::position(), Fact::Sent { id }));
                if let Some((id, token, receipt)) = item {
                    receipts.push((id, receipt.clone()));
                    facts.push((vfs::position(), Fact::Received { token, receipt }));
                }
            }
            4 | 5 => {
                let item = db.queue(name).at(now_ms).receive(VISIBILITY).expect("a receive");
                if let Some(item) = item {
                    receipts.push((item.id, item.receipt.clone()));
                    let (token, receipt) = (item.token, item.receipt);
                    facts.push((vfs::position(), Fact::Received { token, receipt }));
                }
            }
            6 => {
                if let Some((id, receipt)) = receipts.pop() {
                    facts.push((vfs::position(), Fact::Ending { id }));
                    let answer = db.queue(name).at(now_ms).ack(&receipt).expect("an answer");
                    if answer.is_acknowledged() {
                        facts.push((vfs::position(), Fact::Ended { id }));
                    }
                }
            }
            _ => {
                if let Some((_, receipt)) = receipts.last() {
                    db.queue(name).at(now_ms).give_back(receipt).expect("an answer");
                }
            }
        }
    }
    facts
}
