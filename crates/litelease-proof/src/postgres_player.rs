//! The player for the functions in PostgreSQL, inside the transactions of the caller.

use std::collections::HashMap;

use crate::crate_player::transaction_sql;
use crate::play::{self, Played, Player};
use crate::postgres::{Postgres, Session, literal};
use crate::scenario::{Action, shown};

/// Plays on the functions alone, one file after the other.
pub struct PostgresPlayer<'s> {
    server: &'s Postgres,
    schema: String,
    sessions: HashMap<String, Session>,
    current: String,
    in_transaction: bool,
    /// Why the rest of a file has no meaning here.
    abandoned: Option<&'static str>,
}

impl<'s> PostgresPlayer<'s> {
    /// A player in a schema whose tables and functions are there.
    pub fn new(server: &'s Postgres, schema: &str) -> Self {
        let (schema, current) = (schema.to_owned(), "main".to_owned());
        let sessions = HashMap::new();
        PostgresPlayer { server, schema, sessions, current, in_transaction: false, abandoned: None }
    }

    /// Begins another file, with empty tables.
    pub fn begin(&mut self) {
        self.sessions.retain(|name, _| name == "main");
        self.current = "main".into();
        (self.in_transaction, self.abandoned) = (false, None);
        let schema = self.schema.clone();
        let clear = format!("DELETE FROM {schema}.resources; UPDATE {schema}.meta SET floor = 0");
        let session = self.session();
        let _ = session.run("ROLLBACK");
        session.sql(&clear);
    }

    fn session(&mut self) -> &mut Session {
        let server = self.server;
        self.sessions.entry(self.current.clone()).or_insert_with(|| {
            let mut session = server.session("postgres");
            // As SQLite has it: an error undoes its statement and not the transaction.
            session.sql("\\set ON_ERROR_ROLLBACK on\nSET lock_timeout = 300");
            session
        })
    }

    /// Calls a function. Nothing is NULL.
    fn call(&mut self, verb: &str, arguments: &[String]) -> Result<Option<String>, String> {
        let sql = format!("SELECT {}.{verb}({})", self.schema, arguments.join(", "));
        self.session().run(&sql).map(|text| Some(text).filter(|text| !text.is_empty()))
    }

    /// The lease on a name, as the table has it: owner, token, expiry.
    fn lease(
        &mut self,
        name: &str,
        now_ms: i64,
    ) -> Result<Option<(String, String, String)>, String> {
        let sql = format!(
            "SELECT owner, token, lease_expires_at_ms FROM {}.resources
             WHERE name = {} AND lease_expires_at_ms > {now_ms}",
            self.schema,
            literal(name)
        );
        let row = self.session().run(&sql)?;
        let mut words = row.rsplitn(3, '|').map(str::to_owned);
        let (until, token, owner) = (words.next(), words.next(), words.next());
        Ok(owner.zip(token).zip(until).map(|((owner, token), until)| (owner, token, until)))
    }

    fn granted(
        &mut self,
        word: &str,
        name: &str,
        now_ms: i64,
        token: Option<String>,
    ) -> Result<Option<String>, String> {
        Ok(match (token, self.lease(name, now_ms)?) {
            (Some(token), lease) => {
                let until = lease.map_or("0".into(), |(_, _, until)| until);
                Some(format!("{word} {token} until {until}"))
            }
            (None, Some((owner, token, until))) if word == "acquired" => {
                Some(format!("busy {} {token} until {until}", shown(&owner)))
            }
            _ => None,
        })
    }

    /// Calls the function of an action. `None` is a rejection, whose reason SQL does not tell.
    fn perform(&mut self, now_ms: i64, action: &Action) -> Option<Result<Option<String>, String>> {
        let now = now_ms.to_string();
        let or_null = |token: &Option<i64>| token.map_or("NULL".into(), |token| token.to_string());
        Some(match action {
            Action::Claim { name, owner, ttl_ms, above } => {
                let (ttl, above) = (ttl_ms.to_string(), or_null(above));
                let token = self.call("claim", &[literal(name), literal(owner), ttl, now, above]);
                token.and_then(|token| self.granted("acquired", name, now_ms, token))
            }
            Action::Ensure { name, owner, ttl_ms } => {
                let asked = [literal(name), literal(owner), ttl_ms.to_string(), now];
                let token = self.call("ensure", &asked);
                token.and_then(|token| self.granted("acquired", name, now_ms, token))
            }
            Action::Renew { name, owner, ttl_ms, token } => {
                let (ttl, token) = (ttl_ms.to_string(), or_null(token));
                let token = self.call("renew", &[literal(name), literal(owner), ttl, now, token]);
                token.and_then(|token| self.granted("renewed", name, now_ms, token))
            }
            Action::Release { name, owner, token } => {
                let asked = [literal(name), literal(owner), now, or_null(token)];
                let is_released = self.call("release", &asked);
                is_released.and_then(|yes| match yes.as_deref() {
                    Some("t") => {
                        let token = self.call("token", &[literal(name)])?;
                        Ok(token.map(|token| format!("released {token}")))
                    }
                    _ => Ok(None),
                })
            }
            Action::Transfer { name, owner, new_owner, ttl_ms, token } => {
                let (ttl, token) = (ttl_ms.to_string(), or_null(token));
                let names = [name, owner, new_owner].map(|text| literal(text));
                let token = self.call("transfer", &[&names[..], &[ttl, now, token]].concat());
                token.and_then(|token| self.granted("transferred", name, now_ms, token))
            }
            Action::Break { name } => {
                let killed = self.call("break", &[literal(name), now]);
                killed.map(|killed| killed.map(|killed| format!("broken {killed}")))
            }
            Action::Inspect { name } => self.lease(name, now_ms).map(|lease| {
                Some(lease.map_or("none".into(), |(owner, token, until)| {
                    format!("held {} {token} until {until}", shown(&owner))
                }))
            }),
            Action::Owner { name } => {
                let sql = format!("SELECT 'x' || {}.owner({}, {now})", self.schema, literal(name));
                let owner = self.session().run(&sql);
                owner.map(|owner| match owner.strip_prefix('x') {
                    Some(owner) => Some(format!("owner {}", shown(owner))),
                    None => Some("none".into()),
                })
            }
            Action::Since { name } => {
                let sql = format!(
                    "SELECT created_at_ms FROM {}.resources
                     WHERE name = {} AND lease_expires_at_ms > {now_ms}",
                    self.schema,
                    literal(name)
                );
                let since = self.session().run(&sql);
                since.map(|since| Some(play::began(since.parse().ok())))
            }
            Action::Token { name } => {
                let token = self.call("token", &[literal(name)]);
                token.map(|token| Some(token.unwrap_or("none".into())))
            }
            _ => return None,
        })
    }

    fn abandon(&mut self, why: &'static str) -> Played {
        Played::Skipped(self.abandoned.get_or_insert(why))
    }
}

impl Player for PostgresPlayer<'_> {
    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        if let Some(why) = self.abandoned {
            return Played::Skipped(why);
        }
        if action.texts().iter().any(|text| text.contains('\0') || text.contains('\n')) {
            return self.abandon("psql cannot show this name line by line");
        }
        if let Action::Conn { name } = action {
            if self.in_transaction {
                return self.abandon("PostgreSQL locks rows, not the file");
            }
            self.current = name.clone();
            return Played::Answer("ok".into());
        }
        let is_begin = matches!(action, Action::Begin { .. });
        if is_begin && self.sessions.len() > 1 {
            return self.abandon("PostgreSQL locks rows, not the file");
        }
        if let Some(sql) = transaction_sql(action) {
            if !is_begin && !self.in_transaction {
                return self.abandon("a savepoint needs a transaction");
            }
            let is_end = matches!(action, Action::Commit | Action::Rollback);
            self.in_transaction = !is_end;
            self.session().sql(sql.trim_end_matches(" IMMEDIATE"));
            return Played::Answer("ok".into());
        }
        match self.perform(now_ms, action) {
            Some(Ok(Some(answer))) => Played::Answer(answer),
            Some(Ok(None)) => Played::No,
            Some(Err(error)) => {
                let kind = error.lines().find_map(|line| line.strip_prefix("DETAIL:  "));
                Played::Answer(format!("error {}", kind.unwrap_or(&error)))
            }
            None => self.abandon("there is no such function"),
        }
    }
}
