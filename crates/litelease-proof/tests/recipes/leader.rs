//! Leader: one process decides for all, and everybody knows which.

use std::time::Duration;

use litelease::{Election, HoldOptions, Loss};
use litelease_hold::{HeldGrant, Hold, Renewal, Window};
use litelease_proof::rig::{LONG, acquired};

use crate::{End::*, Protection::*, Two, both_halves, late, ms, number, write};

/// An operator makes another process the leader. The old one does not know it yet, and decides.
#[test]
fn two_leaders_at_once_cannot_both_decide() {
    both_halves(Refused, |protection| {
        let two = Two::new();
        two.table("decisions", "leader", protection);
        let election = Election::new(&two.a, "leader").unwrap();
        let old = election.campaign("10.0.0.7:4000", HoldOptions::new(LONG)).unwrap();
        write(&two.a, "decisions", "leader", old.term()).unwrap();

        let new = two.b.take_over("leader", "b", LONG).unwrap().lease;
        assert_eq!(election.leader().unwrap().unwrap().term, new.token, "what everybody else sees");
        write(&two.b, "decisions", "leader", new.token).unwrap();
        late(write(&two.a, "decisions", "leader", old.term()))
    });
}

/// A leader answers from what it remembers. It was paused, another one leads, and the answer is
/// old.
#[test]
fn an_old_leader_serving_stale_reads_from_memory_is_told() {
    both_halves(Told, |protection| {
        let Two { a, b, .. } = &Two::new();
        a.conn()
            .execute_batch("CREATE TABLE config (rate); INSERT INTO config VALUES (5)")
            .unwrap();
        // The hold of a leader, with the time in our hands: `leader.check()` asks it.
        let ttl = ms(9_000);
        let old = acquired(a.at(0).claim("leader", "a", ttl));
        let (name, owner, secret) = ("leader".into(), "a".into(), String::new());
        let grant = HeldGrant { name, owner, token: old.token, ttl, secret };
        let window = Window::new(ttl).unwrap();
        let hold = Hold::new(grant, window, Duration::ZERO, Renewal::whole(9_000));
        let in_memory = number(a, "SELECT rate FROM config");
        assert_eq!(hold.check(ms(8_000)), Ok(()));

        // Paused. The first moment at which another one can lead is 9,000.
        assert!(b.at(8_999).claim("leader", "b", ttl).unwrap().acquired().is_none());
        acquired(b.at(9_000).claim("leader", "b", ttl));
        b.conn().execute("UPDATE config SET rate = 7", []).unwrap();

        let served = match protection {
            Off => Some(in_memory),
            On => hold.check(ms(9_000)).is_ok().then_some(in_memory),
        };
        match served {
            Some(rate) => {
                assert_ne!(rate, number(b, "SELECT rate FROM config"));
                Failed
            }
            None => {
                assert_eq!(hold.check(ms(9_000)), Err(Loss::Expired));
                Told
            }
        }
    });
}

/// The clock of `b` is a minute ahead, so it sees the lease of `a` as expired while `a` renews it
/// happily.
#[test]
fn a_clock_based_lease_on_two_disagreeing_clocks_is_fenced_by_its_token() {
    both_halves(Refused, |protection| {
        let two = Two::new();
        two.table("decisions", "leader", protection);
        let now = 1_000_000;
        let old = acquired(two.a.at(now).claim("leader", "a", ms(30_000)));
        let new = acquired(two.b.at(now + 60_000).claim("leader", "b", ms(30_000)));
        write(&two.b, "decisions", "leader", new.token).unwrap();

        // By the clock of `a` its lease is in its first second. No clock can tell it better.
        assert!(old.expires_at_ms > now + 1_000);
        late(write(&two.a, "decisions", "leader", old.token))
    });
}
