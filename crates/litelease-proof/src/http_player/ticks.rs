//! The verbs on ticks over HTTP.

use litelease::TickOutcome;
use serde_json::{Value, json};

use super::{HttpPlayer, LeaseIds, encoded, perform, refused, seconds, until};
use crate::play::Played;
use crate::scenario::{Action, shown};
use crate::server::Response;
use crate::ticks::TickAction;

impl HttpPlayer {
    /// Does a step on ticks.
    pub(super) fn on_ticks(&mut self, action: &TickAction, now_ms: i64) -> Played {
        let name = action.name();
        Played::Answer(match action {
            TickAction::Claim { owner, tick_ms, ttl_ms, attempts, .. } => {
                let body = json!({
                    "name": name, "owner": owner, "ttl": seconds(*ttl_ms), "tick_ms": tick_ms,
                    "attempts": attempts, "schedule": "@daily",
                });
                let answer = self.v1("claim", &body);
                self.claimed(&answer, now_ms)
            }
            TickAction::Tick { tick_ms, .. } => {
                let answer = self.v1("tick", &json!({ "name": name, "tick_ms": tick_ms }));
                match answer.status {
                    200 => "first".into(),
                    _ => no(&answer, now_ms),
                }
            }
            TickAction::Finish { token, outcome, .. } => {
                return self.finish(action, name, *token, *outcome, now_ms);
            }
            TickAction::Skip { until_ms, breaks, .. } => {
                let mut body = json!({ "name": name, "breaks": breaks, "reason": "a holiday" });
                until_ms.iter().for_each(|until_ms| body["until_ms"] = (*until_ms).into());
                changed(&self.v1("ticks/skip", &body), now_ms)
            }
            TickAction::Again { .. } => {
                changed(&self.v1("ticks/again", &json!({ "name": name })), now_ms)
            }
            TickAction::Forget { .. } => {
                let answer = self.v1("ticks/forget", &json!({ "name": name }));
                match answer.status {
                    200 => "forgotten".into(),
                    _ => without_tick(no(&answer, now_ms)),
                }
            }
            TickAction::Ticks { .. } => match self.newest_tick(name) {
                None => "none".into(),
                Some(tick) => {
                    let newest = format!("{} {}", tick["tick_ms"], word(&tick["state"]));
                    let attempt = format!("attempt {} of {}", tick["attempt"], tick["attempts"]);
                    format!("tick {newest} {attempt}{}", previous(&tick["done_ms"]))
                }
            },
        })
    }

    fn claimed(&mut self, answer: &Response, now_ms: i64) -> String {
        if answer.status != 200 {
            return no(answer, now_ms);
        }
        let granted = answer.json();
        self.keep(&granted);
        let (tick, until) = (&granted["tick"], until(&granted, now_ms));
        let previous = previous(&tick["previous_ms"]);
        format!("acquired {until} attempt {}{previous}", tick["attempt"])
    }

    fn finish(
        &mut self,
        action: &TickAction,
        name: &str,
        token: i64,
        outcome: TickOutcome,
        now_ms: i64,
    ) -> Played {
        let mut grants = self.granted.iter();
        let found = grants.find(|((of, _, number), _)| of == name && *number == token);
        let Some(grant) = found.map(|(_, grant)| grant.clone()) else {
            let action = Action::Ticks(action.clone());
            let _ = perform(&self.beside, &mut LeaseIds::new(), now_ms, &action);
            return Played::Skipped("without a grant nobody can ask");
        };
        let before = self.newest_tick(name);
        let was_over = before.is_some_and(|tick| tick["state"] != "open" && tick["token"] == token);
        let body = json!({ "grant": grant, "outcome": outcome.state().word() });
        let answer = self.v1("finish", &body);
        Played::Answer(match answer.status {
            200 if was_over => "finished before".into(),
            200 => "finished".into(),
            409 if answer.json()["reason"] == "unknown_grant" => {
                return Played::Skipped("of a purged name nothing is known");
            }
            _ => no(&answer, now_ms),
        })
    }

    /// The newest tick of a name: alone, and among all in pages of one.
    fn newest_tick(&mut self, name: &str) -> Option<Value> {
        let mut read = |query: &str| {
            let path = format!("/v1/ticks?{query}");
            let answer = self.client.ask("GET", &path, &Value::Null, "").expect("an answer");
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.json()
        };
        let one = read(&format!("name={}", encoded(name)))["ticks"].get(0).cloned();
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page = read(&format!("limit=1{after}"));
            all.extend(page["ticks"].as_array().expect("ticks").iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", encoded(next)),
                None => break,
            }
        }
        assert_eq!(all.into_iter().find(|tick| tick["name"] == name), one);
        one
    }
}

fn changed(answer: &Response, now_ms: i64) -> String {
    let told = answer.json();
    match answer.status {
        200 => format!("newest {} {}", told["tick_ms"], word(&told["state"])),
        _ => without_tick(no(answer, now_ms)),
    }
}

/// Leaves out which tick the holder runs, which only a claim is told elsewhere.
fn without_tick(no: String) -> String {
    no.split(" runs ").next().unwrap_or_default().into()
}

/// A refusal in the words of scenario files.
fn no(answer: &Response, now_ms: i64) -> String {
    let told = answer.json();
    match (answer.status, word(&told["reason"])) {
        (409, "busy") => {
            let current = &told["current"];
            let runs = told["tick_ms"]
                .as_i64()
                .map_or(String::new(), |tick_ms| format!(" runs {tick_ms}"));
            format!("busy {} {}{runs}", shown(word(&current["owner"])), until(current, now_ms))
        }
        (409, "already_taken") => {
            format!("taken {} {}", told["newest"]["tick_ms"], word(&told["newest"]["state"]))
        }
        (409, "in_future") => {
            assert_eq!(told["now_ms"], now_ms);
            "in future".into()
        }
        (409, "no_tick") => "none".into(),
        (409, "tick_ahead") => "error TickAhead".into(),
        (409, "tick_held") => "error TickHeld".into(),
        (409, "stale_tick") => "error StaleTick".into(),
        _ => refused(answer),
    }
}

fn previous(previous_ms: &Value) -> String {
    previous_ms.as_i64().map_or(String::new(), |previous_ms| format!(" previous {previous_ms}"))
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
