//! `litelease pools`: all pools, by label.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};

use crate::Common;
use crate::exit::{Result, code};
use crate::output::{lines, owner, printable, remark, say, slots};
use crate::target::{ListedPool, Target};

/// List the pools of slots: how many are in use, by whom, and who waits
///
/// The label of a pool is its name. A pool without one is known by four characters of a hash: its
/// UUID is a secret, which this command does not show. WAITING is known at a server only.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease pools --server https://lease.example")]
pub(crate) struct Args {}

pub(crate) fn execute(_: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    let pools = place.all_pools()?;
    if common.json {
        say(&pools.iter().map(entry).collect::<Value>().to_string())?;
    } else if pools.is_empty() {
        remark(common, Value::Null, &format!("there is no pool in {}", place.shown()))?;
    } else {
        say(&table(&pools))?;
    }
    Ok(code::OK)
}

fn entry(pool: &ListedPool) -> Value {
    let waiters = pool.waiters.as_ref();
    json!({
        "label": pool.label,
        "count": pool.info.count,
        "in_use": pool.info.in_use,
        "available": pool.info.available(),
        "slots": slots(&pool.held),
        "waiters": waiters.map(|(count, _)| count),
        "waiting": waiters.map(|(_, notes)| notes),
    })
}

fn table(pools: &[ListedPool]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["POOL", "SLOTS", "IN USE", "WAITING", "HOLDERS"]);
    for pool in pools {
        let holders = pool.held.iter().map(|row| owner(row.note.as_deref().unwrap_or("-")));
        let waiting = pool.waiters.as_ref().map_or("-".into(), |(count, _)| count.to_string());
        table.add_row([
            printable(&pool.label),
            pool.info.count.to_string(),
            pool.info.in_use.to_string(),
            waiting,
            holders.collect::<Vec<_>>().join(", "),
        ]);
    }
    lines(&table)
}
