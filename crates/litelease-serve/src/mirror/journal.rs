//! Stores the rows of a commit all or not at all, though a transaction of the engine has limits.
//!
//! Changes that fit go into one transaction. Larger ones are written twice: first as a journal,
//! which counts from the transaction that completes it on, and then row by row. A server that loads
//! after a crash finishes a complete journal, and drops an incomplete one.

use std::collections::BTreeMap;

use crate::failure::Failure;
use litelease_cluster::engine::{Engine, Stored};

use super::RowChange;
use super::encoding::{self, JOURNAL};
use crate::replica::WRITER_LEASE;
use crate::replica::writer_lease::WriterLease;

/// The most bytes in one transaction: etcd takes 1.5 MiB, and an item of a queue may have 1 MiB.
const MOST_BYTES: usize = 1_200_000;

/// The length of a part of a journal, in bytes.
const PART: usize = 1_000_000;

/// Where rows are stored: an engine, the lease to store them under, and the incarnation of the
/// engine that was loaded.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) lease: &'a WriterLease,
    pub(super) boot: i64,
}

/// Stores all rows, or nothing if this fails with anything but an unknown outcome.
pub(super) fn store(destination: Destination<'_>, rows: &[RowChange]) -> Result<(), Failure> {
    if split(destination.engine, rows).count() <= 1 {
        return put(destination, rows);
    }
    let bytes = encoding::write_changes(rows);
    let parts: Vec<&[u8]> = bytes.chunks(PART).collect();
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    for (number, part) in (0..).zip(&parts) {
        let mut rows = vec![(part_key(number), Some(part.to_vec()))];
        if number + 1 == count {
            rows.push((JOURNAL.to_vec(), Some(count.to_be_bytes().to_vec())));
        }
        put(destination, &rows)?;
    }
    finish(destination, rows.to_vec(), count)
}

/// Finishes what a writer has left behind, and adds it to the rows that were loaded. Deletes a
/// journal that is not complete.
pub(super) fn recover(
    destination: Destination<'_>,
    rows: &mut BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<(), Failure> {
    let keys = rows.range(JOURNAL.to_vec()..).take_while(|(key, _)| key.starts_with(JOURNAL));
    let keys: Vec<Vec<u8>> = keys.map(|(key, _)| key.clone()).collect();
    let Some(count) = rows.get(JOURNAL) else {
        let dropped = keys.into_iter().inspect(|key| _ = rows.remove(key));
        let dropped: Vec<RowChange> = dropped.map(|key| (key, None)).collect();
        // Not later, with other rows: a commit could delete parts of its own journal.
        return split(destination.engine, &dropped).try_for_each(|some| put(destination, some));
    };
    let count = u32::from_be_bytes(encoding::take(&mut count.as_slice())?);
    let mut bytes = Vec::new();
    for number in 0..count {
        bytes.extend(rows.get(&part_key(number)).ok_or_else(encoding::damaged)?);
    }
    let changes = encoding::read_changes(&bytes)?;
    finish(destination, changes.clone(), count)?;
    for (key, value) in changes {
        match value {
            Some(value) => _ = rows.insert(key, value),
            None => _ = rows.remove(&key),
        }
    }
    keys.iter().for_each(|key| _ = rows.remove(key));
    Ok(())
}

/// Stores the rows of a complete journal, and then deletes it. Doing so twice changes nothing, and
/// a crash at any moment leaves the journal until all rows are stored.
fn finish(
    destination: Destination<'_>,
    mut rows: Vec<RowChange>,
    count: u32,
) -> Result<(), Failure> {
    rows.push((JOURNAL.to_vec(), None));
    rows.extend((0..count).map(|number| (part_key(number), None)));
    split(destination.engine, &rows).try_for_each(|some| put(destination, some))
}

/// Splits rows into what fits into one transaction each, in order.
fn split<'a>(
    engine: &dyn Engine,
    mut rows: &'a [RowChange],
) -> impl Iterator<Item = &'a [RowChange]> {
    let most = engine.most_rows(false);
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut fits = |(key, value): &RowChange| {
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            bytes <= MOST_BYTES
        };
        let count = rows.iter().take(most).take_while(|row| fits(row)).count();
        let (some, rest) = rows.split_at(count.max(1).min(rows.len()));
        rows = rest;
        (!some.is_empty()).then_some(some)
    })
}

fn put(destination: Destination<'_>, rows: &[RowChange]) -> Result<(), Failure> {
    let Destination { engine, lease, boot } = destination;
    match engine.commit_rows_of(boot, WRITER_LEASE, lease.token(), rows) {
        Ok(Stored::Done { .. } | Stored::DoneAt { .. }) => Ok(()),
        Ok(Stored::Conflict) => {
            lease.give_up();
            let text = "another server has taken over, and nothing was stored here";
            Err(Failure::NotWriter(text.into()))
        }
        Err(error) => Err(error.into()),
    }
}

fn part_key(number: u32) -> Vec<u8> {
    [JOURNAL, &number.to_be_bytes()].concat()
}
