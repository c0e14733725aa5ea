//! `litelease status --shards`: the holder of each shard of a group.

use std::collections::BTreeMap;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use litelease::rusqlite::types::Value as Stored;
use litelease::{LeaseRow, Litelease, Status};
use serde_json::{Value, json};

use crate::Common;
use crate::commands::watch::shown;
use crate::database;
use crate::exit::{Failure, Result, code};
use crate::output::{lines, owner, printable, say, time_left};

/// A group as one snapshot shows it.
struct Group {
    members: Vec<Member>,
    shards: Vec<Shard>,
}

struct Member {
    id: String,
    owner: String,
    expires_at_ms: i64,
    shards: usize,
}

struct Shard {
    number: usize,
    /// Owner and expiry, if it is live.
    lease: Option<(String, i64)>,
    token: Option<i64>,
    /// The requester, and until when the owner may drain.
    request: Option<(String, i64)>,
    checkpoint: Option<Stored>,
}

/// Shows the live members of a group and every shard. The exit code is 1 if no member is live.
pub(super) fn show(group_name: &str, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let group = read(&db, group_name)?;
    let name = printable(group_name);
    if group.members.is_empty() && group.shards.is_empty() {
        let file = database::path(common)?;
        let text =
            format!("{name}: no such group in {}: the first Shards::join makes it", file.display());
        return Err(Failure::usage(text));
    }
    if common.json {
        say(&as_json(group_name, &group).to_string())?;
    } else {
        say(&as_text(&name, &group))?;
    }
    Ok(if group.members.is_empty() { code::NO } else { code::OK })
}

fn read(db: &Litelease, group: &str) -> Result<Group> {
    // One snapshot: a shard that moves meanwhile is shown once.
    let _snapshot = db.conn().unchecked_transaction().map_err(litelease::Error::from)?;
    let now_ms = litelease::now_ms();
    let live = |row: &LeaseRow| {
        let tenure = row.tenure.clone();
        tenure.filter(|_| row.status(now_ms) == Some(Status::Live))
    };
    let (mut members, mut count) = (Vec::new(), 0);
    let prefix = format!("{group}/member/");
    for listed in db.at(now_ms).leases_under(&prefix) {
        let listed = listed?;
        // One without a count is about to join, and has no shard yet.
        if let (Some((owner, expires_at_ms)), Some(Stored::Integer(shards))) =
            (live(&listed.lease), listed.value)
        {
            let id = listed.lease.name[prefix.len()..].to_owned();
            members.push(Member { id, owner, expires_at_ms, shards: 0 });
            count = count.max(usize::try_from(shards).unwrap_or(0).min(litelease::MAX_SHARDS));
        }
    }
    let mut rows = BTreeMap::new();
    let prefix = format!("{group}/shard/");
    for listed in db.at(now_ms).leases_under(&prefix) {
        let row = listed?.lease;
        if let Ok(number) = row.name[prefix.len()..].parse::<usize>() {
            rows.insert(number, row);
        }
    }
    // Shards that no live member has had yet have no row; rows of a larger count before count while
    // they are live.
    let numbers = rows.iter().filter(|(_, row)| live(row).is_some() || count == 0);
    let mut numbers: Vec<usize> = (0..count).chain(numbers.map(|(number, _)| *number)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut shards = Vec::with_capacity(numbers.len());
    for number in numbers {
        let name = format!("{prefix}{number}");
        let row = rows.get(&number);
        let request = db.at(now_ms).requested(&name)?.map(|open| (open.requester, open.until_ms));
        let checkpoint = db.last_checkpoint(&name)?.map(|checkpoint| checkpoint.value);
        let (lease, token) = (row.and_then(live), row.map(|row| row.token));
        shards.push(Shard { number, lease, token, request, checkpoint });
    }
    for member in &mut members {
        let is_its =
            |shard: &&Shard| shard.lease.as_ref().is_some_and(|(owner, _)| *owner == member.owner);
        member.shards = shards.iter().filter(is_its).count();
    }
    Ok(Group { members, shards })
}

impl Group {
    /// Returns the id of the member with this owner text, or the holder's own text.
    fn who(&self, text: &str) -> String {
        let member = self.members.iter().find(|member| member.owner == text);
        member.map_or_else(|| owner(text), |member| printable(&member.id))
    }

    fn id(&self, text: &str) -> Option<&str> {
        let member = self.members.iter().find(|member| member.owner == text);
        member.map(|member| &*member.id)
    }
}

fn as_text(name: &str, group: &Group) -> String {
    let mut members = Table::new();
    members.load_preset(NOTHING).set_header(["MEMBER", "SHARDS", "LEFT", "OWNER"]);
    for member in &group.members {
        let (id, left) = (printable(&member.id), time_left(member.expires_at_ms));
        members.add_row([id, member.shards.to_string(), left, owner(&member.owner)]);
    }
    let mut shards = Table::new();
    let header = ["SHARD", "MEMBER", "TOKEN", "LEFT", "REQUESTED BY", "CHECKPOINT"];
    shards.load_preset(NOTHING).set_header(header);
    for shard in &group.shards {
        let lease = shard.lease.as_ref();
        let request = shard.request.as_ref().map(|(who, until_ms)| {
            let left = time_left((*until_ms).max(litelease::now_ms()));
            format!("{}, {left} to drain", group.who(who))
        });
        shards.add_row([
            shard.number.to_string(),
            lease.map_or_else(|| "free".into(), |(owner, _)| group.who(owner)),
            shard.token.map(|token| token.to_string()).unwrap_or_default(),
            lease.map(|(_, expiry)| time_left(*expiry)).unwrap_or_default(),
            request.unwrap_or_default(),
            shard.checkpoint.as_ref().map(|value| printable(&shown(value))).unwrap_or_default(),
        ]);
    }
    let members = match group.members.is_empty() {
        true => format!("{name}: no member is live"),
        false => lines(&members),
    };
    format!("{members}\n\n{}", lines(&shards))
}

fn as_json(name: &str, group: &Group) -> Value {
    let now_ms = litelease::now_ms();
    let left = |expires_at_ms: i64| expires_at_ms.saturating_sub(now_ms).max(0);
    let member = |member: &Member| {
        json!({
            "id": member.id,
            "owner": member.owner,
            "shards": member.shards,
            "expires_at_ms": member.expires_at_ms,
            "remaining_ms": left(member.expires_at_ms),
        })
    };
    let shard = |shard: &Shard| {
        let (owner, expiry) = shard.lease.clone().unzip();
        let request = shard.request.as_ref().map(|(requester, until_ms)| {
            json!({ "member": group.id(requester), "requester": requester, "until_ms": until_ms })
        });
        json!({
            "shard": shard.number,
            "member": owner.as_deref().and_then(|owner| group.id(owner)),
            "owner": owner,
            "token": shard.token,
            "expires_at_ms": expiry,
            "remaining_ms": expiry.map_or(0, left),
            "request": request,
            "checkpoint": shard.checkpoint.as_ref().map(|value| match value {
                Stored::Integer(number) => json!(number),
                Stored::Real(number) => json!(number),
                Stored::Null => json!(null),
                value => json!(shown(value)),
            }),
        })
    };
    json!({
        "group": name,
        "members": group.members.iter().map(member).collect::<Vec<_>>(),
        "shards": group.shards.iter().map(shard).collect::<Vec<_>>(),
    })
}

/// Parses the name of a group.
pub(super) fn group(text: &str) -> std::result::Result<String, String> {
    match text.is_empty() || text.contains('/') {
        true => Err("give the name of the group alone, as in Shards::join: no slash".into()),
        false => Ok(text.into()),
    }
}
