//! Shard: a group of processes shares partitions. `cargo run --example recipe_shard`

use std::time::Duration;

use litelease::rusqlite::types::Value;
use litelease::{HoldError, Litelease, ShardEvent, Shards, ShardsOptions};

fn main() -> Result<(), HoldError> {
    let db = Litelease::open_own("app.sqlite3")?;
    let me = format!("worker-{}", std::process::id());
    let options = ShardsOptions::new(&me, Duration::from_secs(10)).drain(Duration::from_secs(30));
    let shards = Shards::join(&db, "orders", 4, options)?;

    let mut assigned = 0;
    while assigned < 4 {
        // a service loops for ever
        match shards.next(Duration::from_secs(60))? {
            Some(ShardEvent::Assigned { shard, token, checkpoint }) => {
                // Start where the last owner stopped, in whichever process.
                let row = match checkpoint.map(|last| last.value) {
                    Some(Value::Integer(row)) => row,
                    _ => 0,
                };
                println!("shard {shard} from row {row}, under token {token}");
                // The work: its targets compare the token. Then how far it is; a zombie is refused.
                shards.checkpoint(shard, row + 100)?;
                assigned += 1;
            }
            // Finish what is under way, store the last checkpoint, and hand over: no overlap.
            Some(ShardEvent::Requested { shard, .. }) => _ = shards.hand_over(shard)?,
            Some(ShardEvent::Lost { shard, reason }) => println!("stop {shard}: {reason}"),
            _ => {}
        }
    }
    shards.leave()?; // everything in one commit
    Ok(())
}
