//! A keeper of this process, with its thread: started by the first use, and refused after a fork.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Clock, Keeper, SystemClock};

/// A keeper that is started by its first use.
///
/// ```
/// # use litelease_keeper::ProcessKeeper;
/// static HOLDS: ProcessKeeper = ProcessKeeper::new();
/// let keeper = HOLDS.get()?;
/// # Ok::<(), litelease_keeper::NoKeeper>(())
/// ```
#[derive(Debug)]
pub struct ProcessKeeper {
    keeper: Mutex<Option<Arc<Keeper>>>,
    /// The process that has a keeper. Asked first: in a forked process the lock may be held for
    /// ever, by a thread that is not there.
    process: AtomicU32,
}

/// Why there is no keeper.
#[derive(Debug)]
pub enum NoKeeper {
    /// This process was forked from the one that has the keeper.
    Forked,
    /// The system gives no thread.
    NoThread(io::Error),
}

impl ProcessKeeper {
    /// Returns one that is not started yet.
    pub const fn new() -> Self {
        ProcessKeeper { keeper: Mutex::new(None), process: AtomicU32::new(0) }
    }

    /// Returns the keeper, with the system's clock. Fails in a forked process.
    pub fn get(&self) -> Result<Arc<Keeper>, NoKeeper> {
        self.get_with(|| Arc::new(SystemClock))
    }

    /// Returns the keeper, with this clock if it is started now. Its thread ends when the last
    /// reference to it is dropped. Fails in a forked process.
    pub fn get_with(
        &self,
        clock: impl FnOnce() -> Arc<dyn Clock>,
    ) -> Result<Arc<Keeper>, NoKeeper> {
        match self.process.load(Ordering::SeqCst) {
            pid if pid != 0 && pid != std::process::id() => return Err(NoKeeper::Forked),
            _ => {}
        }
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = &*keeper {
            return Ok(keeper.clone());
        }
        let new = Arc::new(Keeper::new(clock()));
        new.start_while_used().map_err(NoKeeper::NoThread)?;
        self.process.store(std::process::id(), Ordering::SeqCst);
        *keeper = Some(new.clone());
        Ok(new)
    }
}

impl Default for ProcessKeeper {
    fn default() -> Self {
        ProcessKeeper::new()
    }
}

impl fmt::Display for NoKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoKeeper::Forked => f.write_str("this is a forked process, which has no keeper"),
            NoKeeper::NoThread(error) => write!(f, "cannot start the keeper's thread: {error}"),
        }
    }
}

impl std::error::Error for NoKeeper {}
