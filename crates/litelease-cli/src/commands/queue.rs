//! `litelease queue`: sends, receives and looks after the items of queues.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use litelease::rusqlite::types::Value as Body;
use litelease::{
    AckResult, CancelResult, GiveBackOptions, Item, ItemInfo, ItemName, ItemState, Litelease,
    QueueInfo, SendOptions,
};
use serde_json::{Value, json};

use super::{is_sure, nothing_was_done};
use crate::Common;
use crate::database;
use crate::duration::{parse, parse_positive, shown};
use crate::exit::{Failure, Result, code};
use crate::output::{answer, complain, lines, printable, remark, say, say_text, time_left};
use crate::stream::write_bytes;

/// Send, receive and look after the items of queues
///
/// An item that was sent is delivered to one worker at a time: hidden until a deadline, gone when it
/// is acknowledged, delivered again when it is not. So an item is delivered at least once. `litelease
/// work` runs a command for each item and does the rest by itself.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease queue send mail 'to: alice'
  receipt=$(litelease queue receive mail --json | jq -r .receipt)
  litelease queue ack $receipt
  litelease queue list mail

Exit codes: 0 done; 1 no item, a stale receipt, not found; 64 usage; 69 the file is broken or in the way; 74 the
answer could not be printed.")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Send an item and print its id
    ///
    /// The body is the argument, a file, or standard input; any bytes. It is stored as text if it is
    /// UTF-8 without a NUL, else as a BLOB.
    Send {
        /// The queue
        #[arg(value_parser = super::name)]
        queue: String,
        /// The body [default: standard input]
        #[arg(allow_hyphen_values = true)]
        body: Option<OsString>,
        /// Read the body from this file
        #[arg(long, value_name = "PATH", conflicts_with = "body")]
        file: Option<PathBuf>,
        /// Hide the item for so long
        #[arg(long, value_name = "TIME", value_parser = parse)]
        delay: Option<Duration>,
        /// While an item with this key is in the queue and not dead, print its id and send nothing
        #[arg(long)]
        key: Option<String>,
    },
    /// Receive an item: print its receipt in the first line, and its body after that
    ///
    /// The body is printed byte for byte, with nothing after it. With --json, a body that is text or
    /// a number is `body`, and any other `body_hex`. If nothing is visible, the exit code is 1.
    Receive {
        /// The queue
        #[arg(value_parser = super::name)]
        queue: String,
        /// Hide the item from others for so long
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_positive)]
        visibility: Duration,
    },
    /// Acknowledge an item: it is gone
    Ack {
        /// What receive has printed
        receipt: String,
    },
    /// Prolong a delivery, to at least so long from now
    Extend {
        /// What receive has printed
        receipt: String,
        /// Hide the item from others for so long
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_positive)]
        visibility: Duration,
    },
    /// Give an item back: others receive it, now or later
    GiveBack {
        /// What receive has printed
        receipt: String,
        /// Hide the item for so long
        #[arg(long, value_name = "TIME", value_parser = parse)]
        delay: Option<Duration>,
        /// Why, for operators
        #[arg(long)]
        note: Option<String>,
    },
    /// Make an item dead: nobody receives it until it is redriven
    Bury {
        /// What receive has printed
        receipt: String,
        /// Why, for operators
        #[arg(long)]
        note: Option<String>,
    },
    /// List the queues, or the items of a queue
    List {
        /// The queue [default: all queues, without their items]
        queue: Option<String>,
    },
    /// List the dead items of a queue
    Dead {
        /// The queue
        #[arg(value_parser = super::name)]
        queue: String,
    },
    /// Revive dead items, with no attempt counted
    Redrive {
        /// The queue
        #[arg(value_parser = super::name)]
        queue: String,
        /// Only this item
        id: Option<i64>,
    },
    /// Delete dead items
    Discard {
        /// The queue
        #[arg(value_parser = super::name)]
        queue: String,
        /// Only this item
        id: Option<i64>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Remove an item that nobody works on
    Cancel {
        /// The queue
        #[arg(value_parser = super::name)]
        queue: String,
        /// The item
        #[arg(required_unless_present = "key")]
        id: Option<i64>,
        /// The item with this key
        #[arg(long, conflicts_with = "id")]
        key: Option<String>,
    },
    /// Delete a queue with everything in it
    Delete {
        /// The queue
        #[arg(value_parser = super::name)]
        queue: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    match args.verb {
        Verb::Send { queue, body, file, delay, key } => {
            let mut options = SendOptions::new().delay(delay.unwrap_or_default());
            if let Some(key) = &key {
                options = options.key(key);
            }
            send(&queue, &read_body(body, file)?, options, common)
        }
        Verb::Receive { queue, visibility } => receive(&queue, visibility, common),
        Verb::Ack { receipt } => ack(&receipt, common),
        Verb::Extend { receipt, visibility } => extend(&receipt, visibility, common),
        Verb::GiveBack { receipt, delay, note } => {
            let mut options = GiveBackOptions::new().delay(delay.unwrap_or_default());
            if let Some(note) = &note {
                options = options.note(note);
            }
            let db = database::open_existing(common)?;
            let given_back = db.queue("").give_back_with(&receipt, options)?;
            ended(&db, &receipt, given_back, "given back", common)
        }
        Verb::Bury { receipt, note } => {
            let db = database::open_existing(common)?;
            let buried = db.queue("").bury(&receipt, note.as_deref())?;
            ended(&db, &receipt, buried, "buried", common)
        }
        Verb::List { queue: None } => list_queues(common),
        Verb::List { queue: Some(queue) } => list_items(&queue, false, common),
        Verb::Dead { queue } => list_items(&queue, true, common),
        Verb::Redrive { queue, id } => redrive(&queue, id, common),
        Verb::Discard { queue, id, yes } => discard(&queue, id, yes, common),
        Verb::Cancel { queue, id, key } => cancel(&queue, id, key.as_deref(), common),
        Verb::Delete { queue, yes } => delete(&queue, yes, common),
    }
}

/// Reads the body from where the caller has it.
fn read_body(body: Option<OsString>, file: Option<PathBuf>) -> Result<Body> {
    let bytes = match (body, file) {
        (Some(body), _) => body.into_vec(),
        (None, Some(file)) => fs::read(&file)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?,
        (None, None) => {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes)?;
            bytes
        }
    };
    Ok(match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Body::Text(text),
        Ok(text) => Body::Blob(text.into_bytes()),
        Err(error) => Body::Blob(error.into_bytes()),
    })
}

/// Returns a body as the bytes that a command reads.
pub(super) fn bytes(body: &Body) -> Vec<u8> {
    match body {
        Body::Null => Vec::new(),
        Body::Integer(number) => number.to_string().into_bytes(),
        Body::Real(number) => number.to_string().into_bytes(),
        Body::Text(text) => text.clone().into_bytes(),
        Body::Blob(bytes) => bytes.clone(),
    }
}

fn send(queue: &str, body: &Body, options: SendOptions<'_>, common: &Common) -> Result<u8> {
    let db = database::open_patiently(common, Duration::ZERO)?;
    let id = db.queue(queue).send_with(body, options)?;
    let told = answer(common, json!({ "queue": queue, "id": id }), &id.to_string());
    told.map_err(|failure| failure.adding(format!("item {id} is in the queue all the same")))?;
    Ok(code::OK)
}

fn receive(queue: &str, visibility: Duration, common: &Common) -> Result<u8> {
    let db = database::look(common)?;
    let received = match &db {
        Some(db) => db.queue(queue).receive(visibility)?,
        None => None,
    };
    let Some(item) = received else {
        let text = format!("{}: nothing is visible", printable(queue));
        match common.json {
            true => say("null")?,
            false if !common.quiet => complain(&format!("litelease: {text}")),
            false => {}
        }
        return Ok(code::NO);
    };
    let told = match common.json {
        true => say(&delivery(queue, &item).to_string()),
        false => {
            let text = [item.receipt.as_bytes(), b"\n", &bytes(&item.body)].concat();
            write_bytes(&text).map_err(|error| Failure::not_told(&error))
        }
    };
    // Nobody knows the receipt, so nobody could end the delivery.
    told.map_err(|failure| match item.give_back() {
        Ok(_) => failure.adding(format!("item {} was given back", item.id)),
        Err(error) => failure.adding(format!(
            "item {} could not be given back and is hidden for {}: {error}",
            item.id,
            time_left(item.deadline_ms)
        )),
    })?;
    Ok(code::OK)
}

fn delivery(queue: &str, item: &Item<'_>) -> Value {
    let mut value = json!({
        "queue": queue,
        "id": item.id,
        "receipt": item.receipt,
        "attempt": item.attempt,
        "token": item.token,
        "deadline_ms": item.deadline_ms,
    });
    match &item.body {
        Body::Null => value["body"] = Value::Null,
        Body::Integer(number) => value["body"] = json!(number),
        Body::Real(number) => value["body"] = json!(number),
        Body::Text(text) => value["body"] = json!(text),
        Body::Blob(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            value["body_hex"] = json!(hex);
        }
    }
    value
}

fn ack(receipt: &str, common: &Common) -> Result<u8> {
    match database::open_existing(common)?.queue("").ack(receipt)? {
        AckResult::Acknowledged => {
            remark(common, json!({ "acknowledged": true }), "acknowledged")?;
            Ok(code::OK)
        }
        AckResult::Stale { reason } => stale(&reason.to_string(), common),
    }
}

fn extend(receipt: &str, visibility: Duration, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    match db.queue("").extend(receipt, visibility)? {
        Some(deadline_ms) => {
            let text = format!("extended, for {} from now", time_left(deadline_ms));
            remark(common, json!({ "deadline_ms": deadline_ms }), &text)?;
            Ok(code::OK)
        }
        // The newest delivery can still be acknowledged, but it is too late to extend it.
        None => match db.queue("").delivery(receipt)? {
            Some(_) => no(json!({ "over": true }), "the delivery is over", common),
            None => stale(&reason(&db, receipt)?, common),
        },
    }
}

/// Reports whether a delivery was ended as asked.
fn ended(db: &Litelease, receipt: &str, done: bool, what: &str, common: &Common) -> Result<u8> {
    if done {
        remark(common, json!({ what.replace(' ', "_"): true }), what)?;
        return Ok(code::OK);
    }
    match db.queue("").delivery(receipt)? {
        Some(_) => no(json!({ "dead": true }), "the item is dead already", common),
        None => stale(&reason(db, receipt)?, common),
    }
}

/// Returns why a receipt does not pass. Nothing is changed by asking: an acknowledgement that would
/// pass is rolled back.
fn reason(db: &Litelease, receipt: &str) -> Result<String> {
    let tx = litelease::rusqlite::Transaction::new_unchecked(
        db.conn(),
        litelease::rusqlite::TransactionBehavior::Immediate,
    )
    .map_err(litelease::Error::from)?;
    let answer = litelease::LiteleaseRef::joining(&tx).queue("").ack(receipt)?;
    tx.rollback().map_err(litelease::Error::from)?;
    Ok(match answer {
        AckResult::Stale { reason } => reason.to_string(),
        AckResult::Acknowledged => "ended in this moment".into(),
    })
}

fn stale(reason: &str, common: &Common) -> Result<u8> {
    no(json!({ "stale": reason }), &format!("stale receipt: {reason}"), common)
}

fn no(value: Value, text: &str, common: &Common) -> Result<u8> {
    remark(common, value, text)?;
    Ok(code::NO)
}

fn list_queues(common: &Common) -> Result<u8> {
    let queues = database::look(common)?.map_or(Ok(Vec::new()), |db| db.queues())?;
    if common.json {
        say(&queues.iter().map(entry).collect::<Value>().to_string())?;
    } else if queues.is_empty() {
        let file = database::path(common)?;
        remark(common, Value::Null, &format!("there are no queues in {}", file.display()))?;
    } else {
        let mut table = Table::new();
        table
            .load_preset(NOTHING)
            .set_header(["QUEUE", "VISIBLE", "DELAYED", "LEASED", "DEAD", "OLDEST", "ATTEMPTS"]);
        for queue in &queues {
            table.add_row([
                printable(&queue.queue),
                queue.visible.to_string(),
                queue.delayed.to_string(),
                queue.leased.to_string(),
                queue.dead.to_string(),
                queue.oldest_ms.map_or("-".into(), shown),
                match queue.max_attempts {
                    0 => "any".into(),
                    most => most.to_string(),
                },
            ]);
        }
        say(&lines(&table))?;
    }
    Ok(code::OK)
}

/// Returns a queue as JSON.
fn entry(queue: &QueueInfo) -> Value {
    json!({
        "queue": queue.queue,
        "visible": queue.visible,
        "delayed": queue.delayed,
        "leased": queue.leased,
        "dead": queue.dead,
        "oldest_ms": queue.oldest_ms,
        "max_attempts": queue.max_attempts,
    })
}

/// How much is printed at a time.
const PIECE: usize = 64 * 1024;

/// Prints items as they are read: a queue may be longer than the memory.
fn list_items(queue: &str, only_dead: bool, common: &Common) -> Result<u8> {
    let now_ms = litelease::now_ms();
    let (mut text, mut count, mut told) = (String::new(), 0_u64, Ok(()));
    let each = |item: ItemInfo| {
        // Dead items come first, among those at their last delivery.
        let is_past_the_dead = matches!(item.state, ItemState::Visible | ItemState::Delayed);
        if only_dead && item.state != ItemState::Dead {
            return !is_past_the_dead;
        }
        match (common.json, count) {
            (true, 0) => text += "[",
            (true, _) => text += ",\n",
            (false, 0) => text += &row("ID", "STATE", "ATTEMPT", "WHEN", "AGE", "KEY", "NOTE"),
            (false, _) => {}
        }
        text += &if common.json { item_entry(&item).to_string() } else { item_row(&item, now_ms) };
        count += 1;
        if text.len() >= PIECE {
            told = say_text(&std::mem::take(&mut text));
        }
        told.is_ok()
    };
    if let Some(db) = database::look(common)? {
        db.queue(queue).each_item(each)?;
    }
    told?;
    match (common.json, count) {
        (true, 0) => say("[]")?,
        (true, _) => say_text(&(text + "]\n"))?,
        (false, 0) => {
            let what = if only_dead { "no dead item" } else { "no item" };
            remark(common, Value::Null, &format!("{}: {what}", printable(queue)))?;
        }
        (false, _) => say_text(&text)?,
    }
    Ok(code::OK)
}

fn item_entry(item: &ItemInfo) -> Value {
    json!({
        "id": item.id,
        "state": item.state.word(),
        "attempt": item.attempt,
        "visible_at_ms": item.visible_at_ms,
        "sent_at_ms": item.sent_at_ms,
        "key": item.key,
        "note": item.note,
    })
}

fn item_row(item: &ItemInfo, now_ms: i64) -> String {
    let when = match item.visible_at_ms {
        None => "-".into(),
        Some(at_ms) if at_ms > now_ms => format!("in {}", shown(at_ms - now_ms)),
        Some(at_ms) => format!("since {}", shown(now_ms - at_ms)),
    };
    let text = |text: &Option<String>| text.as_ref().map_or("-".into(), |text| printable(text));
    row(
        &item.id.to_string(),
        item.state.word(),
        &item.attempt.to_string(),
        &when,
        &shown(now_ms - item.sent_at_ms),
        &text(&item.key),
        &text(&item.note),
    )
}

/// One line of a table whose later lines are not known yet.
fn row(
    id: &str,
    state: &str,
    attempt: &str,
    when: &str,
    age: &str,
    key: &str,
    note: &str,
) -> String {
    let line = format!("{id:<8} {state:<8} {attempt:<8} {when:<14} {age:<9} {key:<16} {note}");
    format!("{}\n", line.trim_end())
}

fn redrive(queue: &str, id: Option<i64>, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let redriven = match id {
        None => db.queue(queue).redrive()?,
        Some(id) => u64::from(db.queue(queue).redrive_one(id)?),
    };
    counted("redriven", redriven, id, common)
}

fn discard(queue: &str, id: Option<i64>, yes: bool, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let what = id.map_or("all dead items".into(), |id| format!("the dead item {id}"));
    if !yes && !is_sure(&format!("Delete {what} of {}?", printable(queue)), "discard")? {
        return Ok(nothing_was_done());
    }
    let discarded = match id {
        None => db.queue(queue).discard()?,
        Some(id) => u64::from(db.queue(queue).discard_one(id)?),
    };
    counted("discarded", discarded, id, common)
}

/// Reports how many items were changed. One that was named and is not dead is a no.
fn counted(what: &str, count: u64, id: Option<i64>, common: &Common) -> Result<u8> {
    match id {
        Some(id) if count == 0 => {
            no(json!({ what: 0 }), &format!("item {id} is not dead, or its key is in use"), common)
        }
        _ => {
            remark(common, json!({ what: count }), &format!("{what} {count}"))?;
            Ok(code::OK)
        }
    }
}

fn cancel(queue: &str, id: Option<i64>, key: Option<&str>, common: &Common) -> Result<u8> {
    let name = match (id, key) {
        (Some(id), _) => ItemName::Id(id),
        (None, key) => ItemName::Key(key.unwrap_or_default()),
    };
    match database::open_existing(common)?.queue(queue).cancel(name)? {
        CancelResult::Cancelled => {
            remark(common, json!({ "cancelled": true }), "cancelled")?;
            Ok(code::OK)
        }
        CancelResult::Leased { deadline_ms } => {
            let text = format!("a worker has it, for {} more", time_left(deadline_ms));
            no(json!({ "leased_until_ms": deadline_ms }), &text, common)
        }
        CancelResult::NotFound => {
            no(json!({ "cancelled": false }), "there is no such item", common)
        }
    }
}

fn delete(queue: &str, yes: bool, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let name = printable(queue);
    if !yes && let Some(info) = db.queue(queue).info()? {
        let question = format!("Delete {name} with {} items?", info.len());
        if !is_sure(&question, "delete it")? {
            return Ok(nothing_was_done());
        }
    }
    match db.queue(queue).delete()? {
        true => {
            remark(common, json!({ "deleted": queue }), &format!("{name}: deleted"))?;
            Ok(code::OK)
        }
        false => no(json!({ "deleted": null }), &format!("{name}: there is no such queue"), common),
    }
}
