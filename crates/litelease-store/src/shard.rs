//! Shards: their holders, and the transaction in which a member carries out its plan.
//!
//! The rule is [`plan`](litelease_core::plan). A member is a session under `GROUP/member/ID`, with
//! the number of shards as its value; shard number k is the lease `GROUP/shard/k`.

use litelease_core::{
    ClaimResult, Claimant, Lease, MAX_SHARDS, ShardPlan, ShardState, TransferResult, plan,
};

use crate::list::WalkedRow;
use crate::session::{Beat, SessionGrants, SessionOver};
use crate::sqlite::Value;
use crate::{Error, Store, When};

/// A group of members that share a number of shards.
///
/// ```
/// # use litelease_store::ShardGroup;
/// let group = ShardGroup::new("orders", 8).unwrap();
/// assert_eq!(group.member("a").unwrap(), "orders/member/a");
/// assert_eq!(group.shard(3), "orders/shard/3");
/// assert!(group.member("a/b").is_err() && ShardGroup::new("orders", 0).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct ShardGroup {
    name: String,
    count: usize,
}

const REFUSED: &str = "a group and the id of a member must not be empty or contain a slash, and a group has 1 to 10000 shards";

impl ShardGroup {
    /// Returns a group. Its name must not be empty or contain a slash, and it has at least one
    /// shard and at most [`MAX_SHARDS`]; otherwise returns what to do instead.
    pub fn new(name: &str, count: usize) -> Result<Self, &'static str> {
        match is_part(name) && (1..=MAX_SHARDS).contains(&count) {
            true => Ok(ShardGroup { name: name.into(), count }),
            false => Err(REFUSED),
        }
    }

    /// Returns the identity of a member's session.
    pub fn member(&self, id: &str) -> Result<String, &'static str> {
        match is_part(id) {
            true => Ok(format!("{}/member/{id}", self.name)),
            false => Err(REFUSED),
        }
    }

    /// Returns the name of a shard.
    pub fn shard(&self, number: usize) -> String {
        format!("{}/shard/{number}", self.name)
    }
}

fn is_part(text: &str) -> bool {
    !text.is_empty() && !text.contains('/')
}

/// A group as one snapshot shows it.
#[derive(Debug)]
pub struct ShardSnapshot {
    /// The live members, by owner text, each with its count.
    members: Vec<(String, i64)>,
    shards: Vec<SeenShard>,
}

#[derive(Debug, Default)]
struct SeenShard {
    lease: Option<Lease>,
    /// The requester, and until when the holder may drain.
    request: Option<(String, i64)>,
}

/// A live member of a group.
struct Member {
    /// The lease of its identity.
    lease: Lease,
    /// The number of shards that it has joined with.
    count: i64,
}

/// A shard that was granted to a member, and what its last checkpoint was made into.
#[derive(Debug)]
pub struct AssignedShard<C> {
    /// The number of the shard.
    pub shard: usize,
    /// The grant.
    pub lease: Lease,
    /// The last checkpoint. Its holder before can store no other one.
    pub checkpoint: Option<C>,
}

impl ShardSnapshot {
    /// Decides what the member with this owner text does.
    pub fn plan(&self, me: &str) -> ShardPlan {
        let members: Vec<&str> = self.members.iter().map(|(member, _)| &**member).collect();
        let states = self.shards.iter().map(|shard| ShardState {
            holder: shard.lease.as_ref().map(|lease| &*lease.owner),
            requester: shard.request.as_ref().map(|(requester, _)| &**requester),
        });
        plan(&members, &states.collect::<Vec<_>>(), me)
    }

    /// Returns the shards that the member is to give up, each with the time until which it may
    /// drain.
    pub fn requested(&self, plan: &ShardPlan) -> Vec<(usize, i64)> {
        let until_ms = |shard: usize| self.shards[shard].request.as_ref().map(|(_, until)| *until);
        plan.give_up.iter().filter_map(|shard| Some((*shard, until_ms(*shard)?))).collect()
    }

    /// Checks whether the member must write now. `is_held` returns whether it knows a shard to be
    /// its own; open requests are repeated if `repeats`.
    pub fn has_work(
        &self,
        me: &str,
        plan: &ShardPlan,
        repeats: bool,
        is_held: impl Fn(usize) -> bool,
    ) -> bool {
        let asks = |shard: &usize| {
            let request = self.shards[*shard].request.as_ref();
            request.is_some_and(|(requester, _)| requester == me)
        };
        let mut handed = self.handed_to(me).filter(|(shard, _)| !is_held(*shard));
        !plan.withdraw.is_empty()
            || !plan.claim.is_empty()
            || plan.request.iter().any(|shard| repeats || !asks(shard))
            || handed.next().is_some()
    }

    /// Returns the shards that carry this owner text, which no other grant uses.
    fn handed_to(&self, me: &str) -> impl Iterator<Item = (usize, &Lease)> {
        let leases = self.shards.iter().map(|shard| shard.lease.as_ref()).enumerate();
        leases.filter_map(move |(shard, lease)| {
            Some((shard, lease.filter(|lease| lease.owner == me)?))
        })
    }
}

/// Shards.
impl Store {
    /// Reads a group, in one snapshot if the caller has one open. Needs no write lock.
    pub fn shards(&self, group: &ShardGroup, when: When) -> Result<ShardSnapshot, Error> {
        let when = When::At(when.now_ms());
        let members = self.shard_members(group, when.now_ms())?;
        let mut shards = Vec::new();
        for number in 0..group.count {
            let seen =
                self.inspect_with_request(&group.shard(number), when, |lease, asked| SeenShard {
                    lease: Some(lease.into_owned()),
                    request: asked.map(|(who, request)| (who.to_owned(), request.until_ms)),
                })?;
            shards.push(seen.unwrap_or_default());
        }
        Ok(ShardSnapshot { members, shards })
    }

    /// Makes a session a member of a group, unless a live member has another count: then answers
    /// that.
    pub fn join_shards(
        &self,
        session: SessionGrants<'_>,
        group: &ShardGroup,
        now_ms: i64,
    ) -> Result<Result<Beat<Option<i64>>, SessionOver>, Error> {
        self.beat_session(session, now_ms, |_| {
            // The count is the value of each member's grant, so it ends with the last of them.
            let count = i64::try_from(group.count).unwrap_or(i64::MAX);
            let members = self.shard_members(group, now_ms)?;
            let other = members.into_iter().map(|(_, count)| count).find(|other| *other != count);
            if other.is_none() {
                let value = Value::Integer(count);
                // It was renewed just now.
                let _ = self.attach(session.identity, session.token, value, When::At(now_ms))?;
            }
            Ok(other)
        })
    }

    /// Renews a member and carries out its plan, in the transaction that makes the plan. Returns
    /// the grants.
    #[allow(clippy::type_complexity)] // it is taken apart at once
    pub fn share_shards<C>(
        &self,
        session: SessionGrants<'_>,
        group: &ShardGroup,
        drain_ms: i64,
        now_ms: i64,
        keep: impl Fn(i64, Value<'_>, i64) -> C,
    ) -> Result<Result<Beat<Vec<AssignedShard<C>>>, SessionOver>, Error> {
        self.beat_session(session, now_ms, |ttl_ms| {
            let granted = self.carry_out(session, group, drain_ms, ttl_ms, When::At(now_ms))?;
            let assigned = granted.into_iter().map(|(shard, lease)| {
                self.enter_session(session, &lease.name, lease.token)?;
                // Read after the grant: from then on its holder before can store nothing.
                let checkpoint = self.last_checkpoint(&lease.name, &keep)?;
                Ok(AssignedShard { shard, lease, checkpoint })
            });
            assigned.collect()
        })
    }

    /// Hands a shard to the member that has requested it, until the end of that member's session:
    /// its ttl may be shorter than the ttl of this member. `ttl_ms` is for a requester that is no
    /// member.
    pub fn hand_over_shard<T>(
        &self,
        shard: &str,
        who: Claimant<'_>,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(TransferResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.within(self.boundary()?, || {
            let now_ms = when.now_ms();
            let when = When::At(now_ms);
            let requester = self.requested(shard, when, |requester, _| requester.to_owned())?;
            let ends = match (shard.rsplit_once("/shard/"), requester) {
                (Some((group, _)), Some(requester)) => {
                    let members = self.live_members(group, now_ms)?.into_iter();
                    members.map(|member| member.lease).find(|lease| lease.owner == requester)
                }
                _ => None,
            };
            let ttl_ms = ends.map_or(ttl_ms, |session| session.expires_at_ms - now_ms);
            self.hand_over(shard, who, ttl_ms, when, &keep)
        })
    }

    fn carry_out(
        &self,
        session: SessionGrants<'_>,
        group: &ShardGroup,
        drain_ms: i64,
        ttl_ms: i64,
        when: When,
    ) -> Result<Vec<(usize, Lease)>, Error> {
        let (seen, me) = (self.shards(group, when)?, session.owner);
        let (plan, mut granted) = (seen.plan(me), Vec::new());
        for shard in plan.withdraw {
            if let Some((requester, _)) = &seen.shards[shard].request {
                self.withdraw_request(&group.shard(shard), requester)?;
            }
        }
        for (shard, lease) in seen.handed_to(me).filter(|(_, lease)| !session.has(&lease.name)) {
            let adopted = self.adopt(session, &lease.name, lease.token, ttl_ms, when)?;
            granted.extend(adopted.map(|lease| (shard, lease)));
        }
        for shard in plan.claim {
            let claimed =
                self.claim(&group.shard(shard), me, ttl_ms, when, 0, |it| it.into_owned())?;
            if let ClaimResult::Acquired(lease) = claimed {
                granted.push((shard, lease));
            }
        }
        for shard in plan.request {
            self.request(&group.shard(shard), me, drain_ms, when, |_| ())?;
        }
        Ok(granted)
    }

    /// Returns the live members, by owner text, each with its count.
    fn shard_members(&self, group: &ShardGroup, now_ms: i64) -> Result<Vec<(String, i64)>, Error> {
        let members = self.live_members(&group.name, now_ms)?.into_iter();
        Ok(members.map(|Member { lease, count }| (lease.owner, count)).collect())
    }

    fn live_members(&self, group: &str, now_ms: i64) -> Result<Vec<Member>, Error> {
        // The letter after a slash: a host reads all rows of a walk.
        let (from, to) = (format!("{group}/member/"), format!("{group}/member0"));
        let (mut walk, mut members) = (self.walk(Some(&from), Some(&to))?, Vec::new());
        while let Some(WalkedRow { row, value, .. }) = walk.next()? {
            let is_member = row.name().starts_with(&from);
            // One without a count is about to join.
            if let (Some(lease), Some(count)) = (row.live(now_ms), value.integer())
                && is_member
            {
                members.push(Member { lease: lease.into_owned(), count });
            }
        }
        Ok(members)
    }
}
