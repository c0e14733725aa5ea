//! The service as a player: every verb is a request, and the server's clock is the scenario's.

mod ticks;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use litelease::{KEPT, Litelease, SlotInfo};
use litelease_cluster::Cluster;
use litelease_serve::{Options, Replica, Service, run, run_replica};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::crate_player::{LeaseIds, perform};
use crate::play::{self, Played, Player};
use crate::queue::{QueueAction, item_text, told_items};
use crate::scenario::{Action, shown};
use crate::server::{Client, NO_LEASE, Response};

/// The clock of the server, set by each step. So there is one player at a time.
static NOW_MS: AtomicI64 = AtomicI64::new(0);

/// A client of a server on a file of its own. Verbs that are not served are done in the file beside
/// it.
pub struct HttpPlayer {
    client: Client,
    lent: LeaseIds,
    granted: Granted,
    /// The queue of each receipt, and the one that was used last.
    queues: BTreeMap<String, String>,
    last_queue: String,
    beside: Beside,
    abandoned: bool,
    server: Option<(oneshot::Sender<()>, JoinHandle<io::Result<()>>)>,
    // Dropped last: the server has its file in it.
    _folder: TempDir,
}

/// The file beside the server. A server on an engine has none: what is done in this one is not
/// known there, so the rest of the scenario is not played.
struct Beside {
    file: Litelease,
    is_served: bool,
    was_used: Cell<bool>,
}

impl Deref for Beside {
    type Target = Litelease;

    fn deref(&self) -> &Litelease {
        self.was_used.set(true);
        &self.file
    }
}

/// The secrets of grants, by name, owner and token.
type Granted = BTreeMap<(String, String, i64), String>;

impl HttpPlayer {
    /// A player with a server of its own.
    #[allow(clippy::new_without_default)] // each one is another
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("scenario.sqlite3");
        let options = Options {
            clock: || NOW_MS.load(Ordering::SeqCst),
            max_count: 1_000_000,
            open: true,
            ..Options::default()
        };
        let service = Service::open(&file, options).expect("the file is served");
        HttpPlayer::before(folder, true, |listener, _, stopped| run(listener, service, stopped))
    }

    /// A player with a replica of its own, which is the only one on this engine.
    pub fn on(cluster: Cluster) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options {
            clock: || NOW_MS.load(Ordering::SeqCst),
            max_count: 1_000_000,
            open: true,
            ..Options::default()
        };
        let mut player = HttpPlayer::before(folder, false, |listener, address, stopped| {
            let replica = Replica::new(cluster, &address.to_string(), options).expect("an engine");
            let replica = replica.on_one_clock();
            run_replica(listener, replica, stopped)
        });
        while player.client.ask("GET", "/readyz", &Value::Null, "").map_or(0, |it| it.status) != 200
        {
            player.client.hang_up();
            thread::sleep(Duration::from_millis(5));
        }
        player
    }

    fn before<F: Future<Output = io::Result<()>>>(
        folder: TempDir,
        is_served: bool,
        run: impl FnOnce(TcpListener, SocketAddr, Pin<Box<dyn Future<Output = ()>>>) -> F
        + Send
        + 'static,
    ) -> Self {
        let file = folder.path().join("scenario.sqlite3");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let server = thread::spawn(move || {
            serve(listener, stopped, |listener, stopped| run(listener, address, stopped))
        });
        let file = match is_served {
            true => Litelease::open(&file),
            false => Litelease::open_own(&file),
        };
        let file = file.expect("the file opens");
        HttpPlayer {
            client: Client::new(address),
            lent: LeaseIds::new(),
            granted: Granted::new(),
            queues: BTreeMap::new(),
            last_queue: String::new(),
            beside: Beside { file, is_served, was_used: Cell::new(false) },
            abandoned: false,
            server: Some((stop, server)),
            _folder: folder,
        }
    }

    /// The slots of a pool, from the first of its events.
    fn slots(&mut self, pool: &str, now_ms: i64) -> String {
        let looked = self.ask("GET", pool, "", &Value::Null);
        if looked.status != 200 {
            return refused(&looked);
        }
        let mut watcher = self.client.another();
        watcher.send("GET", &path(pool, "/events"), "", "").expect("it is sent");
        let mut stream = watcher.into_stream().expect("a stream");
        let mut text = String::new();
        let state = loop {
            let event = text.split_once("data: ").and_then(|(_, data)| data.split_once("\n\n"));
            if let Some((state, _)) = event {
                break serde_json::from_str::<Value>(state).expect("JSON");
            }
            let mut chunk = [0; 4096];
            let read = stream.read(&mut chunk).expect("more");
            assert!(read > 0, "it ended: {text}");
            text += &String::from_utf8_lossy(&chunk[..read]);
        };
        let slots = state["slots"].as_array().expect("slots");
        play::slots(slots.iter().map(|slot| as_slot(slot, now_ms)))
    }

    /// Deleting may be repeated, and answers the same each time: looking before tells whether there
    /// was anything.
    fn delete(&mut self, pool: &str) -> String {
        let was_there = self.ask("GET", pool, "", &Value::Null).status == 200;
        let deleted = self.ask("DELETE", pool, "", &Value::Null);
        assert_eq!(deleted.json(), json!({ "deleted": true }));
        if was_there { "deleted".into() } else { "none".into() }
    }

    fn borrow(
        &mut self,
        pool: &str,
        lease: &str,
        ttl_ms: i64,
        key: Option<&str>,
        now_ms: i64,
    ) -> String {
        let header = key.map_or(String::new(), |key| format!("Idempotency-Key: {key}\r\n"));
        let body = json!({ "ttl": seconds(ttl_ms) });
        let answer = self.client.ask("POST", &path(pool, "/borrow"), &body, &header);
        let answer = answer.expect("an answer");
        if answer.status != 200 {
            return refused(&answer);
        }
        let lent = answer.json();
        let uuid = lent["lease"].as_str().expect("a lease").to_owned();
        self.lent.insert(lease.to_owned(), uuid);
        play::slot(Some(as_slot(&lent, now_ms)))
    }

    fn ask(&mut self, method: &str, pool: &str, verb: &str, body: &Value) -> Response {
        self.client.ask(method, &path(pool, verb), body, "").expect("an answer")
    }

    /// Sends a call on names.
    fn v1(&mut self, call: &str, body: &Value) -> Response {
        self.client.ask("POST", &format!("/v1/{call}"), body, "").expect("an answer")
    }

    /// Remembers the secret of a grant.
    fn keep(&mut self, granted: &Value) {
        let text = |field: &str| granted[field].as_str().expect("a text").to_owned();
        let token = granted["token"].as_i64().expect("a token");
        self.granted.insert((text("name"), text("owner"), token), text("grant"));
    }

    /// The secret of a grant: of this token, or else of the owner's newest one.
    fn grant(&self, name: &str, owner: &str, token: Option<i64>) -> Option<String> {
        let mut grants = self.granted.iter().rev();
        let is_it = |(of, by, number): &(String, String, i64)| {
            of == name && by == owner && token.is_none_or(|token| token == *number)
        };
        grants.find(|(key, _)| is_it(key)).map(|(_, grant)| grant.clone())
    }

    fn claim(&mut self, name: &str, owner: &str, ttl_ms: i64, above: i64, now_ms: i64) -> String {
        let body = json!({
            "name": name, "owner": owner, "ttl": seconds(ttl_ms), "min_token": above,
        });
        let answer = self.v1("claim", &body);
        match answer.status {
            200 => {
                self.keep(&answer.json());
                format!("acquired {}", until(&answer.json(), now_ms))
            }
            409 => {
                let current = &answer.json()["current"];
                let owner = current["owner"].as_str().expect("an owner");
                format!("busy {} {}", shown(owner), until(current, now_ms))
            }
            _ => refused(&answer),
        }
    }

    /// Does a verb by the secret of a grant. A client that has none cannot ask, so the verb is done
    /// in the file.
    fn by_grant(
        &mut self,
        (call, action): (&str, &Action),
        (name, owner, token): (&str, &str, Option<i64>),
        mut body: Value,
        now_ms: i64,
    ) -> Played {
        let Some(grant) = self.grant(name, owner, token) else {
            let _ = perform(&self.beside, &mut LeaseIds::new(), now_ms, action);
            return Played::Skipped("without a grant nobody can ask");
        };
        body["grant"] = grant.into();
        let answer = self.v1(call, &body);
        let told = answer.json();
        Played::Answer(match (answer.status, call) {
            (200, "renew") => format!("renewed {}", until(&told, now_ms)),
            (200, "release") => format!("released {}", told["token"]),
            (200, _) => {
                // The new owner fetches its own.
                let (name, owner) = (&told["name"], &told["owner"]);
                let fetched = json!({ "name": name, "owner": owner, "ttl": 1 });
                let fetched = self.v1("claim", &fetched);
                assert_eq!(fetched.json()["token"], told["token"], "{fetched:?}");
                self.keep(&fetched.json());
                format!("transferred {}", until(&told, now_ms))
            }
            // Of a purged name nothing is known; and the reason is that of one grant, where the
            // scenario may mean all of the owner's.
            (409, _) if token.is_none() || told["reason"] == "unknown_grant" => return Played::No,
            (409, _) => rejected(&told, owner),
            _ => refused(&answer),
        })
    }

    /// Does a verb on the grant of a token. A client that has none cannot ask, so the verb is done
    /// in the file.
    fn by_token(
        &mut self,
        (call, action): (&str, &Action),
        name: &str,
        token: i64,
        mut body: Value,
        now_ms: i64,
    ) -> Played {
        let mut grants = self.granted.iter();
        let found = grants.find(|((of, _, number), _)| of == name && *number == token);
        let Some((_, grant)) = found else {
            let _ = perform(&self.beside, &mut LeaseIds::new(), now_ms, action);
            return Played::Skipped("without a grant nobody can ask");
        };
        body["grant"] = grant.clone().into();
        let answer = self.v1(call, &body);
        let told = answer.json();
        Played::Answer(match (answer.status, call) {
            (200, "checkpoint") => "stored".into(),
            (200, _) => "done".into(),
            (409, _) if told["reason"] == "unknown_grant" => return Played::No,
            (409, _) => rejected(&told, told["current"]["owner"].as_str().unwrap_or_default()),
            _ => refused(&answer),
        })
    }

    /// Does a verb on a queue; `None` if it is not served.
    fn on_queue(&mut self, action: &QueueAction, now_ms: i64) -> Option<Played> {
        let (call, mut body) = match action {
            QueueAction::Send { queue, body, delay_ms, key } => {
                self.last_queue = queue.clone();
                let mut request = json!({ "body": body, "delay": seconds(*delay_ms) });
                key.iter().for_each(|key| request["key"] = key.as_str().into());
                ("send", request)
            }
            QueueAction::Receive { queue, receipt, visibility_ms } => {
                self.last_queue = queue.clone();
                self.queues.insert(receipt.clone(), queue.clone());
                ("receive", json!({ "visibility": seconds(*visibility_ms) }))
            }
            QueueAction::Ack { .. } => ("ack", json!({})),
            QueueAction::Extend { visibility_ms, .. } => {
                ("extend", json!({ "visibility": seconds(*visibility_ms) }))
            }
            QueueAction::GiveBack { delay_ms, note, .. } => {
                let mut request = json!({ "delay": seconds(*delay_ms) });
                note.iter().for_each(|note| request["note"] = note.as_str().into());
                ("give-back", request)
            }
            QueueAction::Bury { note, .. } => {
                let mut request = json!({});
                note.iter().for_each(|note| request["note"] = note.as_str().into());
                ("bury", request)
            }
            QueueAction::Redrive { id, .. } => ("redrive", of_id(*id)),
            QueueAction::Discard { id, .. } => ("discard", of_id(*id)),
            QueueAction::CancelId { id, .. } => ("cancel", of_id(Some(*id))),
            QueueAction::CancelKey { key, .. } => ("cancel", json!({ "key": key })),
            QueueAction::Delete { .. } => ("delete", json!({})),
            QueueAction::Items { queue } => return Some(Played::Answer(self.items(queue))),
            _ => return None,
        };
        let receipt = action.receipt();
        if let QueueAction::Redrive { queue, .. }
        | QueueAction::Discard { queue, .. }
        | QueueAction::CancelId { queue, .. }
        | QueueAction::CancelKey { queue, .. }
        | QueueAction::Delete { queue } = action
        {
            body["queue"] = queue.as_str().into();
        } else if receipt.is_none() || call == "receive" || now_ms % 2 == 1 {
            let queue = receipt.and_then(|receipt| self.queues.get(receipt));
            body["queue"] = queue.unwrap_or(&self.last_queue).as_str().into();
        }
        if let (Some(receipt), true) = (receipt, call != "receive") {
            body["receipt"] = self.uuid(receipt).into();
        }
        let answer = self.v1(&format!("queue/{call}"), &body);
        let told = answer.json();
        Some(Played::Answer(match (answer.status, call) {
            (200, "send") => format!("sent {}", told["id"]),
            (200, "receive") if told["item"].is_null() => "none".into(),
            (200, "receive") => {
                let item = &told["item"];
                let uuid = item["receipt"].as_str().expect("a receipt").to_owned();
                self.lent.insert(receipt.unwrap_or_default().to_owned(), uuid);
                let (id, attempt) = (&item["id"], &item["attempt"]);
                let body = shown(item["body"].as_str().expect("a text"));
                format!("item {id} attempt {attempt} token {} body {body}", until(item, now_ms))
            }
            (200, "ack") => "acknowledged".into(),
            (200, "extend") => {
                format!("until {}", until(&told, now_ms).rsplit(' ').next().unwrap_or_default())
            }
            (200, "bury") => "buried".into(),
            (200, "redrive") => told["redriven"].to_string(),
            (200, "discard") => told["discarded"].to_string(),
            (200, "cancel") => "cancelled".into(),
            (200, "delete") if told["deleted"] == true => "deleted".into(),
            (200, "delete") => "none".into(),
            (409, "cancel") if told["reason"] == "leased" => "leased".into(),
            (409, "cancel") => "none".into(),
            (200, _) => "given back".into(),
            (409, "ack") => {
                format!("stale {}", told["reason"].as_str().unwrap_or_default().replace('_', " "))
            }
            _ => refused(&answer),
        }))
    }

    /// Lists the items of a queue, in short pages.
    fn items(&mut self, queue: &str) -> String {
        let (mut items, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/queue/items?queue={}&limit=2{after}", encoded(queue));
            let page = self.client.ask("GET", &path, &Value::Null, "").expect("an answer");
            assert_eq!(page.status, 200, "{page:?}");
            let page = page.json();
            for item in page["items"].as_array().expect("items") {
                let attempt = item["attempt"].as_i64().unwrap_or_default();
                let (key, note) = (item["key"].as_str(), item["note"].as_str());
                let (id, state) = (item["id"].as_i64(), item["state"].as_str());
                let (id, state) = (id.unwrap_or_default(), state.unwrap_or_default());
                items.push(item_text(id, state, attempt, key, note));
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return told_items(items),
            }
        }
    }

    fn inspect(&mut self, name: &str) -> Value {
        let path = format!("/v1/leases?name={}", encoded(name));
        let answer = self.client.ask("GET", &path, &Value::Null, "").expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    fn uuid(&self, lease: &str) -> String {
        self.lent.get(lease).map_or(lease, String::as_str).to_owned()
    }

    /// Returns the lease on a slot. One that was never lent out must look like one.
    fn slot_lease(&self, lease: &str) -> &str {
        self.lent.get(lease).map_or(NO_LEASE, String::as_str)
    }
}

impl Player for HttpPlayer {
    fn has_ticks(&self) -> bool {
        true
    }

    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        NOW_MS.store(now_ms, Ordering::SeqCst);
        self.abandoned |=
            matches!(action, Action::Begin { .. } | Action::Savepoint { .. } | Action::Conn { .. });
        self.abandoned |= self.beside.was_used.get() && !self.beside.is_served;
        if self.abandoned {
            return Played::Skipped("a request is a transaction of its own");
        }
        if action.ttl_ms().is_some_and(|ttl_ms| ttl_ms > 86_400_000) {
            let _ = perform(&self.beside, &mut self.lent, now_ms, action);
            return Played::Skipped("a long ttl is cut and not refused");
        }
        Played::Answer(match action {
            Action::Pool { pool, count } => {
                let answer = self.ask("PUT", pool, "", &json!({ "count": count }));
                match answer.status {
                    200 => {
                        let pool = answer.json();
                        format!("pool of {} with {} in use", pool["count"], pool["in_use"])
                    }
                    _ => refused(&answer),
                }
            }
            Action::Borrow { pool, lease, ttl_ms, key } => {
                self.borrow(pool, lease, *ttl_ms, key.as_deref(), now_ms)
            }
            Action::Return { pool, lease } => {
                let answer =
                    self.ask("POST", pool, "/return", &json!({ "lease": self.slot_lease(lease) }));
                match (answer.status, &answer.json()["returned"]) {
                    (200, Value::Bool(true)) => "returned".into(),
                    (200, _) => "none".into(),
                    _ => refused(&answer),
                }
            }
            Action::RenewSlot { pool, lease, ttl_ms } => {
                let body = json!({ "lease": self.slot_lease(lease), "ttl": seconds(*ttl_ms) });
                let answer = self.ask("POST", pool, "/renew", &body);
                match answer.status {
                    200 => play::slot(Some(as_slot(&answer.json(), now_ms))),
                    _ => refused(&answer),
                }
            }
            Action::Keep { pool, lease } => {
                let answer =
                    self.ask("POST", pool, "/keep", &json!({ "lease": self.slot_lease(lease) }));
                match answer.status {
                    200 => {
                        assert_eq!(answer.json(), json!({ "kept": true }));
                        "kept".into()
                    }
                    _ => refused(&answer),
                }
            }
            Action::DeletePool { pool } => self.delete(pool),
            Action::Slots { pool } => self.slots(pool, now_ms),
            Action::Claim { name, owner, ttl_ms, above } => {
                if above.is_some_and(|above| above >= 1 << 53) {
                    let _ = perform(&self.beside, &mut LeaseIds::new(), now_ms, action);
                    return Played::Skipped("tokens beyond 2^53 are not served");
                }
                // Every token is larger than a negative number.
                self.claim(name, owner, *ttl_ms, above.unwrap_or(0).max(0), now_ms)
            }
            Action::Renew { name, owner, ttl_ms, token } => {
                let body = json!({ "ttl": seconds(*ttl_ms) });
                return self.by_grant(("renew", action), (name, owner, *token), body, now_ms);
            }
            Action::Release { name, owner, token } => {
                let body = json!({});
                return self.by_grant(("release", action), (name, owner, *token), body, now_ms);
            }
            Action::Transfer { name, owner, new_owner, ttl_ms, token } => {
                let body = json!({ "ttl": seconds(*ttl_ms), "new_owner": new_owner });
                return self.by_grant(("transfer", action), (name, owner, *token), body, now_ms);
            }
            Action::HandOver { name, owner, ttl_ms, token } => {
                let body = json!({ "ttl": seconds(*ttl_ms) });
                return self.by_grant(("hand-over", action), (name, owner, *token), body, now_ms);
            }
            Action::Attach { name, token, value } => {
                let body = json!({ "value": value });
                return self.by_token(("attach", action), name, *token, body, now_ms);
            }
            Action::Progress { name, token } => {
                return self.by_token(("progress", action), name, *token, json!({}), now_ms);
            }
            Action::Checkpoint { name, token, value } => {
                let body = json!({ "value": value });
                return self.by_token(("checkpoint", action), name, *token, body, now_ms);
            }
            Action::Limit { name, token, progress_ms, until_ms }
                if until_ms.is_none_or(|until_ms| until_ms > now_ms)
                    && progress_ms.is_none_or(|ms| ms > 0) =>
            {
                let end = until_ms.map(|until_ms| seconds(until_ms - now_ms));
                let body = json!({ "progress_within": progress_ms.map(seconds), "max_time": end });
                return self.by_token(("limit", action), name, *token, body, now_ms);
            }
            Action::Value { name } => play::value(self.inspect(name)["value"].as_str()),
            Action::Request { name, requester, within_ms } if *within_ms > 0 => {
                let body =
                    json!({ "name": name, "requester": requester, "within": seconds(*within_ms) });
                let answer = self.v1("request", &body);
                let told = answer.json();
                match (answer.status, &told["requested"]) {
                    (200, _) => match end_of(&told, now_ms) {
                        Some(until_ms) => format!("requested until {until_ms}"),
                        None => return Played::Skipped("a time that is over is not told"),
                    },
                    (409, Value::Object(_)) => match end_of(&told["requested"], now_ms) {
                        Some(until_ms) => {
                            let requester = told["requested"]["requester"].as_str();
                            let requester = shown(requester.unwrap_or_default());
                            format!("requested by {requester} until {until_ms}")
                        }
                        None => return Played::Skipped("a time that is over is not told"),
                    },
                    (409, _) => rejected(&told, ""),
                    _ => refused(&answer),
                }
            }
            Action::Requested { name } => {
                let open = self.inspect(name)["requested"].clone();
                match (&open, end_of(&open, now_ms)) {
                    (Value::Null, _) => "none".into(),
                    (_, None) => return Played::Skipped("a time that is over is not told"),
                    (_, Some(until_ms)) => {
                        let requester = open["requester"].as_str().expect("a requester");
                        let token = open["token"].as_i64().expect("a token");
                        play::requested(Some((requester, until_ms, token)))
                    }
                }
            }
            Action::Ticks(action) => return self.on_ticks(action, now_ms),
            Action::Queue(queue) => match self.on_queue(queue, now_ms) {
                Some(played) => return played,
                None => {
                    let _ = perform(&self.beside, &mut self.lent, now_ms, action);
                    return Played::Skipped("not served, and done in the file beside it");
                }
            },
            Action::Break { name } => {
                let answer = self.v1("break", &json!({ "name": name }));
                match answer.status {
                    200 => format!("broken {}", answer.json()["killed"]),
                    409 => rejected(&answer.json(), ""),
                    _ => refused(&answer),
                }
            }
            Action::Inspect { name } => {
                let found = self.inspect(name);
                match found["owner"].as_str() {
                    Some(owner) => format!("held {} {}", shown(owner), until(&found, now_ms)),
                    None => "none".into(),
                }
            }
            Action::Owner { name } => play::owner(self.inspect(name)["owner"].as_str()),
            Action::Token { name } => play::number(self.inspect(name)["token"].as_i64()),
            Action::Since { name } => {
                let held_for = self.inspect(name)["held_for"].as_f64();
                // The cast is exact: scenarios have small numbers.
                play::began(held_for.map(|time| now_ms - (time * 1000.0).round() as i64))
            }
            action => {
                // Whatever it answers is compared by the other players.
                let _ = perform(&self.beside, &mut LeaseIds::new(), now_ms, action);
                return Played::Skipped("not served, and done in the file beside it");
            }
        })
    }
}

impl Drop for HttpPlayer {
    fn drop(&mut self) {
        self.client.hang_up();
        if let Some((stop, server)) = self.server.take() {
            let _ = stop.send(());
            let ended = server.join().map(|ended| ended.is_ok());
            assert!(thread::panicking() || ended.unwrap_or(false), "the server ends in good order");
        }
    }
}

fn serve<F: Future<Output = io::Result<()>>>(
    listener: std::net::TcpListener,
    stopped: oneshot::Receiver<()>,
    run: impl FnOnce(TcpListener, Pin<Box<dyn Future<Output = ()>>>) -> F,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        run(listener, Box::pin(async { _ = stopped.await })).await
    })
}

/// Token and expiry of an answer.
fn until(value: &Value, now_ms: i64) -> String {
    let left_ms = (value["expires_in"].as_f64().expect("seconds") * 1000.0).round() as i64;
    format!("{} until {}", value["token"], now_ms + left_ms)
}

/// The end of a request, unless it is over.
fn end_of(asked: &Value, now_ms: i64) -> Option<i64> {
    let left_ms = (asked["within"].as_f64()? * 1000.0).round() as i64;
    (left_ms > 0).then(|| now_ms + left_ms)
}

/// A rejection in the words of scenario files. The service knows a grant and not its owner: so it
/// is the player who tells a successor of another owner from one of the same.
fn rejected(told: &Value, owner: &str) -> String {
    let current = &told["current"];
    match (told["reason"].as_str().unwrap_or_default(), current["owner"].as_str()) {
        ("superseded", Some(other)) if other != owner => {
            format!("rejected held by {} {}", shown(other), current["token"])
        }
        ("superseded", _) => {
            let text = told["error"].as_str().unwrap_or_default();
            let by = text.rsplit(' ').next().unwrap_or_default();
            format!("rejected superseded by {by}")
        }
        (reason, _) => format!("rejected {}", reason.replace('_', " ")),
    }
}

/// A text as it stands in a query.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The path of a pool: what a scenario calls it, as a UUID.
fn path(pool: &str, verb: &str) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, pool).hash(&mut hasher);
        hasher.finish()
    };
    let hex = format!("{:016x}{:016x}", half(0), half(1));
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("/l/{}{verb}", parts.join("-"))
}

/// A slot of an answer. Whole seconds of its end are too coarse for a scenario, so the time left
/// counts.
fn as_slot(value: &Value, now_ms: i64) -> SlotInfo {
    let number = |name: &str| value[name].as_i64().expect("a number");
    // A slot that is kept has no time left to tell.
    let expires_at_ms = match &value["expires_in"] {
        Value::Null => KEPT,
        left => now_ms + (left.as_f64().expect("seconds") * 1000.0).round() as i64,
    };
    SlotInfo { position: number("position"), token: number("token"), expires_at_ms }
}

fn seconds(ms: i64) -> f64 {
    let time = Duration::from_millis(ms.unsigned_abs()).as_secs_f64();
    if ms < 0 { -time } else { time }
}

/// A refusal in the words of scenario files.
/// A request about one item, or about all.
fn of_id(id: Option<i64>) -> Value {
    id.map_or_else(|| json!({}), |id| json!({ "id": id }))
}

fn refused(answer: &Response) -> String {
    let text = answer.error();
    let is = |words: &str| text.contains(words);
    match answer.status {
        404 => "error NoSuchPool".into(),
        409 => "none".into(),
        400 if is("the time is too long") => "error TimeOverflow".into(),
        502 if is("no larger token") => "error TokenExhausted".into(),
        400 if is("ttl must be") || is("visibility must be") => "error InvalidTtl".into(),
        400 if is("delay must be") => "error InvalidDelay".into(),
        400 if is("key must be") || is("note must be") => "error InvalidText".into(),
        400 if is("attempts must be") => "error InvalidAttempts".into(),
        400 if is("count must be") => "error InvalidCount".into(),
        400 if is("Idempotency-Key must be") => "error InvalidText".into(),
        status => format!("error {status} {text}"),
    }
}
