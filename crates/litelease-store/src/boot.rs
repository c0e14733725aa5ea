//! Which boot of the machine this is. Grants that a power cut can take are lost between two boots,
//! never within one.

#[cfg(planted)]
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A boot of the machine, as a number that is larger than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// True if the system has a boot id.
    Known(i64),
    /// It does not. The number is this process's own, and whatever was before it may have been
    /// another boot.
    Unknown(i64),
}

#[cfg(planted)]
thread_local! {
    static PRETENDED: Cell<Option<Boot>> = const { Cell::new(None) };
}

/// The epoch of each file that this process has recorded, for systems without a boot id.
static LEFT: Mutex<BTreeMap<String, i64>> = Mutex::new(BTreeMap::new());

impl Boot {
    /// Returns the present boot.
    pub fn present() -> Boot {
        static PRESENT: OnceLock<Boot> = OnceLock::new();
        #[cfg(planted)]
        if let Some(boot) = PRETENDED.get() {
            return boot;
        }
        *PRESENT.get_or_init(find)
    }

    /// Returns the number, which a file keeps.
    pub fn number(self) -> i64 {
        match self {
            Boot::Known(number) | Boot::Unknown(number) => number,
        }
    }

    /// Returns whether the system has a boot id.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, Boot::Known(_))
    }

    /// Interprets the stored `boot` of a file, at this floor.
    ///
    /// A process on a system without a boot id takes every epoch for another boot's, until it has
    /// stored one of its own. Since then the machine was not off, so every epoch that is not older
    /// is of this boot, too, whichever process has stored it.
    pub(crate) fn read(self, boot: i64, floor: i64, file: &str) -> i64 {
        let is_since = || left().get(file).is_some_and(|left| *left <= floor);
        match self {
            Boot::Unknown(number) if boot != 0 && is_since() => number * boot.signum(),
            _ => boot,
        }
    }

    /// Remembers that this process has left its epoch in a file.
    pub(crate) fn remember(self, floor: i64, file: String) {
        if matches!(self, Boot::Unknown(_)) {
            left().insert(file, floor);
        }
    }
}

/// Makes the handles that this thread opens from now on take the present boot for another one, or
/// for the real one again. For proofs, which cannot switch the machine off.
#[cfg(planted)]
pub fn pretend(boot: Option<Boot>) {
    PRETENDED.set(boot);
}

pub(crate) fn left() -> std::sync::MutexGuard<'static, BTreeMap<String, i64>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find() -> Boot {
    let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    match told.as_deref().and_then(number_of) {
        Some(number) => Boot::Known(number),
        None => Boot::Unknown(positive(RandomState::new().build_hasher().finish())),
    }
}

/// Returns a boot id, which is a UUID, as a number: its halves, laid on each other. Files keep it,
/// so it must stay as it is.
fn number_of(uuid: &str) -> Option<i64> {
    let bits = u128::from_str_radix(&uuid.trim().replace('-', ""), 16).ok()?;
    Some(positive((bits >> 64) as u64 ^ bits as u64))
}

fn positive(bits: u64) -> i64 {
    (bits & i64::MAX.unsigned_abs()).max(1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_always_the_same_number() {
        let number = number_of("731ed0c9-e8c4-44bb-b46b-dbc4e3173971\n");
        assert_eq!(number, Some(0x4775_0b0d_0bd3_7dca));
        for odd in ["", "no uuid", "731ed0c9-e8c4-44bb-b46b-dbc4e31739711"] {
            assert_eq!(number_of(odd), None, "{odd}");
        }
        assert_eq!(number_of("0"), Some(1), "0 means that there is no boot");
    }

    #[test]
    fn a_process_that_cannot_tell_boots_apart_believes_marks_left_since_its_own() {
        let (me, other) = (Boot::Unknown(5), 9);
        assert_eq!(me.read(other, 0, "here"), other, "nothing of ours there yet");
        me.remember(3, "here".into());
        assert_eq!(me.read(other, 3, "here"), 5, "the machine was not off since");
        assert_eq!(me.read(-other, 4, "here"), -5, "and may still get lost");
        assert_eq!(me.read(other, 2, "here"), other, "an older file was put there");
        assert_eq!(me.read(other, 3, "elsewhere"), other);
        assert_eq!(me.read(0, 3, "here"), 0, "no epoch is no epoch");
        assert_eq!(Boot::Known(5).read(other, 3, "here"), other);
    }
}
