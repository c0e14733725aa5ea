//! Limits of grants: renewals that need progress, and an end.

use std::time::Duration;

use crate::leases::in_ms;
use crate::{GrantRef, GrantResult, Leases, Result};

/// Limits of grants.
impl Leases {
    /// Limits the live grant of `name` under `token`, in the place of its limits before.
    ///
    /// From then on a renewal, on any surface, is rejected with
    /// [`NoProgress`](crate::Reason::NoProgress) unless [`progress`](Leases::progress) or a
    /// [`checkpoint`](Leases::checkpoint) came within `progress_within`. And none prolongs past
    /// `not_after_ms`, a Unix time in milliseconds: a renewal is granted until then at most, and is
    /// rejected with [`TimeIsUp`](crate::Reason::TimeIsUp) from then on. `None` is no limit.
    ///
    /// Setting limits counts as progress. It never shortens the present lease: its holder
    /// may go on until its expiry. Limits end with the grant. For a token that is not the newest,
    /// or not live, it returns `Stale` and stores nothing.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ms = Duration::from_millis;
    /// let lease = db.at(100).claim("import", "a", ms(50))?.acquired().unwrap();
    /// let limited = db.at(100).limit(&lease, Some(ms(40)), Some(190))?;
    /// assert_eq!(limited, GrantResult::Done);
    ///
    /// assert!(matches!(
    ///     db.at(140).renew(&lease, ms(50))?,
    ///     RenewResult::Rejected { reason: Reason::NoProgress, .. }
    /// ));
    /// assert!(db.at(145).progress(&lease)?.is_done());
    /// let renewed = db.at(145).renew(&lease, ms(50))?.renewed().unwrap();
    /// assert_eq!(renewed.expires_at_ms, 190, "and not 195");
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn limit<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        progress_within: Option<Duration>,
        not_after_ms: Option<i64>,
    ) -> Result<GrantResult> {
        let GrantRef { name, token, .. } = grant.into();
        let within_ms = progress_within.map(in_ms);
        self.run(|store| store.limit(name, token, within_ms, not_after_ms, self.when()))
    }

    /// Records that the holder of a live grant has made progress, which its limits may demand.
    /// Without limits it changes nothing.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let lease = db.claim("import", "a", Duration::from_secs(30))?.acquired().unwrap();
    /// assert_eq!(db.progress(&lease)?, GrantResult::Done);
    /// let unknown = db.progress(("import", 17))?;
    /// assert_eq!(unknown, GrantResult::Stale { reason: Reason::UnknownToken });
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn progress<'g>(&self, grant: impl Into<GrantRef<'g>>) -> Result<GrantResult> {
        let GrantRef { name, token, .. } = grant.into();
        self.run(|store| store.progress(name, token, self.when()))
    }
}
