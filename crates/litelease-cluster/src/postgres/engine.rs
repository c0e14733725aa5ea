//! The engine: loading and storing as single statements, or as transactions where there is more
//! than one row.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use litelease_core::Epoch;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::{
    Change, Changes, Commit, Committed, Condition, Engine, EngineFacts, Error, FORMAT, Guard,
    GuardInfo, Listener, Loaded, LoadedRow, Part, PostgresUrl, Result, RowChange, SideKind,
    SideRow, Stored, StoredRow, StoredTenure, TokenFloor, first_behind,
};
use crate::postgres::client::{Parameter, Pool, Session, Shared};
use crate::postgres::failure::Failure;
use crate::postgres::listen::listen;
use crate::postgres::{functions, guard, schema};

/// How many rows one statement changes.
const MOST_ROWS: usize = 1_000;

/// How many bytes a page of rows of the service may have: those that it ends after, and one item.
const LARGEST_PAGE: usize = 2 << 20;

/// Leases in PostgreSQL.
pub(crate) struct PostgresEngine {
    pool: Pool,
}

impl PostgresEngine {
    /// Reads the files that the URL names. It connects at the first call.
    pub(crate) fn open(url: &PostgresUrl) -> Result<Self> {
        Ok(PostgresEngine { pool: Pool::new(url)? })
    }

    /// Reads with one statement.
    fn read(&self, sql: &str, parameters: &[Parameter<'_>], time: Duration) -> Result<Loaded> {
        let shared = &self.pool.shared;
        self.pool.run_for(time, async {
            let mut session = shared.session().await?;
            let rows = shared.query(&mut session, sql, parameters).await;
            let rows = rows.map_err(Failure::of_read)?;
            let loaded = loaded(shared, &rows);
            shared.keep(session);
            loaded
        })
    }
}

impl PostgresEngine {
    /// Reads as many rows of the service as one request has time for, from a key on.
    fn load_page(&self, first: &[u8], end: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let mut session = shared.session().await?;
            let parameters = [(&first as _, Type::BYTEA), (&end as _, Type::BYTEA)];
            session.allow(LARGEST_PAGE);
            let rows = shared.query(&mut session, &shared.statements.load_rows, &parameters).await;
            let rows = rows.map_err(Failure::of_read)?;
            shared.keep(session);
            Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
        })
    }

    /// Stores rows of the service, on this incarnation only if one is given.
    fn commit_rows_on(
        &self,
        incarnation: Option<i64>,
        name: &str,
        token: i64,
        rows: &[RowChange],
    ) -> Result<Stored> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let mut session = shared.session().await?;
            let stored = shared.commit_rows(&mut session, incarnation, name, token, rows).await;
            let stored = stored.map_err(Failure::of_write)?;
            shared.keep(session);
            Ok(stored)
        })
    }
}

impl Engine for PostgresEngine {
    fn load(&self, names: &[&str]) -> Result<Loaded> {
        self.load_within(names, Duration::MAX)
    }

    fn load_within(&self, names: &[&str], time: Duration) -> Result<Loaded> {
        let statements = &self.pool.shared.statements;
        let mut loaded = match names {
            [name] => self.read(&statements.load, &[(name as _, Type::TEXT)], time),
            _ => self.read(&statements.load_many, &[(&names as _, Type::TEXT_ARRAY)], time),
        }?;
        let found = std::mem::take(&mut loaded.rows);
        let found: HashMap<&str, &LoadedRow> =
            found.iter().map(|row| (row.name.as_str(), row)).collect();
        let row = |name: &&str| {
            let row = found.get(*name).map(|row| (*row).clone());
            row.unwrap_or_else(|| LoadedRow::absent(name))
        };
        loaded.rows = names.iter().map(row).collect();
        Ok(loaded)
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let mut session = shared.session().await?;
            let stored = match (&change.floor, &change.rows[..], &change.sides[..]) {
                (None, [_], []) => shared.store_one(&mut session, seen, change).await,
                (None, [], [side]) => shared.store_beside(&mut session, seen, change, side).await,
                _ => Box::pin(shared.store_all(&mut session, seen, change)).await,
            };
            let stored = stored.map_err(Failure::of_write)?;
            shared.keep(session);
            Ok(stored)
        })
    }

    /// One statement, which is a transaction of its own. It leaves out rows that another
    /// transaction has locked, instead of waiting for them.
    fn store_each(&self, seen: &Loaded, rows: &[StoredRow], time: Duration) -> Result<Vec<Stored>> {
        let shared = &self.pool.shared;
        self.pool.run_for(time, async {
            let mut session = shared.session().await?;
            let stored = shared.store_each(&mut session, seen, rows).await;
            let stored = stored.map_err(Failure::of_write)?;
            shared.keep(session);
            Ok(stored)
        })
    }

    /// Notifies only of changes that free a name. A holder that is late for another reason finds
    /// out by its own clock.
    fn listen(&self, _: Changes, listener: Weak<dyn Listener>) {
        let shared = Arc::clone(&self.pool.shared);
        shared.notifications.add(listener);
        if shared.notifications.takes_listening() {
            self.pool.spawn(listen(shared));
        }
    }

    fn list(&self) -> Result<Loaded> {
        self.read(&self.pool.shared.statements.list, &[], Duration::MAX)
    }

    fn list_beside(&self, kind: SideKind) -> Result<Vec<(String, SideRow)>> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let mut session = shared.session().await?;
            let (sql, letter) = (&shared.statements.list_beside, kind.letter());
            let rows = shared.query(&mut session, sql, &[(&letter, Type::TEXT)]).await;
            let rows = rows.map_err(Failure::of_read)?;
            shared.keep(session);
            let side = |row: &Row| {
                let (version, token, attempt) = (row.get(1), row.get(2), row.get(3));
                (row.get(0), SideRow { kind, version, token, attempt, text: row.get(4) })
            };
            Ok(rows.iter().map(side).collect())
        })
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let mut session = shared.session().await?;
            let rows = || seen.iter().filter_map(|seen| Some((seen, seen.row.as_ref()?)));
            let names: Vec<&str> = rows().map(|(seen, _)| seen.name.as_str()).collect();
            let tokens: Vec<i64> = rows().map(|(_, row)| row.token).collect();
            let attempts: Vec<i64> = rows().map(|(_, row)| row.attempt).collect();
            let versions: Vec<i64> = rows().map(|(seen, _)| seen.version).collect();
            let deleted = shared
                .query(
                    &mut session,
                    &shared.statements.forget,
                    &[
                        (&names, Type::TEXT_ARRAY),
                        (&tokens, Type::INT8_ARRAY),
                        (&attempts, Type::INT8_ARRAY),
                        (&versions, Type::INT8_ARRAY),
                    ],
                )
                .await
                .map_err(Failure::of_write)?;
            shared.keep(session);
            Ok(deleted.len() as u64)
        })
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        let shared = &self.pool.shared;
        if shared.notifications.takes_listening() {
            self.pool.spawn(listen(Arc::clone(shared)));
        }
        let before = shared.notifications.count(name);
        // It may have changed before the connection listened.
        let is_same = |loaded: Loaded| loaded.rows.iter().all(|row| row.version == version);
        if self.load(&[name]).is_ok_and(is_same) {
            shared.notifications.wait_for_change(name, before, time);
        }
    }

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // Keys of the service begin with a letter.
        let end = first_behind(prefix).unwrap_or_else(|| vec![u8::MAX]);
        let mut first = prefix.to_vec();
        let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            let page = self.load_page(&first, &end)?;
            let Some((last, _)) = page.last() else { return Ok(all) };
            first = [&last[..], b"\0"].concat();
            all.extend(page);
        }
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored> {
        self.commit_rows_on(None, name, token, rows)
    }

    fn commit_rows_of(
        &self,
        incarnation: i64,
        name: &str,
        token: i64,
        rows: &[RowChange],
    ) -> Result<Stored> {
        self.commit_rows_on(Some(incarnation), name, token, rows)
    }

    fn commit_parts(&self, commit: &Commit<'_>) -> Result<Committed> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let mut session = shared.session().await?;
            let committed = shared.commit_parts(&mut session, commit).await;
            let committed = committed.map_err(Failure::of_write)?;
            shared.keep(session);
            Ok(committed)
        })
    }

    fn most_rows(&self, _: bool) -> usize {
        MOST_ROWS
    }

    fn facts(&self) -> Result<EngineFacts> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let mut session = shared.any_session().await.map_err(Failure::of_read)?;
            // Only users with the right to see it can see the activity of another user's session.
            let sql = "SELECT current_setting('server_version'),
                current_setting('synchronous_standby_names'), current_setting('fsync'),
                (SELECT format('process %s of %s, for %s s', a.pid, a.usename,
                    floor(extract(epoch FROM clock_timestamp() - a.xact_start)))
                  FROM pg_catalog.pg_stat_activity a WHERE a.backend_xmin IS NOT NULL
                  AND a.xact_start < clock_timestamp() - interval '30 s'
                  ORDER BY a.xact_start LIMIT 1)";
            let rows = shared.query(&mut session, sql, &[]).await.map_err(Failure::of_read)?;
            let mut found = EngineFacts::default();
            if let Some(row) = rows.first() {
                let text = |at: usize| row.get::<_, String>(at);
                let host = session.host.clone();
                found.facts.push(("engine".into(), "PostgreSQL".into()));
                found.facts.push((host, format!("PostgreSQL {}, takes writes", text(0))));
                if text(1).is_empty() {
                    found.warnings.push(
                        "no standby is synchronous: a failover may lose grants, whose holders \
                         believe in them until their window ends; tokens and fences hold \
                         (synchronous_standby_names)"
                            .into(),
                    );
                }
                if text(2) != "on" {
                    found.warnings.push("fsync is off: a power cut may lose grants".into());
                }
                if let Some(oldest) = row.get::<_, Option<String>>(3) {
                    found.warnings.push(format!(
                        "a transaction stays open ({oldest}), so old versions of rows are not cleaned up, and the \
                         service gets slower and slower: end it, or set idle_in_transaction_session_timeout"
                    ));
                }
            }
            guard::facts(shared, &mut session, &mut found).await.map_err(Failure::of_read)?;
            shared.keep(session);
            Ok(found)
        })
    }

    fn bootstrap(&self) -> Result<()> {
        let shared = &self.pool.shared;
        self.pool.run(async {
            let session = shared.any_session().await.map_err(Failure::of_read)?;
            let made = schema::create(&session.client, &session.host, &shared.schema).await;
            made.map_err(Failure::of_write)?;
            shared.keep(session);
            let checked = shared.session().await?;
            match functions::ensure(&checked.client, &checked.host, &shared.schema).await {
                Ok(()) => shared.keep(checked),
                // Leases need no functions. Functions of the schema's owner stay.
                Err(Failure::Refused(_)) => {}
                Err(failure) => return Err(failure.of_write()),
            }
            Ok(())
        })
    }

    fn guard(&self, table: &str, name: &str, guard: &Guard) -> Result<()> {
        guard::guard(&self.pool, table, name, guard)
    }

    fn unguard(&self, table: &str, name: Option<&str>) -> Result<u64> {
        guard::unguard(&self.pool, table, name)
    }

    fn guards(&self) -> Result<Vec<GuardInfo>> {
        guard::guards(&self.pool)
    }

    fn check_text(&self, what: &'static str, text: &str) -> Result<()> {
        match text.contains('\0') {
            true => {
                let reason = "has a NUL character, which PostgreSQL cannot store".into();
                Err(Error::InvalidName { what, reason })
            }
            false => Ok(()),
        }
    }
}

impl Shared {
    /// Stores one row with one statement, which is a transaction of its own.
    async fn store_one(
        &self,
        session: &mut Session,
        seen: &Loaded,
        change: &Change,
    ) -> Result<Stored, Failure> {
        let Some((name, row)) = change.rows.first() else { return Ok(Stored::Conflict) };
        let Some(before) = seen.row(name) else { return Ok(Stored::Conflict) };
        let freed = freed(seen, change);
        self.put(session, (seen.floor.version, seen.incarnation), before, row, change, &freed).await
    }

    /// Stores one row, if the version of the floor, the incarnation and the row are still as they
    /// were, and notifies clients that wait for `freed`.
    async fn put(
        &self,
        session: &mut Session,
        (floor_version, incarnation): (i64, i64),
        before: &LoadedRow,
        row: &StoredRow,
        change: &Change,
        freed: &[&str],
    ) -> Result<Stored, Failure> {
        let (owner, until) = columns(row);
        let rows = match &before.row {
            None => {
                self.query(
                    session,
                    &self.statements.insert,
                    &[
                        (&before.name, Type::TEXT),
                        (&row.token, Type::INT8),
                        (&owner, Type::TEXT),
                        (&until, Type::INT8),
                        (&row.at_ms, Type::INT8),
                        (&row.attempt, Type::INT8),
                        (&floor_version, Type::INT8),
                        (&incarnation, Type::INT8),
                        (&row.ended, Type::INT8),
                        (&row.since_ms, Type::INT8),
                    ],
                )
                .await?
            }
            Some(old) => {
                let (old_owner, old_until) = columns(old);
                self.query_and_notify(
                    session,
                    self.statements.update_of(old.token == row.token),
                    &[
                        (&before.name, Type::TEXT),
                        (&row.token, Type::INT8),
                        (&owner, Type::TEXT),
                        (&until, Type::INT8),
                        (&row.at_ms, Type::INT8),
                        (&row.attempt, Type::INT8),
                        (&old.token, Type::INT8),
                        (&old_owner, Type::TEXT),
                        (&old_until, Type::INT8),
                        (&old.at_ms, Type::INT8),
                        (&old.attempt, Type::INT8),
                        (&change.while_live, Type::BOOL),
                        (&floor_version, Type::INT8),
                        (&change.lasts_ms, Type::INT8),
                        (&incarnation, Type::INT8),
                        (&row.ended, Type::INT8),
                        (&row.since_ms, Type::INT8),
                        (&change.beside.then(|| before.payload_version()), Type::INT8),
                    ],
                    freed,
                )
                .await?
            }
        };
        let Some(row) = rows.first() else { return Ok(Stored::Conflict) };
        let version = row.get(0);
        Ok(match row.try_get(1) {
            Ok(Some(server_ms)) => Stored::DoneAt { version, server_ms },
            _ => Stored::Done { version },
        })
    }

    /// Stores the floor and any number of rows in one transaction.
    async fn store_all(
        &self,
        session: &mut Session,
        seen: &Loaded,
        change: &Change,
    ) -> Result<Stored, Failure> {
        // Until the commit is sent, nothing is stored.
        self.begin(session).await?;
        let mut changed = self.change_all(session, seen, change).await;
        if !change.sides.is_empty() && matches!(changed, Ok(stored) if stored != Stored::Conflict) {
            let put = self.put_sides(session, seen, change).await;
            changed = if matches!(put, Ok(Stored::Done { .. })) { changed } else { put };
        }
        match changed.map_err(Failure::not_sent)? {
            Stored::Conflict => {
                self.end(session, "ROLLBACK", &[]).await.map_err(Failure::not_sent)?;
                Ok(Stored::Conflict)
            }
            stored => {
                self.end(session, "COMMIT", &freed(seen, change)).await?;
                Ok(stored)
            }
        }
    }

    async fn change_all(
        &self,
        session: &mut Session,
        seen: &Loaded,
        change: &Change,
    ) -> Result<Stored, Failure> {
        let mut floor_version = seen.floor.version;
        let mut stored = Stored::Conflict;
        if let Some(Epoch { floor, boot }) = change.floor {
            self.query(session, &self.statements.lock_floor_alone, &[]).await?;
            let parameters = [
                (&floor as _, Type::INT8),
                (&boot as _, Type::INT8),
                (&floor_version as _, Type::INT8),
                (&seen.incarnation as _, Type::INT8),
            ];
            let sql = &self.statements.update_floor;
            let rows = self.query(session, sql, &parameters).await?;
            let Some(row) = rows.first() else { return Ok(Stored::Conflict) };
            floor_version = row.get(0);
            stored = Stored::Done { version: floor_version };
        }
        let at = (floor_version, seen.incarnation);
        let is_single = change.rows.len() == 1;
        let mut old = Vec::new();
        for (name, row) in &change.rows {
            match seen.row(name) {
                Some(LoadedRow { row: Some(before), .. }) if !is_single => {
                    old.push((name, row, before));
                }
                Some(before) => {
                    stored = self.put(session, at, before, row, change, &[]).await?;
                    if stored == Stored::Conflict {
                        return Ok(stored);
                    }
                }
                None => return Ok(Stored::Conflict),
            }
        }
        if old.is_empty() {
            return Ok(stored);
        }
        if change.floor.is_none() && old.iter().any(|(_, row, before)| row.token != before.token) {
            let parameters = [(&floor_version as _, Type::INT8)];
            if self.query(session, &self.statements.lock_floor, &parameters).await?.is_empty() {
                return Ok(Stored::Conflict);
            }
        }
        let names: Vec<&str> = old.iter().map(|(name, ..)| name.as_str()).collect();
        let new = Columns::from_rows(old.iter().map(|(_, row, _)| *row));
        let before = Columns::from_rows(old.iter().map(|(.., before)| *before));
        let sql = &self.statements.update_many;
        let beside = vec![None; names.len()];
        let names = (&names[..], beside);
        let stored = self.update(session, sql, names, &new, &before, change.while_live, at).await?;
        let all = stored.values().next().filter(|_| stored.len() == old.len());
        Ok(all.map_or(Stored::Conflict, |(version, _)| Stored::Done { version: *version }))
    }

    /// Stores those rows that are still the same, and live.
    async fn store_each(
        &self,
        session: &mut Session,
        seen: &Loaded,
        rows: &[StoredRow],
    ) -> Result<Vec<Stored>, Failure> {
        let names: Vec<&str> = seen.rows.iter().map(|row| row.name.as_str()).collect();
        let before = seen.rows.iter().map(|seen| seen.row.as_ref().unwrap_or(&NO_ROW));
        let (new, before) = (Columns::from_rows(rows.iter()), Columns::from_rows(before));
        let (sql, at) = (&self.statements.update_each, (seen.floor.version, seen.incarnation));
        let beside = seen.rows.iter().map(|row| Some(row.payload_version())).collect();
        let of = (&names[..], beside);
        let stored = self.update(session, sql, of, &new, &before, true, at).await?;
        let became = |name: &&str| match stored.get(*name) {
            Some((version, server_ms)) => {
                Stored::DoneAt { version: *version, server_ms: *server_ms }
            }
            None => Stored::Conflict,
        };
        Ok(names.iter().map(became).collect())
    }

    /// Stores what is beside rows that this transaction has stored, which have the same version.
    async fn put_sides(
        &self,
        session: &mut Session,
        seen: &Loaded,
        change: &Change,
    ) -> Result<Stored, Failure> {
        let mut stored = Stored::Conflict;
        for (name, side) in &change.sides {
            let is_new = change.rows.iter().any(|(changed, _)| changed == name);
            stored = self.put_beside(session, (seen, change), (name, side), is_new, &[]).await?;
            if stored == Stored::Conflict {
                break;
            }
        }
        Ok(stored)
    }

    /// Stores what is beside one row, with one statement, which is a transaction of its own.
    async fn store_beside(
        &self,
        session: &mut Session,
        seen: &Loaded,
        change: &Change,
        (name, side): &(String, SideRow),
    ) -> Result<Stored, Failure> {
        let freed = freed(seen, change);
        self.put_beside(session, (seen, change), (name, side), false, &freed).await
    }

    /// Stores what is beside a row: one that the same transaction has just stored, or one that must
    /// be as it was.
    async fn put_beside(
        &self,
        session: &mut Session,
        (seen, change): (&Loaded, &Change),
        (name, side): (&String, &SideRow),
        is_new: bool,
        freed: &[&str],
    ) -> Result<Stored, Failure> {
        let Some(before) = seen.row(name) else { return Ok(Stored::Conflict) };
        let kind = side.kind.letter();
        session.allow(side.text.len());
        let of_side = [
            (&kind as _, Type::TEXT),
            (&side.token as _, Type::INT8),
            (&side.attempt as _, Type::INT8),
            (&side.text as _, Type::TEXT),
        ];
        let version = before.payload_version();
        let (sql, parameters) = match is_new {
            true => {
                (&self.statements.put_with_row, [&[(name as _, Type::TEXT)], &of_side[..]].concat())
            }
            false => {
                let of_row = [
                    (name as _, Type::TEXT),
                    (&before.version as _, Type::INT8),
                    (&change.while_live as _, Type::BOOL),
                    (&seen.floor.version as _, Type::INT8),
                    (&seen.incarnation as _, Type::INT8),
                ];
                let version = [(&version as _, Type::INT8)];
                (&self.statements.put_beside, [&of_row[..], &of_side, &version].concat())
            }
        };
        let rows = self.query_and_notify(session, sql, &parameters, freed).await?;
        let version = rows.first().map(|row| row.get(0));
        Ok(version.map_or(Stored::Conflict, |version| Stored::Done { version }))
    }

    /// Updates rows that are still as they were before, with the versions of the payloads that must
    /// be beside them. Returns their names and versions, and the server's clock.
    #[allow(clippy::too_many_arguments)] // the parameters of one statement
    async fn update(
        &self,
        session: &mut Session,
        sql: &str,
        (names, beside): (&[&str], Vec<Option<i64>>),
        new: &Columns<'_>,
        before: &Columns<'_>,
        while_live: bool,
        (floor_version, incarnation): (i64, i64),
    ) -> Result<HashMap<String, (i64, i64)>, Failure> {
        let parameters = [
            (&names as _, Type::TEXT_ARRAY),
            (&new.tokens as _, Type::INT8_ARRAY),
            (&new.owners as _, Type::TEXT_ARRAY),
            (&new.untils as _, Type::INT8_ARRAY),
            (&new.ats as _, Type::INT8_ARRAY),
            (&new.attempts as _, Type::INT8_ARRAY),
            (&before.tokens as _, Type::INT8_ARRAY),
            (&before.owners as _, Type::TEXT_ARRAY),
            (&before.untils as _, Type::INT8_ARRAY),
            (&before.ats as _, Type::INT8_ARRAY),
            (&before.attempts as _, Type::INT8_ARRAY),
            (&while_live as _, Type::BOOL),
            (&floor_version as _, Type::INT8),
            (&incarnation as _, Type::INT8),
            (&new.ended as _, Type::INT8_ARRAY),
            (&new.sinces as _, Type::INT8_ARRAY),
            (&beside as _, Type::INT8_ARRAY),
        ];
        let rows = self.query(session, sql, &parameters).await?;
        Ok(rows.iter().map(|row| (row.get(1), (row.get(0), row.get(2)))).collect())
    }

    async fn commit_rows(
        &self,
        session: &mut Session,
        incarnation: Option<i64>,
        name: &str,
        token: i64,
        rows: &[RowChange],
    ) -> Result<Stored, Failure> {
        let put = rows.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let (keys, values): (Vec<&Vec<u8>>, Vec<&Vec<u8>>) = put.unzip();
        let gone = rows.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key);
        let gone: Vec<&Vec<u8>> = gone.collect();
        let parameters = [
            (&name as _, Type::TEXT),
            (&token as _, Type::INT8),
            (&keys as _, Type::BYTEA_ARRAY),
            (&values as _, Type::BYTEA_ARRAY),
            (&gone as _, Type::BYTEA_ARRAY),
            (&incarnation as _, Type::INT8),
        ];
        session.allow(keys.iter().chain(&values).map(|bytes| bytes.len()).sum());
        let newest = self.query(session, &self.statements.commit_rows, &parameters).await?;
        Ok(match newest.is_empty() {
            true => Stored::Conflict,
            false => Stored::Done { version: 0 },
        })
    }
}

impl Shared {
    async fn commit_parts(
        &self,
        session: &mut Session,
        commit: &Commit<'_>,
    ) -> Result<Committed, Failure> {
        let Commit { writer: (writer, token), parts, .. } = commit;
        let PartColumns { names, new, before, conditions, is_grant, freed } =
            PartColumns::from_parts(parts);
        let same: (Vec<&str>, Vec<i64>) = parts
            .iter()
            .filter(|part| part.row.is_none())
            .map(|part| (part.name(), part.before.version))
            .unzip();
        let rows = ServiceColumns::from_commit(commit);
        let parameters = [
            (writer as _, Type::TEXT),
            (token as _, Type::INT8),
            (&commit.incarnation as _, Type::INT8),
            (&commit.floor_version as _, Type::INT8),
            (&names as _, Type::TEXT_ARRAY),
            (&new.tokens as _, Type::INT8_ARRAY),
            (&new.owners as _, Type::TEXT_ARRAY),
            (&new.untils as _, Type::INT8_ARRAY),
            (&new.ats as _, Type::INT8_ARRAY),
            (&new.attempts as _, Type::INT8_ARRAY),
            (&new.ended as _, Type::INT8_ARRAY),
            (&before.tokens as _, Type::INT8_ARRAY),
            (&before.owners as _, Type::TEXT_ARRAY),
            (&before.untils as _, Type::INT8_ARRAY),
            (&before.ats as _, Type::INT8_ARRAY),
            (&before.attempts as _, Type::INT8_ARRAY),
            (&conditions as _, Type::INT8_ARRAY),
            (&is_grant as _, Type::BOOL),
            (&same.0 as _, Type::TEXT_ARRAY),
            (&same.1 as _, Type::INT8_ARRAY),
            (&rows.keys as _, Type::BYTEA_ARRAY),
            (&rows.values as _, Type::BYTEA_ARRAY),
            (&rows.names as _, Type::TEXT_ARRAY),
            (&rows.gone as _, Type::BYTEA_ARRAY),
            (&rows.names_of_gone as _, Type::TEXT_ARRAY),
            (&new.sinces as _, Type::INT8_ARRAY),
        ];
        session.allow(rows.values.iter().map(|value| value.len()).sum());
        let sql = &self.statements.commit_parts;
        let found = self.query_and_notify(session, sql, &parameters, &freed).await?;
        Ok(committed(parts, &found))
    }
}

/// Reads what became of each part.
fn committed(parts: &[Part], found: &[Row]) -> Committed {
    let Some(first) = found.first() else { return Committed::Replaced };
    if first.get::<_, i64>(1) == 0 {
        return Committed::FloorChanged;
    }
    let stored: HashMap<&str, (i64, i64)> =
        found.iter().skip(1).map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
    let became = parts.iter().map(|part| match stored.get(part.name()) {
        Some((version, server_ms)) if part.condition != Condition::None => {
            Stored::DoneAt { version: *version, server_ms: *server_ms }
        }
        Some((version, _)) => Stored::Done { version: *version },
        None => Stored::Conflict,
    });
    Committed::Parts(became.collect())
}

/// The columns of the parts that change their row.
struct PartColumns<'c> {
    names: Vec<&'c str>,
    new: Columns<'c>,
    before: Columns<'c>,
    conditions: Vec<i64>,
    /// A name gets a new token.
    is_grant: bool,
    /// The names whose waiters are notified.
    freed: Vec<&'c str>,
}

impl<'c> PartColumns<'c> {
    fn from_parts(parts: &'c [Part]) -> Self {
        let written = || parts.iter().filter_map(|part| Some((part, part.row.as_ref()?)));
        let rows: Vec<(&Part, &StoredRow)> = written().collect();
        let before = rows.iter().map(|(part, _)| part.before.row.as_ref().unwrap_or(&NO_ROW));
        let is_new = |(part, row): &(&Part, &StoredRow)| {
            part.before.row.as_ref().is_none_or(|before| before.token != row.token)
        };
        let name = |(part, _): (&'c Part, &StoredRow)| part.name();
        PartColumns {
            names: written().map(name).collect(),
            new: Columns::from_rows(rows.iter().map(|(_, row)| *row)),
            before: Columns::from_rows(before),
            conditions: rows.iter().map(|(part, _)| part.condition as i64).collect(),
            is_grant: rows.iter().any(is_new),
            freed: written().filter(|(part, row)| part.frees(row)).map(name).collect(),
        }
    }
}

/// The columns of the service's own rows, each with the name that it belongs to, if it does.
#[derive(Default)]
struct ServiceColumns<'c> {
    keys: Vec<&'c Vec<u8>>,
    values: Vec<&'c Vec<u8>>,
    names: Vec<Option<&'c str>>,
    gone: Vec<&'c Vec<u8>>,
    names_of_gone: Vec<Option<&'c str>>,
}

impl<'c> ServiceColumns<'c> {
    fn from_commit(commit: &Commit<'c>) -> Self {
        let of_parts = commit
            .parts
            .iter()
            .flat_map(|part| part.rows.iter().map(|row| (row, Some(part.name()))));
        let mut columns = ServiceColumns::default();
        for ((key, value), name) in commit.rows.iter().map(|row| (row, None)).chain(of_parts) {
            match value {
                Some(value) => {
                    columns.keys.push(key);
                    columns.values.push(value);
                    columns.names.push(name);
                }
                None => {
                    columns.gone.push(key);
                    columns.names_of_gone.push(name);
                }
            }
        }
        columns
    }
}

/// The columns before a row is there.
const NO_ROW: StoredRow =
    StoredRow { token: 0, tenure: None, since_ms: 0, at_ms: 0, attempt: 0, ended: 0 };

/// Returns the names that a change frees, for their waiters.
fn freed<'c>(seen: &Loaded, change: &'c Change) -> Vec<&'c str> {
    let is_freed = |(name, row): &&(String, StoredRow)| {
        let before = seen.row(name).and_then(|seen| seen.row.as_ref());
        let is_handed_on = change.while_live && before.is_some_and(|old| old.token != row.token);
        before.is_some_and(|old| old.tenure.is_some()) && (row.tenure.is_none() || is_handed_on)
    };
    match change.tells {
        true => change.names().collect(),
        false => change.rows.iter().filter(is_freed).map(|(name, _)| name.as_str()).collect(),
    }
}

/// The columns of several rows.
struct Columns<'r> {
    tokens: Vec<i64>,
    owners: Vec<Option<&'r str>>,
    untils: Vec<Option<i64>>,
    ats: Vec<i64>,
    attempts: Vec<i64>,
    ended: Vec<i64>,
    sinces: Vec<i64>,
}

impl<'r> Columns<'r> {
    fn from_rows(rows: impl Iterator<Item = &'r StoredRow> + Clone) -> Self {
        Columns {
            tokens: rows.clone().map(|row| row.token).collect(),
            owners: rows.clone().map(|row| columns(row).0).collect(),
            untils: rows.clone().map(|row| columns(row).1).collect(),
            ats: rows.clone().map(|row| row.at_ms).collect(),
            attempts: rows.clone().map(|row| row.attempt).collect(),
            ended: rows.clone().map(|row| row.ended).collect(),
            sinces: rows.map(|row| row.since_ms).collect(),
        }
    }
}

fn columns(row: &StoredRow) -> (Option<&str>, Option<i64>) {
    let tenure = row.tenure.as_ref();
    (tenure.map(|tenure| tenure.owner.as_str()), tenure.map(|tenure| tenure.until_ms))
}

fn loaded(shared: &Shared, rows: &[Row]) -> Result<Loaded> {
    let meta = || format!("{}.meta", shared.schema);
    let Some(first) = rows.first() else {
        return Err(Error::SchemaMismatch { table: meta(), reason: "it has no row".into() });
    };
    let format: i64 = first.get(0);
    if format > FORMAT {
        return Err(Error::NewerFormat { found: format, known: FORMAT });
    }
    let epoch = Epoch { floor: first.get(1), boot: first.get(2) };
    let floor = TokenFloor { epoch, version: first.get(3) };
    let rows = rows.iter().filter_map(|row| {
        let name: Option<String> = row.get(5);
        let (token, at_ms): (Option<i64>, Option<i64>) = (row.get(7), row.get(10));
        let (token, at_ms) = (token?, at_ms?);
        let tenure = match (row.get::<_, Option<String>>(8), row.get::<_, Option<i64>>(9)) {
            // The ttl is not stored: the server's clock shows how much of it is left.
            (Some(owner), Some(until_ms)) => {
                Some(StoredTenure { owner, until_ms, ttl_ms: until_ms.saturating_sub(at_ms) })
            }
            _ => None,
        };
        let (attempt, ended, since_ms) = (row.get(11), row.get(13), row.get(14));
        let row_of = StoredRow { token, tenure, since_ms, at_ms, attempt, ended };
        let side = row.get::<_, Option<i64>>(15).map(|version| {
            let (token, attempt, text) = (row.get(16), row.get(17), row.get(18));
            SideRow { kind: SideKind::Payload, version, token, attempt, text }
        });
        let sides = side.into_iter().collect();
        Some(LoadedRow { name: name?, version: row.get(6), row: Some(row_of), sides })
    });
    let (incarnation, server_ms) = (first.get(12), Some(first.get(4)));
    Ok(Loaded { floor, incarnation, server_ms, rows: rows.collect() })
}
