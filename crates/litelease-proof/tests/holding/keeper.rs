//! The keeper with a clock that is stepped and rows that answer as they are told: nothing sleeps
//! here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use litelease_core::Lease;
use litelease_hold::{
    Clock, Current, Due, HandoverRequest, HeldGrant, Hold, HoldLimits, Keeper, Kept, Loss, Notice,
    Renewal, Rows, Window,
};

/// A ttl of 9 s: renewed after 3 s at the latest, trusted for 8.1 s.
const TTL: Duration = Duration::from_secs(9);

const SHORT_TTL: Duration = Duration::from_secs(1);
const LONG_TTL: Duration = Duration::from_secs(60);

/// Counts microseconds.
#[derive(Clone, Default)]
struct Stepped(Arc<AtomicU64>);

impl Stepped {
    fn set(&self, ms: u64) {
        self.0.store(ms * 1000, Ordering::SeqCst);
    }
}

impl Clock for Stepped {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::SeqCst);
    }
}

/// Rows that answer every renewal alike, take their time, and write down what they are asked.
#[derive(Clone, Default)]
struct ScriptedRows {
    answer: Arc<Mutex<Option<Loss>>>,
    takes_ms: Arc<AtomicU64>,
    clock: Stepped,
    calls: Arc<Mutex<Vec<String>>>,
    moved: Arc<Mutex<bool>>,
    superseded: Arc<Mutex<bool>>,
    /// How long a renewal lasts, if less than the ttl is granted.
    granted: Arc<Mutex<Option<Duration>>>,
    asked: Arc<Mutex<Option<HandoverRequest>>>,
    /// The ttl of the last grant that was to be renewed.
    last_ttl: Arc<Mutex<Option<Duration>>>,
}

impl ScriptedRows {
    fn answers(&self, loss: Option<Loss>) {
        *self.answer.lock().unwrap() = loss;
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl Rows for ScriptedRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        self.clock.0.fetch_add(self.takes_ms.load(Ordering::SeqCst) * 1000, Ordering::SeqCst);
        let told = |due: &Due<'_>| match due.progress {
            None => due.grant.name.clone(),
            Some(ago) => format!("{} after progress {} ms ago", due.grant.name, ago.as_millis()),
        };
        *self.last_ttl.lock().unwrap() = due.last().map(|due| due.grant.ttl);
        let names: Vec<String> = due.iter().map(told).collect();
        self.calls.lock().unwrap().push(format!("renew {}", names.join(" ")));
        let answer = self.answer.lock().unwrap().clone();
        let renewal = Renewal { expires_at_ms: 777, granted: *self.granted.lock().unwrap() };
        due.iter().map(|_| answer.clone().map_or(Ok(renewal), Err)).collect()
    }

    fn release(&mut self, grant: &HeldGrant, _: Duration) -> Result<(), Loss> {
        self.calls.lock().unwrap().push(format!("release {}", grant.name));
        self.answer.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn read(&mut self, grant: &HeldGrant) -> Current {
        self.calls.lock().unwrap().push(format!("read {}", grant.name));
        let request = self.asked.lock().unwrap().clone();
        Current { is_current: !*self.superseded.lock().unwrap(), request }
    }

    fn hand_over(&mut self, grant: &HeldGrant, _: Duration) -> Result<Option<Lease>, Loss> {
        self.calls.lock().unwrap().push(format!("hand over {}", grant.name));
        let asked = self.asked.lock().unwrap().take();
        let name = grant.name.clone();
        Ok(asked.map(|asked| Lease { name, owner: asked.requester, token: 2, expires_at_ms: 888 }))
    }

    fn listen(&mut self, _: Notice) {}

    fn beside(&self) -> Option<Box<dyn Rows>> {
        None
    }

    fn is_moved(&mut self) -> bool {
        *self.moved.lock().unwrap()
    }
}

struct Rig {
    keeper: Arc<Keeper>,
    clock: Stepped,
    rows: ScriptedRows,
}

impl Rig {
    fn new() -> Self {
        let clock = Stepped::default();
        let rows = ScriptedRows { clock: clock.clone(), ..ScriptedRows::default() };
        Rig { keeper: Arc::new(Keeper::new(Arc::new(clock.clone()))), clock, rows }
    }

    /// A grant that was asked for now.
    fn keep(&self, name: &str, ttl: Duration) -> Kept {
        self.keep_in("file", &self.rows, name, ttl)
    }

    fn keep_in(&self, file: &str, rows: &ScriptedRows, name: &str, ttl: Duration) -> Kept {
        let (owner, secret) = ("a".into(), String::new());
        let grant = HeldGrant { name: name.into(), owner, token: 1, ttl, secret };
        let hold = Hold::new(grant, Window::new(ttl).unwrap(), self.clock.now(), Renewal::whole(0));
        let open = || Ok::<_, ()>(Box::new(rows.clone()) as Box<dyn Rows>);
        self.keeper.keep(file, hold, open).unwrap()
    }

    /// Steps the clock to `ms` and lets the keeper do what is due then.
    fn at(&self, ms: u64) -> Option<u64> {
        self.clock.set(ms);
        self.keeper.step().map(|next| next.as_nanos().div_ceil(1_000_000) as u64)
    }

    fn at_time(&self, now: Duration) -> Option<Duration> {
        self.clock.0.store(now.as_micros() as u64, Ordering::SeqCst);
        self.keeper.step()
    }
}

fn locked() -> Loss {
    Loss::BlockedByWriter { pid: Some(4711) }
}

#[test]
fn a_hold_is_renewed_every_third_of_its_ttl_and_a_little_earlier() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    let mut next = rig.at(0).unwrap();
    assert_eq!((next, rig.rows.calls().len()), (3000, 0), "nothing is due yet");
    let mut jitters = std::collections::BTreeSet::new();
    for round in 0..50 {
        let start = next;
        assert_eq!(rig.at(start - 1), Some(start), "not before it is due");
        assert!(rig.rows.calls().is_empty(), "round {round}");
        next = rig.at(start).unwrap();
        assert_eq!(rig.rows.calls(), ["renew x"], "round {round}");
        assert!((start + 2700..=start + 3000).contains(&next), "round {round}: {start} {next}");
        jitters.insert(next - start);
        assert_eq!(kept.hold.trusted_until(), Duration::from_millis(start + 8100));
        assert_eq!(kept.hold.expires_at_ms(), 777);
    }
    assert!(jitters.len() > 1, "no two processes should keep step");
}

#[test]
fn trust_counts_from_the_start_of_the_last_good_renewal() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.rows.takes_ms.store(400, Ordering::SeqCst);
    rig.at(3000);
    // It began at 3000 and was answered at 3400.
    assert_eq!(kept.hold.check(Duration::from_millis(11_099)), Ok(()));
    assert_eq!(kept.hold.check(Duration::from_millis(11_100)), Err(Loss::Expired));
    assert_eq!(kept.hold.check(Duration::from_millis(5_000)), Err(Loss::Expired), "lost for good");
}

#[test]
fn a_renewal_that_answers_late_does_not_prolong_trust() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.rows.takes_ms.store(5_100, Ordering::SeqCst);
    rig.at(3000);
    // The answer came at 8100, the very end of the window: the holder may have been told already.
    assert_eq!(kept.hold.loss(), Some(Loss::Expired));
    assert_eq!(rig.rows.calls(), ["renew x"]);
    assert_eq!(rig.at(9000), None, "what is lost is not renewed again");
    assert!(rig.rows.calls().is_empty());
}

#[test]
fn errors_are_tried_again_until_the_window_is_over_and_then_they_are_the_loss() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    let trouble = Loss::CannotRenew { error: "disk I/O error".into() };
    rig.rows.answers(Some(trouble.clone()));
    let mut now = rig.at(3000).unwrap();
    let mut tries = 1;
    while now < 8100 {
        assert_eq!(kept.hold.loss(), None, "trusted at {now}");
        now = rig.at(now).unwrap_or(8100);
        tries += 1;
    }
    rig.at(8100);
    assert_eq!(kept.hold.loss(), Some(trouble));
    assert!((10..=30).contains(&tries), "{tries} tries in 5.1 s");
}

#[test]
fn a_locked_file_is_tried_more_and_more_often_until_the_window_is_over() {
    // A second and a quarter of a second before the end of trust, however long the ttl is.
    for (ttl, fast, fastest) in [(TTL, 1000, 250), (LONG_TTL, 1000, 250), (SHORT_TTL, 450, 225)] {
        let us = Duration::from_micros;
        for (left_us, pause) in [
            (fast * 1000 + 1, 1000),
            (fast * 1000, 100),
            (fastest * 1000 + 1, 100),
            (fastest * 1000, 20),
            (1, 20),
        ] {
            let rig = Rig::new();
            let kept = rig.keep("x", ttl);
            let end = kept.hold.trusted_until();
            rig.rows.answers(Some(locked()));
            let now = end - us(left_us);
            // Trust may end before the next attempt.
            let next = end.min(now + us(pause));
            assert_eq!(rig.at_time(now), Some(next), "{left_us} us before the end of {ttl:?}");
            assert_eq!(kept.hold.check(now), Ok(()));
            rig.at_time(end);
            assert_eq!(kept.hold.loss(), Some(locked()));
            assert_eq!(rig.rows.calls(), ["renew x"]);
        }
    }
}

#[test]
fn an_error_that_passes_in_time_costs_nothing() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.rows.answers(Some(locked()));
    let mut now = rig.at(3000).unwrap();
    while now < 7900 {
        now = rig.at(now).unwrap();
    }
    rig.rows.answers(None);
    rig.at(now);
    assert_eq!(kept.hold.trusted_until(), Duration::from_millis(now + 8100));
    assert_eq!(kept.hold.check(Duration::from_millis(8100)), Ok(()));
    // The old trouble is forgotten: a later loss is not blamed on it.
    assert_eq!(kept.hold.check(Duration::from_millis(now + 8100)), Err(Loss::Expired));
}

#[test]
fn what_the_row_says_is_told_at_once_and_for_good() {
    for loss in [
        Loss::Superseded { by: 2, owner: Some("b".into()) },
        Loss::Expired,
        Loss::ReleasedElsewhere,
        Loss::Broken,
        Loss::FileReplaced,
    ] {
        let rig = Rig::new();
        let kept = rig.keep("x", TTL);
        let (sender, told) = mpsc::channel();
        let early = sender.clone();
        kept.hold.on_lost(move |loss| early.send(loss.clone()).unwrap());
        rig.rows.answers(Some(loss.clone()));
        rig.at(3000);
        assert_eq!(kept.hold.check(Duration::from_millis(3000)), Err(loss.clone()));
        assert_eq!(kept.hold.wait_lost(Duration::ZERO), Some(loss.clone()));
        kept.hold.on_lost(move |loss| sender.send(loss.clone()).unwrap());
        let long = Duration::from_secs(60);
        assert_eq!(told.recv_timeout(long), Ok(loss.clone()), "the callback was called");
        assert_eq!(told.recv_timeout(long), Ok(loss), "one that comes late, too");
    }
}

#[test]
fn a_file_that_somebody_has_written_is_looked_at_and_not_all_the_time() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.at(1000);
    assert!(rig.rows.calls().is_empty());
    rig.keeper.was_written("another file");
    rig.at(1001);
    assert!(rig.rows.calls().is_empty());
    rig.keeper.was_written("file");
    rig.at(1002);
    assert_eq!(rig.rows.calls(), ["read x"], "still ours, so nothing is renewed");
    // Written again at once, and superseded: seen a quarter of a second later, long before the
    // renewal is due.
    *rig.rows.superseded.lock().unwrap() = true;
    rig.rows.answers(Some(Loss::Broken));
    rig.keeper.was_written("file");
    assert_eq!(rig.at(1003), Some(1252));
    assert!(rig.rows.calls().is_empty());
    rig.at(1252);
    assert_eq!(rig.rows.calls(), ["read x", "renew x"]);
    assert_eq!(kept.hold.loss(), Some(Loss::Broken));
}

#[test]
fn a_look_alone_loses_nothing() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    *rig.rows.superseded.lock().unwrap() = true;
    rig.keeper.was_written("file");
    rig.at(1000);
    assert_eq!(rig.rows.calls(), ["read x", "renew x"]);
    assert_eq!(kept.hold.loss(), None, "the renewal went well, and that decides");
    assert_eq!(kept.hold.trusted_until(), Duration::from_millis(9100));
}

#[test]
fn time_asleep_counts() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    // Suspended for an hour: the first thing after it is that the hold is lost, before anything is
    // renewed.
    rig.at(3_600_000);
    assert_eq!(kept.hold.loss(), Some(Loss::Expired));
    assert!(rig.rows.calls().is_empty());
}

#[test]
fn a_thousand_holds_of_one_file_are_renewed_in_one_transaction() {
    let rig = Rig::new();
    let holds: Vec<Kept> = (0..1000)
        .map(|number| {
            rig.clock.set(number); // taken one after the other, within a second
            rig.keep(&number.to_string(), TTL)
        })
        .collect();
    let mut next = rig.at(1000).unwrap();
    for round in 0..10 {
        let start = next;
        next = rig.at(start).unwrap();
        let calls = rig.rows.calls();
        assert_eq!(calls.len(), 1, "round {round}: one transaction");
        assert_eq!(calls[0].split(' ').count(), 1001, "round {round}: with all of them in it");
        assert!(next >= start + 2700, "round {round}: and none before the next interval");
    }
    assert!(holds.iter().all(|kept| kept.hold.loss().is_none()));
}

#[test]
fn one_file_in_trouble_does_not_keep_the_holds_of_another_from_being_told() {
    let rig = Rig::new();
    let other = ScriptedRows { clock: rig.clock.clone(), ..ScriptedRows::default() };
    let stuck = rig.keep("stuck", TTL);
    let fine = rig.keep_in("other file", &other, "fine", TTL);
    rig.rows.answers(Some(locked()));
    rig.at(3000);
    assert_eq!(other.calls(), ["renew fine"]);
    rig.at(8100);
    assert_eq!(stuck.hold.loss(), Some(locked()));
    assert_eq!(fine.hold.loss(), None);
}

#[test]
fn a_hold_that_is_given_up_is_released_once_and_never_renewed_or_told_again() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    let (sender, told) = mpsc::channel();
    kept.hold.on_lost(move |loss| sender.send(loss.clone()).unwrap());
    assert_eq!(kept.release(Duration::ZERO), Ok(()));
    assert_eq!(rig.at(3000), None);
    assert_eq!(rig.rows.calls(), ["release x"]);
    assert_eq!(kept.hold.wait_lost(Duration::from_secs(60)), None, "whoever waits is let go");
    assert!(told.recv().is_err(), "the callback was dropped, not called");
}

#[test]
fn what_could_not_be_released_is_released_later_but_not_after_its_time() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.rows.answers(Some(locked()));
    assert_eq!(kept.release(Duration::ZERO), Err(locked()));
    assert!(rig.at(100).is_some());
    rig.rows.answers(None);
    assert_eq!(rig.at(200), None);
    assert_eq!(rig.rows.calls(), ["release x"; 3]);

    let kept = rig.keep("x", TTL);
    rig.rows.answers(Some(locked()));
    let _ = kept.release(Duration::ZERO);
    assert_eq!(rig.rows.calls(), ["release x"]);
    assert_eq!(rig.at(20_000), None, "it has run out by itself");
    assert!(rig.rows.calls().is_empty());

    // What is in the way of one release is in the way of all: each would be waited for.
    for name in ["a", "b", "c"] {
        let _ = rig.keep(name, TTL).release(Duration::ZERO);
    }
    rig.rows.calls();
    rig.at(20_100);
    assert_eq!(rig.rows.calls(), ["release a"]);
}

#[test]
fn holds_of_a_file_that_was_replaced_do_not_mix_with_those_of_the_new_one() {
    let rig = Rig::new();
    let old = rig.keep("x", TTL);
    *rig.rows.moved.lock().unwrap() = true;
    let new_file = ScriptedRows { clock: rig.clock.clone(), ..ScriptedRows::default() };
    let new = rig.keep_in("file", &new_file, "x", TTL);
    rig.rows.answers(Some(Loss::FileReplaced));
    rig.at(3000);
    assert_eq!(new_file.calls(), ["renew x"], "on a connection of its own");
    assert_eq!((old.hold.loss(), new.hold.loss()), (Some(Loss::FileReplaced), None));
}

#[test]
fn a_renewal_inside_a_transaction_counts_only_from_its_commit() {
    let ms = Duration::from_millis;
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.rows.answers(Some(locked()));
    rig.at(3000);
    kept.hold.renewing(ms(6000), Renewal::whole(0));
    assert_eq!(kept.hold.trusted_until(), ms(8100), "not prolonged yet");
    assert_eq!(kept.hold.check(ms(8100)), Err(locked()), "not trusted while it is open");
    rig.at(8200);
    assert_eq!(kept.hold.loss(), None, "and not lost either: the COMMIT decides");
    kept.hold.committed(ms(6000), ms(9000), Renewal::whole(888));
    assert_eq!(kept.hold.check(ms(14_099)), Ok(()));
    assert_eq!(kept.hold.expires_at_ms(), 888);

    // A COMMIT that comes after the window of its own renewal is too late.
    kept.hold.renewing(ms(10_000), Renewal::whole(0));
    kept.hold.committed(ms(10_000), ms(18_100), Renewal::whole(999));
    assert!(kept.hold.check(ms(18_100)).is_err());
}

#[test]
fn a_renewal_that_is_rolled_back_was_none() {
    let ms = Duration::from_millis;
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    kept.hold.renewing(ms(6000), Renewal::whole(0));
    kept.hold.rolled_back();
    assert_eq!(kept.hold.check(ms(8099)), Ok(()));
    assert_eq!(kept.hold.check(ms(8100)), Err(Loss::Expired));
    assert_eq!(kept.hold.loss(), Some(Loss::Expired));

    // One whose transaction stays open for longer than its own window is lost, too.
    let kept = rig.keep("y", TTL);
    kept.hold.renewing(ms(6000), Renewal::whole(0));
    assert_eq!(kept.hold.check(ms(14_099)), Err(Loss::Expired));
    assert_eq!(kept.hold.loss(), None);
    assert_eq!(kept.hold.check(ms(14_100)), Err(Loss::Expired));
    assert_eq!(kept.hold.loss(), Some(Loss::Expired));
}

#[test]
fn the_margin_is_a_tenth_and_at_least_50_ms() {
    let ms = Duration::from_millis;
    for (ttl, trusted) in [(60_000, 54_000), (1000, 900), (500, 450), (400, 350), (101, 51)] {
        assert_eq!(Window::new(ms(ttl)).unwrap().end(ms(7)), ms(7 + trusted), "ttl {ttl}");
    }
    assert_eq!(Window::new(ms(100)), None);
    assert!(Window::new(Duration::MAX).is_some_and(|window| window.end(ms(1)) > ms(1)));
}

#[test]
fn trust_grows_by_what_was_granted_and_not_by_the_ttl_that_was_asked_for() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    *rig.rows.granted.lock().unwrap() = Some(Duration::from_millis(6000));
    rig.at(3000);
    // Less a tenth of what was granted.
    assert_eq!(kept.hold.trusted_until(), Duration::from_millis(8400));
    *rig.rows.granted.lock().unwrap() = Some(Duration::from_millis(5000));
    rig.at(6000);
    assert_eq!(kept.hold.trusted_until(), Duration::from_millis(10_500));
    *rig.rows.granted.lock().unwrap() = Some(Duration::from_millis(1000));
    rig.at(9000);
    // No trust that was there before is taken away.
    assert_eq!(kept.hold.trusted_until(), Duration::from_millis(10_500));
    assert_eq!(kept.hold.check(Duration::from_millis(10_499)), Ok(()));
    assert_eq!(kept.hold.check(Duration::from_millis(10_500)), Err(Loss::TimeIsUp));
}

/// The margin was a tenth of the ttl, which is more than was granted here: such a hold was lost
/// when it began.
#[test]
fn a_grant_far_shorter_than_the_ttl_is_trusted_for_most_of_it() {
    let ms = Duration::from_millis;
    let window = Window::new(ms(60_000)).unwrap();
    assert_eq!(window.end_of(ms(100), Some(ms(3000))), ms(2800));
    assert_eq!(window.end_of(ms(100), Some(ms(200))), ms(250));
}

/// The next renewal came a third of the ttl later, when the little that was granted had long run
/// out: a service that grants 2 s lost every hold of a minute.
#[test]
fn a_hold_that_is_granted_little_at_a_time_is_kept() {
    let rig = Rig::new();
    let kept = rig.keep("x", Duration::from_secs(60));
    *rig.rows.granted.lock().unwrap() = Some(Duration::from_secs(2));
    let mut next = rig.at(20_000);
    while let Some(at) = next.filter(|at| *at < 120_000) {
        next = rig.at(at);
    }
    assert_eq!(kept.hold.check(Duration::from_secs(120)), Ok(()));
    // Every 600 to 667 ms.
    let renewals = rig.rows.calls().len();
    assert!((140..175).contains(&renewals), "{renewals}");
}

#[test]
fn a_limit_that_comes_near_is_renewed_a_few_times_and_not_for_ever() {
    let rig = Rig::new();
    let kept = rig.keep("x", Duration::from_secs(60));
    let mut next = Some(20_000);
    while let Some(at) = next {
        let left = Duration::from_secs(70).saturating_sub(Duration::from_millis(at));
        *rig.rows.granted.lock().unwrap() = Some(left);
        next = rig.at(at);
    }
    assert_eq!(kept.hold.loss(), Some(Loss::TimeIsUp));
    let renewals = rig.rows.calls().len();
    assert!(renewals < 20, "{renewals}");
}

#[test]
fn a_whole_renewal_after_a_short_one_ends_the_limit() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    *rig.rows.granted.lock().unwrap() = Some(Duration::from_millis(1000));
    rig.at(3000);
    *rig.rows.granted.lock().unwrap() = None;
    rig.at(6000);
    assert_eq!(kept.hold.check(Duration::from_millis(14_100)), Err(Loss::Expired));
}

#[test]
fn a_hold_that_makes_no_progress_is_lost_when_its_trust_is_over_and_not_before() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.rows.answers(Some(Loss::NoProgress));
    rig.at(3000);
    assert_eq!(kept.hold.check(Duration::from_millis(8099)), Ok(()), "nothing is cut");
    assert_eq!(kept.hold.trouble(), Some(Loss::NoProgress));
    rig.at(8100);
    assert_eq!(kept.hold.loss(), Some(Loss::NoProgress));
}

#[test]
fn progress_goes_with_the_next_renewal_and_at_once_if_that_waits_for_it() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.clock.set(1000);
    kept.progress();
    rig.clock.set(1500);
    kept.progress();
    assert_eq!(rig.at(2000), Some(3000), "nothing is written for it");
    rig.at(3000);
    assert_eq!(rig.rows.calls(), ["renew x after progress 1500 ms ago"]);
    rig.rows.answers(Some(Loss::NoProgress));
    rig.at(6000);
    assert_eq!(rig.rows.calls(), ["renew x"], "it was stored once");
    rig.rows.answers(None);
    rig.clock.set(6100);
    rig.clock.set(6100);
    kept.progress();
    rig.at(6100);
    assert_eq!(rig.rows.calls(), ["renew x after progress 0 ms ago"], "and not a pause later");
    assert_eq!(kept.hold.trouble(), None);
}

#[test]
fn progress_that_could_not_be_stored_goes_with_the_next_attempt() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.clock.set(1000);
    kept.progress();
    rig.rows.answers(Some(locked()));
    rig.at(3000);
    rig.rows.answers(None);
    rig.at(4000);
    let calls = ["renew x after progress 2000 ms ago", "renew x after progress 3000 ms ago"];
    assert_eq!(rig.rows.calls(), calls);
}

fn limited(rig: &Rig, progress_within_ms: Option<u64>, max_ms: Option<u64>) -> Kept {
    let (owner, secret) = ("a".into(), String::new());
    let grant = HeldGrant { name: "x".into(), owner, token: 1, ttl: TTL, secret };
    let (window, now) = (Window::new(TTL).unwrap(), rig.clock.now());
    let ms = |ms: Option<u64>| ms.map(Duration::from_millis);
    let limits = HoldLimits { progress_within: ms(progress_within_ms), max_time: ms(max_ms) };
    let hold = Hold::new(grant, window, now, Renewal::whole(0)).limited(limits, now);
    rig.keeper.keep("file", hold, || Ok::<_, ()>(Box::new(rig.rows.clone()) as _)).unwrap()
}

#[test]
fn a_hold_keeps_its_own_limit_on_time_without_progress() {
    let rig = Rig::new();
    let kept = limited(&rig, Some(4000), None);
    rig.at(3000);
    assert_eq!(rig.rows.calls(), ["renew x"]);
    rig.clock.set(3500);
    kept.progress();
    rig.at(6000);
    assert_eq!(rig.rows.calls(), ["renew x"], "the place does not store it");
    // More than 4000 ms after the last progress.
    rig.at(9000);
    assert_eq!(rig.rows.calls(), [""; 0], "it asks for no renewal any more");
    assert_eq!(kept.hold.trouble(), Some(Loss::NoProgress));
    // Progress in the meantime saves it, at once.
    rig.clock.set(9100);
    kept.progress();
    rig.at(9100);
    assert_eq!(rig.rows.calls(), ["renew x"]);
    assert_eq!(kept.hold.trouble(), None);
    for ms in (12_000..=17_199).step_by(100) {
        rig.at(ms);
        assert_eq!(kept.hold.check(rig.clock.now()), Ok(()), "nothing is cut: {ms}");
    }
    rig.at(25_000);
    assert_eq!(kept.hold.loss(), Some(Loss::NoProgress));
}

#[test]
fn a_hold_with_an_end_of_its_own_is_renewed_up_to_it_and_no_further() {
    let rig = Rig::new();
    let kept = limited(&rig, None, Some(15_000));
    rig.at(3000);
    assert_eq!(kept.hold.trusted_until(), Duration::from_millis(11_100));
    assert_eq!(kept.hold.trouble(), None);
    rig.rows.last_ttl.lock().unwrap().take();
    let mut asked_until = 0;
    for ms in (3050..20_000).step_by(50) {
        rig.at(ms);
        let ttl_ms = rig.rows.last_ttl.lock().unwrap().take().map(|ttl| ttl.as_millis() as u64);
        asked_until = asked_until.max(ttl_ms.map_or(0, |ttl_ms| ms + ttl_ms));
    }
    assert_eq!(asked_until, 15_000, "the row ends with the limit");
    assert!(kept.hold.trusted_until() < Duration::from_millis(15_000));
    assert_eq!(kept.hold.loss(), Some(Loss::TimeIsUp));
}

fn asked(requester: &str) -> HandoverRequest {
    HandoverRequest { requester: requester.into(), until_ms: 5000 }
}

#[test]
fn a_request_is_heard_when_the_file_is_written_and_every_new_one_is_passed_on() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    let (sender, heard) = mpsc::channel();
    let another = sender.clone();
    kept.hold.on_request(move |asked| sender.send(asked.requester.clone()).unwrap());
    *rig.rows.asked.lock().unwrap() = Some(asked("b"));
    rig.at(1000);
    assert_eq!(kept.hold.request(), None, "nobody has written");
    for requester in ["b", "c"] {
        *rig.rows.asked.lock().unwrap() = Some(asked(requester));
        rig.keeper.was_written("file");
        rig.at(2000 + u64::from(requester == "c") * 1000);
        assert_eq!(kept.hold.request(), Some(asked(requester)));
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)).unwrap(), requester);
    }
    kept.hold.on_request(move |asked| another.send(format!("late: {}", asked.requester)).unwrap());
    assert_eq!(heard.recv_timeout(Duration::from_secs(60)).unwrap(), "late: c");
    *rig.rows.asked.lock().unwrap() = None;
    rig.keeper.was_written("file");
    rig.at(4000);
    assert_eq!(kept.hold.request(), None, "withdrawn");
    assert!(heard.try_recv().is_err());
    assert_eq!(kept.hold.check(Duration::from_millis(4000)), Ok(()), "nothing is cut");
}

#[test]
fn a_refused_request_ends_trust_when_it_would_have_ended_anyway() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    rig.rows.answers(Some(Loss::Requested));
    rig.at(3000);
    assert_eq!(kept.hold.check(Duration::from_millis(8099)), Ok(()));
    assert_eq!(kept.hold.check(Duration::from_millis(8100)), Err(Loss::Requested));
}

#[test]
fn what_is_handed_over_is_neither_lost_nor_renewed_nor_released() {
    let rig = Rig::new();
    let kept = rig.keep("x", TTL);
    assert_eq!(
        kept.hand_over(TTL, Duration::ZERO, || true),
        Ok(None),
        "nobody asks, so it goes on"
    );
    *rig.rows.asked.lock().unwrap() = Some(asked("b"));
    let (sender, told) = mpsc::channel();
    kept.hold.on_lost(move |loss| sender.send(loss.clone()).unwrap());
    let handed = kept.hand_over(TTL, Duration::ZERO, || true).unwrap().unwrap();
    assert_eq!((handed.owner.as_str(), handed.token), ("b", 2));
    *rig.rows.superseded.lock().unwrap() = true;
    rig.keeper.was_written("file");
    rig.at(3000);
    rig.at(20_000);
    assert_eq!(rig.rows.calls(), ["hand over x", "hand over x"]);
    assert!(told.try_recv().is_err());
}
