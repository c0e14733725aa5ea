//! The player for leases on an engine that several machines share.

use std::collections::HashMap;
use std::time::Duration;

use litelease_cluster::{Cluster, GrantRef, Result, Value};

use crate::play::{self, Played, Player, ToText, held, number, owner, since};
use crate::scenario::Action;

/// Scenario files about SQLite's own transactions and locks.
pub const ONLY_SQLITE: [&str; 3] =
    ["savepoint_alone.lease", "stale_snapshot.lease", "writer_in_the_way.lease"];

const ONLY_IN_FILES: &str = "only in files, or over HTTP";

/// The beginnings of the names of scenario files with a verb that engines do not have: pools,
/// queues, shared reads and, in two other files, checkpoints. It may only get shorter.
pub const NOT_ON_ENGINES: [&str; 5] = ["limit_progress", "pool", "queue", "read", "take_over"];

/// Leases on an engine; each connection of a scenario is a client of its own.
pub struct ClusterPlayer {
    connect: Box<dyn FnMut() -> Cluster>,
    clients: HashMap<String, Cluster>,
    current: String,
    /// Why the rest of a file has no meaning here.
    abandoned: Option<&'static str>,
}

impl ClusterPlayer {
    /// A player whose clients are made by a function, on rows of its own.
    pub fn new(connect: impl FnMut() -> Cluster + 'static) -> Self {
        let mut player = ClusterPlayer {
            connect: Box::new(connect),
            clients: HashMap::new(),
            current: String::new(),
            abandoned: None,
        };
        player.connect("main");
        player
    }

    /// Checks whether a verb was left out because engines do not have it.
    pub fn misses_a_verb(&self) -> bool {
        self.abandoned == Some(ONLY_IN_FILES)
    }

    fn connect(&mut self, name: &str) {
        if !self.clients.contains_key(name) {
            self.clients.insert(name.to_owned(), (self.connect)());
        }
        self.current = name.to_owned();
    }
}

impl Player for ClusterPlayer {
    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        if let Action::Conn { name } = action {
            self.connect(name);
            return Played::Answer("ok".into());
        }
        if action.is_about_the_connection() {
            self.abandoned.get_or_insert("each verb is a transaction of its own");
        }
        if let Some(why) = self.abandoned {
            return Played::Skipped(why);
        }
        if action.ttl_ms().is_some_and(|ttl_ms| ttl_ms < 0) {
            return Played::Skipped("a Duration cannot be negative");
        }
        let cluster = self.clients[&self.current].at(now_ms);
        let is_refused = |text: &str| cluster.engine().check_text("name", text).is_err();
        if action.texts().iter().any(|text| is_refused(text)) {
            return Played::Skipped("the engine cannot store this name");
        }
        match perform(&cluster, now_ms, action) {
            Ok(Some(answer)) => Played::Answer(answer),
            // What follows may depend on it.
            Ok(None) => Played::Skipped(self.abandoned.get_or_insert(ONLY_IN_FILES)),
            Err(error) => Played::Answer(format!("error {}", error.kind())),
        }
    }
}

fn perform(cluster: &Cluster, now_ms: i64, action: &Action) -> Result<Option<String>> {
    let ttl = Duration::from_millis(action.ttl_ms().unwrap_or(0).unsigned_abs());
    fn grant<'a>(name: &'a str, owner: &'a str, token: i64) -> GrantRef<'a> {
        GrantRef { name, token, owner: Some(owner) }
    }
    Ok(Some(match action {
        Action::Claim { name, owner, above: None, .. } => {
            cluster.claim(name, owner, ttl)?.to_text()
        }
        Action::Claim { name, owner, above: Some(above), .. } => {
            cluster.claim_above(name, owner, ttl, *above)?.to_text()
        }
        Action::Ensure { name, owner, .. } => cluster.ensure(name, owner, ttl)?.to_text(),
        Action::ClaimFromDead { name, owner, dead, token, .. } => {
            cluster.claim_from_dead(name, owner, ttl, grant(name, dead, *token))?.to_text()
        }
        Action::Renew { name, owner, token: None, .. } => {
            cluster.renew_by_owner(name, owner, ttl)?.to_text()
        }
        Action::Renew { name, owner, token: Some(token), .. } => {
            cluster.renew(grant(name, owner, *token), ttl)?.to_text()
        }
        Action::Release { name, owner, token: None } => {
            cluster.release_by_owner(name, owner)?.to_text()
        }
        Action::Release { name, owner, token: Some(token) } => {
            cluster.release(grant(name, owner, *token))?.to_text()
        }
        Action::Transfer { name, owner, new_owner, token: None, .. } => {
            cluster.transfer_by_owner(name, owner, new_owner, ttl)?.to_text()
        }
        Action::Transfer { name, owner, new_owner, token: Some(token), .. } => {
            cluster.transfer(grant(name, owner, *token), new_owner, ttl)?.to_text()
        }
        Action::Break { name } => cluster.break_lease(name)?.to_text(),
        Action::Purge { before_ms } => cluster.purge(*before_ms)?.to_string(),
        Action::Inspect { name } => held(cluster.inspect(name)?),
        Action::Owner { name } => owner(cluster.owner(name)?),
        Action::Token { name } => number(cluster.token(name)?),
        Action::Since { name } => since(cluster.row(name)?, now_ms),
        Action::Attach { name, token, value } => {
            cluster.attach((name, *token), value.as_str())?.to_text()
        }
        Action::Value { name } => play::value(cluster.value(name)?.map(|value| match value {
            Value::Text(text) => text,
            value => format!("{value:?}"),
        })),
        Action::Limit { name, token, progress_ms, until_ms } => {
            let within = progress_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
            cluster.limit((name, *token), within, *until_ms)?.to_text()
        }
        Action::Progress { name, token } => cluster.progress((name, *token))?.to_text(),
        Action::Request { name, requester, within_ms } => {
            let within = Duration::from_millis(within_ms.unsigned_abs());
            cluster.request(name, requester, within)?.to_text()
        }
        Action::Withdraw { name, requester } => {
            play::withdrawn(cluster.withdraw_request(name, requester)?)
        }
        Action::Requested { name } => {
            let open = cluster.requested(name)?;
            play::requested(open.map(|open| (open.requester, open.until_ms, open.token)))
        }
        Action::HandOver { name, owner, token, .. } => {
            // Rust hands over exactly one grant.
            let token = token.or(cluster.token(name)?).unwrap_or(1);
            cluster.hand_over(grant(name, owner, token), ttl)?.to_text()
        }
        Action::TakeOver { name, owner, .. } => cluster.take_over(name, owner, ttl)?.to_text(),
        _ => return Ok(None),
    }))
}
