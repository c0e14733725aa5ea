//! The verbs on ticks in scenario files, and how each player does them.

use std::collections::BTreeMap;
use std::time::Duration;

use litelease::Leases;
use litelease::rusqlite::{self, Connection, OptionalExtension};
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
        TickAction::Ticks { .. } => (None, None, tick_text(stored)),
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
pub(crate) fn tick_text(tick: Option<Tick>) -> String {
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

/// Does a step on a handle of the crate.
pub(crate) fn perform(
    leases: &Leases,
    now_ms: i64,
    action: &TickAction,
) -> litelease::Result<String> {
    let leases = leases.at(now_ms);
    Ok(match action {
        TickAction::Claim { name, owner, tick_ms, ttl_ms, attempts } => {
            let asked = TickRequest { tick_ms: *tick_ms, attempts: *attempts };
            let ttl = Duration::from_millis(ttl_ms.unsigned_abs());
            leases.claim_tick(name, owner, ttl, asked)?.to_text()
        }
        TickAction::Tick { name, tick_ms } => leases.tick(name, *tick_ms)?.to_text(),
        TickAction::Finish { name, token, outcome } => {
            leases.finish_tick((name.as_str(), *token), *outcome)?.to_text()
        }
        TickAction::Skip { name, until_ms, breaks } => {
            leases.skip_ticks(name, *until_ms, *breaks)?.to_text()
        }
        TickAction::Again { name } => leases.tick_again(name)?.to_text(),
        TickAction::Forget { name } => match leases.forget_tick(name)? {
            TickChange::Changed(_) => "forgotten".into(),
            other => other.to_text(),
        },
        TickAction::Ticks { name } => tick_text(leases.newest_tick(name)?.map(|info| info.tick)),
    })
}

/// A row of `litelease_ticks`.
struct Listed {
    newest: String,
    done_ms: Option<i64>,
    attempt: i64,
    attempts: i64,
    token: Option<i64>,
    expires_at_ms: Option<i64>,
    is_final: bool,
    tick_ms: i64,
}

fn listed(connection: &Connection, name: &str, now_ms: i64) -> rusqlite::Result<Option<Listed>> {
    let sql = "SELECT tick_ms, state, done_ms, attempt, attempts, token, expires_at_ms
               FROM litelease_ticks(?2) WHERE name = ?1";
    let row = |row: &rusqlite::Row<'_>| {
        let (tick_ms, state): (i64, String) = (row.get(0)?, row.get(1)?);
        Ok(Listed {
            newest: format!("{tick_ms} {state}"),
            done_ms: row.get(2)?,
            attempt: row.get(3)?,
            attempts: row.get(4)?,
            token: row.get(5)?,
            expires_at_ms: row.get(6)?,
            is_final: state != "open",
            tick_ms,
        })
    };
    connection.query_row(sql, (name, now_ms), row).optional()
}

/// Does a step by SQL functions, which answer a number or NULL, and reads the rest.
pub(crate) fn call(
    connection: &Connection,
    now_ms: i64,
    action: &TickAction,
) -> rusqlite::Result<String> {
    let name = action.name();
    let before = listed(connection, name, now_ms)?;
    let ask = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
        connection.query_row(sql, values, |row| row.get::<_, Option<i64>>(0))
    };
    let answer = match action {
        TickAction::Claim { owner, tick_ms, ttl_ms, attempts, .. } => ask(
            "SELECT litelease_claim_tick(?, ?, ?, ?, ?, ?)",
            &[&name, owner, ttl_ms, tick_ms, attempts, &now_ms],
        ),
        TickAction::Tick { tick_ms, .. } => {
            ask("SELECT litelease_tick(?, ?, ?)", &[&name, tick_ms, &now_ms])
        }
        TickAction::Finish { token, outcome, .. } => {
            let has_failed = *outcome == TickOutcome::Failed;
            let sql = "SELECT litelease_finish_tick(?, ?, ?, ?)";
            ask(sql, &[&name, token, &has_failed, &now_ms])
        }
        TickAction::Skip { until_ms, breaks, .. } => {
            ask("SELECT litelease_tick_skip(?, ?, ?, ?)", &[&name, until_ms, breaks, &now_ms])
        }
        TickAction::Again { .. } => ask("SELECT litelease_tick_again(?, ?)", &[&name, &now_ms]),
        TickAction::Forget { .. } => ask("SELECT litelease_tick_forget(?, ?)", &[&name, &now_ms]),
        TickAction::Ticks { .. } => {
            return Ok(before.map_or("none".into(), |row| {
                let Listed { newest, attempt, attempts, done_ms, .. } = row;
                format!("tick {newest} attempt {attempt} of {attempts}{}", previous(done_ms))
            }));
        }
    };
    let answer = match answer {
        Err(error) if error.to_string().contains("more than a minute ahead of") => {
            return Ok("in future".into());
        }
        answer => answer?,
    };
    let after = listed(connection, name, now_ms)?;
    let newest = after.as_ref().map_or(String::new(), |row| row.newest.clone());
    Ok(match (action, answer, after) {
        (_, None, after) => {
            let sql =
                "SELECT owner, token, expires_at_ms FROM litelease_leases(?2) WHERE name = ?1";
            let lease = connection.query_row(sql, (name, now_ms), |row| {
                let (owner, token, until): (String, i64, i64) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(format!("busy {} {token} until {until}", shown(&owner)))
            })?;
            let is_claim = matches!(action, TickAction::Claim { .. });
            let running = after.filter(|row| is_claim && row.expires_at_ms.is_some());
            let runs = running.map(|row| format!(" runs {}", row.tick_ms));
            format!("{lease}{}", runs.unwrap_or_default())
        }
        (TickAction::Claim { .. } | TickAction::Tick { .. }, Some(0), _) => {
            format!("taken {newest}")
        }
        (TickAction::Claim { .. }, Some(token), Some(row)) => {
            let until = row.expires_at_ms.unwrap_or_default();
            let previous = previous(row.done_ms);
            format!("acquired {token} until {until} attempt {}{previous}", row.attempt)
        }
        (TickAction::Tick { .. }, Some(1), _) => "first".into(),
        (TickAction::Finish { token, .. }, Some(1), _) => {
            let was_over = before.is_some_and(|row| row.is_final && row.token == Some(*token));
            if was_over { "finished before".into() } else { "finished".into() }
        }
        (TickAction::Forget { .. }, Some(1), None) => "forgotten".into(),
        (TickAction::Skip { .. } | TickAction::Again { .. }, Some(1), _) => {
            format!("newest {newest}")
        }
        (_, Some(0), _) => "none".into(),
        (_, answer, _) => format!("unexpected {answer:?}"),
    })
}
