//! The verbs on ticks in scenario files, and how each player does them.

use std::collections::BTreeMap;

use litelease_core::{
    ClaimTickResult, DEFAULT_TICK_ATTEMPTS, FinishTickResult, Lease, NewestTick, Refusal, Row,
    State, Term, Tick, TickChange, TickOutcome, TickRequest, TickResult, forget_tick,
};

use crate::mutant::Rules;
use crate::play::{ToText, grant};
use crate::scenario::{Reader, shown};

/// A step on ticks.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum TickAction {
    Claim { name: String, owner: String, tick_ms: i64, ttl_ms: i64, attempts: i64 },
    Tick { name: String, tick_ms: i64 },
    Finish { name: String, token: i64, outcome: TickOutcome },
    Skip { name: String, until_ms: Option<i64>, breaks: bool },
    Again { name: String },
    Forget { name: String },
    Ticks { name: String },
}

/// Reads the rest of a claim of a tick.
pub(crate) fn parse_claim(
    name: String,
    owner: String,
    reader: &mut Reader<'_>,
) -> Result<TickAction, String> {
    Ok(TickAction::Claim {
        name,
        owner,
        tick_ms: reader.number()?,
        ttl_ms: reader.labelled("ttl")?,
        attempts: reader.option("attempts")?.unwrap_or(DEFAULT_TICK_ATTEMPTS),
    })
}

/// Reads any other verb on ticks; `None` if it is none.
pub(crate) fn parse(verb: &str, reader: &mut Reader<'_>) -> Result<Option<TickAction>, String> {
    use TickAction::*;
    Ok(Some(match verb {
        "tick" => Tick { name: reader.text()?, tick_ms: reader.number()? },
        "finish" => Finish {
            name: reader.text()?,
            token: reader.labelled("token")?,
            outcome: match (reader.takes("done"), reader.takes("failed")) {
                (true, _) => TickOutcome::Done,
                (_, true) => TickOutcome::Failed,
                _ => return Err("`done` or `failed` is missing".into()),
            },
        },
        "skip" => Skip {
            name: reader.text()?,
            until_ms: reader.option("until")?,
            breaks: reader.takes("break"),
        },
        "again" => Again { name: reader.text()? },
        "forget" => Forget { name: reader.text()? },
        "ticks" => Ticks { name: reader.text()? },
        _ => return Ok(None),
    }))
}

impl TickAction {
    /// The name that the step is about.
    pub fn name(&self) -> &str {
        use TickAction::*;
        match self {
            Claim { name, .. } | Tick { name, .. } | Finish { name, .. } => name,
            Skip { name, .. } | Again { name } | Forget { name } | Ticks { name } => name,
        }
    }
}

/// Does a step by the rule, on the rows of one name. Answers the lease to store, and the text.
pub(crate) fn by_rule<'a>(
    rules: &impl Rules,
    ticks: &mut BTreeMap<String, Tick>,
    row: Row<'a>,
    floor: i64,
    now_ms: i64,
    action: &'a TickAction,
) -> Result<(Option<State<'a>>, String), Refusal> {
    let stored = ticks.get(row.name()).copied();
    let (lease, tick, text) = match action {
        TickAction::Claim { owner, tick_ms, ttl_ms, attempts, .. } => {
            let asked = TickRequest { tick_ms: *tick_ms, attempts: *attempts };
            let term = Term::new(*ttl_ms, now_ms)?;
            let step = rules.claim_tick(row, stored, owner, asked, term, floor, None)?;
            (step.lease, step.tick, step.answer.to_text())
        }
        TickAction::Tick { tick_ms, .. } => {
            let step = rules.tick(row, stored, *tick_ms, now_ms)?;
            (step.lease, step.tick, step.answer.to_text())
        }
        TickAction::Finish { token, outcome, .. } => {
            let step = rules.finish_tick(row, stored, *token, *outcome, now_ms);
            (step.lease, step.tick, step.answer.to_text())
        }
        TickAction::Skip { until_ms, breaks, .. } => {
            let step = rules.skip(row, stored, *until_ms, *breaks, now_ms, floor)?;
            (step.lease, step.tick, step.answer.to_text())
        }
        TickAction::Again { .. } => {
            let step = rules.again(row, stored, now_ms)?;
            (step.lease, step.tick, step.answer.to_text())
        }
        TickAction::Forget { .. } => {
            let answer = forget_tick(row, stored, now_ms);
            if matches!(answer, TickChange::Changed(_)) {
                ticks.remove(row.name());
                return Ok((None, "forgotten".into()));
            }
            (None, None, answer.to_text())
        }
        TickAction::Ticks { .. } => (None, None, told(stored)),
    };
    if let Some(tick) = tick {
        ticks.insert(row.name().into(), tick);
    }
    Ok((lease, text))
}

impl ToText for NewestTick {
    fn to_text(&self) -> String {
        format!("{} {}", self.tick_ms, self.state)
    }
}

impl<S: AsRef<str>> ToText for ClaimTickResult<S> {
    fn to_text(&self) -> String {
        match self {
            ClaimTickResult::Acquired { lease, attempt, previous_ms, .. } => {
                let previous = previous(*previous_ms);
                format!("acquired {} attempt {attempt}{previous}", grant(lease))
            }
            ClaimTickResult::Busy { current, tick_ms } => {
                let runs = tick_ms.map_or(String::new(), |tick_ms| format!(" runs {tick_ms}"));
                format!("{}{runs}", busy(current))
            }
            ClaimTickResult::AlreadyTaken(newest) => format!("taken {}", newest.to_text()),
            ClaimTickResult::InFuture { .. } => "in future".into(),
        }
    }
}

impl ToText for TickResult {
    fn to_text(&self) -> String {
        match self {
            TickResult::First => "first".into(),
            TickResult::AlreadyTaken(newest) => format!("taken {}", newest.to_text()),
            TickResult::InFuture { .. } => "in future".into(),
        }
    }
}

impl ToText for FinishTickResult {
    fn to_text(&self) -> String {
        match self {
            FinishTickResult::Finished => "finished".into(),
            FinishTickResult::Repeated => "finished before".into(),
            FinishTickResult::Stale { .. } => "error StaleTick".into(),
        }
    }
}

impl<S: AsRef<str>> ToText for TickChange<S> {
    fn to_text(&self) -> String {
        match self {
            TickChange::Changed(newest) => format!("newest {}", newest.to_text()),
            TickChange::Busy(current) => busy(current),
            TickChange::Unknown => "none".into(),
        }
    }
}

/// The tick of a name in the words of scenario files.
pub(crate) fn told(tick: Option<Tick>) -> String {
    tick.map_or("none".into(), |tick| {
        let Tick { attempt, attempts, .. } = tick;
        let previous = previous(tick.newest_done_ms());
        format!("tick {} attempt {attempt} of {attempts}{previous}", tick.newest().to_text())
    })
}

fn busy<S: AsRef<str>>(current: &Lease<S>) -> String {
    format!("busy {} {}", shown(current.owner.as_ref()), grant(current))
}

fn previous(previous_ms: Option<i64>) -> String {
    previous_ms.map_or(String::new(), |previous_ms| format!(" previous {previous_ms}"))
}
