//! Shows at a terminal the state of the queue and the speed of the work.

use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use litelease::{QueueInfo, WorkerCounts};
use serde_json::json;

use crate::Common;
use crate::duration::shown;
use crate::exit::Result;
use crate::output::{complain, printable, say};
use crate::target::queues::{Queues, Worker};

/// The least time between two lines.
const PAUSE: Duration = Duration::from_secs(3);

/// Prints a line now and then if standard error is a terminal and `--quiet` was not given. The
/// thread is not joined: the terminal may be stopped.
pub(super) fn start(common: &Common, place: Queues, queue: &str, worker: Worker) {
    if !is_wanted(common) {
        return;
    }
    let queue = queue.to_owned();
    let print = move || print_lines(&place, &queue, &worker);
    let _ = thread::Builder::new().name("progress".into()).spawn(print);
}

/// Prints the counts of the whole run.
pub(super) fn sum_up(common: &Common, queue: &str, counts: WorkerCounts) -> Result<()> {
    let WorkerCounts { done, given_back, buried, lost, .. } = counts;
    if common.json {
        let value =
            json!({ "done": done, "given_back": given_back, "buried": buried, "lost": lost });
        return say(&value.to_string());
    }
    if is_wanted(common) {
        complain(&format!("litelease: {}: {}", printable(queue), in_words(counts)));
    }
    Ok(())
}

fn is_wanted(common: &Common) -> bool {
    !common.quiet && !common.json && std::io::stderr().is_terminal()
}

fn print_lines(place: &Queues, queue: &str, worker: &Worker) {
    let (mut last, mut last_read, mut reported) = (WorkerCounts::default(), Instant::now(), None);
    let mut pause = PAUSE;
    loop {
        thread::sleep(pause);
        let begin = Instant::now();
        // A queue that cannot be read now may be readable later, or the key may not allow it.
        let info = place.info(queue).ok().flatten().unwrap_or_default();
        // Counting a long queue takes time, of which it may have a twentieth.
        pause = PAUSE.max(begin.elapsed() * 20);
        let counts = worker.counts();
        let rate = (counts.done - last.done) as f64 / last_read.elapsed().as_secs_f64();
        (last, last_read) = (counts, Instant::now());
        let key = (counts, info.visible, info.delayed, info.dead);
        if reported != Some(key) {
            reported = Some(key);
            let (queue, stand) = (printable(queue), stand(&info));
            let counts = in_words(counts);
            complain(&format!("litelease: {queue}: {stand}; {counts}; {rate:.1} per second"));
        }
    }
}

fn stand(info: &QueueInfo) -> String {
    let oldest = info.oldest_ms.map_or_else(String::new, |ms| format!(" (for {})", shown(ms)));
    let QueueInfo { visible, delayed, leased, dead, .. } = info;
    format!("{visible} visible{oldest}, {delayed} delayed, {leased} leased, {dead} dead")
}

fn in_words(counts: WorkerCounts) -> String {
    let WorkerCounts { running, done, given_back, buried, lost, .. } = counts;
    let running = if running == 0 { String::new() } else { format!("{running} running, ") };
    format!("{running}{done} done, {given_back} given back, {buried} buried, {lost} lost")
}
