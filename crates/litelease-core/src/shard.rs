//! The rule of shards: what a member of a group claims, requests and gives up, so that all have
//! their share.
//!
//! Every member decides for itself, on a snapshot of the live members, the holder of each shard and
//! the requests. An open request counts as if the shard had moved already, so two members never
//! request the same surplus.

use alloc::vec;
use alloc::vec::Vec;

/// The most shards of a group: every member reads them all at each heartbeat.
pub const MAX_SHARDS: usize = 10_000;

/// A shard as the snapshot shows it.
///
/// ```
/// # use litelease_core::ShardState;
/// let moving = ShardState { holder: Some("a"), requester: Some("b") };
/// assert_ne!(moving, ShardState { holder: Some("a"), requester: None });
/// assert_eq!(ShardState::<&str>::default().holder, None, "free, or expired");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardState<M> {
    /// The holder of a live lease on it. A holder that is no live member keeps it, and gets no
    /// requests.
    pub holder: Option<M>,
    /// The sender of an open request for it. One that is no live member does not count.
    pub requester: Option<M>,
}

impl<M> Default for ShardState<M> {
    fn default() -> Self {
        ShardState { holder: None, requester: None }
    }
}

/// The next steps of a member, as the numbers of shards. Do them in this order, in the transaction
/// of the snapshot.
///
/// ```
/// # use litelease_core::ShardPlan;
/// let plan = ShardPlan { claim: vec![0, 3], ..ShardPlan::default() };
/// assert!(!plan.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardPlan {
    /// Open requests to end: its own that it no longer needs, and those of members that have died.
    pub withdraw: Vec<usize>,
    /// Free shards to claim.
    pub claim: Vec<usize>,
    /// Shards to request. They are all that it needs: earlier requests are repeated.
    pub request: Vec<usize>,
    /// Its own shards to hand over to their requesters, once their work is done.
    pub give_up: Vec<usize>,
}

impl ShardPlan {
    /// Checks whether there is nothing to do: the member has its share, and no other asks it for
    /// a shard.
    ///
    /// ```
    /// # use litelease_core::ShardPlan;
    /// assert!(ShardPlan::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        let ShardPlan { withdraw, claim, request, give_up } = self;
        [withdraw, claim, request, give_up].iter().all(|shards| shards.is_empty())
    }
}

/// Decides what the member `me` does now. `members` are the live ones, in any order.
///
/// With n shards and m members, every member ends with n/m of them, rounded down or up:
/// - A member claims free shards until it has n/m rounded down, and one more only when every member
///   has that.
/// - If none is free, it requests all that it is missing at once, from those who have most.
/// - It gives up what a live member requests, as long as that one still needs it.
///
/// A member that joins moves at most n/m shards, rounded up; one that leaves moves only its own;
/// and nothing moves while the members stay the same.
///
/// ```
/// use litelease_core::{ShardState, plan};
///
/// let held = |holder, requester| ShardState { holder: Some(holder), requester };
/// let mut shards = [held("a", None), held("a", None), held("a", None), held("a", None)];
///
/// // b joins, and asks for its share; c joins at the same time, and asks for another shard.
/// let members = ["a", "b", "c"];
/// assert_eq!(plan(&members, &shards, "b").request, [3]);
/// shards[3].requester = Some("b");
/// assert_eq!(plan(&members, &shards, "c").request, [2]);
/// shards[2].requester = Some("c");
///
/// // a hands over both, and keeps the rest.
/// assert_eq!(plan(&members, &shards, "a").give_up, [2, 3]);
/// (shards[2], shards[3]) = (held("c", None), held("b", None));
/// assert!(members.iter().all(|me| plan(&members, &shards, *me).is_empty()));
/// ```
pub fn plan<M: Copy + Ord>(members: &[M], shards: &[ShardState<M>], me: M) -> ShardPlan {
    let group = Group::new(members, shards);
    let Some(me) = group.number(me) else { return ShardPlan::default() };
    let Share { claim, request } = group.share_of(me);
    let numbers = 0..shards.len();
    let withdraw = |shard: &usize| match group.shards[*shard].request {
        WantedBy::None => false,
        WantedBy::Dead => true,
        WantedBy::Of(who) => who == me && request.binary_search(shard).is_err(),
    };
    // A request that its member no longer needs is about to be withdrawn: handing over would move a
    // shard for nothing.
    let needs: Vec<Option<Share>> = group.requesters_of(me);
    let give_up = |shard: &usize| match group.shards[*shard] {
        Shard { holder: Holder::Member(holder), request: WantedBy::Of(who) } if holder == me => {
            needs[who].as_ref().is_some_and(|share| share.request.binary_search(shard).is_ok())
        }
        _ => false,
    };
    ShardPlan {
        withdraw: numbers.clone().filter(withdraw).collect(),
        give_up: numbers.filter(give_up).collect(),
        claim,
        request,
    }
}

/// The snapshot with members by number.
struct Group<M> {
    members: Vec<M>,
    shards: Vec<Shard>,
}

#[derive(Clone, Copy)]
struct Shard {
    holder: Holder,
    request: WantedBy,
}

#[derive(Clone, Copy, PartialEq)]
enum Holder {
    Nobody,
    Member(usize),
    /// No live member has it, and it is not free: it is left alone.
    Stranger,
}

#[derive(Clone, Copy, PartialEq)]
enum WantedBy {
    None,
    /// A live member requests this shard of another one.
    Of(usize),
    /// The requester is no live member.
    Dead,
}

/// The shards that a member needs in order to have its share.
struct Share {
    claim: Vec<usize>,
    request: Vec<usize>,
}

impl<M: Copy + Ord> Group<M> {
    fn new(members: &[M], shards: &[ShardState<M>]) -> Self {
        let mut members = members.to_vec();
        members.sort_unstable();
        members.dedup();
        let number = |who: &M| members.binary_search(who).ok();
        let as_seen = |shard: &ShardState<M>| {
            let holder = match shard.holder.map(|holder| number(&holder)) {
                None => Holder::Nobody,
                Some(None) => Holder::Stranger,
                Some(Some(holder)) => Holder::Member(holder),
            };
            let request = match (holder, shard.requester.map(|who| number(&who))) {
                // A request ends with the grant that it was made for.
                (Holder::Nobody, _) | (_, None) => WantedBy::None,
                (_, Some(None)) => WantedBy::Dead,
                (holder, Some(Some(who))) if holder == Holder::Member(who) => WantedBy::None,
                (_, Some(Some(who))) => WantedBy::Of(who),
            };
            Shard { holder, request }
        };
        let shards = shards.iter().map(as_seen).collect();
        Group { members, shards }
    }

    fn number(&self, member: M) -> Option<usize> {
        self.members.binary_search(&member).ok()
    }

    /// Returns what `me` claims and requests. Decides its own requests anew, and counts those of
    /// others as done.
    fn share_of(&self, me: usize) -> Share {
        let mut counts = self.counts_without_requests_of(me);
        let (n, m) = (self.shards.len(), self.members.len());
        let (floor, ceil) = (n / m, n.div_ceil(m));
        let mut others = counts.iter().enumerate().filter(|(member, _)| *member != me);
        let others_have_floor = others.all(|(_, count)| *count >= floor);

        let free: Vec<usize> =
            (0..n).filter(|shard| self.shards[*shard].holder == Holder::Nobody).collect();
        let most = if others_have_floor { ceil } else { floor };
        let missing = most.saturating_sub(counts[me]).min(free.len());
        let (claim, rest) = free.split_at(missing);
        counts[me] += missing;

        let (mut request, mut asked) = (Vec::new(), self.askable(me));
        loop {
            // Members that have more than this may be asked for one.
            let enough = match counts[me] {
                count if count < floor => floor,
                // Every member has enough, and one has far too much.
                count if count == floor && others_have_floor && rest.is_empty() => ceil,
                _ => break,
            };
            let Some((shard, holder)) = asked.next(enough, &counts) else { break };
            request.push(shard);
            counts[holder] -= 1;
            counts[me] += 1;
        }
        request.sort_unstable();
        Share { claim: claim.to_vec(), request }
    }

    /// Returns how many shards each member has once all requests but those of `me` are done.
    fn counts_without_requests_of(&self, me: usize) -> Vec<usize> {
        let mut counts = vec![0; self.members.len()];
        for shard in &self.shards {
            match (shard.holder, shard.request) {
                (Holder::Member(_), WantedBy::Of(who)) if who != me => counts[who] += 1,
                (Holder::Member(holder), _) => counts[holder] += 1,
                (Holder::Nobody | Holder::Stranger, _) => {}
            }
        }
        counts
    }

    /// Returns the shards that `me` may request.
    fn askable(&self, me: usize) -> Askable {
        let none = || vec![Vec::new(); self.members.len()];
        let mut askable = Askable { again: none(), new: none() };
        for (number, shard) in self.shards.iter().enumerate() {
            match (shard.holder, shard.request) {
                (Holder::Member(holder), _) if holder == me => {}
                (Holder::Member(holder), WantedBy::Of(who)) if who == me => {
                    askable.again[holder].push(number);
                }
                (Holder::Member(holder), WantedBy::None | WantedBy::Dead) => {
                    askable.new[holder].push(number);
                }
                _ => {}
            }
        }
        askable
    }

    /// Returns what each member needs that requests a shard of `me`.
    fn requesters_of(&self, me: usize) -> Vec<Option<Share>> {
        let asks = |member: usize| {
            let mut shards = self.shards.iter();
            shards.any(|shard| {
                shard.holder == Holder::Member(me) && shard.request == WantedBy::Of(member)
            })
        };
        (0..self.members.len()).map(|who| asks(who).then(|| self.share_of(who))).collect()
    }
}

/// The shards that a member may request, by holder. The last one of a list is requested first.
struct Askable {
    /// The shards that it has requested already.
    again: Vec<Vec<usize>>,
    new: Vec<Vec<usize>>,
}

impl Askable {
    /// Returns the shard to request next, of a member that has more than `enough`: one that was
    /// requested already, or else one of the member that has most.
    fn next(&mut self, enough: usize, counts: &[usize]) -> Option<(usize, usize)> {
        let richest = |lists: &[Vec<usize>]| {
            let last = |(holder, list): (usize, &Vec<usize>)| {
                list.last().map(|shard| (counts[holder], *shard, holder))
            };
            lists.iter().enumerate().filter_map(last).filter(|(count, ..)| *count > enough).max()
        };
        let lists = if richest(&self.again).is_some() { &mut self.again } else { &mut self.new };
        let (_, shard, holder) = richest(lists)?;
        lists[holder].pop();
        Some((shard, holder))
    }
}
