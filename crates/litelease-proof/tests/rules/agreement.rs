//! Random histories, longer and odder than the enumerated ones: the crate on a real file answers
//! what the pure rule answers, in and out of transactions.

use litelease_proof::crate_player::{CratePlayer, Mode};
use litelease_proof::hosted_player::HostedPlayer;
use litelease_proof::mutant::TheRule;
use litelease_proof::play::{Played, Player};
use litelease_proof::rule_player::RulePlayer;
use litelease_proof::scenario::Action;
use proptest::prelude::*;
use proptest::sample::select;

fn name() -> impl Strategy<Value = String> {
    select(vec!["x", "y", "", "x\0y", "'; --"]).prop_map(String::from)
}

fn owner() -> impl Strategy<Value = String> {
    select(vec!["a", "b", ""]).prop_map(String::from)
}

fn ttl() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 1..20i64, 1 => Just(0), 1 => Just(i64::MAX)]
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![20 => 0..40i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => Just(i64::MAX - 3)]
}

fn token() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![3 => Just(None), 3 => (0..8i64).prop_map(Some), 1 => Just(Some(i64::MAX))]
}

fn minimum() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![
        8 => Just(None),
        2 => (-2..9i64).prop_map(Some),
        1 => Just(Some(i64::MAX - 2)),
        1 => Just(Some(i64::MAX)),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (name(), owner(), ttl(), minimum())
            .prop_map(|(name, owner, ttl_ms, above)| Action::Claim { name, owner, ttl_ms, above }),
        3 => (name(), owner(), ttl(), owner(), 0..8i64).prop_map(
            |(name, owner, ttl_ms, dead, token)| Action::ClaimFromDead {
                name, owner, ttl_ms, dead, token
            }
        ),
        4 => (name(), owner(), ttl(), token())
            .prop_map(|(name, owner, ttl_ms, token)| Action::Renew { name, owner, ttl_ms, token }),
        4 => (name(), owner(), token())
            .prop_map(|(name, owner, token)| Action::Release { name, owner, token }),
        3 => (name(), owner(), owner(), ttl(), token()).prop_map(
            |(name, owner, new_owner, ttl_ms, token)| Action::Transfer {
                name, owner, new_owner, ttl_ms, token
            }
        ),
        2 => name().prop_map(|name| Action::Break { name }),
        3 => (name(), owner(), ttl())
            .prop_map(|(name, owner, ttl_ms)| Action::Ensure { name, owner, ttl_ms }),
        1 => time().prop_map(|before_ms| Action::Purge { before_ms }),
        2 => name().prop_map(|name| Action::Inspect { name }),
        1 => name().prop_map(|name| Action::Owner { name }),
        1 => name().prop_map(|name| Action::Token { name }),
        3 => name().prop_map(|name| Action::Since { name }),
        2 => any::<bool>().prop_map(|immediate| Action::Begin { immediate }),
        1 => Just(Action::Commit),
        1 => Just(Action::Rollback),
        1 => Just(Action::Savepoint { name: "s".into() }),
        1 => Just(Action::RollbackTo { name: "s".into() }),
        1 => Just(Action::ReleaseSavepoint { name: "s".into() }),
    ]
}

/// Follows what is open, so that only steps that SQLite allows are played.
#[derive(Default)]
struct Open {
    transaction: bool,
    savepoints: usize,
}

impl Open {
    fn allows(&mut self, action: &Action) -> bool {
        let anything = self.transaction || self.savepoints > 0;
        match action {
            Action::Begin { .. } if anything => return false,
            Action::Begin { .. } => self.transaction = true,
            Action::Commit | Action::Rollback if !anything => return false,
            Action::Commit | Action::Rollback => *self = Open::default(),
            Action::Savepoint { .. } => self.savepoints += 1,
            Action::RollbackTo { .. } | Action::ReleaseSavepoint { .. } if self.savepoints == 0 => {
                return false;
            }
            Action::ReleaseSavepoint { .. } => self.savepoints -= 1,
            _ => {}
        }
        true
    }
}

fn answer(played: Played) -> String {
    match played {
        Played::Answer(answer) => answer,
        Played::No => "rejected".into(),
        Played::Skipped(why) => format!("skipped: {why}"),
    }
}

/// Plays a history on the rule and on a real file, up to the first answer that differs.
fn compare(real: &mut dyn Player, steps: &[(i64, Action)]) -> Result<(), TestCaseError> {
    let mut rule = RulePlayer::new(TheRule);
    let mut open = Open::default();
    for (now_ms, action) in steps {
        if open.allows(action) {
            let wanted = answer(rule.step(*now_ms, action));
            let given = answer(real.step(*now_ms, action));
            prop_assert_eq!(given, wanted, "{:?} at {}", action, now_ms);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_crate_answers_what_the_rule_answers(
        mode in select(vec![Mode::Autocommit, Mode::Transaction, Mode::Savepoint, Mode::Borrowed]),
        steps in proptest::collection::vec((time(), action()), 1..60),
    ) {
        compare(&mut CratePlayer::new(mode).unwrap(), &steps)?;
    }

    #[test]
    fn a_store_whose_statements_a_host_runs_answers_what_the_rule_answers(
        steps in proptest::collection::vec((time(), action()), 1..60),
    ) {
        compare(&mut HostedPlayer::new(), &steps)?;
    }
}

/// Random histories of queues.
mod queues {
    use super::*;
    use litelease_proof::queue::QueueAction::{self, *};

    fn queue() -> impl Strategy<Value = String> {
        // Mostly the same one, so that its items meet.
        select(vec!["mail", "mail", "mail", "post", ""]).prop_map(String::from)
    }

    fn receipt() -> impl Strategy<Value = String> {
        select(vec!["a", "b", "c", "d", "nobody"]).prop_map(String::from)
    }

    fn key() -> impl Strategy<Value = Option<String>> {
        let key =
            select(vec!["k", "k", "k", "l", "", "k\0"]).prop_map(|key| Some(String::from(key)));
        prop_oneof![2 => Just(None), 3 => key]
    }

    fn note() -> impl Strategy<Value = Option<String>> {
        let note = select(vec!["late", "", "no\0"]).prop_map(|note| Some(String::from(note)));
        prop_oneof![2 => Just(None), 1 => note]
    }

    fn delay() -> impl Strategy<Value = i64> {
        prop_oneof![8 => Just(0), 2 => 1..20i64, 1 => Just(i64::MAX)]
    }

    fn id() -> impl Strategy<Value = i64> {
        0..9i64
    }

    /// Mostly time goes on: an item must come back and die now and then.
    fn time() -> impl Strategy<Value = i64> {
        prop_oneof![20 => 0..60i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX - 3)]
    }

    fn action() -> impl Strategy<Value = QueueAction> {
        prop_oneof![
            3 => (queue(), select(vec![-1, 0, 1, 1, 1, 2, 3])).prop_map(|(queue, max_attempts)| {
                // The crate has no form that only makes a queue.
                Queue { queue, max_attempts: Some(max_attempts) }
            }),
            10 => (queue(), delay(), key()).prop_map(|(queue, delay_ms, key)| {
                Send { queue, body: "body".into(), delay_ms, key }
            }),
            10 => (queue(), receipt(), ttl()).prop_map(|(queue, receipt, visibility_ms)| {
                Receive { queue, receipt, visibility_ms }
            }),
            2 => receipt().prop_map(|receipt| Delivery { receipt }),
            4 => receipt().prop_map(|receipt| Ack { receipt }),
            3 => (receipt(), ttl()).prop_map(|(receipt, visibility_ms)| {
                Extend { receipt, visibility_ms }
            }),
            4 => (receipt(), delay(), note()).prop_map(|(receipt, delay_ms, note)| {
                GiveBack { receipt, delay_ms, note }
            }),
            2 => (receipt(), note()).prop_map(|(receipt, note)| Bury { receipt, note }),
            2 => (queue(), proptest::option::of(id())).prop_map(|(queue, id)| Redrive { queue, id }),
            1 => (queue(), proptest::option::of(id())).prop_map(|(queue, id)| Discard { queue, id }),
            1 => (queue(), id()).prop_map(|(queue, id)| CancelId { queue, id }),
            1 => (queue(), select(vec!["k", "l"]))
                .prop_map(|(queue, key)| CancelKey { queue, key: key.into() }),
            4 => queue().prop_map(|queue| Items { queue }),
            1 => queue().prop_map(|queue| Delete { queue }),
        ]
    }

    fn step() -> impl Strategy<Value = (i64, Action)> {
        let other = prop_oneof![
            2 => any::<bool>().prop_map(|immediate| Action::Begin { immediate }),
            1 => Just(Action::Commit),
            1 => Just(Action::Rollback),
            1 => Just(Action::Savepoint { name: "s".into() }),
            1 => Just(Action::RollbackTo { name: "s".into() }),
            1 => Just(Action::ReleaseSavepoint { name: "s".into() }),
            1 => super::time().prop_map(|before_ms| Action::Purge { before_ms }),
            2 => (super::name(), super::minimum()).prop_map(|(name, above)| {
                Action::Claim { name, owner: "a".into(), ttl_ms: 5, above }
            }),
        ];
        (time(), prop_oneof![8 => action().prop_map(Action::Queue), 2 => other])
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

        #[test]
        fn queues_answer_what_the_rule_answers(
            mode in select(vec![Mode::Autocommit, Mode::Transaction, Mode::Savepoint, Mode::Borrowed]),
            steps in proptest::collection::vec(step(), 1..80),
        ) {
            let mut rule = RulePlayer::new(TheRule);
            let mut real = CratePlayer::new(mode).unwrap();
            let mut open = Open::default();
            for (now_ms, action) in &steps {
                if open.allows(action) {
                    let wanted = answer(rule.step(*now_ms, action));
                    let given = answer(real.step(*now_ms, action));
                    prop_assert_eq!(given, wanted, "{:?} at {}", action, now_ms);
                }
            }
        }
    }
}
