//! `litelease queue`: sends items, receives them, and looks after them.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use litelease::rusqlite::types::Value as Body;
use litelease::{CancelResult, ItemInfo, ItemName, ItemState, QueueInfo};
use serde_json::{Value, json};

use super::{is_sure, nothing_was_done};
use crate::Common;
use crate::duration::{parse, parse_positive, shown};
use crate::exit::{Failure, Result, code};
use crate::output::{answer, complain, lines, printable, remark, say, say_text, time_left};
use crate::stream::write_bytes;
use crate::target::queues::{Delivery, Queues, Receipt};

/// Send, receive and look after the items of queues
///
/// An item that was sent is delivered to one worker at a time: hidden until a deadline, gone when
/// it is acknowledged, delivered again when it is not. So an item is delivered at least once.
/// `litelease work` runs a command for each item and does the rest by itself.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease queue send mail 'to: alice'
  receipt=$(litelease queue receive mail --json | jq -r .receipt)
  litelease queue ack $receipt
  litelease queue list mail

Exit codes: 0 done; 1 no item, a stale receipt, not found; 64 usage; 69 the file is broken or in the way, or the server
cannot be reached or refuses; 74 the answer could not be printed.")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Send an item and print its id
    ///
    /// The body is the argument, a file, or standard input; any bytes. It is stored as text if it
    /// is UTF-8 without a NUL, else as a BLOB.
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
    /// The body is printed byte for byte, with nothing after it. With --json, a body that is text
    /// or a number is `body`, and any other `body_hex`. If nothing is visible, the exit code is 1.
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
        /// The receipt that receive has printed
        receipt: String,
    },
    /// Prolong a delivery, to at least so long from now
    Extend {
        /// The receipt that receive has printed
        receipt: String,
        /// Hide the item from others for so long
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_positive)]
        visibility: Duration,
    },
    /// Give an item back: others receive it, now or later
    GiveBack {
        /// The receipt that receive has printed
        receipt: String,
        /// Hide the item for so long
        #[arg(long, value_name = "TIME", value_parser = parse)]
        delay: Option<Duration>,
        /// Why, for operators
        #[arg(long)]
        note: Option<String>,
    },
    /// Make an item dead: no worker receives it until it is redriven
    Bury {
        /// The receipt that receive has printed
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
    /// Remove an item that no worker has
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
    let place = &Queues::open(common)?;
    match args.verb {
        Verb::Send { queue, body, file, delay, key } => {
            let body = read_body(body, file)?;
            let id = place.send(&queue, &body, delay.unwrap_or_default(), key.as_deref())?;
            sent(&queue, id, common)
        }
        Verb::Receive { queue, visibility } => receive(place, &queue, visibility, common),
        Verb::Ack { receipt } => ended(place.ack(&receipt)?, "acknowledged", common),
        Verb::Extend { receipt, visibility } => {
            extended(place.extend(&receipt, visibility)?, common)
        }
        Verb::GiveBack { receipt, delay, note } => {
            let done = place.give_back(&receipt, delay.unwrap_or_default(), note.as_deref())?;
            ended(done, "given back", common)
        }
        Verb::Bury { receipt, note } => {
            ended(place.bury(&receipt, note.as_deref())?, "buried", common)
        }
        Verb::List { queue: None } => list_queues(place, common),
        Verb::List { queue: Some(queue) } => list_items(place, &queue, false, common),
        Verb::Dead { queue } => list_items(place, &queue, true, common),
        Verb::Redrive { queue, id } => report("redriven", place.redrive(&queue, id)?, id, common),
        Verb::Discard { queue, id, yes } => discard(place, &queue, id, yes, common),
        Verb::Cancel { queue, id, key } => cancel(place, &queue, id, key.as_deref(), common),
        Verb::Delete { queue, yes } => delete(place, &queue, yes, common),
    }
}

/// Reads the body from where the caller has it.
fn read_body(body: Option<OsString>, file: Option<PathBuf>) -> Result<Body> {
    let bytes = match (body, file) {
        (Some(body), _) => body.into_encoded_bytes(),
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

fn sent(queue: &str, id: i64, common: &Common) -> Result<u8> {
    let told = answer(common, json!({ "queue": queue, "id": id }), &id.to_string());
    told.map_err(|failure| failure.adding(format!("item {id} is in the queue all the same")))?;
    Ok(code::OK)
}

fn receive(place: &Queues, queue: &str, visibility: Duration, common: &Common) -> Result<u8> {
    let Some(item) = place.receive(queue, visibility)? else {
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
    // No worker knows the receipt, so the delivery could not be ended.
    told.map_err(|failure| match place.give_back(&item.receipt, Duration::ZERO, None) {
        Ok(_) => failure.adding(format!("item {} was given back", item.id)),
        Err(error) => failure.adding(format!(
            "item {} could not be given back and is hidden for {}: {error}",
            item.id,
            time_left(item.deadline_ms)
        )),
    })?;
    Ok(code::OK)
}

fn delivery(queue: &str, item: &Delivery) -> Value {
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

fn extended(receipt: Receipt<i64>, common: &Common) -> Result<u8> {
    let Receipt::Passed(deadline_ms) = receipt else { return refused(receipt, common) };
    let text = format!("extended, for {} from now", time_left(deadline_ms));
    remark(common, json!({ "deadline_ms": deadline_ms }), &text)?;
    Ok(code::OK)
}

/// Reports whether a delivery was ended as the command wanted.
fn ended(receipt: Receipt<()>, what: &str, common: &Common) -> Result<u8> {
    let Receipt::Passed(()) = receipt else { return refused(receipt, common) };
    remark(common, json!({ what.replace(' ', "_"): true }), what)?;
    Ok(code::OK)
}

/// Reports why a receipt does not pass.
fn refused<T>(receipt: Receipt<T>, common: &Common) -> Result<u8> {
    match receipt {
        Receipt::Stale(reason) => stale(&reason, common),
        Receipt::Dead => no(json!({ "dead": true }), "the item is dead already", common),
        Receipt::Over | Receipt::Passed(_) => {
            no(json!({ "over": true }), "the delivery is over", common)
        }
    }
}

fn stale(reason: &str, common: &Common) -> Result<u8> {
    no(json!({ "stale": reason }), &format!("stale receipt: {reason}"), common)
}

fn no(value: Value, text: &str, common: &Common) -> Result<u8> {
    remark(common, value, text)?;
    Ok(code::NO)
}

fn list_queues(place: &Queues, common: &Common) -> Result<u8> {
    let queues = place.list()?;
    if common.json {
        say(&queues.iter().map(entry).collect::<Value>().to_string())?;
    } else if queues.is_empty() {
        remark(common, Value::Null, &format!("there are no queues in {}", place.shown()))?;
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
fn list_items(place: &Queues, queue: &str, only_dead: bool, common: &Common) -> Result<u8> {
    let now_ms = litelease::now_ms();
    let (mut text, mut count, mut told) = (String::new(), 0_u64, Ok(()));
    let mut each = |item: ItemInfo| {
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
    place.each_item(queue, &mut each)?;
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

/// Returns one line of a table whose later lines are not known yet.
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

fn discard(place: &Queues, queue: &str, id: Option<i64>, yes: bool, common: &Common) -> Result<u8> {
    place.check()?;
    let what = id.map_or("all dead items".into(), |id| format!("the dead item {id}"));
    if !yes && !is_sure(&format!("Delete {what} of {}?", printable(queue)), "discard")? {
        return Ok(nothing_was_done());
    }
    report("discarded", place.discard(queue, id)?, id, common)
}

/// Reports how many items were changed. One that was named and is not dead is a no.
fn report(what: &str, count: u64, id: Option<i64>, common: &Common) -> Result<u8> {
    match id {
        Some(id) if count == 0 => no(
            json!({ what: 0 }),
            &format!("item {id} is not dead, or another item has its key"),
            common,
        ),
        _ => {
            remark(common, json!({ what: count }), &format!("{what} {count}"))?;
            Ok(code::OK)
        }
    }
}

fn cancel(
    place: &Queues,
    queue: &str,
    id: Option<i64>,
    key: Option<&str>,
    common: &Common,
) -> Result<u8> {
    let name = match (id, key) {
        (Some(id), _) => ItemName::Id(id),
        (None, key) => ItemName::Key(key.unwrap_or_default()),
    };
    match place.cancel(queue, name)? {
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

fn delete(place: &Queues, queue: &str, yes: bool, common: &Common) -> Result<u8> {
    place.check()?;
    let name = printable(queue);
    if !yes && let Some(info) = place.info(queue)? {
        let question = format!("Delete {name} with {} items?", info.len());
        if !is_sure(&question, "delete it")? {
            return Ok(nothing_was_done());
        }
    }
    match place.delete(queue)? {
        true => {
            remark(common, json!({ "deleted": queue }), &format!("{name}: deleted"))?;
            Ok(code::OK)
        }
        false => no(json!({ "deleted": null }), &format!("{name}: there is no such queue"), common),
    }
}
