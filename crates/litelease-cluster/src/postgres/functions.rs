//! The functions in the schema: verbs and guards for the caller's own transactions, in any
//! language.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::engine::FORMAT;
use crate::postgres::client::{BEGIN, number_of};
use crate::postgres::failure::Failure;
use crate::postgres::schema::BOOTSTRAP;
use crate::postgres::statements::CLOCK;

/// Statements that make every missing function, and replace the existing ones.
const FILES: [&str; 2] = [include_str!("sql/verbs.sql"), include_str!("sql/guards.sql")];

/// The functions are of one version, which is in the comment on one of them.
const VERSION: &str =
    "SELECT pg_catalog.obj_description(pg_catalog.to_regprocedure($1), 'pg_proc')";

/// Makes the functions, or replaces those of another version, one client at a time.
pub(crate) async fn ensure(client: &Client, host: &str, schema: &str) -> Result<(), Failure> {
    let failed = |error| Failure::from_error(host, &error);
    let script = script(schema);
    let version = format!("Litelease functions, version {}", number_of(&script));
    if is_version(client, schema, &version).await.map_err(failed)? {
        return Ok(());
    }
    let begin = format!(
        "{BEGIN}; SET LOCAL lock_timeout = '5s'; SET LOCAL synchronous_commit = on;
         SELECT pg_catalog.pg_advisory_xact_lock({BOOTSTRAP})"
    );
    client.batch_execute(&begin).await.map_err(failed)?;
    let rest = match is_version(client, schema, &version).await.map_err(failed)? {
        true => "ROLLBACK".into(),
        false => {
            format!("{script}\nCOMMENT ON FUNCTION \"{schema}\".fence() IS '{version}'; COMMIT")
        }
    };
    client.batch_execute(&rest).await.map_err(failed)
}

async fn is_version(
    client: &Client,
    schema: &str,
    version: &str,
) -> Result<bool, tokio_postgres::Error> {
    let function = format!("\"{schema}\".fence()");
    // Without a name of its own, so that a pooler may be in between.
    let found = client.query_typed(VERSION, &[(&function, Type::TEXT)]).await?;
    let found: Option<String> = found.first().and_then(|row| row.get(0));
    Ok(found.as_deref() == Some(version))
}

/// Fills the schema in.
fn script(schema: &str) -> String {
    let script = FILES.concat().replace("{s}", &format!("\"{schema}\""));
    let script = script.replace("{schema}", schema).replace("{clock}", CLOCK);
    script.replace("{format}", &FORMAT.to_string())
}
