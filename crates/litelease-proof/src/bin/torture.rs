//! All long proofs, within a time budget and with a seed that is printed, in one table.
//!
//! ```text
//! torture MINUTES [PROOF…]
//! ```

use std::process::ExitCode;

use litelease_proof::rig::now_ms;
use litelease_proof::torture::{PROOFS, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let minutes = arguments.first().and_then(|word| word.parse::<f64>().ok());
    let are_known = names.iter().all(|name| PROOFS.iter().any(|proof| proof.name == *name));
    let (Some(minutes @ 0.0..=100_000.0), true) = (minutes, are_known) else {
        let known: Vec<&str> = PROOFS.iter().map(|proof| proof.name).collect();
        eprintln!("usage: torture MINUTES [PROOF…]\nproofs: {}", known.join(", "));
        return ExitCode::from(2);
    };
    let given = std::env::var("LITELEASE_SEED").ok().and_then(|seed| seed.parse().ok());
    match run(minutes, given.unwrap_or_else(|| now_ms().unsigned_abs()), &names) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
