//! Limits of grants: renewals that need progress, and an end.

use std::time::Duration;

use litelease_core::{self as rule, GrantRef, GrantResult, Limits};

use crate::change::Kind;
use crate::cluster::Cluster;
use crate::engine::Result;
use crate::limits::in_ms;
use crate::payload::Payload;

/// Limits of grants.
impl Cluster {
    /// Limits the live grant of `name` under `token`, in the place of its limits before.
    ///
    /// From then on a renewal by any program is rejected with
    /// [`NoProgress`](crate::Reason::NoProgress) unless [`progress`](Cluster::progress) came within
    /// `progress_within`. And none prolongs past `not_after_ms`, a Unix time in milliseconds; from
    /// then on it is rejected with [`TimeIsUp`](crate::Reason::TimeIsUp). `None` is no limit.
    /// Limits end with the grant, and never shorten the present lease. On an engine without a clock
    /// these times are compared with the clock of the machine that renews.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let ms = Duration::from_millis;
    /// let lease = cluster.at(100).claim("import", "a", ms(50))?.acquired().expect("it is free");
    /// let limited = cluster.at(100).limit(&lease, Some(ms(40)), Some(190))?;
    /// assert_eq!(limited, GrantResult::Done);
    ///
    /// let refused = cluster.at(140).renew(&lease, ms(50))?;
    /// assert!(matches!(refused, RenewResult::Rejected { reason: Reason::NoProgress, .. }));
    /// assert!(cluster.at(145).progress(&lease)?.is_done());
    /// let renewed = cluster.at(145).renew(&lease, ms(50))?.renewed().expect("it goes on");
    /// assert_eq!(renewed.expires_at_ms, 190, "and not 195");
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn limit<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        progress_within: Option<Duration>,
        not_after_ms: Option<i64>,
    ) -> Result<GrantResult> {
        let GrantRef { name, token, .. } = grant.into();
        // The rule refuses a time of zero.
        let within_ms = progress_within.map(|within| in_ms(within).unwrap_or(0));
        self.change_payload(name, Kind::OnLive, |at_now, payload| {
            let limits = Limits::new(token, within_ms, not_after_ms, at_now.now_ms)?;
            let answer = rule::limit(at_now.holders_row(), token, at_now.now_ms);
            let payload = Payload { limits: Some(limits), ..payload };
            Ok((Some(payload).filter(|_| answer.is_done()), answer))
        })
    }

    /// Records that the holder of a live grant has made progress, which its limits may demand.
    /// Without limits it changes nothing.
    pub fn progress<'g>(&self, grant: impl Into<GrantRef<'g>>) -> Result<GrantResult> {
        self.progress_ago(grant, Duration::ZERO)
    }

    /// Records progress that was made some time ago.
    pub(crate) fn progress_ago<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        ago: Duration,
    ) -> Result<GrantResult> {
        let GrantRef { name, token, .. } = grant.into();
        let ago_ms = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        self.change_payload(name, Kind::OnLive, |at_now, payload| {
            let answer = rule::progress(at_now.holders_row(), token, at_now.now_ms);
            let at_ms = at_now.now_ms.saturating_sub(ago_ms);
            let noted =
                payload.limits.filter(|limits| answer.is_done() && limits.progress_at_ms < at_ms);
            let limits = noted.map(|limits| Limits { progress_at_ms: at_ms, ..limits });
            Ok((limits.map(|limits| Payload { limits: Some(limits), ..payload }), answer))
        })
    }
}
