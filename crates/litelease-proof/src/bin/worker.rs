//! A process that uses leases, for tests that need real ones: to race, to kill, to restart.
//!
//! ```text
//! worker claim FILE NAME OWNER TTL_MS     claims once
//! worker inspect FILE NAME                tells who has it
//! worker cycle FILE NAME OWNER ROUNDS TTL_MS
//!                                         claims and releases, telling each token once it is granted
//! worker wait-cycle FILE NAME OWNER ROUNDS
//!                                         waits for the name and releases it, telling each token
//! worker lock-it FILE NAME                locks a name with a Tracker once
//! worker hold-lock FILE                   holds the write lock until its input ends
//! ```

use std::io::{Read, Write};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use litelease::{ClaimResult, HoldError, Litelease, ReleaseResult, Tracker};
use litelease_proof::play::ToText;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker {words:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    match words {
        ["claim", file, name, owner, ttl_ms] => {
            let db = open(file)?;
            tell(&db.claim(name, owner, Duration::from_millis(ttl_ms.parse()?))?.to_text())
        }
        ["inspect", file, name] => match open(file)?.inspect(name)? {
            Some(lease) => tell(&format!("held {} {}", lease.owner, lease.token)),
            None => tell("none"),
        },
        ["cycle", file, name, owner, rounds, ttl_ms] => {
            cycle(file, name, owner, rounds.parse()?, Duration::from_millis(ttl_ms.parse()?))
        }
        ["wait-cycle", file, name, owner, rounds] => {
            let db = open(file)?;
            for _ in 0..rounds.parse()? {
                let claimed = db.claim_wait(name, owner, Duration::from_secs(60), Duration::MAX)?;
                let lease = claimed.acquired().ok_or("waited for ever and got nothing")?;
                tell(&lease.token.to_string())?;
                db.release_exact(&lease)?;
            }
            Ok(())
        }
        ["lock-it", file, name] => match Tracker::new(file)?.lock_it(name, Tracker::EXPIRE) {
            Ok(token) => tell(&format!("won {token}")),
            Err(HoldError::TrackerIsLocked { owner, .. }) => tell(&format!("lost to {owner}")),
            Err(error) => Err(error.into()),
        },
        ["hold-lock", file] => {
            let mut db = open(file)?;
            let tx = db.transaction()?;
            tell("locked")?;
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Ok(tx.rollback()?)
        }
        _ => Err("unknown words".into()),
    }
}

fn cycle(
    file: &str,
    name: &str,
    owner: &str,
    rounds: u32,
    ttl: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let db = open(file)?;
    let mut granted = 0;
    while granted < rounds {
        match db.claim(name, owner, ttl) {
            // The machine was busy for longer than the ttl: stored, but not ours, and not told.
            Err(litelease::Error::ExpiredOnArrival(_)) => {}
            Err(error) => return Err(error.into()),
            Ok(ClaimResult::Busy(_)) => sleep(Duration::from_micros(200)),
            Ok(ClaimResult::Acquired(lease)) => {
                granted += 1;
                tell(&lease.token.to_string())?;
                match db.release_exact(&lease)? {
                    ReleaseResult::Released { .. } => {}
                    // Somebody may have been stopped for longer than the ttl.
                    ReleaseResult::Rejected { reason, .. } => eprintln!("not released: {reason}"),
                }
            }
        }
    }
    Ok(())
}

fn open(file: &str) -> litelease::Result<Litelease> {
    let db = Litelease::open(file)?;
    db.conn().busy_timeout(Duration::from_secs(60))?;
    db.bootstrap()?;
    Ok(db)
}

/// Writes a line that is out before anything else happens.
fn tell(line: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
