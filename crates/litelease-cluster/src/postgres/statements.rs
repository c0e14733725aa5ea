//! Every SQL statement on leases. `{s}` is the schema, quoted; every name is qualified, because a
//! search_path is the caller's.
//!
//! The version of a row is its `xmin`: the transaction that wrote it.

/// The clock, in milliseconds. Not `now()`, which does not advance in a transaction.
pub(crate) const CLOCK: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The settings of every transaction of ours, whatever the defaults of the role are: a grant is
/// durable, and no client waits long for a lock. The settings end with the transaction, because a
/// pooler gives the connection to other clients after it.
pub(crate) const SETTINGS: &str = "pg_catalog.set_config('synchronous_commit', 'on', true),
pg_catalog.set_config('lock_timeout', '500', true)";

/// The incarnation of the server. Every load reads it and every store compares it, because a pooler
/// may go on with another server over the same connection of ours.
const INCARNATION: &str = "(SELECT {s}.incarnation())";

const LOADED: &str = "SELECT m.format, m.floor, m.boot, m.xmin::text::bigint, {clock},
r.name, r.xmin::text::bigint, r.token, r.owner, r.lease_expires_at_ms, r.updated_at_ms, r.attempt,
{incarnation}, r.ended, r.created_at_ms, b.xmin::text::bigint, b.token, b.attempt, b.value
FROM {s}.meta m LEFT JOIN {s}.resources r ON {which}
LEFT JOIN {s}.beside b ON b.name = r.name AND b.kind = 'p'";

/// Compares the payload of a row. Without a version to compare with, nothing is compared.
const SAME_BESIDE: &str = "NOT EXISTS (SELECT FROM {s}.beside b WHERE b.name = {name}
  AND b.kind = 'p' AND b.token = {token} AND b.xmin::text::bigint <> {version})";

/// Stores what is beside a row that is still the same. The lock keeps a purge from deleting the row
/// meanwhile, and a renewal from being stored before it that did not see this.
const PUT_BESIDE: &str = "WITH same AS MATERIALIZED (
  SELECT FROM (SELECT {settings} OFFSET 0) AS settings, {s}.resources r
  WHERE r.name = $1 AND r.xmin::text::bigint = $2 AND (NOT $3 OR r.lease_expires_at_ms > {clock})
  AND EXISTS (SELECT FROM {s}.meta m WHERE m.xmin::text::bigint = $4) AND {incarnation} = $5
  FOR NO KEY UPDATE OF r)
INSERT INTO {s}.beside (name, kind, token, attempt, value) SELECT $1, $6, $7, $8, $9 FROM same
ON CONFLICT (name, kind) DO UPDATE SET token = excluded.token, attempt = excluded.attempt,
value = excluded.value
WHERE {s}.beside.token <> excluded.token OR {s}.beside.xmin::text::bigint = $10
RETURNING xmin::text::bigint";

/// Stores what is beside a row that the same transaction has just stored.
const PUT_WITH_ROW: &str = "INSERT INTO {s}.beside (name, kind, token, attempt, value)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name, kind) DO UPDATE SET token = excluded.token, attempt = excluded.attempt,
value = excluded.value RETURNING xmin::text::bigint";

const LIST_BESIDE: &str = "SELECT name, xmin::text::bigint, token, attempt, value FROM {s}.beside
WHERE kind = $1 ORDER BY name";

/// The statements for one schema.
pub(crate) struct Statements {
    pub(crate) load: String,
    pub(crate) load_many: String,
    pub(crate) list: String,
    /// For the token that the row has.
    pub(crate) update: String,
    /// The same for a new token.
    pub(crate) update_token: String,
    pub(crate) lock_floor: String,
    pub(crate) lock_floor_alone: String,
    pub(crate) insert: String,
    pub(crate) update_many: String,
    pub(crate) update_each: String,
    pub(crate) update_floor: String,
    pub(crate) forget: String,
    pub(crate) load_rows: String,
    pub(crate) commit_rows: String,
    pub(crate) commit_parts: String,
    pub(crate) put_beside: String,
    pub(crate) put_with_row: String,
    pub(crate) list_beside: String,
}

/// With how long the lease must last ($14), its times are those of the server's clock, if that is
/// later than the clock that was guessed. Without, `greatest` passes over what is NULL.
///
/// A grant waits here for the guarded transactions of the token before. If it did not lock the
/// floor, a raise that is answered meanwhile could be above its token.
const UPDATE: &str = "UPDATE {s}.resources r SET token = $2, owner = $3, attempt = $6, ended = $16,
created_at_ms = $17,
lease_expires_at_ms = greatest($4, clock.ms + $14),
updated_at_ms = greatest($5, CASE WHEN $14 IS NOT NULL THEN clock.ms END)
FROM {floor_of_update}(SELECT {clock} AS ms, {settings} OFFSET 0) AS clock
WHERE name = $1 AND token = $7 AND owner IS NOT DISTINCT FROM $8
AND lease_expires_at_ms IS NOT DISTINCT FROM $9 AND updated_at_ms = $10 AND attempt = $11
AND (NOT $12 OR lease_expires_at_ms > {clock})
AND EXISTS (SELECT FROM {s}.meta m WHERE m.xmin::text::bigint = $13) AND {incarnation} = $15
AND {same_beside}
RETURNING r.xmin::text::bigint, CASE WHEN $14 IS NOT NULL THEN clock.ms END";

/// Locks the floor before the row, as all do, and keeps it until the transaction ends.
const LOCKED_FLOOR: &str = "WITH floor AS MATERIALIZED (SELECT FROM {s}.meta m
  WHERE m.xmin::text::bigint = $13 FOR SHARE OF m)
";

/// Locks the floor for a change of several rows.
const LOCK_FLOOR: &str = "SELECT m.xmin::text::bigint FROM {s}.meta m
WHERE m.xmin::text::bigint = $1 FOR SHARE OF m";

/// Locks the floor: a purge changes it before it deletes rows, so that a row that comes back has a
/// larger token.
const INSERT: &str =
    "WITH locked AS (SELECT FROM (SELECT {settings} OFFSET 0) AS settings, {s}.meta m
  WHERE m.xmin::text::bigint = $7 AND {incarnation} = $8 FOR SHARE OF m)
INSERT INTO {s}.resources
(name, token, owner, lease_expires_at_ms, created_at_ms, updated_at_ms, attempt, ended)
SELECT $1, $2, $3, $4, $10, $5, $6, $9 FROM locked
ON CONFLICT DO NOTHING RETURNING xmin::text::bigint";

const UPDATE_MANY: &str = "UPDATE {s}.resources r SET token = c.token, owner = c.owner,
lease_expires_at_ms = c.until, updated_at_ms = c.at, attempt = c.attempt, ended = c.ended,
created_at_ms = c.since
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
  $7::bigint[], $8::text[], $9::bigint[], $10::bigint[], $11::bigint[],
  $15::bigint[], $16::bigint[], $17::bigint[])
AS c(name, token, owner, until, at, attempt, token_0, owner_0, until_0, at_0, attempt_0, ended,
  since, beside_0)
CROSS JOIN (SELECT {clock} AS ms, {settings} OFFSET 0) AS clock
WHERE r.name = c.name AND r.token = c.token_0 AND r.owner IS NOT DISTINCT FROM c.owner_0
AND r.lease_expires_at_ms IS NOT DISTINCT FROM c.until_0 AND r.updated_at_ms = c.at_0
AND r.attempt = c.attempt_0 AND (NOT $12 OR r.lease_expires_at_ms > {clock})
AND EXISTS (SELECT FROM {s}.meta WHERE xmin::text::bigint = $13) AND {incarnation} = $14
AND {same_beside}
RETURNING r.xmin::text::bigint, r.name, clock.ms";

/// The new columns of a lease, and the same if the server's clock is later than the one that was
/// guessed: the lease lasts as long from then on.
const AS_DECIDED: &str = "lease_expires_at_ms = c.until, updated_at_ms = c.at";
const AS_OF_NOW: &str = "lease_expires_at_ms = greatest(c.until, clock.ms + c.until - c.at),
updated_at_ms = greatest(c.at, clock.ms)";

/// Waits for no lock, and takes none that blocks a guard's `FOR KEY SHARE`. Rows that are not
/// locked here are not updated.
const LOCKED: &str = "WITH locked AS MATERIALIZED (SELECT name FROM {s}.resources
  WHERE name = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED)
";

/// Grants share the lock of the floor's row, and would pass a raise that waits for it, so that it
/// could wait for ever. At the lock of the table they queue behind it. It gives up soon: the grants
/// wait as long, and a transaction that has claimed in SQL keeps the lock until its end.
const LOCK_FLOOR_ALONE: &str = "DO $litelease$ BEGIN SET LOCAL lock_timeout = 100;
LOCK TABLE {s}.meta IN EXCLUSIVE MODE; SET LOCAL lock_timeout = 500; END $litelease$";

const UPDATE_FLOOR: &str = "UPDATE {s}.meta m SET floor = $1, boot = $2
FROM (SELECT {settings} OFFSET 0) AS settings
WHERE m.xmin::text::bigint = $3 AND {incarnation} = $4
RETURNING m.xmin::text::bigint";

const FORGET: &str = "WITH gone AS (DELETE FROM {s}.resources r
  USING (SELECT {settings} OFFSET 0) AS settings,
  unnest($1::text[], $2::bigint[], $3::bigint[]) AS c(name, token, attempt)
  WHERE r.name = c.name AND r.token = c.token AND r.attempt = c.attempt
  AND r.xmin::text::bigint = ANY ($4) RETURNING r.name),
beside AS (DELETE FROM {s}.beside b USING gone WHERE b.name = gone.name AND b.kind = 'p')
SELECT name FROM gone";

/// One statement, and so a transaction that no client can leave open: its lock would keep every
/// other server from taking over.
///
/// The row of the token is locked until the transaction ends: a grant waits, a renewal does not.
/// Where it has changed since the statement began, the lock waits for that and compares again, so
/// the token is never older than the last grant. Nothing is put or deleted without it. What a
/// statement cannot see, because it was stored after it began, was not stored under an older token:
/// the grant of this one has waited for that.
const COMMIT_ROWS: &str = "WITH newest AS MATERIALIZED (
  SELECT FROM (SELECT {settings} OFFSET 0) AS settings, {s}.resources r
  WHERE r.name = $1 AND r.token = $2 AND ($6 IS NULL OR {incarnation} = $6) FOR KEY SHARE OF r),
put AS (INSERT INTO {s}.service (key, value)
  SELECT c.key, c.value FROM newest, unnest($3::bytea[], $4::bytea[]) AS c(key, value)
  ON CONFLICT (key) DO UPDATE SET value = excluded.value),
gone AS (DELETE FROM {s}.service s USING newest WHERE s.key = ANY ($5))
SELECT FROM newest";

/// A commit of the service: parts, each of which is a name, and rows. One statement, as above.
///
/// A part that meets a row which another transaction has locked is left out, so that a guarded
/// transaction does not stop all clients of the service. So is a new name that a SQL function has
/// claimed in a transaction which is still open: the function holds a lock on it. A new token locks
/// the floor first, and its row as a guard expects it.
///
/// The new columns are $5 to $11, those before $12 to $16, and the conditions $17: no clock is
/// asked, the lease must be live, or over. $18 tells whether any of them has a new token. $19 are
/// the names that only have to be the same, with their versions in $20. Rows of the service follow,
/// each with the name that it belongs to, if it does. $26 is when each grant began.
const COMMIT_PARTS: &str = "WITH writer AS MATERIALIZED (
  SELECT FROM (SELECT {settings} OFFSET 0) AS settings, {s}.resources r
  WHERE r.name = $1 AND r.token = $2 AND {incarnation} = $3 FOR KEY SHARE OF r),
shared AS MATERIALIZED (SELECT FROM writer, {s}.meta m
  WHERE $18::boolean AND m.xmin::text::bigint = $4 FOR SHARE OF m),
floor AS MATERIALIZED (SELECT FROM shared UNION ALL SELECT FROM writer, {s}.meta m
  WHERE NOT $18::boolean AND m.xmin::text::bigint = $4),
parts AS MATERIALIZED (SELECT * FROM unnest($5::text[], $6::bigint[], $7::text[], $8::bigint[],
  $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[],
  $15::bigint[], $16::bigint[], $17::bigint[], $26::bigint[])
  AS c(name, token, owner, until, at, attempt, ended, token_0, owner_0, until_0, at_0, attempt_0,
  condition, since)),
granted AS MATERIALIZED (SELECT c.* FROM floor, parts c JOIN {s}.resources r ON r.name = c.name
  WHERE c.token <> c.token_0 FOR UPDATE OF r SKIP LOCKED),
kept AS MATERIALIZED (SELECT c.* FROM floor, parts c JOIN {s}.resources r ON r.name = c.name
  WHERE c.token = c.token_0 FOR NO KEY UPDATE OF r SKIP LOCKED),
locked AS MATERIALIZED (SELECT * FROM granted UNION ALL SELECT * FROM kept),
clock AS MATERIALIZED (SELECT {clock} AS ms FROM floor WHERE (SELECT count(*) FROM locked) >= 0),
updated AS (UPDATE {s}.resources r SET token = c.token, owner = c.owner, attempt = c.attempt,
  ended = c.ended,
  lease_expires_at_ms = CASE WHEN c.condition = 0 THEN c.until ELSE clock.ms + c.until - c.at END,
  updated_at_ms = CASE WHEN c.condition = 0 THEN c.at ELSE clock.ms END,
  created_at_ms = CASE WHEN c.condition = 0 OR c.token = c.token_0 THEN c.since
    ELSE clock.ms + c.since - c.at END
  FROM locked c CROSS JOIN clock
  WHERE r.name = c.name AND r.token = c.token_0 AND r.owner IS NOT DISTINCT FROM c.owner_0
  AND r.lease_expires_at_ms IS NOT DISTINCT FROM c.until_0 AND r.updated_at_ms = c.at_0
  AND r.attempt = c.attempt_0
  AND (c.condition <> 1 OR r.lease_expires_at_ms > clock.ms)
  AND (c.condition <> 2 OR r.lease_expires_at_ms IS NULL OR r.lease_expires_at_ms <= clock.ms)
  RETURNING r.name, r.xmin::text::bigint AS version),
inserted AS (INSERT INTO {s}.resources
  (name, token, owner, lease_expires_at_ms, created_at_ms, updated_at_ms, attempt, ended)
  SELECT c.name, c.token, c.owner,
    CASE WHEN c.condition = 0 THEN c.until ELSE clock.ms + c.until - c.at END,
    CASE WHEN c.condition = 0 THEN c.since ELSE clock.ms + c.since - c.at END,
    CASE WHEN c.condition = 0 THEN c.at ELSE clock.ms END, c.attempt, c.ended
  FROM parts c CROSS JOIN clock WHERE CASE WHEN c.token_0 = 0
    THEN pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('{s}.' || c.name, 0))
    ELSE false END
  ON CONFLICT DO NOTHING RETURNING name, xmin::text::bigint AS version),
same AS MATERIALIZED (SELECT c.name, c.version FROM floor, unnest($19::text[], $20::bigint[])
  AS c(name, version) LEFT JOIN {s}.resources r ON r.name = c.name
  WHERE coalesce(r.xmin::text::bigint, 0) = c.version),
stored AS (SELECT name, version FROM updated UNION ALL SELECT name, version FROM inserted
  UNION ALL SELECT name, version FROM same),
put AS (INSERT INTO {s}.service (key, value)
  SELECT c.key, c.value FROM floor, unnest($21::bytea[], $22::bytea[], $23::text[])
  AS c(key, value, name) WHERE c.name IS NULL OR c.name IN (SELECT name FROM stored)
  ON CONFLICT (key) DO UPDATE SET value = excluded.value),
gone AS (DELETE FROM {s}.service s USING floor, unnest($24::bytea[], $25::text[]) AS c(key, name)
  WHERE s.key = c.key AND (c.name IS NULL OR c.name IN (SELECT name FROM stored)))
SELECT NULL::text, (SELECT count(*) FROM floor), {clock} FROM writer
UNION ALL SELECT s.name, s.version, clock.ms FROM stored s, clock";

/// A page of rows: at most this many, and this many bytes. It has at least the first row.
const LOAD_ROWS: &str = "SELECT key, value FROM (
  SELECT key, value, sum(octet_length(value)) OVER (ORDER BY key) - octet_length(value) AS bytes
  FROM (SELECT key, value FROM {s}.service
    WHERE key >= $1 AND key < $2 ORDER BY key LIMIT 5000) AS page) AS sized
WHERE bytes < 1000000 ORDER BY key";

impl Statements {
    /// Checks whether a statement is planned anew each time. A plan for any number of rows is one
    /// for few, and takes a second for 1,000 of them.
    pub(crate) fn is_planned_anew(&self, sql: &str) -> bool {
        [&self.load_many, &self.update_many, &self.update_each].into_iter().any(|many| many == sql)
    }

    /// Returns the statement that updates one row, with the token that it has or with a new one.
    pub(crate) fn update_of(&self, has_token: bool) -> &str {
        if has_token { &self.update } else { &self.update_token }
    }

    /// Fills the schema in, which is an identifier that needs no quotes but may be a keyword.
    pub(crate) fn new(schema: &str) -> Self {
        let schema = format!("\"{schema}\"");
        let fill = |text: &str| {
            let text = text.replace("{same_beside}", SAME_BESIDE);
            let text = text.replace("{incarnation}", INCARNATION).replace("{s}", &schema);
            text.replace("{clock}", CLOCK).replace("{settings}", SETTINGS)
        };
        let beside = |text: String, name, token, version| {
            let text = text.replace("{name}", name).replace("{token}", token);
            text.replace("{version}", version)
        };
        let one = |text: &str| beside(fill(text), "$1", "$7", "$18");
        let many = |text: &str| beside(fill(text), "c.name", "c.token_0", "c.beside_0");
        Statements {
            load: fill(&LOADED.replace("{which}", "r.name = $1")),
            load_many: fill(&LOADED.replace("{which}", "r.name = ANY ($1)")),
            list: fill(&format!("{} ORDER BY r.name", LOADED.replace("{which}", "true"))),
            update: one(&UPDATE.replace("{floor_of_update}", "")),
            update_token: one(&format!(
                "{LOCKED_FLOOR}{}",
                UPDATE.replace("{floor_of_update}", "floor, ")
            )),
            lock_floor: fill(LOCK_FLOOR),
            lock_floor_alone: fill(LOCK_FLOOR_ALONE),
            insert: fill(INSERT),
            update_many: many(UPDATE_MANY),
            update_each: many(&format!(
                "{LOCKED}{}",
                UPDATE_MANY
                    .replace("WHERE r.name", "JOIN locked USING (name) WHERE r.name")
                    .replace(AS_DECIDED, AS_OF_NOW)
            )),
            update_floor: fill(UPDATE_FLOOR),
            forget: fill(FORGET),
            load_rows: fill(LOAD_ROWS),
            commit_rows: fill(COMMIT_ROWS),
            commit_parts: fill(COMMIT_PARTS),
            put_beside: fill(PUT_BESIDE),
            put_with_row: fill(PUT_WITH_ROW),
            list_beside: fill(LIST_BESIDE),
        }
    }
}
