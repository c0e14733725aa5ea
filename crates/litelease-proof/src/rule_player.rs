//! The player for the pure rule, which works on rows in memory.

use std::collections::BTreeMap;

use litelease_core::{
    Claimant, Here, Mark, Refusal, Row, State, Tenure, Term, inspect, purge_limit,
};

use crate::mutant::Rules;
use crate::play::{Played, Player, ToText, held, number, owner};
use crate::scenario::Action;

/// The pure rule, on rows in memory. Transactions are copies.
pub struct RulePlayer<R> {
    rules: R,
    file: File,
    /// What to go back to: the file as it was at each open savepoint, the transaction's own first.
    marks: Vec<(Option<String>, File)>,
    abandoned: bool,
}

#[derive(Clone, Default)]
struct File {
    rows: BTreeMap<String, Stored>,
    mark: Mark,
}

/// Nothing is at risk in memory.
const HERE: Here = Here { boot: 0, is_weak: false, is_own: true };

#[derive(Clone)]
struct Stored {
    token: i64,
    tenure: Option<(String, i64)>,
    updated_at_ms: i64,
}

impl<R: Rules> RulePlayer<R> {
    /// A player with an empty file.
    pub fn new(rules: R) -> Self {
        RulePlayer { rules, file: File::default(), marks: Vec::new(), abandoned: false }
    }

    fn write(&mut self, name: &str, state: Option<State<'_>>, now_ms: i64) {
        let Some(state) = state else { return };
        let tenure =
            state.tenure().map(|Tenure { owner, expires_at_ms }| (owner.into(), expires_at_ms));
        if let Ok(Some(needed)) = self.file.mark.needed(state.token(), HERE) {
            self.file.mark = needed;
        }
        let stored = Stored { token: state.token(), tenure, updated_at_ms: now_ms };
        self.file.rows.insert(name.to_owned(), stored);
    }

    fn lease_step(&mut self, now_ms: i64, action: &Action) -> Result<String, Refusal> {
        // The row is copied, so that it can be read while the file is written.
        let copy = action.name().and_then(|name| self.file.rows.get(name).cloned());
        let row =
            Row::new(action.name().unwrap_or_default(), copy.as_ref().and_then(Stored::state));
        let floor = self.file.mark.floor;
        let (write, answer) = match action {
            Action::Claim { owner, ttl_ms, above, .. } => {
                let floor = floor.max(above.unwrap_or(0));
                let step = self.rules.claim(row, owner, Term::new(*ttl_ms, now_ms)?, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Renew { owner, ttl_ms, token, .. } => {
                let who = Claimant { owner, token: *token };
                let step = self.rules.renew(row, who, Term::new(*ttl_ms, now_ms)?);
                (step.write, step.answer.to_text())
            }
            Action::Release { owner, token, .. } => {
                let step = self.rules.release(row, Claimant { owner, token: *token }, now_ms);
                (step.write, step.answer.to_text())
            }
            Action::Transfer { owner, new_owner, ttl_ms, token, .. } => {
                let who = Claimant { owner, token: *token };
                let term = Term::new(*ttl_ms, now_ms)?;
                let step = self.rules.transfer(row, who, new_owner, term, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Break { .. } => {
                let step = self.rules.break_lease(row, now_ms, floor)?;
                (step.write, step.answer.to_text())
            }
            Action::Inspect { .. } => (None, held(inspect(row, now_ms))),
            Action::Owner { .. } => (None, owner(inspect(row, now_ms).map(|lease| lease.owner))),
            Action::Token { .. } => (None, number(row.token())),
            Action::Purge { before_ms } => return Ok(self.purge(*before_ms, now_ms)),
            _ => return Ok(self.transaction_step(action)),
        };
        self.write(row.name(), write, now_ms);
        Ok(answer)
    }

    fn purge(&mut self, before_ms: i64, now_ms: i64) -> String {
        let limit = purge_limit(before_ms, now_ms);
        let (rows, mark) = (&mut self.file.rows, &mut self.file.mark);
        let before = rows.len();
        rows.retain(|_, row| {
            let ended = row.state().map_or(i64::MAX, |state| state.ends_at_ms(row.updated_at_ms));
            if ended <= limit {
                *mark = mark.raised(row.token, HERE).unwrap_or(*mark);
            }
            ended > limit
        });
        (before - rows.len()).to_string()
    }

    fn transaction_step(&mut self, action: &Action) -> String {
        let at = |name: &str, marks: &[(Option<String>, File)]| {
            marks.iter().rposition(|(mark, _)| mark.as_deref() == Some(name))
        };
        match action {
            Action::Begin { .. } => self.marks.push((None, self.file.clone())),
            Action::Savepoint { name } => self.marks.push((Some(name.clone()), self.file.clone())),
            Action::Commit => self.marks.clear(),
            Action::Rollback => {
                if let Some((_, file)) = self.marks.drain(..).next() {
                    self.file = file;
                }
            }
            Action::RollbackTo { name } => match at(name, &self.marks) {
                Some(at) => {
                    self.marks.truncate(at + 1);
                    self.file = self.marks[at].1.clone();
                }
                None => return format!("error no savepoint {name}"),
            },
            Action::ReleaseSavepoint { name } => match at(name, &self.marks) {
                Some(at) => self.marks.truncate(at),
                None => return format!("error no savepoint {name}"),
            },
            _ => return "error not a step of the rule".into(),
        }
        "ok".into()
    }
}

impl<R: Rules> Player for RulePlayer<R> {
    fn step(&mut self, now_ms: i64, action: &Action) -> Played {
        // Without other connections, what follows in this file has no meaning here.
        self.abandoned |= matches!(action, Action::Conn { .. });
        if self.abandoned {
            return Played::Skipped("the pure rule has no connections");
        }
        Played::Answer(self.lease_step(now_ms, action).unwrap_or_else(|refusal| match refusal {
            Refusal::InvalidTtl { .. } => "error InvalidTtl".into(),
            Refusal::TimeOverflow { .. } => "error TimeOverflow".into(),
            Refusal::TokenExhausted => "error TokenExhausted".into(),
        }))
    }
}

impl Stored {
    fn state(&self) -> Option<State<'_>> {
        let (owner, expires) = match &self.tenure {
            Some((owner, expires)) => (Some(owner.as_str()), Some(*expires)),
            None => (None, None),
        };
        State::stored(self.token, owner, expires)
    }
}
