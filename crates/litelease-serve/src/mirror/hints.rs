//! Notes the changes by others that the engine tells of, until the writer reads them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use litelease_cluster::engine::Listener;

/// How many names are noted. Beyond that any name may have changed.
const MOST: usize = 10_000;

/// Names that may have changed. Nothing is lost if a hint is: the rows decide.
#[derive(Default)]
pub(super) struct Hints(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    names: BTreeSet<String>,
    are_all: bool,
}

impl Hints {
    /// Takes the names out. Returns `None` if any name may have changed.
    pub(super) fn take(&self) -> Option<BTreeSet<String>> {
        let Noted { names, are_all } = std::mem::take(&mut *self.noted());
        (!are_all).then_some(names)
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Hints {
    fn changed(&self, name: Option<&str>, _: Option<i64>) {
        let mut noted = self.noted();
        match name {
            Some(name) if noted.names.len() < MOST => _ = noted.names.insert(name.to_owned()),
            _ => noted.are_all = true,
        }
    }
}
