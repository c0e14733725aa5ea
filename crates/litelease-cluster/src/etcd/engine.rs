//! The engine: loading and storing as etcd transactions.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use litelease_core::Epoch;

use crate::engine::{
    Change, Changes, Commit, Committed, Engine, EngineFacts, Error, EtcdUrl, Listener, Loaded,
    LoadedRow, Part, Result, RowChange, SideKind, SideRow, Stored, StoredRow, TokenFloor,
};
use crate::etcd::client::{Client, HasHeader};
use crate::etcd::failure::is_full;
use crate::etcd::listen::{Subscribers, listen_to_rows, listen_to_tokens};
use crate::etcd::messages::{
    Compare, DeleteRangeRequest, Header, KeyValue, Op, OpAnswer, PutRequest, RangeRequest,
    RangeResponse, RequestOp, ResponseOp, Target, TxnRequest, TxnResponse,
};
use crate::etcd::values::{Keys, write_floor, write_row, write_side};

/// How many operations a transaction may have, unless `--max-txn-ops` says otherwise. As many
/// comparisons are allowed.
const MOST_OPERATIONS: usize = 128;
/// Longer than a request takes.
const MOST_TIME: Duration = Duration::MAX;
/// How many rows are listed in one request.
const PAGE: i64 = 5_000;
/// How many rows of the service are read in one request: each may have 1 MiB, and etcd holds a
/// whole answer in memory.
const SERVICE_PAGE: i64 = 256;

/// How many keys are deleted with a row.
const DELETES: usize = 3;
/// Of how many rows what is beside them is read in one request.
const SIDES: usize = 32;
/// The comparison of etcd for a smaller number.
const LESS: i32 = 2;

/// The largest row: that of an item of 1 MiB.
const LARGEST: usize = 1 << 20;

pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";

/// Leases in etcd.
pub(crate) struct EtcdEngine {
    pub(crate) client: Client,
    pub(crate) keys: Keys,
    subscribers: Subscribers,
}

impl EtcdEngine {
    /// Reads the files that the URL names. It connects at the first call.
    pub(crate) fn open(url: &EtcdUrl) -> Result<Self> {
        let (client, keys) = (Client::new(url)?, Keys::below(&url.prefix));
        Ok(EtcdEngine { client, keys, subscribers: Subscribers::default() })
    }

    /// Reads pages of keys, all at the revision of the first one, and the floor with that. A page
    /// that takes too long is read again in smaller ones, down to `least` rows.
    fn pages(
        &self,
        (mut key, end): (Vec<u8>, Vec<u8>),
        (least, most): (i64, i64),
    ) -> Result<(TxnAnswer, Vec<KeyValue>)> {
        let page = |key, limit, revision| {
            let range_end = end.clone();
            Op::Range(RangeRequest { key, range_end, limit, revision, count_only: false })
        };
        let mut limit = most;
        let mut first = None;
        let mut pairs: Vec<KeyValue> = Vec::new();
        loop {
            let revision = first.as_ref().map_or(0, |first: &TxnAnswer| first.revision);
            let floor = self.range(self.keys.floor(), revision);
            let request = txn(Vec::new(), vec![floor, page(key.clone(), limit, revision)]);
            // The smallest page cannot be read again in smaller ones.
            let bytes = if limit == least { LARGEST } else { 0 };
            let read = self.client.read_large(TXN, request, MOST_TIME, bytes);
            let read = read.and_then(TxnAnswer::from_response);
            let mut answer = match read {
                Err(Error::Unreachable(_)) if limit > least => {
                    limit = (limit / 4).max(least);
                    continue;
                }
                read => read?,
            };
            limit = (limit * 2).min(most);
            let rows = answer.ranges.pop().unwrap_or_default();
            let more = rows.more;
            pairs.extend(rows.kvs);
            let first = first.get_or_insert(answer);
            match pairs.last() {
                Some(last) if more => key = [&last.key[..], b"\0"].concat(),
                _ => return Ok((first.clone(), pairs)),
            }
        }
    }

    fn range(&self, key: Vec<u8>, revision: i64) -> Op {
        Op::Range(RangeRequest { key, revision, ..RangeRequest::default() })
    }

    fn read(&self, operations: Vec<Op>, time: Duration) -> Result<TxnAnswer> {
        self.read_if(txn(Vec::new(), operations), time)
    }

    fn read_if(&self, request: TxnRequest, time: Duration) -> Result<TxnAnswer> {
        let response: TxnResponse = self.client.read_within(TXN, request, time)?;
        TxnAnswer::from_response(response)
    }

    /// Reads one row or, if it is absent, the token that was left of it.
    fn load_one(&self, name: &str, time: Duration) -> Result<Loaded> {
        let (row, token) = (self.keys.row(name), self.keys.token(name));
        let read = |key| vec![self.range(self.keys.floor(), 0), self.range(key, 0)];
        let mut request = txn(vec![at_revision(row.clone(), 0)], read(token));
        let side = |kind| self.range(self.keys.side(kind, name), 0);
        let with_sides = read(row).into_iter().chain(SideKind::ALL.map(side));
        request.failure = requests(with_sides.collect());
        let answer = self.read_if(request, time)?;
        let pair = answer.ranges.get(1).and_then(|range| range.kvs.first());
        let row = match pair {
            None => LoadedRow::absent(name),
            Some(pair) if answer.succeeded => self.keys.read_token(name, pair)?,
            Some(pair) => {
                let mut row = self.keys.read_row(pair)?;
                for (kind, range) in SideKind::ALL.into_iter().zip(answer.ranges.iter().skip(2)) {
                    if let Some(pair) = range.kvs.first() {
                        row.sides.push(self.keys.read_side(name, kind, pair)?);
                    }
                }
                row
            }
        };
        self.loaded(&answer, vec![row])
    }

    /// Fills in the tokens that were left of rows that are absent.
    fn load_tokens(&self, rows: &mut [LoadedRow], revision: i64, time: Duration) -> Result<()> {
        let mut absent: Vec<&mut LoadedRow> =
            rows.iter_mut().filter(|row| row.row.is_none()).collect();
        for some in absent.chunks_mut(MOST_OPERATIONS) {
            let keys = some.iter().map(|row| self.range(self.keys.token(&row.name), revision));
            let answer = self.read(keys.collect(), time)?;
            for (row, range) in some.iter_mut().zip(&answer.ranges) {
                if let Some(pair) = range.kvs.first() {
                    **row = self.keys.read_token(&row.name, pair)?;
                }
            }
        }
        Ok(())
    }

    /// Fills in what is beside rows, if there is anything beside the names from the first to the
    /// last of them.
    fn load_sides(&self, rows: &mut [LoadedRow], revision: i64, time: Duration) -> Result<()> {
        let mut held: Vec<&mut LoadedRow> =
            rows.iter_mut().filter(|row| row.version != 0).collect();
        for some in held.chunks_mut(SIDES) {
            let keys = some.iter().flat_map(|row| SideKind::ALL.map(|kind| (kind, &row.name)));
            let keys = keys.map(|(kind, name)| self.range(self.keys.side(kind, name), revision));
            // A value may have 64 KiB.
            let request = txn(Vec::new(), keys.collect());
            let response = self.client.read_large(TXN, request, time, LARGEST * 2)?;
            let answer = TxnAnswer::from_response(response)?;
            for (row, ranges) in some.iter_mut().zip(answer.ranges.chunks(SideKind::ALL.len())) {
                for (kind, range) in SideKind::ALL.into_iter().zip(ranges) {
                    if let Some(pair) = range.kvs.first() {
                        let side = self.keys.read_side(&row.name, kind, pair)?;
                        row.sides.push(side);
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts what is beside the names from the first to the last of these.
    fn count_sides(&self, names: &[&str], revision: i64) -> Op {
        let kind = SideKind::Payload;
        let key = self.keys.side(kind, names.iter().min().unwrap_or(&""));
        let last = self.keys.side(kind, names.iter().max().unwrap_or(&""));
        let range_end = [&last[..], b"\0"].concat();
        Op::Range(RangeRequest { key, range_end, limit: 0, revision, count_only: true })
    }

    fn write(&self, compare: Vec<Compare>, operations: Vec<Op>) -> Result<Stored> {
        self.write_to(None, compare, operations)
    }

    fn write_to(
        &self,
        incarnation: Option<i64>,
        compare: Vec<Compare>,
        operations: Vec<Op>,
    ) -> Result<Stored> {
        let response: TxnResponse = self.client.write(TXN, txn(compare, operations))?;
        check_incarnation(incarnation, response.header.as_ref())?;
        let answer = TxnAnswer::from_response(response)?;
        Ok(match answer.succeeded {
            true => Stored::Done { version: answer.revision },
            false => Stored::Conflict,
        })
    }

    fn loaded(&self, answer: &TxnAnswer, rows: Vec<LoadedRow>) -> Result<Loaded> {
        let floor = answer.ranges.first().and_then(|range| range.kvs.first());
        let floor = floor.map_or(Ok(TokenFloor::default()), |pair| self.keys.read_floor(pair))?;
        Ok(Loaded { floor, incarnation: answer.incarnation, server_ms: None, rows })
    }

    fn deletes(&self, row: &LoadedRow) -> [Op; DELETES] {
        let payload = self.keys.side(SideKind::Payload, &row.name);
        [self.keys.row(&row.name), self.keys.token(&row.name), payload]
            .map(|key| Op::Delete(DeleteRangeRequest { key }))
    }

    /// Compares what is beside a row: it was not stored after what was loaded, nor after the row,
    /// which began a grant or was loaded with it.
    fn is_same_beside(&self, row: &LoadedRow) -> Option<Compare> {
        let newest = row.payload_version().max(row.version);
        let key = self.keys.side(SideKind::Payload, &row.name);
        let union = Some(Target::ModRevision(newest.saturating_add(1)));
        (row.version != 0).then_some(Compare { result: LESS, target: 2, key, union })
    }

    fn put_side(&self, (name, side): &(String, SideRow)) -> Op {
        put(self.keys.side(side.kind, name), write_side(side))
    }

    fn is_same(&self, row: &LoadedRow) -> Compare {
        at_revision(self.keys.row(&row.name), row.version)
    }

    /// Compares the token that was left of a row that was absent: the row may have been there and
    /// deleted since.
    fn has_left(&self, row: &LoadedRow) -> Option<Compare> {
        let key = self.keys.token(&row.name);
        match &row.row {
            _ if row.version != 0 => None,
            None => Some(at_revision(key, 0)),
            Some(row) => Some(has_value(key, row.token.to_string())),
        }
    }
}

impl Engine for EtcdEngine {
    fn load(&self, names: &[&str]) -> Result<Loaded> {
        self.load_within(names, MOST_TIME)
    }

    fn load_within(&self, names: &[&str], time: Duration) -> Result<Loaded> {
        if let [name] = names {
            return self.load_one(name, time);
        }
        let until = Instant::now().checked_add(time);
        let mut rows = Vec::with_capacity(names.len());
        let mut first: Option<TxnAnswer> = None;
        let mut chunks = names.chunks(MOST_OPERATIONS - 2);
        let mut are_plain = true;
        loop {
            let names = chunks.next().unwrap_or_default();
            if names.is_empty() && first.is_some() {
                break;
            }
            // Rows that do not fit into one request are read at the revision of the first.
            let revision = first.as_ref().map_or(0, |first| first.revision);
            let mut operations = vec![self.range(self.keys.floor(), revision)];
            operations.extend(names.iter().map(|name| self.range(self.keys.row(name), revision)));
            let left = until.map_or(time, |until| until.duration_since(Instant::now()));
            operations.push(self.count_sides(names, revision));
            let answer = self.read(operations, left)?;
            for (name, range) in names.iter().zip(answer.ranges.iter().skip(1)) {
                rows.push(match range.kvs.first() {
                    Some(pair) => self.keys.read_row(pair)?,
                    None => LoadedRow::absent(name),
                });
            }
            are_plain &= answer.ranges.last().is_none_or(|counted| counted.count == 0);
            first.get_or_insert(answer);
        }
        match first {
            Some(first) => {
                let left = until.map_or(time, |until| until.duration_since(Instant::now()));
                self.load_tokens(&mut rows, first.revision, left)?;
                if !are_plain {
                    self.load_sides(&mut rows, first.revision, left)?;
                }
                self.loaded(&first, rows)
            }
            None => Err(Error::Unreachable("there is no answer".into())),
        }
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored> {
        let mut compare = vec![at_revision(self.keys.floor(), seen.floor.version)];
        let mut operations = Vec::new();
        if let Some(epoch) = change.floor {
            operations.push(self.put_floor(epoch));
        }
        for (name, row) in &change.rows {
            let Some(before) = seen.row(name) else { return Ok(Stored::Conflict) };
            compare.push(self.is_same(before));
            compare.extend(self.has_left(before));
            operations.push(put(self.keys.row(name), write_row(row)));
            if before.row.as_ref().is_none_or(|before| before.token != row.token) {
                operations.push(put(self.keys.token(name), row.token.to_string().into()));
            }
        }
        for name in change.names() {
            let Some(before) = seen.row(name) else { return Ok(Stored::Conflict) };
            if change.rows.iter().all(|(changed, _)| changed != name) {
                compare.push(self.is_same(before));
            }
            compare.extend(self.is_same_beside(before).filter(|_| change.beside));
        }
        operations.extend(change.sides.iter().map(|side| self.put_side(side)));
        match self.write(compare.clone(), operations) {
            // The keys of the tokens stay, so that the next grant is above them.
            Err(error) if is_full(&error) && is_release(seen, change) => {
                let keys = change.rows.iter().map(|(name, _)| self.keys.row(name));
                let deletes = keys.map(|key| Op::Delete(DeleteRangeRequest { key }));
                self.write(compare, deletes.collect())
            }
            stored => stored,
        }
    }

    /// Each row is a transaction inside one that compares the floor. The limit of operations is for
    /// both together.
    fn store_each(&self, seen: &Loaded, rows: &[StoredRow], time: Duration) -> Result<Vec<Stored>> {
        let operations = seen.rows.iter().zip(rows).map(|(before, row)| {
            let put = put(self.keys.row(&before.name), write_row(row));
            let compare = [Some(self.is_same(before)), self.is_same_beside(before)];
            Op::Txn(txn(compare.into_iter().flatten().collect(), vec![put]))
        });
        let request =
            txn(vec![at_revision(self.keys.floor(), seen.floor.version)], operations.collect());
        let response: TxnResponse = self.client.write_within(TXN, request, time)?;
        let version = response.header.as_ref().map_or(0, |header| header.revision);
        let answer = |at: usize| response.responses.get(at).is_some_and(is_stored);
        let stored = (0..rows.len()).map(|at| match answer(at) {
            true if response.succeeded => Stored::Done { version },
            _ => Stored::Conflict,
        });
        Ok(stored.collect())
    }

    fn listen(&self, what: Changes, listener: Weak<dyn Listener>) {
        let subscription = self.subscribers.subscription(what);
        if !subscription.add(listener) {
            return;
        }
        let (keys, subscription) = (self.keys.clone(), Arc::clone(subscription));
        match what {
            Changes::Tokens => {
                let followed = Arc::clone(&self.subscribers.followed);
                self.client.spawn(|connections| {
                    listen_to_tokens(connections, keys, subscription, followed)
                });
            }
            Changes::Rows => {
                let newest = self.client.newest();
                self.client
                    .spawn(|connections| listen_to_rows(connections, keys, subscription, newest));
            }
        }
    }

    fn follow(&self, name: &str, version: i64) {
        self.subscribers.followed.follow(name, version);
    }

    fn unfollow(&self, name: &str) {
        self.subscribers.followed.unfollow(name);
    }

    fn list(&self) -> Result<Loaded> {
        let (answer, pairs) = self.pages(self.keys.rows(), (PAGE, PAGE))?;
        let rows = pairs.iter().map(|pair| self.keys.read_row(pair)).collect::<Result<_>>()?;
        self.loaded(&answer, rows)
    }

    fn list_beside(&self, kind: SideKind) -> Result<Vec<(String, SideRow)>> {
        let (_, pairs) = self.pages(self.keys.sides(kind), (1, SERVICE_PAGE))?;
        let start = self.keys.side(kind, "").len();
        let read = |pair: &KeyValue| {
            let name = pair.key.get(start..).and_then(|name| std::str::from_utf8(name).ok())?;
            Some((name.to_owned(), self.keys.read_side(name, kind, pair).ok()?))
        };
        Ok(pairs.iter().filter_map(read).collect())
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64> {
        let mut deleted = 0;
        let forget = |rows: &[LoadedRow]| {
            let compare = rows.iter().map(|row| self.is_same(row)).collect();
            self.write(compare, rows.iter().flat_map(|row| self.deletes(row)).collect())
        };
        for some in seen.chunks(MOST_OPERATIONS / DELETES) {
            if matches!(forget(some)?, Stored::Done { .. }) {
                deleted += some.len() as u64;
                continue;
            }
            // One of them has changed, and stays. The others do not.
            for row in some.chunks(1) {
                deleted += u64::from(matches!(forget(row)?, Stored::Done { .. }));
            }
        }
        Ok(deleted)
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        self.client.watch(self.keys.row(name), version, time);
    }

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (_, pairs) = self.pages(self.keys.services(prefix), (1, SERVICE_PAGE))?;
        let start = self.keys.service(b"").len();
        let key = |pair: &KeyValue| pair.key.get(start..).unwrap_or_default().to_vec();
        Ok(pairs.into_iter().map(|pair| (key(&pair), pair.value)).collect())
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored> {
        self.commit_rows_to(None, name, token, rows)
    }

    fn commit_rows_of(
        &self,
        incarnation: i64,
        name: &str,
        token: i64,
        rows: &[RowChange],
    ) -> Result<Stored> {
        self.commit_rows_to(Some(incarnation), name, token, rows)
    }

    /// Each part is a transaction inside one that compares the token of the writer and the floor.
    /// etcd counts the operations of the outer one and of its largest part together.
    fn commit_parts(&self, commit: &Commit<'_>) -> Result<Committed> {
        let (writer, token) = commit.writer;
        let is_newest = has_value(self.keys.token(writer), token.to_string());
        let floor = self.keys.floor();
        let compare = vec![is_newest, at_revision(floor.clone(), commit.floor_version)];
        let mut operations = self.puts(commit.rows);
        operations.extend(commit.parts.iter().map(|part| self.part(part)));
        let mut request = txn(compare, operations);
        request.failure = requests(vec![self.range(floor, 0)]);
        let response: TxnResponse = self.client.write(TXN, request)?;
        check_incarnation(Some(commit.incarnation), response.header.as_ref())?;
        if !response.succeeded {
            let answer = TxnAnswer::from_response(response)?;
            let floor = answer.ranges.first().and_then(|range| range.kvs.first());
            return Ok(match floor.map_or(0, |pair| pair.mod_revision) == commit.floor_version {
                true => Committed::Replaced,
                false => Committed::FloorChanged,
            });
        }
        let version = response.header.as_ref().map_or(0, |header| header.revision);
        let answers = response.responses.iter().skip(commit.rows.len());
        let stored = answers.zip(commit.parts).map(|(answer, part)| match is_stored(answer) {
            true if part.row.is_some() => Stored::Done { version },
            true => Stored::Done { version: part.before.version },
            false => Stored::Conflict,
        });
        let stored: Vec<Stored> = stored.collect();
        match stored.len() == commit.parts.len() {
            true => Ok(Committed::Parts(stored)),
            false => Err(Error::CommitUnknown("etcd has answered less than was asked".into())),
        }
    }

    fn guarded_put(&self, name: &str, token: i64, key: &[u8], value: &[u8]) -> Result<Stored> {
        if key.is_empty() || self.keys.is_ours(key) {
            let reason = "is empty, or among those of the leases: take one of your own".into();
            return Err(Error::InvalidName { what: "key", reason });
        }
        let is_newest = has_value(self.keys.token(name), token.to_string());
        self.write(vec![is_newest], vec![put(key.into(), value.into())])
    }

    fn most_parts(&self, rows_each: usize) -> usize {
        MOST_OPERATIONS.saturating_sub(rows_each + 2).max(1)
    }

    fn most_rows(&self, new_tokens: bool) -> usize {
        match new_tokens {
            true => (MOST_OPERATIONS - 1) / 2,
            // Each row of a batch compares itself and what is beside it.
            false => MOST_OPERATIONS - 2,
        }
    }

    fn facts(&self) -> Result<EngineFacts> {
        self.inspect_members()
    }
}

/// Reads the answer to a part after the first: part of the batch is stored by now, even if this
/// fails.
fn after_a_part(written: Result<Stored>) -> Result<Stored> {
    let said = match written {
        Ok(Stored::Conflict) => "the name was granted to another client".into(),
        Ok(stored) => return Ok(stored),
        Err(error) => error.to_string(),
    };
    Err(Error::CommitUnknown(format!("a part of the rows is stored, and then: {said}")))
}

/// Checks that the answer is from this incarnation. No transaction compares it: a cluster that was
/// made from a backup has another id, and the keys that the backup had.
fn check_incarnation(incarnation: Option<i64>, header: Option<&Header>) -> Result<()> {
    match incarnation.is_none_or(|known| header.is_some_and(|it| incarnation_of(it) == known)) {
        true => Ok(()),
        false => {
            Err(Error::CommitUnknown("another cluster has answered: etcd was restored".into()))
        }
    }
}

/// Returns the cluster's id, as a positive number.
fn incarnation_of(header: &Header) -> i64 {
    i64::try_from(header.cluster_id >> 1).unwrap_or(1).max(1)
}

impl EtcdEngine {
    fn commit_rows_to(
        &self,
        incarnation: Option<i64>,
        name: &str,
        token: i64,
        rows: &[RowChange],
    ) -> Result<Stored> {
        let mut stored = Stored::Conflict;
        for (part, some) in rows.chunks(MOST_OPERATIONS).enumerate() {
            let is_newest = has_value(self.keys.token(name), token.to_string());
            let written = self.write_to(incarnation, vec![is_newest], self.puts(some));
            stored = if part == 0 { written? } else { after_a_part(written)? };
            if stored == Stored::Conflict {
                break;
            }
        }
        Ok(stored)
    }

    /// Returns the operations that store rows of the service.
    fn puts(&self, rows: &[RowChange]) -> Vec<Op> {
        let operations = rows.iter().map(|(key, value)| match value {
            Some(value) => put(self.keys.service(key), value.clone()),
            None => Op::Delete(DeleteRangeRequest { key: self.keys.service(key) }),
        });
        operations.collect()
    }

    /// Returns the transaction of one name: it compares its row, and stores its new one.
    fn part(&self, part: &Part) -> Op {
        let before = &part.before;
        let mut compare = vec![self.is_same(before)];
        compare.extend(self.has_left(before));
        let mut operations = self.puts(&part.rows);
        if let Some(row) = &part.row {
            operations.push(put(self.keys.row(&before.name), write_row(row)));
            if before.row.as_ref().is_none_or(|before| before.token != row.token) {
                operations.push(put(self.keys.token(&before.name), row.token.to_string().into()));
            }
        }
        Op::Txn(txn(compare, operations))
    }

    fn put_floor(&self, epoch: Epoch) -> Op {
        put(self.keys.floor(), write_floor(epoch))
    }
}

/// The answer to a transaction, and the rows that it has read.
#[derive(Clone)]
struct TxnAnswer {
    succeeded: bool,
    revision: i64,
    incarnation: i64,
    ranges: Vec<RangeResponse>,
}

impl TxnAnswer {
    fn from_response(response: TxnResponse) -> Result<Self> {
        let Some(header) = response.header else {
            return Err(Error::Refused("an answer without a header: is this etcd?".into()));
        };
        let ranges = response.responses.into_iter().filter_map(|answer| match answer.response {
            Some(OpAnswer::Range(range)) => Some(range),
            _ => None,
        });
        let incarnation = incarnation_of(&header);
        let (succeeded, revision) = (response.succeeded, header.revision);
        Ok(TxnAnswer { succeeded, revision, incarnation, ranges: ranges.collect() })
    }
}

impl HasHeader for TxnResponse {
    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl HasHeader for RangeResponse {
    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

/// Checks whether a change only ends leases, so that deletions can stand for it: an etcd that is
/// full takes nothing else.
fn is_release(seen: &Loaded, change: &Change) -> bool {
    let frees = |(name, row): &(String, StoredRow)| {
        let before = seen.row(name).filter(|before| before.version != 0);
        let before = before.and_then(|before| before.row.as_ref());
        row.tenure.is_none() && before.is_some_and(|before| before.token == row.token)
    };
    change.floor.is_none() && change.rows.iter().all(frees)
}

/// Checks whether a transaction inside another one was carried out.
fn is_stored(answer: &ResponseOp) -> bool {
    matches!(&answer.response, Some(OpAnswer::Txn(TxnResponse { succeeded: true, .. })))
}

fn txn(compare: Vec<Compare>, operations: Vec<Op>) -> TxnRequest {
    TxnRequest { compare, success: requests(operations), failure: Vec::new() }
}

fn requests(operations: Vec<Op>) -> Vec<RequestOp> {
    operations.into_iter().map(|request| RequestOp { request: Some(request) }).collect()
}

fn has_value(key: Vec<u8>, value: String) -> Compare {
    Compare { result: 0, target: 3, key, union: Some(Target::Value(value.into())) }
}

fn put(key: Vec<u8>, value: Vec<u8>) -> Op {
    Op::Put(PutRequest { key, value })
}

fn at_revision(key: Vec<u8>, revision: i64) -> Compare {
    Compare { result: 0, target: 2, key, union: Some(Target::ModRevision(revision)) }
}
