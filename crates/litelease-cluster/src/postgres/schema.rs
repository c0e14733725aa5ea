//! Our tables: made by `bootstrap`, and checked strictly before they are used.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::engine::{Error, FORMAT};
use crate::postgres::client::BEGIN;
use crate::postgres::failure::Failure;

/// The tables. `UNIQUE (name, token)` makes the token a part of a key, so that `FOR KEY SHARE` on a
/// row holds up grants and not renewals.
///
/// The incarnation is the system identifier and the timeline: not that of
/// `pg_control_checkpoint()`, which is the old one right after a promotion. Where these are
/// forbidden to the owner of the schema, it is the start of the server. The function runs as that
/// owner, so that all users see the same number.
const TABLES: &str = r#"CREATE SCHEMA IF NOT EXISTS {s};
CREATE TABLE {s}.resources (
  name text COLLATE "C" PRIMARY KEY,
  owner text COLLATE "C",
  token bigint NOT NULL CHECK (token >= 1),
  lease_expires_at_ms bigint,
  created_at_ms bigint NOT NULL,
  updated_at_ms bigint NOT NULL,
  attempt bigint NOT NULL,
  ended bigint NOT NULL,
  UNIQUE (name, token),
  CHECK ((owner IS NULL) = (lease_expires_at_ms IS NULL))
);
CREATE TABLE {s}.meta (
  id boolean PRIMARY KEY CHECK (id),
  format bigint NOT NULL,
  floor bigint NOT NULL CHECK (floor >= 0),
  boot bigint NOT NULL
);
CREATE TABLE {s}.beside (
  name text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  token bigint NOT NULL,
  attempt bigint NOT NULL,
  value text NOT NULL,
  PRIMARY KEY (name, kind)
);
CREATE TABLE {s}.service (key bytea PRIMARY KEY, value bytea NOT NULL);
CREATE FUNCTION {s}.incarnation() RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $incarnation$
DECLARE
  words text;
BEGIN
  BEGIN
    words := (SELECT system_identifier FROM pg_control_system())
      || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
  EXCEPTION WHEN insufficient_privilege THEN
    words := extract(epoch FROM pg_postmaster_start_time());
  END;
  RETURN greatest(1, hashtextextended(words, 0) & 9223372036854775807);
END $incarnation$;"#;

/// Describes a table by the catalog: its kind, durability and inheritance, columns, constraints,
/// triggers, rules and policies.
const DESCRIBE: &str = "
SELECT 'kind ' || c.relkind::text || CASE WHEN c.relrowsecurity THEN ' with row security' ELSE '' END
  || CASE WHEN c.relpersistence <> 'p' THEN ' unlogged' ELSE '' END
  || CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid))
    THEN ' with inheritance' ELSE '' END
FROM pg_catalog.pg_class c WHERE c.oid = $1::text::regclass
UNION ALL (SELECT 'column ' || a.attname::text || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod)
    || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
    || coalesce(' collate ' || nullif(l.collname::text, 'default'), '')
    || CASE WHEN a.atthasdef THEN ' with a default' ELSE '' END
  FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
  WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
UNION ALL (SELECT 'constraint ' || pg_catalog.pg_get_constraintdef(o.oid)
  FROM pg_catalog.pg_constraint o WHERE o.conrelid = $1::text::regclass AND o.contype IN ('p', 'u', 'c', 'f', 'x')
  ORDER BY 1)
UNION ALL (SELECT 'trigger ' || t.tgname::text FROM pg_catalog.pg_trigger t
  WHERE t.tgrelid = $1::text::regclass AND NOT t.tgisinternal ORDER BY 1)
UNION ALL (SELECT 'rule ' || u.rulename::text FROM pg_catalog.pg_rewrite u
  WHERE u.ev_class = $1::text::regclass ORDER BY 1)";

const RESOURCES: &[&str] = &[
    "kind r",
    "column name text not null collate C",
    "column owner text collate C",
    "column token bigint not null",
    "column lease_expires_at_ms bigint",
    "column created_at_ms bigint not null",
    "column updated_at_ms bigint not null",
    "column attempt bigint not null",
    "column ended bigint not null",
    "constraint CHECK (((owner IS NULL) = (lease_expires_at_ms IS NULL)))",
    "constraint CHECK ((token >= 1))",
    "constraint PRIMARY KEY (name)",
    "constraint UNIQUE (name, token)",
];
const META: &[&str] = &[
    "kind r",
    "column id boolean not null",
    "column format bigint not null",
    "column floor bigint not null",
    "column boot bigint not null",
    "constraint CHECK ((floor >= 0))",
    "constraint CHECK (id)",
    "constraint PRIMARY KEY (id)",
];
const BESIDE: &[&str] = &[
    "kind r",
    "column name text not null collate C",
    "column kind text not null collate C",
    "column token bigint not null",
    "column attempt bigint not null",
    "column value text not null",
    "constraint PRIMARY KEY (name, kind)",
];
const SERVICE: &[&str] = &[
    "kind r",
    "column key bytea not null",
    "column value bytea not null",
    "constraint PRIMARY KEY (key)",
];

/// The number of the lock that is held while tables and functions are made.
pub(crate) const BOOTSTRAP: i64 = 7_234_017_283_807_667_301;

/// The reason why the tables cannot be used.
pub(crate) enum Problem {
    Failure(Failure),
    Error(Error),
}

/// Makes the tables if none is there, one client at a time.
pub(crate) async fn create(client: &Client, host: &str, schema: &str) -> Result<(), Failure> {
    let tables = TABLES.replace("{s}", &format!("\"{schema}\""));
    // One for all schemas: it is held for a moment, and only while a table is made.
    let script = format!(
        "{BEGIN};
         SET LOCAL lock_timeout = '5s'; SET LOCAL synchronous_commit = on;
         SELECT pg_catalog.pg_advisory_xact_lock({BOOTSTRAP});
         DO $litelease$ BEGIN
           IF pg_catalog.to_regclass('\"{schema}\".meta') IS NULL
             AND pg_catalog.to_regclass('\"{schema}\".resources') IS NULL THEN
             {tables}
             INSERT INTO \"{schema}\".meta VALUES (true, {FORMAT}, 0, \"{schema}\".incarnation());
           END IF;
         END $litelease$;
         COMMIT"
    );
    let made = client.batch_execute(&script).await;
    made.map_err(|error| Failure::from_error(host, &error))
}

/// Checks the tables strictly.
pub(crate) async fn check(client: &Client, host: &str, schema: &str) -> Result<(), Problem> {
    let tables =
        [("meta", META), ("resources", RESOURCES), ("beside", BESIDE), ("service", SERVICE)];
    for (table, expected) in tables {
        let qualified = format!("\"{schema}\".{table}");
        let rows = client.query_typed(DESCRIBE, &[(&qualified, Type::TEXT)]).await;
        let rows =
            rows.map_err(|error| Problem::Failure(Failure::from_error(host, &error).not_sent()))?;
        let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let differs = |reason: String| {
            let table = format!("{schema}.{table}");
            Err(Problem::Error(Error::SchemaMismatch { table, reason }))
        };
        if let Some(missing) =
            expected.iter().find(|line| !found.iter().any(|known| known == **line))
        {
            return differs(format!("it must have: {missing}"));
        }
        if let Some(more) = found.iter().find(|line| !expected.contains(&line.as_str())) {
            return differs(format!("it must not have: {more}"));
        }
        if found.len() != expected.len() || !found.iter().zip(expected).all(|(a, b)| a == b) {
            return differs("its columns have another order".into());
        }
    }
    Ok(())
}
