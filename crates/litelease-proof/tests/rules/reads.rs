//! Every short history of shared reads among the verbs on leases, on the pure rule.
//!
//! Readers rely on what they were told by elapsed time; the wall clock, which the rule decides by,
//! also goes back. Rules with planted bugs must be found wrong.

use std::time::Instant;

use litelease_core::{Claimant, Conditions, Row, State, Tenure, Term, read_term};
use litelease_proof::mutant::*;
use litelease_proof::rig::report;

const NAME: &str = "x";

/// How many steps the histories have. After each, every writer that may write does.
const LENGTH: usize = 4;

/// How wall clock and elapsed time move before a step.
const TICKS: [(i64, i64); 4] = [(0, 0), (1, 1), (2, 2), (-1, 1)];

#[derive(Clone, Copy, Debug)]
enum Verb {
    Claim(&'static str),
    Renew(&'static str),
    Release(&'static str),
    Transfer(&'static str, &'static str),
    Break,
    /// By this reader, for so many milliseconds.
    Read(usize, i64),
    Unread(usize),
}

const VERBS: [Verb; 10] = [
    Verb::Claim("a"),
    Verb::Claim("b"),
    Verb::Renew("a"),
    Verb::Release("a"),
    Verb::Transfer("a", "b"),
    Verb::Break,
    Verb::Read(0, 1),
    Verb::Read(0, 3),
    Verb::Read(1, 2),
    Verb::Unread(0),
];

#[derive(Clone, Copy)]
struct File {
    wall_ms: i64,
    elapsed_ms: i64,
    state: Option<(i64, Option<(&'static str, i64)>)>,
    /// The expiry of each reader in the file.
    readers: [Option<i64>; 2],
    /// The version of the newest write.
    written: i64,
    /// Until when each reader relies on what it was told, in elapsed time, and the version.
    relies: [Option<(i64, i64)>; 2],
}

impl File {
    fn row(&self) -> Row<'static> {
        let state = self.state.and_then(|(token, tenure)| {
            State::stored(token, tenure.map(|it| it.0), tenure.map(|it| it.1))
        });
        Row::new(NAME, state)
    }

    fn write(&mut self, state: Option<State<'static>>) {
        if let Some(state) = state {
            let tenure =
                state.tenure().map(|Tenure { owner, expires_at_ms }| (owner, expires_at_ms));
            self.state = Some((state.token(), tenure));
        }
    }

    /// Does one step, and tells what is wrong with its answer.
    fn step(&mut self, rules: &impl Rules, verb: Verb) -> Result<(), String> {
        let (row, now_ms) = (self.row(), self.wall_ms);
        let term = Term::new(2, now_ms).map_err(|refusal| refusal.to_string())?;
        let who = |owner| Claimant { owner, token: None };
        let wrong = |refusal: litelease_core::Refusal| refusal.to_string();
        match verb {
            Verb::Claim(owner) => {
                self.write(rules.claim(row, owner, term, 0).map_err(wrong)?.write)
            }
            Verb::Renew(owner) => {
                self.write(rules.renew(row, who(owner), term, Conditions::default()).write)
            }
            Verb::Release(owner) => self.write(rules.release(row, who(owner), now_ms).write),
            Verb::Transfer(owner, new) => {
                self.write(rules.transfer(row, who(owner), new, term, 0).map_err(wrong)?.write);
            }
            Verb::Break => self.write(rules.break_lease(row, now_ms, 0).map_err(wrong)?.write),
            Verb::Read(reader, ttl_ms) => {
                let term = read_term(ttl_ms, now_ms).map_err(wrong)?;
                let Some(read) = rules.read(row, self.readers[reader], term, 0) else {
                    return Ok(());
                };
                if row.live(now_ms).is_some() {
                    return Err("a read was granted under a writer".into());
                }
                if read.version < self.written {
                    return Err(format!("version {} after {}", read.version, self.written));
                }
                self.readers[reader] = Some(read.expires_at_ms);
                let before = self.relies[reader].filter(|(_, version)| *version == read.version);
                let until =
                    before.map_or(i64::MIN, |(until, _)| until).max(self.elapsed_ms + ttl_ms);
                self.relies[reader] = Some((until, read.version));
            }
            Verb::Unread(reader) => (self.readers[reader], self.relies[reader]) = (None, None),
        }
        Ok(())
    }

    /// Lets the writers with the newest token and the one before it write, if they may.
    fn writes(&mut self, rules: &impl Rules) -> Result<(), String> {
        let (row, newest) = (self.row(), self.row().token().unwrap_or(0));
        self.try_to_write(rules, row, newest - 1)?;
        self.try_to_write(rules, row, newest)
    }

    fn try_to_write(&mut self, rules: &impl Rules, row: Row<'_>, token: i64) -> Result<(), String> {
        let last = self.readers.iter().flatten().max().copied();
        if !rules.drained(row, token, self.wall_ms, last) {
            return Ok(());
        }
        match row.live(self.wall_ms) {
            Some(lease) if lease.token == token => {}
            _ => return Err(format!("token {token} writes, and is not the live one")),
        }
        if self.relies.iter().flatten().any(|(until, _)| *until > self.elapsed_ms) {
            return Err("a reader answers an old value".into());
        }
        self.written = token;
        Ok(())
    }
}

/// Walks through all histories, and counts them. A history that goes wrong is told.
fn walk(
    rules: &impl Rules,
    file: File,
    history: &mut Vec<((i64, i64), Verb)>,
) -> Result<u64, String> {
    if history.len() == LENGTH {
        return Ok(1);
    }
    let mut count = 0;
    for tick in TICKS {
        for verb in VERBS {
            let mut next = file;
            next.wall_ms += tick.0;
            next.elapsed_ms += tick.1;
            history.push((tick, verb));
            let done = next.step(rules, verb).and_then(|()| next.writes(rules));
            done.map_err(|error| format!("{error}: {history:?}"))?;
            count += walk(rules, next, history)?;
            history.pop();
        }
    }
    Ok(count)
}

fn all_histories(rules: &impl Rules) -> Result<u64, String> {
    let file = File {
        wall_ms: 100,
        elapsed_ms: 0,
        state: None,
        readers: [None; 2],
        written: 0,
        relies: [None; 2],
    };
    walk(rules, file, &mut Vec::new())
}

#[test]
fn in_every_short_history_no_writer_writes_while_a_reader_relies_on_memory() {
    let started = Instant::now();
    let count = all_histories(&TheRule).unwrap();
    report(&format!("reads: {count} histories ({:.1} s)", started.elapsed().as_secs_f64()));
    assert_eq!(count, ((VERBS.len() * TICKS.len()) as u64).pow(LENGTH as u32));
}

#[test]
fn every_planted_bug_of_shared_reads_is_found_in_a_short_history() {
    let found = |bug: &str, found: Result<u64, String>| {
        let history = found.expect_err(bug);
        report(&format!("planted bug, {bug}: {}", history.chars().take(60).collect::<String>()));
    };
    found("a read under a writer", all_histories(&ReadUnderWriter));
    found("a read prolonged under a writer", all_histories(&ReadProlongedUnderWriter));
    found("reading again shortens", all_histories(&ReadShortens));
    found("drained with readers", all_histories(&DrainedWithReaders));
    found("drained for any writer", all_histories(&DrainedForAnyWriter));
}
