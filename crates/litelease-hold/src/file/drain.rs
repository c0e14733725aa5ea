//! The readers of a cached value, as the writer sees them that waits for them.

use std::collections::HashMap;
use std::time::Duration;

use litelease_core::{MAX_READ_TTL_MS, is_live};
use litelease_store::{Error, Reader, Store, When};

use crate::{Clock, Identity, SystemClock};

/// The longest sleep between two reads of the readers, since a wake-up is only a hint.
const SLOW_POLL: Duration = Duration::from_millis(500);

/// The readers that a writer waits for, from the claim of the name on: no reader is added then.
#[derive(Debug)]
pub struct Drain {
    name: String,
    /// Until when each reader that was live when the name was claimed may answer from memory, by
    /// elapsed time: the wall clock may be set forward meanwhile.
    until: HashMap<String, Duration>,
}

impl Drain {
    /// Begins to wait for the readers of a name that was just claimed.
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        let (now, wall_ms) = (SystemClock.now(), When::Now.now_ms());
        let until = store.readers(name, When::At(wall_ms))?.into_iter().map(|reader| {
            let left_ms = reader.expires_at_ms.saturating_sub(wall_ms).min(MAX_READ_TTL_MS);
            (reader.reader, now + Duration::from_millis(left_ms.max(0).unsigned_abs()))
        });
        Ok(Drain { name: name.into(), until: until.collect() })
    }

    /// Returns the readers that may still answer from memory, and for how long to sleep at most.
    /// Gives up for those whose process has ended.
    pub fn readers_left(&self, store: &Store) -> Result<(Vec<Reader>, Duration), Error> {
        let (now, wall_ms) = (SystemClock.now(), When::Now.now_ms());
        let mut left = Vec::new();
        // Those that have expired by the row, too.
        for reader in store.readers(&self.name, When::At(i64::MIN))? {
            let is_trusted = self.until.get(&reader.reader).is_some_and(|until| now < *until);
            if !is_trusted && !is_live(reader.expires_at_ms, wall_ms) {
                continue;
            }
            match Identity::parse(&reader.reader).is_some_and(|who| who.is_dead()) {
                true => _ = store.unread(&self.name, &reader.reader)?,
                false => left.push(reader),
            }
        }
        let last = left.iter().filter_map(|reader| self.until.get(&reader.reader)).max();
        let sleep = last.map_or(SLOW_POLL, |until| until.saturating_sub(now));
        Ok((left, sleep.clamp(Duration::from_millis(1), SLOW_POLL)))
    }
}
