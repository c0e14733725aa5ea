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
{incarnation}, r.ended, r.created_at_ms FROM {s}.meta m LEFT JOIN {s}.resources r ON ";

/// The statements for one schema.
pub(crate) struct Statements {
    pub(crate) load: String,
    pub(crate) load_many: String,
    pub(crate) list: String,
    pub(crate) update: String,
    pub(crate) insert: String,
    pub(crate) update_many: String,
    pub(crate) update_each: String,
    pub(crate) update_floor: String,
    pub(crate) forget: String,
    pub(crate) load_rows: String,
    pub(crate) commit_rows: String,
}

/// With how long the lease must last ($14), its times are those of the server's clock, if that is
/// later than the clock that was guessed. Without, `greatest` passes over what is NULL.
const UPDATE: &str = "UPDATE {s}.resources r SET token = $2, owner = $3, attempt = $6, ended = $16,
created_at_ms = $17,
lease_expires_at_ms = greatest($4, clock.ms + $14),
updated_at_ms = greatest($5, CASE WHEN $14 IS NOT NULL THEN clock.ms END)
FROM (SELECT {clock} AS ms, {settings} OFFSET 0) AS clock
WHERE name = $1 AND token = $7 AND owner IS NOT DISTINCT FROM $8
AND lease_expires_at_ms IS NOT DISTINCT FROM $9 AND updated_at_ms = $10 AND attempt = $11
AND (NOT $12 OR lease_expires_at_ms > {clock})
AND EXISTS (SELECT FROM {s}.meta m WHERE m.xmin::text::bigint = $13) AND {incarnation} = $15
RETURNING r.xmin::text::bigint, CASE WHEN $14 IS NOT NULL THEN clock.ms END";

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
  $15::bigint[], $16::bigint[])
AS c(name, token, owner, until, at, attempt, token_0, owner_0, until_0, at_0, attempt_0, ended,
  since)
CROSS JOIN (SELECT {clock} AS ms, {settings} OFFSET 0) AS clock
WHERE r.name = c.name AND r.token = c.token_0 AND r.owner IS NOT DISTINCT FROM c.owner_0
AND r.lease_expires_at_ms IS NOT DISTINCT FROM c.until_0 AND r.updated_at_ms = c.at_0
AND r.attempt = c.attempt_0 AND (NOT $12 OR r.lease_expires_at_ms > {clock})
AND EXISTS (SELECT FROM {s}.meta WHERE xmin::text::bigint = $13) AND {incarnation} = $14
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

const UPDATE_FLOOR: &str = "UPDATE {s}.meta m SET floor = $1, boot = $2
FROM (SELECT {settings} OFFSET 0) AS settings
WHERE m.xmin::text::bigint = $3 AND {incarnation} = $4
RETURNING m.xmin::text::bigint";

const FORGET: &str = "DELETE FROM {s}.resources r
USING (SELECT {settings} OFFSET 0) AS settings,
unnest($1::text[], $2::bigint[], $3::bigint[]) AS c(name, token, attempt)
WHERE r.name = c.name AND r.token = c.token AND r.attempt = c.attempt
AND r.xmin::text::bigint = ANY ($4)";

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

    /// Fills the schema in, which is an identifier that needs no quotes but may be a keyword.
    pub(crate) fn new(schema: &str) -> Self {
        let schema = format!("\"{schema}\"");
        let fill = |text: &str| {
            let text = text.replace("{incarnation}", INCARNATION).replace("{s}", &schema);
            text.replace("{clock}", CLOCK).replace("{settings}", SETTINGS)
        };
        Statements {
            load: fill(&format!("{LOADED} r.name = $1")),
            load_many: fill(&format!("{LOADED} r.name = ANY ($1)")),
            list: fill(&format!("{LOADED} true ORDER BY r.name")),
            update: fill(UPDATE),
            insert: fill(INSERT),
            update_many: fill(UPDATE_MANY),
            update_each: fill(&format!(
                "{LOCKED}{}",
                UPDATE_MANY
                    .replace("WHERE r.name", "JOIN locked USING (name) WHERE r.name")
                    .replace(AS_DECIDED, AS_OF_NOW)
            )),
            update_floor: fill(UPDATE_FLOOR),
            forget: fill(FORGET),
            load_rows: fill(LOAD_ROWS),
            commit_rows: fill(COMMIT_ROWS),
        }
    }
}
