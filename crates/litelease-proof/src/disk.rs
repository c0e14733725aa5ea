//! A disk that loses power: what was written to files, and every state that a power cut may leave
//! them in.
//!
//! Between two syncs of a file, each of its sectors may be left at any version it had, its length
//! at any length it had, and between two syncs of the folder each name may be left at any file it
//! stood for. So writes are dropped, reordered and torn, independently in every file. Only a
//! truncation keeps its place among the writes to the same file, as it does where the system keeps
//! a journal of lengths.

use std::collections::BTreeMap;
use std::fmt;

use crate::rig::Dice;

/// What a disk writes at once or not at all.
const SECTOR: usize = 512;

/// One thing that a program did to its files.
#[derive(Clone, Debug)]
pub enum Event {
    /// A name in the folder now stands for this file.
    Link(String, usize),
    /// A name stands for nothing any more.
    Unlink(String),
    /// Bytes were written.
    Write(usize, usize, Vec<u8>),
    /// A file got another length.
    Truncate(usize, usize),
    /// What a file holds is now safe.
    Sync(usize),
    /// What the names stand for is now safe.
    SyncFolder,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Write(file, at, bytes) => {
                write!(f, "{} bytes written to file {file} at {at}", bytes.len())
            }
            event => write!(f, "{event:?}"),
        }
    }
}

/// The files of a folder, by name.
pub type Image = BTreeMap<String, Vec<u8>>;

/// The disk after some events: what is safe, and what is not yet.
#[derive(Default)]
pub struct Disk {
    files: Vec<File>,
    names: BTreeMap<String, Name>,
}

#[derive(Default)]
struct File {
    safe: Vec<u8>,
    pending: Vec<Change>,
}

enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Default)]
struct Name {
    safe: Option<usize>,
    pending: Vec<Option<usize>>,
}

/// What a power cut does with what is not safe yet.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// All of it is lost.
    LosesAll,
    /// Nothing of it is lost: this is a killed process.
    LosesNothing,
    /// The names are kept, what is in the files is lost.
    KeepsNames,
    /// What is in the files is kept, the names are lost.
    KeepsData,
    /// One file is kept, the others are lost.
    KeepsOneFile,
    /// One file is lost, the others are kept.
    LosesOneFile,
    /// The last change of each file is torn, all others are kept.
    TearsTheLast,
    /// Everything is left to chance.
    Random,
}

/// Every kind of power cut.
pub const CUTS: [Cut; 8] = [
    Cut::LosesAll,
    Cut::LosesNothing,
    Cut::KeepsNames,
    Cut::KeepsData,
    Cut::KeepsOneFile,
    Cut::LosesOneFile,
    Cut::TearsTheLast,
    Cut::Random,
];

/// What becomes of the unsafe part of one file.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Lost,
    Kept,
    LastTorn,
    Torn,
}

impl Disk {
    /// Follows what a program does.
    pub fn follow(&mut self, event: &Event) {
        match event {
            Event::Link(name, file) => {
                if self.files.len() <= *file {
                    self.files.resize_with(file + 1, File::default);
                }
                self.names.entry(name.clone()).or_default().pending.push(Some(*file));
            }
            Event::Unlink(name) => {
                self.names.entry(name.clone()).or_default().pending.push(None);
            }
            Event::Write(file, at, bytes) => {
                self.files[*file].pending.push(Change::Write(*at, bytes.clone()));
            }
            Event::Truncate(file, size) => {
                self.files[*file].pending.push(Change::Truncate(*size));
            }
            Event::Sync(file) => self.files[*file].sync(),
            Event::SyncFolder => self.names.values_mut().for_each(Name::sync),
        }
    }

    /// Whether a power cut now could lose anything.
    pub fn is_at_risk(&self) -> bool {
        self.files.iter().any(|file| !file.pending.is_empty())
            || self.names.values().any(|name| !name.pending.is_empty())
    }

    /// What is left after a power cut now.
    pub fn cut(&self, cut: Cut, dice: &mut Dice) -> Image {
        let chosen = dice.below(self.files.len().max(1) as u64) as usize;
        let mut image = Image::new();
        for (label, name) in &self.names {
            let Some(file) = name.after(cut, dice) else { continue };
            let fate = match cut {
                Cut::LosesAll | Cut::KeepsNames => Fate::Lost,
                Cut::LosesNothing | Cut::KeepsData => Fate::Kept,
                Cut::KeepsOneFile if file == chosen => Fate::Kept,
                Cut::KeepsOneFile => Fate::Lost,
                Cut::LosesOneFile if file == chosen => Fate::Lost,
                Cut::LosesOneFile => Fate::Kept,
                Cut::TearsTheLast => Fate::LastTorn,
                Cut::Random => Fate::Torn,
            };
            image.insert(label.clone(), self.files[file].after(fate, dice));
        }
        image
    }
}

impl Name {
    fn sync(&mut self) {
        if let Some(last) = self.pending.drain(..).next_back() {
            self.safe = last;
        }
    }

    fn after(&self, cut: Cut, dice: &mut Dice) -> Option<usize> {
        let count = self.pending.len();
        let kept = match cut {
            Cut::LosesAll | Cut::KeepsData => 0,
            Cut::LosesNothing | Cut::KeepsNames => count,
            _ => dice.below(count as u64 + 1) as usize,
        };
        if kept == 0 { self.safe } else { self.pending[kept - 1] }
    }
}

impl File {
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            change.apply(&mut self.safe);
        }
    }

    fn after(&self, fate: Fate, dice: &mut Dice) -> Vec<u8> {
        match fate {
            Fate::Lost => self.safe.clone(),
            Fate::Kept => self.with(self.pending.len()),
            Fate::LastTorn => self.torn(self.pending.len().saturating_sub(1), dice),
            Fate::Torn => self.torn(0, dice),
        }
    }

    /// The file with so many of its unsafe changes.
    fn with(&self, count: usize) -> Vec<u8> {
        let mut bytes = self.safe.clone();
        self.pending[..count].iter().for_each(|change| change.apply(&mut bytes));
        bytes
    }

    /// The file with the first `certain` of its changes, and of the others what chance leaves of
    /// them, sector by sector.
    fn torn(&self, certain: usize, dice: &mut Dice) -> Vec<u8> {
        // What comes after a truncation that is lost is lost, too.
        let cuts = self.truncations().filter(|at| *at >= certain);
        let ends: Vec<usize> = cuts.chain([self.pending.len()]).collect();
        let end = ends[choice(ends.len(), dice)];
        let last_cut = self.truncations().take_while(|at| *at < end).last();
        let lengths = self.lengths();
        let longest = lengths[..=end].iter().copied().max().unwrap_or(0);
        let versions = versions(longest.div_ceil(SECTOR), certain.min(end), end, dice);
        let mut bytes = self.safe.clone();
        bytes.resize(longest, 0);
        let mut written = vec![false; versions.len()];
        for (number, change) in self.pending[..end].iter().enumerate() {
            match change {
                Change::Write(at, data) => {
                    let until = at + data.len();
                    for sector in at / SECTOR..until.div_ceil(SECTOR) {
                        if number < versions[sector] {
                            let (from, to) =
                                (*at.max(&(sector * SECTOR)), until.min((sector + 1) * SECTOR));
                            bytes[from..to].copy_from_slice(&data[from - at..to - at]);
                            written[sector] = true;
                        }
                    }
                }
                Change::Truncate(size) => {
                    if let Some(beyond) = bytes.get_mut(*size..) {
                        beyond.fill(0);
                    }
                }
            }
        }
        let since = last_cut.map_or(0, |at| at + 1).max(certain.min(end));
        bytes.truncate(lengths[since + choice(end - since + 1, dice)]);
        for (number, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            // Space that was given to the file and not written yet may hold anything.
            let is_new = number * SECTOR >= self.safe.len();
            if is_new && !written[number] && dice.below(4) == 0 {
                sector.fill_with(|| dice.below(256) as u8);
            }
        }
        bytes
    }

    /// Where among the unsafe changes the file was truncated.
    fn truncations(&self) -> impl Iterator<Item = usize> {
        let is_truncation = |change: &Change| matches!(change, Change::Truncate(_));
        self.pending
            .iter()
            .enumerate()
            .filter(move |(_, change)| is_truncation(change))
            .map(|at| at.0)
    }

    /// How long the file was at first, and after each of its unsafe changes.
    fn lengths(&self) -> Vec<usize> {
        let mut length = self.safe.len();
        let after = self.pending.iter().map(|change| {
            length = match change {
                Change::Write(at, data) => length.max(at + data.len()),
                Change::Truncate(size) => *size,
            };
            length
        });
        std::iter::once(self.safe.len()).chain(after.collect::<Vec<_>>()).collect()
    }
}

/// For each of so many sectors, how many changes it has seen.
fn versions(count: usize, least: usize, most: usize, dice: &mut Dice) -> Vec<usize> {
    // Mostly one leaning for the whole file: sector by sector, long files would all look half done.
    let leaning = dice.below(4);
    let version = |_| match leaning {
        0 => least + choice(most - least + 1, dice),
        1 if dice.below(8) > 0 => least,
        2 if dice.below(8) > 0 => most,
        _ => least + dice.below((most - least) as u64 + 1) as usize,
    };
    (0..count).map(version).collect()
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(at, data) => {
                let end = at + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*at..end].copy_from_slice(data);
            }
            Change::Truncate(size) => bytes.resize(*size, 0),
        }
    }
}

/// The first, the last or any.
fn choice(count: usize, dice: &mut Dice) -> usize {
    match dice.below(3) {
        0 => 0,
        1 => count - 1,
        _ => dice.below(count as u64) as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(events: &[Event]) -> Disk {
        let mut disk = Disk::default();
        events.iter().for_each(|event| disk.follow(event));
        disk
    }

    #[test]
    fn what_was_synced_survives_every_cut_and_what_was_not_is_left_in_every_state() {
        let events = [
            Event::Link("a".into(), 0),
            Event::Write(0, 0, vec![1; 1024]),
            Event::Sync(0),
            Event::SyncFolder,
            Event::Write(0, 0, vec![2; 1024]),
        ];
        let (disk, mut dice) = (disk(&events), Dice::from(1));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            for cut in CUTS {
                let image = disk.cut(cut, &mut dice);
                let bytes = &image["a"];
                assert_eq!(bytes.len(), 1024);
                assert!(bytes[..512].iter().all(|byte| *byte == bytes[0]), "a sector is whole");
                seen.insert((bytes[0], bytes[1023]));
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 1), (2, 2)]);
    }

    #[test]
    fn a_deletion_is_safe_only_after_the_folder_was_synced() {
        let made = [Event::Link("j".into(), 0), Event::Sync(0), Event::SyncFolder];
        let gone = Event::Unlink("j".into());
        let mut dice = Dice::from(1);
        let unsafe_yet = disk(&[made.as_slice(), std::slice::from_ref(&gone)].concat());
        assert!(unsafe_yet.cut(Cut::LosesAll, &mut dice).contains_key("j"));
        assert!(!unsafe_yet.cut(Cut::LosesNothing, &mut dice).contains_key("j"));
        let safe = disk(&[made.as_slice(), &[gone, Event::SyncFolder]].concat());
        for cut in CUTS {
            assert!(!safe.cut(cut, &mut dice).contains_key("j"));
        }
    }
}
