//! The verbs on queues in scenario files, and how each player does them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use litelease::rusqlite::types::{ToSql, Value};
use litelease::rusqlite::{self, Connection, OptionalExtension};
use litelease::{GiveBackOptions, ItemName, Leases, SendOptions};
use litelease_core::{
    AckResult, CancelResult, DEFAULT_ATTEMPTS, Delay, Epoch, Item, ItemState, MAX_ATTEMPTS,
    MAX_NOTE, MAX_TEXT, Receipt, Refusal, StaleReason, Term, fence_item, next_number,
};

use crate::mutant::Rules;
use crate::scenario::{Reader, shown};

/// A step on queues. Receipts have names, because they are random.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum QueueAction {
    Queue { queue: String, max_attempts: Option<i64> },
    Send { queue: String, body: String, delay_ms: i64, key: Option<String> },
    Receive { queue: String, receipt: String, visibility_ms: i64 },
    Delivery { receipt: String },
    Ack { receipt: String },
    Extend { receipt: String, visibility_ms: i64 },
    GiveBack { receipt: String, delay_ms: i64, note: Option<String> },
    Bury { receipt: String, note: Option<String> },
    Redrive { queue: String, id: Option<i64> },
    Discard { queue: String, id: Option<i64> },
    CancelId { queue: String, id: i64 },
    CancelKey { queue: String, key: String },
    Items { queue: String },
    Delete { queue: String },
    Fence,
}

/// Reads a verb on queues; `None` if it is none.
pub(crate) fn parse(verb: &str, reader: &mut Reader<'_>) -> Result<Option<QueueAction>, String> {
    use QueueAction::*;
    let text = |reader: &mut Reader<'_>, label: &str| match reader.takes(label) {
        true => reader.text().map(Some),
        false => Ok(None),
    };
    Ok(Some(match verb {
        "queue" => Queue { queue: reader.text()?, max_attempts: reader.option("attempts")? },
        "send" => Send {
            queue: reader.text()?,
            body: reader.text()?,
            delay_ms: reader.option("delay")?.unwrap_or(0),
            key: text(reader, "key")?,
        },
        "receive" => Receive {
            queue: reader.text()?,
            receipt: reader.text()?,
            visibility_ms: reader.labelled("visibility")?,
        },
        "delivery" => Delivery { receipt: reader.text()? },
        "ack" => Ack { receipt: reader.text()? },
        "extend" => {
            Extend { receipt: reader.text()?, visibility_ms: reader.labelled("visibility")? }
        }
        "give" if reader.takes("back") => GiveBack {
            receipt: reader.text()?,
            delay_ms: reader.option("delay")?.unwrap_or(0),
            note: text(reader, "note")?,
        },
        "bury" => Bury { receipt: reader.text()?, note: text(reader, "note")? },
        "redrive" => Redrive { queue: reader.text()?, id: reader.option("id")? },
        "discard" => Discard { queue: reader.text()?, id: reader.option("id")? },
        "cancel" => {
            let queue = reader.text()?;
            match reader.takes("key") {
                true => CancelKey { queue, key: reader.text()? },
                false => CancelId { queue, id: reader.labelled("id")? },
            }
        }
        "items" => Items { queue: reader.text()? },
        "delete" if reader.takes("queue") => Delete { queue: reader.text()? },
        "fence" => Fence,
        _ => return Ok(None),
    }))
}

impl QueueAction {
    /// The name of the receipt that the step gets or uses.
    pub fn receipt(&self) -> Option<&str> {
        use QueueAction::*;
        match self {
            Receive { receipt, .. }
            | Delivery { receipt }
            | Ack { receipt }
            | Extend { receipt, .. }
            | GiveBack { receipt, .. }
            | Bury { receipt, .. } => Some(receipt),
            _ => None,
        }
    }

    /// The times that the step asks for.
    pub fn time_ms(&self) -> Option<i64> {
        use QueueAction::*;
        match self {
            Receive { visibility_ms, .. } | Extend { visibility_ms, .. } => Some(*visibility_ms),
            Send { delay_ms, .. } | GiveBack { delay_ms, .. } => Some(*delay_ms),
            _ => None,
        }
    }
}

/// A delivery in the words of scenario files.
fn delivery_text(id: i64, attempt: i64, token: i64, deadline_ms: i64, body: &str) -> String {
    format!("item {id} attempt {attempt} token {token} until {deadline_ms} body {}", shown(body))
}

pub(crate) fn item_text(
    id: i64,
    state: &str,
    attempt: i64,
    key: Option<&str>,
    note: Option<&str>,
) -> String {
    let key = key.map(|key| format!(" key {}", shown(key))).unwrap_or_default();
    let note = note.map(|note| format!(" note {}", shown(note))).unwrap_or_default();
    format!("item {id} {state} attempt {attempt}{key}{note}")
}

pub(crate) fn told_items(items: Vec<String>) -> String {
    if items.is_empty() { "none".into() } else { items.join(" ") }
}

fn told_ack(answer: AckResult) -> String {
    match answer {
        AckResult::Acknowledged => "acknowledged".into(),
        AckResult::Stale { reason } => format!("stale {reason}"),
    }
}

fn told_cancel(answer: CancelResult) -> String {
    match answer {
        CancelResult::Cancelled => "cancelled".into(),
        CancelResult::Leased { .. } => "leased".into(),
        CancelResult::NotFound => "none".into(),
    }
}

fn yes_or_none(yes: bool, word: &str) -> String {
    if yes { word.into() } else { "none".into() }
}

/// The queues of a file, in memory.
#[derive(Clone, Default)]
pub struct Queues {
    newest: i64,
    max_attempts: BTreeMap<String, i64>,
    items: BTreeMap<i64, Stored>,
    /// The item that took a key of a queue last. It may be gone, or dead.
    keys: BTreeMap<(String, String), i64>,
}

/// An item in memory.
#[derive(Clone)]
struct Stored {
    queue: String,
    item: Item,
    key: Option<String>,
    note: Option<String>,
    body: String,
}

/// What does not roll back: the names of receipts, and the source of new ones.
#[derive(Default)]
pub struct Receipts {
    names: HashMap<String, Receipt>,
    made: u128,
}

impl Receipts {
    fn new_uuid(&mut self) -> u128 {
        self.made += 1;
        self.made
    }

    fn receipt(&self, name: &str) -> Option<Receipt> {
        self.names.get(name).copied().or_else(|| Receipt::parse(name))
    }
}

impl Queues {
    /// The newest id or token.
    pub fn newest(&self) -> i64 {
        self.newest
    }

    /// Makes every receipt stale.
    pub fn fence(&mut self, now_ms: i64) {
        for stored in self.items.values_mut() {
            stored.item = fence_item(stored.item, now_ms).unwrap_or(stored.item);
        }
    }

    /// Does a step by the rule.
    pub fn step(
        &mut self,
        rules: &impl Rules,
        receipts: &mut Receipts,
        epoch: Epoch,
        now_ms: i64,
        action: &QueueAction,
    ) -> Result<String, Refusal> {
        use QueueAction::*;
        let floor = epoch.floor;
        Ok(match action {
            Queue { max_attempts: Some(given), .. } if !(0..=MAX_ATTEMPTS).contains(given) => {
                "error InvalidAttempts".into()
            }
            Queue { queue, max_attempts } => {
                let limit = self.max_attempts.entry(queue.clone()).or_insert(DEFAULT_ATTEMPTS);
                *limit = max_attempts.unwrap_or(*limit);
                format!("attempts {limit}")
            }
            Send { key: Some(key), .. } if !(1..=MAX_TEXT).contains(&key.len()) => {
                "error InvalidText".into()
            }
            Send { queue, body, delay_ms, key } => {
                let delay = Delay::new(*delay_ms, now_ms)?;
                if let Some(id) = self.using(rules, queue, key.as_deref(), now_ms) {
                    return Ok(format!("sent {id}"));
                }
                let id = next_number(self.newest, floor)?;
                self.newest = id;
                self.max_attempts.entry(queue.clone()).or_insert(DEFAULT_ATTEMPTS);
                let (queue, key, body) = (queue.clone(), key.clone(), body.clone());
                let item = Item::sent(delay.until_ms());
                self.take_key(&queue, key.as_deref(), id);
                self.items.insert(id, Stored { queue, item, key, note: None, body });
                format!("sent {id}")
            }
            Receive { queue, receipt, visibility_ms } => {
                let term = Term::new(*visibility_ms, now_ms)?;
                let Some(&limit) = self.max_attempts.get(queue) else { return Ok("none".into()) };
                let next = next_number(self.newest, floor);
                let token = next.unwrap_or(i64::MAX);
                let uuid = receipts.new_uuid();
                let deliverable = |(id, stored): (&i64, &Stored)| {
                    let item = rules.deliver(stored.item, uuid, token, term, limit)?;
                    (stored.queue == *queue).then_some((stored.item.visible_at_ms(), *id, item))
                };
                let all = self.items.iter().filter_map(deliverable);
                let Some((_, id, item)) = all.min_by_key(|found| (found.0, found.1)) else {
                    return Ok("none".into());
                };
                next?;
                let Some(stored) = self.items.get_mut(&id) else { return Ok("none".into()) };
                (stored.item, self.newest) = (item, token);
                receipts.names.insert(receipt.clone(), Receipt { id, uuid });
                delivery_text(id, item.attempts(), token, term.until_ms(), &stored.body)
            }
            Delivery { receipt } => {
                let receipt = receipts.receipt(receipt);
                let stored =
                    receipt.and_then(|receipt| Some((receipt, self.items.get(&receipt.id)?)));
                let told = stored.and_then(|(receipt, stored)| {
                    let passes = rules.ack(Some(stored.item), receipt, 0).is_acknowledged();
                    let delivery = stored.item.delivery().filter(|_| passes)?;
                    let attempt = stored.item.attempts();
                    let (token, deadline_ms) = (delivery.token, delivery.deadline_ms);
                    Some(delivery_text(receipt.id, attempt, token, deadline_ms, &stored.body))
                });
                told.unwrap_or("none".into())
            }
            Ack { receipt } => {
                let Some(receipt) = receipts.receipt(receipt) else {
                    return Ok(told_ack(AckResult::Stale { reason: StaleReason::Unknown }));
                };
                let item = self.items.get(&receipt.id).map(|stored| stored.item);
                let newest = if self.newest == 0 { 0 } else { self.newest.max(floor) };
                let answer = rules.ack(item, receipt, newest);
                if answer.is_acknowledged() {
                    self.items.remove(&receipt.id);
                }
                told_ack(answer)
            }
            Extend { receipt, visibility_ms } => {
                let term = Term::new(*visibility_ms, now_ms)?;
                let extended = self
                    .change(receipts, receipt, |item, receipt| rules.extend(item, receipt, term));
                let delivery = extended.and_then(|stored| stored.item.delivery());
                delivery.map_or("none".into(), |found| format!("until {}", found.deadline_ms))
            }
            GiveBack { note: Some(note), .. } | Bury { note: Some(note), .. }
                if note.len() > MAX_NOTE =>
            {
                "error InvalidText".into()
            }
            GiveBack { receipt, delay_ms, note } => {
                let delay = Delay::new(*delay_ms, now_ms)?;
                let given_back = self.change(receipts, receipt, |item, receipt| {
                    rules.give_back(item, receipt, delay)
                });
                yes_or_none(noted(given_back, note), "given back")
            }
            Bury { receipt, note } => {
                let buried = self
                    .change(receipts, receipt, |item, receipt| rules.bury(item, receipt, now_ms));
                yes_or_none(noted(buried, note), "buried")
            }
            Redrive { queue, id } => {
                let mut redriven = 0;
                for dead in self.dead(queue, *id, now_ms) {
                    let Some(stored) = self.items.get(&dead) else { continue };
                    let used = self.using(rules, queue, stored.key.as_deref(), now_ms);
                    let Some(item) = rules.redrive(stored.item, now_ms) else { continue };
                    if used.is_none() {
                        let key = stored.key.clone();
                        self.take_key(queue, key.as_deref(), dead);
                        self.items.entry(dead).and_modify(|stored| stored.item = item);
                        redriven += 1;
                    }
                }
                redriven.to_string()
            }
            Discard { queue, id } => {
                let dead = self.dead(queue, *id, now_ms);
                dead.iter().for_each(|id| _ = self.items.remove(id));
                dead.len().to_string()
            }
            CancelId { queue, id } => self.cancel(rules, queue, Some(*id), now_ms),
            CancelKey { queue, key } => {
                let used = self.using(rules, queue, Some(key), now_ms);
                self.cancel(rules, queue, used, now_ms)
            }
            Items { queue } => {
                let mut items: Vec<_> =
                    self.items.iter().filter(|(_, stored)| stored.queue == *queue).collect();
                items.sort_by_key(|(id, stored)| (stored.item.visible_at_ms(), **id));
                let told = items.into_iter().map(|(id, stored)| {
                    let (state, attempt) = (stored.item.state(now_ms), stored.item.attempts());
                    let (key, note) = (stored.key.as_deref(), stored.note.as_deref());
                    item_text(*id, state.word(), attempt, key, note)
                });
                told_items(told.collect())
            }
            Delete { queue } => {
                self.items.retain(|_, stored| stored.queue != *queue);
                yes_or_none(self.max_attempts.remove(queue).is_some(), "deleted")
            }
            Fence => "error the player does this".into(),
        })
    }

    fn change(
        &mut self,
        receipts: &Receipts,
        receipt: &str,
        change: impl FnOnce(Item, Receipt) -> Option<Item>,
    ) -> Option<&mut Stored> {
        let receipt = receipts.receipt(receipt)?;
        let stored = self.items.get_mut(&receipt.id)?;
        stored.item = change(stored.item, receipt)?;
        Some(stored)
    }

    fn take_key(&mut self, queue: &str, key: Option<&str>, id: i64) {
        if let Some(key) = key {
            self.keys.insert((queue.to_owned(), key.to_owned()), id);
        }
    }

    /// The item that uses a key.
    fn using(
        &self,
        rules: &impl Rules,
        queue: &str,
        key: Option<&str>,
        now_ms: i64,
    ) -> Option<i64> {
        let id = self.keys.get(&(queue.to_owned(), key?.to_owned()))?;
        self.items.get(id).filter(|stored| rules.uses_its_key(stored.item, now_ms)).map(|_| *id)
    }

    fn dead(&self, queue: &str, id: Option<i64>, now_ms: i64) -> Vec<i64> {
        let is_dead = |(found, stored): &(&i64, &Stored)| {
            stored.queue == queue
                && id.is_none_or(|id| id == **found)
                && stored.item.state(now_ms) == ItemState::Dead
        };
        self.items.iter().filter(is_dead).map(|(id, _)| *id).collect()
    }

    fn cancel(&mut self, rules: &impl Rules, queue: &str, id: Option<i64>, now_ms: i64) -> String {
        let stored = id.and_then(|id| self.items.get(&id)).filter(|found| found.queue == queue);
        let answer = rules.cancel(stored.map(|stored| stored.item), now_ms);
        if let (CancelResult::Cancelled, Some(id)) = (answer, id) {
            self.items.remove(&id);
        }
        told_cancel(answer)
    }
}

fn noted(changed: Option<&mut Stored>, note: &Option<String>) -> bool {
    let Some(stored) = changed else { return false };
    if note.is_some() {
        stored.note.clone_from(note);
    }
    true
}

/// Does a step through a handle of the crate. `names` has the receipts.
pub(crate) fn perform(
    leases: &Leases,
    names: &mut HashMap<String, String>,
    now_ms: i64,
    action: &QueueAction,
) -> litelease::Result<String> {
    use QueueAction::*;
    let time = Duration::from_millis(action.time_ms().unwrap_or(0).unsigned_abs());
    let receipt =
        |names: &HashMap<String, String>, name: &String| names.get(name).unwrap_or(name).clone();
    let at = |queue| -> litelease::Queue<'_> { leases.queue(queue).at(now_ms) };
    let item = |item: litelease::Item<'_>| {
        delivery_text(item.id, item.attempt, item.token, item.deadline_ms, &body_text(&item.body))
    };
    Ok(match action {
        Queue { queue, max_attempts } => {
            if let Some(max_attempts) = max_attempts {
                at(queue).set_max_attempts(*max_attempts)?;
            }
            let info = at(queue).info()?;
            format!("attempts {}", info.map_or(DEFAULT_ATTEMPTS, |info| info.max_attempts))
        }
        Send { queue, body, key, .. } => {
            let options = SendOptions::new().delay(time);
            let options = key.iter().fold(options, |options, key| options.key(key));
            format!("sent {}", at(queue).send_with(body, options)?)
        }
        Receive { queue, receipt, .. } => match at(queue).receive(time)? {
            Some(received) => {
                names.insert(receipt.clone(), received.receipt.clone());
                item(received)
            }
            None => "none".into(),
        },
        Delivery { receipt: name } => {
            at("").delivery(&receipt(names, name))?.map_or("none".into(), item)
        }
        Ack { receipt: name } => told_ack(at("").ack(&receipt(names, name))?),
        Extend { receipt: name, .. } => {
            let deadline_ms = at("").extend(&receipt(names, name), time)?;
            deadline_ms.map_or("none".into(), |deadline_ms| format!("until {deadline_ms}"))
        }
        GiveBack { receipt: name, note, .. } => {
            let options = GiveBackOptions::new().delay(time);
            let options = note.iter().fold(options, |options, note| options.note(note));
            let given_back = at("").give_back_with(&receipt(names, name), options)?;
            yes_or_none(given_back, "given back")
        }
        Bury { receipt: name, note } => {
            yes_or_none(at("").bury(&receipt(names, name), note.as_deref())?, "buried")
        }
        Redrive { queue, id: None } => at(queue).redrive()?.to_string(),
        Redrive { queue, id: Some(id) } => u64::from(at(queue).redrive_one(*id)?).to_string(),
        Discard { queue, id: None } => at(queue).discard()?.to_string(),
        Discard { queue, id: Some(id) } => u64::from(at(queue).discard_one(*id)?).to_string(),
        CancelId { queue, id } => told_cancel(at(queue).cancel(ItemName::Id(*id))?),
        CancelKey { queue, key } => told_cancel(at(queue).cancel(ItemName::Key(key))?),
        Items { queue } => {
            let items = at(queue).items()?.into_iter().map(|item| {
                let (key, note) = (item.key.as_deref(), item.note.as_deref());
                item_text(item.id, item.state.word(), item.attempt, key, note)
            });
            told_items(items.collect())
        }
        Delete { queue } => yes_or_none(at(queue).delete()?, "deleted"),
        Fence => {
            leases.at(now_ms).restore_fence_above(0)?;
            "ok".into()
        }
    })
}

fn body_text(body: &Value) -> String {
    match body {
        Value::Text(text) => text.clone(),
        other => format!("{other:?}"),
    }
}

/// Does a step through the SQL functions.
pub(crate) fn call(
    connection: &Connection,
    names: &mut HashMap<String, String>,
    now_ms: i64,
    action: &QueueAction,
) -> rusqlite::Result<String> {
    use QueueAction::*;
    let receipt =
        |names: &HashMap<String, String>, name: &String| names.get(name).unwrap_or(name).clone();
    let ask = |sql: &str, values: &[&dyn ToSql]| -> rusqlite::Result<Option<i64>> {
        connection.query_row(sql, values, |row| row.get(0))
    };
    let number = |number: Option<i64>| number.unwrap_or(-1).to_string();
    let delivery = |receipt: &str| -> rusqlite::Result<String> {
        let sql = "SELECT id, attempt, token, deadline_ms, body FROM litelease_delivery(?1)";
        let row = |row: &rusqlite::Row<'_>| {
            let body: String = row.get(4)?;
            Ok(delivery_text(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, &body))
        };
        Ok(connection.query_row(sql, [receipt], row).optional()?.unwrap_or("none".into()))
    };
    let yes = |answer: Option<i64>, word: &str| yes_or_none(answer == Some(1), word);
    Ok(match action {
        Queue { queue, max_attempts } => {
            let limit = ask("SELECT litelease_queue(?1, ?2)", &[queue, max_attempts])?;
            format!("attempts {}", number(limit))
        }
        Send { queue, body, delay_ms, key } => {
            let sql = "SELECT litelease_send(?1, ?2, ?3, ?4, ?5)";
            format!("sent {}", number(ask(sql, &[queue, body, delay_ms, key, &now_ms])?))
        }
        Receive { queue, receipt, visibility_ms } => {
            let sql = "SELECT litelease_receive(?1, ?2, ?3)";
            let values: [&dyn ToSql; 3] = [queue, visibility_ms, &now_ms];
            let received: Option<String> = connection.query_row(sql, values, |row| row.get(0))?;
            let Some(received) = received else { return Ok("none".into()) };
            names.insert(receipt.clone(), received.clone());
            delivery(&received)?
        }
        Delivery { receipt: name } => delivery(&receipt(names, name))?,
        Ack { receipt: name } => match ask("SELECT litelease_ack(?1)", &[&receipt(names, name)]) {
            Ok(answer) => yes(answer, "acknowledged"),
            Err(failed) => {
                let text = failed.to_string();
                let code = failed.sqlite_error().map(|error| error.extended_code);
                let reason = text.strip_prefix("litelease_ack: stale receipt: ");
                match reason.filter(|_| code == Some(19)) {
                    Some(reason) => format!("stale {reason}"),
                    None => return Err(failed),
                }
            }
        },
        Extend { receipt: name, visibility_ms } => {
            let values: [&dyn ToSql; 3] = [&receipt(names, name), visibility_ms, &now_ms];
            let deadline_ms = ask("SELECT litelease_extend(?1, ?2, ?3)", &values)?;
            deadline_ms.map_or("none".into(), |deadline_ms| format!("until {deadline_ms}"))
        }
        GiveBack { receipt: name, delay_ms, note } => {
            let values: [&dyn ToSql; 4] = [&receipt(names, name), delay_ms, note, &now_ms];
            yes(ask("SELECT litelease_give_back(?1, ?2, ?3, ?4)", &values)?, "given back")
        }
        Bury { receipt: name, note } => {
            let values: [&dyn ToSql; 3] = [&receipt(names, name), note, &now_ms];
            yes(ask("SELECT litelease_bury(?1, ?2, ?3)", &values)?, "buried")
        }
        Redrive { queue, id } => {
            number(ask("SELECT litelease_redrive(?1, ?2, ?3)", &[queue, id, &now_ms])?)
        }
        Discard { queue, id } => {
            number(ask("SELECT litelease_discard(?1, ?2, ?3)", &[queue, id, &now_ms])?)
        }
        CancelId { queue, id } => {
            cancelled(ask("SELECT litelease_cancel(?1, ?2, ?3)", &[queue, id, &now_ms])?)
        }
        CancelKey { queue, key } => {
            cancelled(ask("SELECT litelease_cancel(?1, ?2, ?3)", &[queue, key, &now_ms])?)
        }
        Items { queue } => {
            let sql = "SELECT id, state, attempt, key, note FROM litelease_items(?1, ?2)";
            let mut statement = connection.prepare(sql)?;
            let items = statement.query_map((queue, now_ms), |row| {
                let state: String = row.get(1)?;
                let (key, note): (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
                let (key, note) = (key.as_deref(), note.as_deref());
                Ok(item_text(row.get(0)?, &state, row.get(2)?, key, note))
            })?;
            told_items(items.collect::<rusqlite::Result<_>>()?)
        }
        Delete { queue } => yes(ask("SELECT litelease_queue_delete(?1)", &[queue])?, "deleted"),
        Fence => {
            ask("SELECT litelease_restore_fence(0)", &[])?;
            "ok".into()
        }
    })
}

fn cancelled(answer: Option<i64>) -> String {
    match answer {
        Some(1) => "cancelled".into(),
        Some(_) => "leased".into(),
        None => "none".into(),
    }
}
