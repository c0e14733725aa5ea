//! Judges for operators which names, queues and ticks are stuck or late, and why.
//!
//! A function of rows, history and time, with its thresholds as an argument. The page, `top`,
//! `doctor` and the metrics all ask it, so they agree.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The thresholds of [`judge_name`], [`judge_queue`] and [`judge_tick`].
///
/// ```
/// # use litelease_core::Thresholds;
/// assert_eq!(Thresholds::default().wait_ms, 600_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The longest wait for a live lease, unless the lease has a limit of its own.
    pub wait_ms: i64,
    /// The longest time for which a visible item may stay without any delivery of its queue.
    pub item_ms: i64,
    /// The longest time after its instant at which a tick may begin.
    pub tick_ms: i64,
    /// For how long the death of an item is news.
    pub death_ms: i64,
}

impl Default for Thresholds {
    fn default() -> Self {
        let minute = 60_000;
        Thresholds {
            wait_ms: 10 * minute,
            item_ms: 5 * minute,
            tick_ms: 10 * minute,
            death_ms: 60 * minute,
        }
    }
}

/// The state of a thing for operators, the worst one first.
///
/// ```
/// # use litelease_core::Health;
/// assert!(Health::Stuck < Health::Late);
/// assert_eq!(Health::Waiting.word(), "waiting");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// It does not end by itself, or nothing works on it.
    Stuck,
    /// It still works, and something is wrong.
    Late,
    /// An operator has paused it.
    Paused,
    /// Clients wait, for no longer than they may.
    Waiting,
    /// Nothing is wrong.
    Ok,
}

impl Health {
    /// Returns the word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Health::Stuck => "stuck",
            Health::Late => "late",
            Health::Paused => "paused",
            Health::Waiting => "waiting",
            Health::Ok => "ok",
        }
    }

    /// Checks whether an operator should look at it.
    pub fn needs_attention(self) -> bool {
        self < Health::Waiting
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The state of a thing, and the reason in a sentence; empty if nothing is wrong.
///
/// ```
/// # use litelease_core::{Health, Judgement};
/// assert_eq!(Judgement::default().health, Health::Ok);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The state.
    pub health: Health,
    /// The reason.
    pub why: String,
    /// Since when it has been so, as far as that is known.
    pub since_ms: Option<i64>,
}

impl Default for Judgement {
    fn default() -> Self {
        Judgement { health: Health::Ok, why: String::new(), since_ms: None }
    }
}

impl Judgement {
    fn new(health: Health, since_ms: impl Into<Option<i64>>, why: String) -> Self {
        Judgement { health, why, since_ms: since_ms.into() }
    }
}

/// How long the newest ended grants of a name were held.
///
/// ```
/// # use litelease_core::Usual;
/// let held = Usual::from_held(&mut [3_000, 1_000, 9_000]);
/// assert_eq!(held.map(|held| (held.median_ms, held.longest_ms)), Some((3_000, 9_000)));
/// assert_eq!(Usual::from_held(&mut []), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usual {
    /// How many grants there were.
    pub count: usize,
    /// The median.
    pub median_ms: i64,
    /// The longest.
    pub longest_ms: i64,
}

impl Usual {
    /// Of how many grants the median is taken.
    pub const NEWEST: usize = 50;

    /// Returns what is usual after grants that were held for so long.
    pub fn from_held(held_ms: &mut [i64]) -> Option<Self> {
        held_ms.sort_unstable();
        let median_ms = *held_ms.get(held_ms.len() / 2)?;
        Some(Usual { count: held_ms.len(), median_ms, longest_ms: *held_ms.last()? })
    }
}

/// A live lease, as far as its judgement needs it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NameFacts {
    /// When the grant began.
    pub since_ms: Option<i64>,
    /// When it was last renewed, or granted, if its holder renews it.
    pub renewed_at_ms: Option<i64>,
    /// When it ends unless it is renewed.
    pub expires_at_ms: i64,
    /// How many clients wait, and since when the first of them has waited.
    pub waiters: usize,
    /// Since when the longest wait has lasted.
    pub waits_since_ms: Option<i64>,
    /// The holder has passed one of its limits.
    pub has_passed_limit: bool,
    /// How long its limits let the lease be held.
    pub max_time_ms: Option<i64>,
    /// Its process has ended.
    pub is_process_gone: bool,
    /// How long grants of the name are usually held, if history knows it.
    pub usual: Option<Usual>,
}

/// Judges a live lease.
///
/// ```
/// # use litelease_core::{Health, NameFacts, Thresholds, judge_name};
/// let held = NameFacts { expires_at_ms: 30_000, renewed_at_ms: Some(0), ..NameFacts::default() };
/// let judge = |now_ms| judge_name(&held, &Thresholds::default(), now_ms).health;
/// assert_eq!((judge(20_000), judge(20_001)), (Health::Ok, Health::Late));
/// ```
pub fn judge_name(facts: &NameFacts, most: &Thresholds, now_ms: i64) -> Judgement {
    let held = facts.since_ms.map(|since_ms| elapsed(since_ms, now_ms));
    let left_ms = facts.expires_at_ms.saturating_sub(now_ms);
    let wait_ms = facts.max_time_ms.unwrap_or(most.wait_ms);
    if facts.has_passed_limit {
        let why = format!(
            "Its holder has passed a limit, so it is renewed no more; it ends in {}.",
            spoken(left_ms)
        );
        return Judgement::new(Health::Stuck, facts.since_ms, why);
    }
    let waited = facts.waits_since_ms.filter(|since_ms| now_ms.saturating_sub(*since_ms) > wait_ms);
    if waited.is_some() && !facts.is_process_gone {
        let mut why = held.map_or_else(String::new, |held| format!("Held {held}"));
        if let Some(Usual { count, median_ms, longest_ms }) = facts.usual {
            let (usual, most) = (spoken(median_ms), spoken(longest_ms));
            why += &format!("; the last {count} took {usual}, at most {most}");
        }
        why += &match facts.renewed_at_ms {
            Some(_) => ". It is renewed, so it will not end by itself.".to_owned(),
            None => format!(". It ends by itself in {}.", spoken(left_ms)),
        };
        return Judgement::new(Health::Stuck, facts.since_ms, why);
    }
    if facts.is_process_gone {
        let why = format!(
            "Its process is gone. The lease lasts {} more unless you break it.",
            spoken(left_ms)
        );
        return Judgement::new(Health::Late, facts.since_ms, why);
    }
    let whole_ms = facts.renewed_at_ms.map(|at_ms| facts.expires_at_ms.saturating_sub(at_ms));
    if let Some(whole_ms) = whole_ms.filter(|whole_ms| left_ms < whole_ms / 3) {
        let why = format!(
            "Renewed late: {} left of {}. Its holder or the way to it is slow.",
            spoken(left_ms),
            spoken(whole_ms)
        );
        return Judgement::new(Health::Late, facts.expires_at_ms - whole_ms / 3, why);
    }
    match facts.waiters {
        0 => Judgement::default(),
        _ => Judgement::new(Health::Waiting, facts.waits_since_ms, String::new()),
    }
}

/// A queue, as far as its judgement needs it.
#[derive(Clone, Debug, Default)]
pub struct QueueFacts {
    /// How many items are visible, and since when the oldest of them.
    pub visible: i64,
    /// Since when the oldest visible item has been visible.
    pub oldest_since_ms: Option<i64>,
    /// When an item was last delivered, if that is known.
    pub delivered_at_ms: Option<i64>,
    /// How many items workers have.
    pub leased: i64,
    /// The pause, if an operator has paused it.
    pub paused: Option<Pause>,
    /// How many items have died within the threshold, since when, and their note if all have one.
    pub died: i64,
    /// When the first of these died.
    pub died_since_ms: Option<i64>,
    /// Their note, if all have the same.
    pub died_note: Option<String>,
}

/// A pause of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The name of the access key, or the user.
    pub by: Option<String>,
    /// Since when.
    pub since_ms: i64,
    /// The reason that was given.
    pub reason: Option<String>,
}

/// Judges a queue.
///
/// ```
/// # use litelease_core::{Health, QueueFacts, Thresholds, judge_queue};
/// let facts = QueueFacts { visible: 3, oldest_since_ms: Some(0), ..QueueFacts::default() };
/// let judge = |now_ms| judge_queue(&facts, &Thresholds::default(), now_ms).health;
/// assert_eq!((judge(300_000), judge(300_001)), (Health::Ok, Health::Stuck));
/// ```
pub fn judge_queue(facts: &QueueFacts, most: &Thresholds, now_ms: i64) -> Judgement {
    let visible = grouped(facts.visible);
    if let Some(Pause { by, since_ms, reason }) = &facts.paused {
        let by = by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let reason = reason.as_ref().map(|reason| format!(": “{reason}”")).unwrap_or_default();
        let why = format!("Paused{by}{reason}. {visible} are visible.");
        return Judgement::new(Health::Paused, *since_ms, why);
    }
    // A delivery since then shows that a worker is there, and behind.
    let quiet_since = facts.oldest_since_ms.max(facts.delivered_at_ms);
    let quiet_since = quiet_since.filter(|_| facts.visible > 0 && facts.leased == 0);
    if let Some(since_ms) = quiet_since.filter(|at_ms| now_ms.saturating_sub(*at_ms) > most.item_ms)
    {
        let are = if facts.visible == 1 { "1 is".to_owned() } else { format!("{visible} are") };
        let quiet = elapsed(since_ms, now_ms);
        let why = match facts.delivered_at_ms {
            Some(_) => format!("Nobody has received for {quiet}, and {are} visible."),
            None => format!("No worker has an item, the oldest is {quiet} old, and {are} visible."),
        };
        return Judgement::new(Health::Stuck, since_ms, why);
    }
    match (facts.died, &facts.died_note) {
        (0, _) => Judgement::default(),
        (died, note) => {
            let note = match note {
                Some(note) if died == 1 => format!(": “{note}”"),
                Some(note) => format!(" with the same note: “{note}”"),
                None => String::new(),
            };
            let within = spoken(most.death_ms);
            let why = format!("{} died in the last {within}{note}.", grouped(died));
            Judgement::new(Health::Late, facts.died_since_ms, why)
        }
    }
}

/// A schedule, as far as its judgement needs it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TickFacts {
    /// The newest tick that was begun or skipped.
    pub newest_ms: i64,
    /// When its newest grant began, if it was granted.
    pub began_ms: Option<i64>,
    /// It is the first attempt of the tick.
    pub is_first_attempt: bool,
    /// A holder is at work on it.
    pub is_running: bool,
    /// It has failed, or is open with no holder.
    pub has_failed: bool,
    /// The oldest tick after it that is planned.
    pub next_ms: Option<i64>,
}

/// Judges a schedule.
///
/// ```
/// # use litelease_core::{Health, TickFacts, Thresholds, judge_tick};
/// let facts = TickFacts { next_ms: Some(0), ..TickFacts::default() };
/// let judge = |now_ms| judge_tick(&facts, &Thresholds::default(), now_ms).health;
/// assert_eq!((judge(600_000), judge(600_001)), (Health::Ok, Health::Stuck));
/// ```
pub fn judge_tick(facts: &TickFacts, most: &Thresholds, now_ms: i64) -> Judgement {
    let due = facts.next_ms.filter(|due_ms| now_ms.saturating_sub(*due_ms) > most.tick_ms);
    // The one under way is what keeps the next one waiting, and is judged as a name.
    if let Some(due_ms) = due.filter(|_| !facts.is_running) {
        let why = format!("Due {} ago, not begun.", elapsed(due_ms, now_ms));
        return Judgement::new(Health::Stuck, due_ms, why);
    }
    if facts.has_failed {
        let why = "The newest tick has failed, or its holder has ended.".to_owned();
        return Judgement::new(Health::Late, facts.began_ms, why);
    }
    let began = facts.began_ms.filter(|_| facts.is_first_attempt);
    match began.map(|began_ms| (began_ms, began_ms.saturating_sub(facts.newest_ms))) {
        Some((began_ms, late_ms)) if late_ms > most.tick_ms => {
            let why = format!("The newest tick began {} late.", spoken(late_ms));
            Judgement::new(Health::Late, began_ms, why)
        }
        _ => Judgement::default(),
    }
}

/// Returns the time since an instant in words.
fn elapsed(since_ms: i64, now_ms: i64) -> String {
    spoken(now_ms.saturating_sub(since_ms))
}

/// Returns a time in one or two words: `12 s`, `41 min`, `7 h 42`, `3 d 4 h`.
///
/// ```
/// # use litelease_core::spoken;
/// assert_eq!(spoken(27_720_000), "7 h 42");
/// ```
pub fn spoken(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, 1..=9, _) if minutes % 60 > 0 => format!("{hours} h {:02}", minutes % 60),
        (0, ..) => format!("{hours} h"),
        (1..=9, ..) if hours % 24 > 0 => format!("{days} d {} h", hours % 24),
        _ => format!("{days} d"),
    }
}

/// Returns a number with its thousands apart.
///
/// ```
/// # use litelease_core::grouped;
/// assert_eq!((grouped(204), grouped(1_204_000)), ("204".into(), "1,204,000".into()));
/// ```
pub fn grouped(number: i64) -> String {
    let digits = format!("{}", number.unsigned_abs());
    let mut text = if number < 0 { String::from("-") } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MINUTE: i64 = 60_000;

    #[test]
    fn a_live_lease_is_judged_by_the_first_case_that_holds() {
        let most = Thresholds::default();
        let now_ms = 100 * MINUTE;
        // Renewed ten seconds ago, for thirty.
        let plain = NameFacts {
            since_ms: Some(now_ms - 41 * MINUTE),
            renewed_at_ms: Some(now_ms - 10_000),
            expires_at_ms: now_ms + 20_000,
            ..NameFacts::default()
        };
        let waiting = |minutes| NameFacts {
            waiters: 1,
            waits_since_ms: Some(now_ms - minutes * MINUTE),
            ..plain
        };
        let usual = Some(Usual { count: 50, median_ms: 2 * MINUTE, longest_ms: 6 * MINUTE });
        let late = NameFacts { expires_at_ms: now_ms + 4_998, ..plain };
        for (facts, health, why) in [
            (plain, Health::Ok, ""),
            (waiting(10), Health::Waiting, ""),
            (
                NameFacts { usual, ..waiting(11) },
                Health::Stuck,
                "Held 41 min; the last 50 took 2 min, at most 6 min. It is renewed, so it will \
                 not end by itself.",
            ),
            // The limit of the lease itself comes before the usual one.
            (
                NameFacts { max_time_ms: Some(MINUTE), ..waiting(2) },
                Health::Stuck,
                "Held 41 min. It is renewed, so it will not end by itself.",
            ),
            (NameFacts { max_time_ms: Some(60 * MINUTE), ..waiting(11) }, Health::Waiting, ""),
            (
                NameFacts { renewed_at_ms: None, ..waiting(11) },
                Health::Stuck,
                "Held 41 min. It ends by itself in 20 s.",
            ),
            (
                NameFacts { has_passed_limit: true, ..plain },
                Health::Stuck,
                "Its holder has passed a limit, so it is renewed no more; it ends in 20 s.",
            ),
            // It ends by itself, so it is not stuck, however long clients wait.
            (
                NameFacts { is_process_gone: true, ..waiting(11) },
                Health::Late,
                "Its process is gone. The lease lasts 20 s more unless you break it.",
            ),
            (
                late,
                Health::Late,
                "Renewed late: 4 s left of 14 s. Its holder or the way to it is slow.",
            ),
            (NameFacts { renewed_at_ms: None, ..late }, Health::Ok, ""),
        ] {
            let found = judge_name(&facts, &most, now_ms);
            assert_eq!((found.health, found.why.as_str()), (health, why), "{facts:?}");
        }
    }

    #[test]
    fn a_queue_is_judged_by_its_pause_then_its_age_then_its_deaths() {
        let most = Thresholds::default();
        let now_ms = 100 * MINUTE;
        let aged = |minutes: i64| QueueFacts {
            visible: 1204,
            oldest_since_ms: Some(now_ms - minutes * MINUTE),
            ..QueueFacts::default()
        };
        let (by, reason) = (Some("key on-call".into()), Some("provider down".into()));
        let paused = Some(Pause { by, since_ms: now_ms - 90 * MINUTE, reason });
        let dying = QueueFacts { died: 41, died_note: Some("exit 137".into()), ..aged(1) };
        for (facts, health, why) in [
            (aged(5), Health::Ok, ""),
            (
                aged(18),
                Health::Stuck,
                "No worker has an item, the oldest is 18 min old, and 1,204 are visible.",
            ),
            // A worker is behind, or at work.
            (QueueFacts { delivered_at_ms: Some(now_ms - MINUTE), ..aged(18) }, Health::Ok, ""),
            (QueueFacts { leased: 1, ..aged(18) }, Health::Ok, ""),
            (
                QueueFacts { paused, ..aged(18) },
                Health::Paused,
                "Paused by key on-call: “provider down”. 1,204 are visible.",
            ),
            (
                dying.clone(),
                Health::Late,
                "41 died in the last 1 h with the same note: “exit 137”.",
            ),
            (
                QueueFacts { died: 1, ..dying.clone() },
                Health::Late,
                "1 died in the last 1 h: “exit 137”.",
            ),
            (QueueFacts { died_note: None, ..dying }, Health::Late, "41 died in the last 1 h."),
        ] {
            let found = judge_queue(&facts, &most, now_ms);
            assert_eq!((found.health, found.why.as_str()), (health, why), "{facts:?}");
        }
    }

    #[test]
    fn a_schedule_is_stuck_when_its_next_tick_is_not_begun() {
        let most = Thresholds::default();
        let (newest_ms, next_ms) = (0, 60 * MINUTE);
        let done = TickFacts {
            newest_ms,
            began_ms: Some(MINUTE),
            is_first_attempt: true,
            next_ms: Some(next_ms),
            ..TickFacts::default()
        };
        for (facts, now_ms, health) in [
            (done, 70 * MINUTE, Health::Ok),
            (done, 71 * MINUTE, Health::Stuck),
            // The one before is still running.
            (TickFacts { is_running: true, ..done }, 71 * MINUTE, Health::Ok),
            (TickFacts { has_failed: true, ..done }, 2 * MINUTE, Health::Late),
            (TickFacts { began_ms: Some(11 * MINUTE), ..done }, 20 * MINUTE, Health::Late),
            // A second attempt begins when the first has died, which is not the clock's fault.
            (
                TickFacts { began_ms: Some(11 * MINUTE), is_first_attempt: false, ..done },
                20 * MINUTE,
                Health::Ok,
            ),
            (TickFacts { next_ms: None, ..done }, 600 * MINUTE, Health::Ok),
        ] {
            assert_eq!(judge_tick(&facts, &most, now_ms).health, health, "{facts:?} at {now_ms}");
        }
    }

    #[test]
    fn times_are_spoken_in_at_most_two_words() {
        let hour = 60 * MINUTE;
        let times = [-1, 999, 59_999, MINUTE, hour - 1, hour, 90 * MINUTE, 10 * hour + MINUTE];
        let spoken_times: Vec<String> = times.into_iter().map(spoken).collect();
        let words = ["0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "1 h 30", "10 h"];
        assert_eq!(spoken_times, words);
        assert_eq!((spoken(76 * hour), spoken(240 * hour)), ("3 d 4 h".into(), "10 d".into()));
        assert_eq!(grouped(-1000), "-1,000");
    }
}
