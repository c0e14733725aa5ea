//! Guarded tables: calls of the functions in the schema, which do the work in one transaction each.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::engine::{EngineFacts, Guard, GuardInfo, Result};
use crate::postgres::client::{Parameter, Pool, Session, Shared};
use crate::postgres::failure::Failure;
use crate::postgres::functions;

/// How long a change of a table may take: a CHECK looks at every row of it.
const LIMIT: Duration = Duration::from_secs(600);

/// Guards a table.
pub(crate) fn guard(pool: &Pool, table: &str, name: &str, guard: &Guard) -> Result<()> {
    change(pool, "SELECT {s}.guard($1, $2, $3, $4)", table, Some(name), Some(guard)).map(drop)
}

/// Removes guards, and returns how many.
pub(crate) fn unguard(pool: &Pool, table: &str, name: Option<&str>) -> Result<u64> {
    let rows = change(pool, "SELECT {s}.unguard($1, $2)", table, name, None)?;
    let taken: i64 = rows.first().map_or(0, |row| row.get(0));
    Ok(u64::try_from(taken).unwrap_or(0))
}

/// Returns all guards.
pub(crate) fn guards(pool: &Pool) -> Result<Vec<GuardInfo>> {
    let shared = &pool.shared;
    pool.run(async {
        let mut session = shared.session().await?;
        let guards = list(shared, &mut session).await.map_err(Failure::of_read)?;
        shared.keep(session);
        Ok(guards)
    })
}

/// Adds the state of the guards to the facts.
pub(crate) async fn facts(
    shared: &Shared,
    session: &mut Session,
    found: &mut EngineFacts,
) -> Result<(), Failure> {
    let sql = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
    let view = format!("\"{}\".guards", shared.schema);
    let has_view = shared.query(session, sql, &[(&view as _, Type::TEXT)]).await?;
    if !has_view.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    let guards = match list(shared, session).await {
        // Leases need no right on the guards.
        Err(Failure::Refused(why)) => {
            found.facts.push(("guards".into(), format!("not shown: {why}")));
            return Ok(());
        }
        guards => guards?,
    };
    if guards.is_empty() {
        return Ok(());
    }
    found.facts.push(("guards".into(), guards.len().to_string()));
    for guard in guards.iter().filter(|guard| !guard.is_intact) {
        found.warnings.push(format!(
            "the table {} was guarded by {:?}, and its triggers are gone, changed or disabled, so \
             anybody can write to it: guard it again, or unguard it if that is meant",
            guard.table, guard.name
        ));
    }
    Ok(())
}

async fn list(shared: &Shared, session: &mut Session) -> Result<Vec<GuardInfo>, Failure> {
    let sql = format!(
        "SELECT table_name, name, column_name, strict, state = 'intact' FROM \"{}\".guards",
        shared.schema
    );
    let info = |row: &Row| GuardInfo {
        table: row.get(0),
        name: row.get(1),
        column: row.get(2),
        strict: row.get(3),
        is_intact: row.get(4),
    };
    Ok(shared.query(session, &sql, &[]).await?.iter().map(info).collect())
}

/// Calls a function that changes guards, and takes its time.
fn change(
    pool: &Pool,
    sql: &str,
    table: &str,
    name: Option<&str>,
    guard: Option<&Guard>,
) -> Result<Vec<Row>> {
    let shared = &pool.shared;
    let sql = sql.replace("{s}", &format!("\"{}\"", shared.schema));
    pool.run_within(LIMIT, async {
        let mut session = shared.session().await?;
        let ensured = functions::ensure(&session.client, &session.host, &shared.schema).await;
        ensured.map_err(Failure::of_write)?;
        let column = guard.and_then(Guard::column);
        let strict = guard.is_some_and(Guard::is_strict);
        let all: [(&(dyn ToSql + Sync), Type); 4] = [
            (&table, Type::TEXT),
            (&name, Type::TEXT),
            (&column, Type::TEXT),
            (&strict, Type::BOOL),
        ];
        let parameters: &[Parameter<'_>] = if guard.is_some() { &all } else { &all[..2] };
        shared.begin(&mut session).await.map_err(Failure::of_write)?;
        // Until the commit is sent, nothing is stored.
        let done = session.client.query_typed(&sql, parameters).await;
        let rows = done.map_err(|error| Failure::from_error(&session.host, &error).of_read())?;
        shared.end(&mut session, "COMMIT", &[]).await.map_err(Failure::of_write)?;
        shared.keep(session);
        Ok(rows)
    })
}
