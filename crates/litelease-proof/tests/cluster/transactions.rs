//! The verbs as functions in PostgreSQL, inside the caller's transaction: they decide as the rule
//! does, and a rollback takes back what they did.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use litelease_cluster::{ClaimResult, Cluster, Options};
use litelease_core::{
    self as rule, ClaimResult as Claimed, Claimant, CommitContext, Conditions, Epoch, Refusal, Row,
    State, Step, Term,
};
use litelease_proof::play::{Tally, play};
use litelease_proof::postgres::{Postgres, Session, is_installed};
use litelease_proof::postgres_player::PostgresPlayer;
use litelease_proof::rig::{eventually, report};
use litelease_proof::scenario;

const LONG: Duration = Duration::from_secs(60);

fn ready(server: &Postgres, schema: &str) -> Cluster {
    let cluster = Cluster::open(&server.url(schema)).unwrap();
    cluster.bootstrap().unwrap();
    cluster
}

#[track_caller]
fn token(claimed: litelease_cluster::Result<ClaimResult>) -> i64 {
    claimed.unwrap().acquired().expect("nobody has it").token
}

/// Waits until a session waits for a lock.
fn waits(server: &Postgres, pid: &str) {
    let sql = format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {pid}");
    eventually("the session waits", || server.sql(&sql) == "Lock");
}

#[test]
fn the_functions_play_all_scenarios() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "played");
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    let mut player = PostgresPlayer::new(&server, "played");
    for scenario in scenario::all().unwrap() {
        player.begin();
        failures.extend(play(&scenario, &mut player, &mut tally).err());
    }
    report(&format!("PostgreSQL, functions: {tally}"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(tally.played > 180, "only {} steps were played", tally.played);
}

/// What is stored before a call: nothing, or a token with an owner and the end of its lease.
type Before = Option<(i64, Option<(&'static str, i64)>)>;

/// Runs a call on a state. Answers with what is there afterwards.
const TRY: &str = "CREATE FUNCTION pg_temp.try(has_row boolean, token bigint, owner text, until_ms bigint,
  floor bigint, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  answer text;
  kind text;
BEGIN
  DELETE FROM small.resources;
  UPDATE small.meta m SET floor = $5;
  IF has_row THEN INSERT INTO small.resources VALUES ('x', $3, $2, $4, 1, 1, 1, 0); END IF;
  BEGIN
    EXECUTE 'SELECT small.' || call INTO answer;
  EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS kind = PG_EXCEPTION_DETAIL;
    answer := kind;
  END;
  RETURN coalesce(answer, 'no') || coalesce((SELECT format(' %s %s %s since %s', r.token, r.owner, r.lease_expires_at_ms,
      r.created_at_ms)
    FROM small.resources r), ' none') || ' floor ' || (SELECT m.floor FROM small.meta m);
END $$";

/// The rule is written once in Rust and once in SQL. Here both decide on every combination of small
/// states and requests.
#[test]
fn the_functions_decide_as_the_rule_does_on_every_small_state() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "small");
    let mut states: Vec<Before> = vec![None, Some((3, None)), Some((i64::MAX, None))];
    for owner in ["a", "b"] {
        states.extend([99, 100, 101, 170].map(|until| Some((3, Some((owner, until))))));
    }
    states.push(Some((i64::MAX, Some(("a", 101)))));
    let ttls = [0, 1, 50, i64::MAX - 100, i64::MAX - 99];
    let (mut calls, mut expected) = (Vec::new(), Vec::new());
    for before in &states {
        for floor in [0, 2, 7, (1 << 32) - 1, 1 << 32, i64::MAX] {
            let case = Case { before: *before, floor };
            for ttl in ttls {
                for min in [None, Some(9), Some(1 << 33)] {
                    let shown = min.map_or("NULL".into(), |min| min.to_string());
                    calls.push(case.call(&format!("claim('x', 'a', {ttl}, 100, {shown})")));
                    let floor = min.map_or(floor, |min| floor.max(min));
                    let step = Term::new(ttl, 100)
                        .and_then(|term| rule::claim(case.row(), "a", term, floor));
                    expected.push(case.claimed(step));
                }
                calls.push(case.call(&format!("ensure('x', 'a', {ttl}, 100)")));
                let step = Term::new(ttl, 100).and_then(|term| {
                    rule::ensure(case.row(), "a", term, floor, Conditions::default())
                });
                expected.push(case.claimed(step));
            }
            for (owner, token) in ["a", "b"]
                .into_iter()
                .flat_map(|owner| [None, Some(2), Some(3), Some(4)].map(|token| (owner, token)))
            {
                let who = Claimant { owner, token };
                let given = token.map_or("NULL".into(), |token| token.to_string());
                for ttl in ttls {
                    calls.push(case.call(&format!("renew('x', '{owner}', {ttl}, 100, {given})")));
                    let step = Term::new(ttl, 100)
                        .map(|term| rule::renew(case.row(), who, term, Conditions::default()));
                    expected.push(case.after(step.map(|step| token_of(&step))));
                    calls.push(
                        case.call(&format!("transfer('x', '{owner}', 'c', {ttl}, 100, {given})")),
                    );
                    let step = Term::new(ttl, 100)
                        .and_then(|term| rule::transfer(case.row(), who, "c", term, floor));
                    expected.push(case.after(step.map(|step| token_of(&step))));
                }
                calls.push(case.call(&format!("release('x', '{owner}', 100, {given})")));
                let step = rule::release(case.row(), who, 100);
                let answer = if step.write.is_some() { "true" } else { "false" };
                expected.push(case.after(Ok((step.write.map(kept), answer.into()))));
            }
            calls.push(case.call("break('x', 100)"));
            let step = rule::break_lease(case.row(), 100, floor).map(|step| {
                let killed = before.map_or(0, |(token, _)| token).to_string();
                let answer = if step.write.is_some() { killed } else { "no".into() };
                (step.write.map(kept), answer)
            });
            expected.push(case.after(step));
        }
    }
    let mut session = server.session("postgres");
    session.sql(TRY);
    // A pipe holds some thousand bytes, and no process reads the answers while the calls are
    // written.
    let some = |calls: &[String]| session.sql(&format!("BEGIN;\n{};\nROLLBACK", calls.join(";\n")));
    let answers: String = calls.chunks(100).map(some).collect::<Vec<_>>().join("\n");
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers.len(), calls.len());
    let mut differences = Vec::new();
    for ((call, expected), answer) in calls.iter().zip(&expected).zip(&answers) {
        if expected != answer {
            differences.push(format!("{call}: {answer}, and the rule says {expected}"));
        }
    }
    report(&format!("PostgreSQL, functions: {} decisions compared with the rule", calls.len()));
    assert!(differences.is_empty(), "{}", differences[..differences.len().min(20)].join("\n"));
    assert!(calls.len() > 3_000);
}

/// A state, and the floor.
struct Case {
    before: Before,
    floor: i64,
}

/// A new state: its token, owner and end.
type Kept = (i64, Option<(String, i64)>);

fn kept(state: State<'_>) -> Kept {
    let tenure = state.tenure().map(|tenure| (tenure.owner.to_owned(), tenure.expires_at_ms));
    (state.token(), tenure)
}

fn token_of<A>(step: &Step<'_, A>) -> (Option<Kept>, String) {
    let answer = step.write.map_or("no".into(), |state| state.token().to_string());
    (step.write.map(kept), answer)
}

impl Case {
    fn row(&self) -> Row<'_> {
        let state = self.before.and_then(|(token, tenure)| {
            State::stored(token, tenure.map(|tenure| tenure.0), tenure.map(|tenure| tenure.1))
        });
        Row::new("x", state)
    }

    fn call(&self, call: &str) -> String {
        let (token, tenure) = self.before.unwrap_or((1, None));
        let (owner, until) = tenure.map_or(("NULL".into(), "NULL".into()), |(owner, until)| {
            (format!("'{owner}'"), until.to_string())
        });
        let call = call.replace('\'', "''");
        let has_row = self.before.is_some();
        format!(
            "SELECT pg_temp.try({has_row}, {token}, {owner}, {until}, {}, '{call}')",
            self.floor
        )
    }

    fn claimed(&self, step: Result<Step<'_, Claimed<&str>>, Refusal>) -> String {
        self.after(step.map(|step| {
            let answer = match step.answer {
                Claimed::Acquired(lease) => lease.token.to_string(),
                Claimed::Busy(_) => "no".into(),
            };
            (step.write.map(kept), answer)
        }))
    }

    /// Returns what must be there after a step, as the function that tries it shows it.
    fn after(&self, step: Result<(Option<Kept>, String), Refusal>) -> String {
        let before = self
            .before
            .map(|(token, tenure)| (token, tenure.map(|(owner, until)| (owner.to_owned(), until))));
        let context = CommitContext { boot: 7, may_lose_commits: true, is_own: true };
        let epoch = Epoch { floor: self.floor, boot: 7 };
        let (write, answer) = match step {
            Ok(step) => step,
            Err(refusal) => {
                let kind = litelease_cluster::Error::from(refusal).kind();
                (None, kind.to_owned())
            }
        };
        let needed = write.as_ref().and_then(|(token, _)| epoch.needed(*token, context).unwrap());
        let floor = needed.unwrap_or(epoch).floor;
        let begins = |(token, tenure): &Kept| {
            let (owner, until) = tenure.as_ref().map(|(owner, until)| (&**owner, *until)).unzip();
            State::stored(*token, owner, until).is_some_and(|state| self.row().begins_grant(state))
        };
        let since = if write.as_ref().is_some_and(begins) { 100 } else { 1 };
        let row = match write.or(before) {
            None => "none".into(),
            Some((token, None)) => format!("{token}   since {since}"),
            Some((token, Some((owner, until)))) => format!("{token} {owner} {until} since {since}"),
        };
        format!("{answer} {row} floor {floor}")
    }
}

#[test]
fn a_rollback_takes_a_grant_back_and_so_does_a_savepoint() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let cluster = ready(&server, "undone");
    let mut session = server.session("postgres");
    session.sql("BEGIN");
    assert_eq!(session.sql("SELECT undone.claim('x', 'a', 60000)"), "1");
    assert_eq!(cluster.inspect("x").unwrap(), None, "nothing is granted before the commit");
    session.sql("ROLLBACK");
    assert_eq!(cluster.token("x").unwrap(), None);
    session.sql("BEGIN; SAVEPOINT s");
    assert_eq!(session.sql("SELECT undone.claim('x', 'a', 60000)"), "1");
    session.sql("ROLLBACK TO s");
    assert_eq!(session.sql("SELECT undone.claim('y', 'a', 60000)"), "1");
    session.sql("COMMIT");
    assert_eq!(cluster.token("x").unwrap(), None);
    assert!(matches!(cluster.claim("y", "b", LONG).unwrap(), ClaimResult::Busy(_)));
    // The engine goes on with what a function has stored, and the other way round.
    let lease = cluster.inspect("y").unwrap().unwrap();
    assert!(cluster.renew(&lease, LONG).is_ok());
    assert_eq!(session.sql("SELECT undone.renew('y', 'a', 90000, NULL, 1)"), "1");
    let renewed = cluster.renew(&lease, LONG).unwrap();
    assert!(matches!(renewed, litelease_cluster::RenewResult::Renewed(_)), "{renewed:?}");
    assert_eq!(session.sql("SELECT undone.release('y', 'a')"), "t");
    assert_eq!(token(cluster.claim("y", "b", LONG)), 2);
}

/// The second claim waits for the first transaction, and then goes by what that has left.
#[test]
fn two_transactions_that_claim_one_name_take_turns() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "turns");
    let (mut one, mut two) = (server.session("postgres"), server.session("postgres"));
    let pid = two.pid();
    for (end, first, second) in
        [("COMMIT", "1", ""), ("ROLLBACK", "2", "2"), ("ROLLBACK", "3", "3")]
    {
        one.sql("BEGIN");
        assert_eq!(one.sql("SELECT turns.claim('x', 'a', 60000)"), first);
        two.sql("BEGIN");
        two.send("SELECT turns.claim('x', 'b', 60000)");
        waits(&server, &pid);
        one.sql(end);
        assert_eq!(two.answer().unwrap(), second, "{end}");
        two.sql("COMMIT");
        two.sql("SELECT turns.release('x', 'a'), turns.release('x', 'b')");
    }
    // One that sees an older snapshot is told so, and is granted nothing.
    two.sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT turns.token('x')");
    one.sql("SELECT turns.claim('x', 'a', 60000), turns.claim('y', 'a', 60000)");
    for name in ["x", "y"] {
        two.sql("SAVEPOINT s");
        let error = two.run(&format!("SELECT turns.claim('{name}', 'b', 60000)")).unwrap_err();
        assert!(error.contains("40001"), "{error}");
        two.sql("ROLLBACK TO s");
    }
    two.sql("ROLLBACK");
}

/// The first row of a name was committed by another transaction after a claim had looked for it and
/// found none. The claim took that row for its own, and both transactions had one token.
#[test]
fn a_fresh_name_is_granted_once_however_transactions_meet() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "fresh");
    let (mut one, mut two) = (server.session("postgres"), server.session("postgres"));
    let pid = two.pid();
    // The second claim needs the next epoch, so it wants to change the floor that the first one
    // holds.
    one.sql("BEGIN");
    assert_eq!(one.sql("SELECT fresh.claim('x', 'a', 60000)"), "1");
    two.send(&format!("SELECT fresh.claim('x', 'b', 60000, NULL, {})", 1_i64 << 32));
    waits(&server, &pid);
    one.sql("COMMIT");
    assert_eq!(two.answer().unwrap(), "", "the name has a live owner");
    assert_eq!(two.sql("SELECT owner, token FROM fresh.resources"), "a|1");
    assert_eq!(two.sql("SELECT floor FROM fresh.meta"), "0", "what is refused raises no floor");

    // The same without a token of the caller's: the next token of any name is in the next epoch.
    for (name, verb) in [("y", "claim"), ("z", "ensure")] {
        one.sql(&format!("UPDATE fresh.meta SET floor = {}", (1_i64 << 32) - 1));
        one.sql("BEGIN; SELECT floor FROM fresh.meta FOR SHARE");
        one.sql(&format!(
            "INSERT INTO fresh.resources SELECT '{name}', 'a', {}, r.lease_expires_at_ms,
            r.created_at_ms, r.updated_at_ms, 7, 0 FROM fresh.resources r WHERE r.name = 'x'",
            1_i64 << 32
        ));
        two.send(&format!("SELECT fresh.{verb}('{name}', 'b', 60000)"));
        waits(&server, &pid);
        one.sql("COMMIT");
        assert_eq!(two.answer().unwrap(), "", "{verb}");
        let owner = format!("SELECT owner FROM fresh.resources WHERE name = '{name}'");
        assert_eq!(two.sql(&owner), "a", "{verb}");
    }
}

/// Both held the floor together, and then each waited for the other one to change it.
#[test]
fn two_claims_of_tokens_in_the_next_epoch_take_turns() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "epochs_meet");
    let (mut one, mut two) = (server.session("postgres"), server.session("postgres"));
    let mut rows = server.session("postgres");
    let names = "SELECT epochs_meet.claim('x', 'a', 1, 1), epochs_meet.claim('y', 'a', 1, 1)";
    assert_eq!(rows.sql(names), "1|1");
    // Both claims have read the floor, and neither has its row.
    rows.sql("BEGIN; SELECT FROM epochs_meet.resources FOR UPDATE");
    for (session, name) in [(&mut one, "x"), (&mut two, "y")] {
        let pid = session.pid();
        let above = 1_i64 << 32;
        session.send(&format!("SELECT epochs_meet.claim('{name}', 'b', 60000, NULL, {above})"));
        waits(&server, &pid);
    }
    rows.sql("COMMIT");
    let granted = ((1_i64 << 32) + 1).to_string();
    assert_eq!((one.answer(), two.answer()), (Ok(granted.clone()), Ok(granted)));
}

/// An `ensure` that found no row answered that the name was busy, for the lease of its own owner
/// that was committed meanwhile.
#[test]
fn two_ensures_of_one_owner_for_a_fresh_name_have_one_lease() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "ensured");
    let (mut one, mut two) = (server.session("postgres"), server.session("postgres"));
    let pid = two.pid();
    for (owner, second) in [("a", "1"), ("b", "")] {
        one.sql("BEGIN");
        assert_eq!(one.sql(&format!("SELECT ensured.ensure('{owner}', 'a', 60000)")), "1");
        two.send(&format!("SELECT ensured.ensure('{owner}', '{owner}', 60000)"));
        waits(&server, &pid);
        one.sql("COMMIT");
        assert_eq!(two.answer().unwrap(), second, "{owner}");
    }
}

/// A floor that is raised while a grant is open must not come before it: no token below the floor
/// is granted after it.
#[test]
fn a_grant_in_an_open_transaction_holds_up_raise_and_purge() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let cluster = ready(&server, "raised");
    let mut session = server.session("postgres");
    session.sql("BEGIN");
    assert_eq!(session.sql("SELECT raised.claim('x', 'a', 60000)"), "1");
    thread::scope(|scope| {
        let raise = scope.spawn(|| cluster.raise(1_000));
        eventually("the raise waits", || {
            let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND query LIKE 'DO %\"raised\".meta%'";
            server.sql(sql) == "1"
        });
        assert!(!raise.is_finished());
        session.sql("COMMIT");
        raise.join().unwrap().unwrap();
    });
    assert_eq!(session.sql("SELECT raised.claim('y', 'a', 60000)"), "1001");
}

/// Each grant shares the lock of the floor with the next one, so that it is never free.
#[test]
fn a_raise_waits_for_the_grants_before_it_and_not_for_those_after_it() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let cluster = ready(&server, "unending");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for offset in [0, 25] {
            let (is_over, mut session) = (&is_over, server.session("postgres"));
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(offset));
                while !is_over.load(Ordering::Relaxed) {
                    session.sql("BEGIN; SELECT FROM unending.meta FOR SHARE");
                    thread::sleep(Duration::from_millis(50));
                    session.sql("COMMIT");
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
        let raised = [100, 200, 300].map(|floor| cluster.raise(floor));
        is_over.store(true, Ordering::Relaxed);
        assert!(raised.iter().all(Result::is_ok), "{raised:?}");
    });
}

/// After a failover the floor is another server's. The function begins an epoch, in its caller's
/// transaction.
#[test]
fn a_function_begins_an_epoch_when_the_server_is_another_one() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let cluster = ready(&server, "epochs");
    let mut session = server.session("postgres");
    // The engine and the functions mean the same incarnation.
    assert_eq!(session.sql("SELECT boot = epochs.incarnation() FROM epochs.meta"), "t");
    session.sql("SELECT epochs.claim('kept', 'a', 60000), epochs.claim('free', 'a', 60000), epochs.release('free', 'a')");
    let other = "UPDATE epochs.meta SET boot = 4711;
        UPDATE epochs.resources SET lease_expires_at_ms = lease_expires_at_ms - updated_at_ms, updated_at_ms = 0
        WHERE name = 'kept'";
    session.sql(other);
    let next = ((1_i64 << 32) + 1).to_string();
    session.sql("BEGIN");
    assert_eq!(session.sql("SELECT epochs.claim('free', 'b', 60000)"), next);
    session.sql("ROLLBACK");
    assert_eq!(session.sql("SELECT boot, floor FROM epochs.meta"), "4711|0");
    // The holder whose lease was over by a wrong clock has its whole ttl again.
    assert_eq!(session.sql("SELECT epochs.claim('kept', 'b', 60000)"), "");
    assert_eq!(session.sql("SELECT epochs.renew('kept', 'a', 60000, NULL, 1)"), "1");
    assert_eq!(session.sql("SELECT epochs.claim('free', 'b', 60000)"), next);
    assert_eq!(session.sql("SELECT boot = epochs.incarnation() FROM epochs.meta"), "t");
    assert_eq!(cluster.token("free").unwrap(), Some((1 << 32) + 1));
}

#[test]
fn a_grant_is_durable_whatever_synchronous_commit_says_and_other_settings_stay() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "durable");
    let mut session = server.session("postgres");
    session.sql("SET synchronous_commit = off; SET search_path = nowhere; BEGIN");
    session.sql("SELECT durable.claim('x', 'a', 60000)");
    assert_eq!(session.sql("SHOW synchronous_commit"), "on");
    assert_eq!(session.sql("SHOW search_path"), "nowhere");
    session.sql("COMMIT");
    assert_eq!(session.sql("SHOW synchronous_commit"), "off");
}

#[test]
fn bad_input_is_refused_by_name() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = ready(&server, "input");
    let mut session = server.session("postgres");
    let long = "x".repeat(1_025);
    for (call, kind) in [
        ("claim('x', 'a', 0)".to_owned(), "InvalidTtl"),
        ("claim(NULL, 'a', 1)".to_owned(), "InvalidName"),
        ("renew('x', NULL, 1)".to_owned(), "InvalidName"),
        (format!("claim('{long}', 'a', 1)"), "InvalidName"),
        (format!("transfer('x', 'a', '{long}', 1)"), "InvalidName"),
        (format!("claim('x', 'a', {})", i64::MAX), "TimeOverflow"),
        (format!("claim('x', 'a', 1, 1, {})", i64::MAX), "TokenExhausted"),
    ] {
        let error = session.run(&format!("SELECT input.{call}")).unwrap_err();
        assert!(error.contains(&format!("DETAIL:  {kind}")), "{call}: {error}");
    }
    session.sql("UPDATE input.meta SET format = 2");
    let error = session.run("SELECT input.claim('x', 'a', 1)").unwrap_err();
    assert!(error.contains("NewerFormat"), "{error}");
    assert_eq!(session.sql("SELECT count(*) FROM input.resources"), "0");
}

/// A release in a transaction wakes those who wait, once it is committed.
#[test]
fn a_release_in_a_transaction_wakes_those_who_wait() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let options = Options { patience: Duration::from_secs(20), ..Options::default() };
    let cluster = Cluster::open_with(&server.url("woken"), options).unwrap();
    cluster.bootstrap().unwrap();
    let mut session: Session = server.session("postgres");
    session.sql("LISTEN woken; SELECT woken.claim('x', 'a', 60000)");
    session.sql("BEGIN; SELECT woken.release('x', 'a')");
    let told = session.sql("COMMIT");
    assert!(told.contains("Asynchronous notification \"woken\" with payload \"x\""), "{told}");
}
