//! What a lease costs from Python, next to a plain UPDATE and to another tracker.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::figure::{Reach, Rounds};
use crate::results::{Note, root};
use crate::rows::Outcome;

/// B15, and the other tracker if it is there.
pub(crate) fn outcome(folder: &Path) -> Result<Outcome> {
    // The system's python3 can load extensions; others may not.
    let mut python = Command::new("/usr/bin/python3");
    python.args(["bench/python_cost.py", "target/release/liblitelease_ext"]);
    let ratios: Vec<f64> = printed(&mut python)?;
    let detail = format!("CPU time, in memory, {} rounds", ratios.len());
    let what = "from Python through the extension ÷ plain UPDATE";
    let figure = Rounds::new(ratios)?.figure("B15", what, Reach::AtMost(1.7), detail);
    let mut python = Command::new("target/python/system/bin/python");
    python.arg("bench/python_methods.py").arg(folder);
    let [own, hosted]: [Vec<f64>; 2] = printed(&mut python)?;
    let hosted = Rounds::new(hosted)?;
    let detail =
        format!("CPU time, WAL NORMAL; on a connection of the caller's {:.2}", hosted.median());
    let what = "the methods on an opened file ÷ plain UPDATE";
    let methods = Rounds::new(own)?.figure("B15", what, Reach::AtMost(2.0), detail);
    let notes = vec![trackers(folder)?];
    Ok(Outcome { figures: vec![figure, methods], notes, ..Outcome::default() })
}

/// Our `Tracker` next to that of sayt2: the same calls on a file of its own, in turns.
fn trackers(folder: &Path) -> Result<Note> {
    let what = "Tracker in Python next to sayt2's".to_owned();
    let mut python = Command::new("target/python/system/bin/python");
    python.arg("bench/trackers.py").arg(folder);
    let [ours, theirs]: [Vec<f64>; 2] = match printed(&mut python) {
        Ok(times) => times,
        Err(error) => return Ok(Note { what, text: format!("SKIPPED: {error}") }),
    };
    let ratio = Rounds::ratios(&ours, &theirs)?;
    let ([ours, theirs], [low, high]) = ([Rounds::new(ours)?, Rounds::new(theirs)?], ratio.range());
    let text = format!(
        "lock + unlock takes {:.0} µs of CPU, theirs {:.0} µs, so {:.2} times that ({low:.2} … {high:.2})",
        ours.median(),
        theirs.median(),
        ratio.median(),
    );
    Ok(Note { what, text })
}

/// What a script printed, as JSON.
fn printed<T: serde::de::DeserializeOwned>(script: &mut Command) -> Result<T> {
    let output = script.current_dir(root()).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(errors.lines().last().unwrap_or("it ended with an error").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
