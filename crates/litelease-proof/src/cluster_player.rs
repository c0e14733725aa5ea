//! The player for leases on an engine that several machines share.

use std::collections::HashMap;
use std::time::Duration;

use litelease_cluster::{Cluster, GrantRef, Result};

use crate::play::{Played, Player, ToText, held, number, owner, since};
use crate::scenario::Action;

/// Scenario files about SQLite's own transactions and locks.
pub const ONLY_SQLITE: [&str; 3] =
    ["savepoint_alone.lease", "stale_snapshot.lease", "writer_in_the_way.lease"];

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
        let only_in_files = "only in files, or over HTTP";
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
            Ok(None) => Played::Skipped(self.abandoned.get_or_insert(only_in_files)),
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
        _ => return Ok(None),
    }))
}
