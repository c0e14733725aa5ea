//! Waiting for a name across processes: woken by notifications, by writes to the file and by
//! timers; the row decides.

use std::time::Duration;

use litelease_hold::file::{FileLeases, FilePlace, More};
use litelease_hold::{Wish, acquire};

use crate::{ClaimResult, HoldError, Litelease, LiteleaseRef};

macro_rules! waiting {
    () => {
        /// Claims like [`claim`](crate::Leases::claim), but waits until the name is free. Returns
        /// `Busy` after `timeout`.
        ///
        /// It notices within a millisecond or so when another process releases through this crate,
        /// and soon otherwise. Waiters are not queued: the first to wait need not be the first to
        /// get the name. A holder that kept the name with [`hold`](Self::hold) or `litelease run`
        /// and has died is taken over at once, or within a second if it dies later (Linux). For a
        /// lock on the file it waits as long as the connection's busy timeout says, even past
        /// `timeout`.
        ///
        /// If `owner` has an open [`request`](crate::Leases::request) for the name, it repeats it,
        /// and returns the lease that is handed over.
        ///
        /// ```
        /// # fn main() -> Result<(), litelease::HoldError> {
        /// # litelease_doctest::path!(path);
        /// let db = Litelease::open_own(&path)?;
        /// let other = Litelease::open_own(&path)?;
        /// let lease = db.claim("books", "a", Duration::from_millis(150))?.acquired().unwrap();
        /// // It is never renewed, so it is over before the waiting is.
        /// let next = other.claim_wait("books", "b", Duration::from_secs(30), Duration::from_secs(60))?;
        /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
        /// # Ok(())
        /// # }
        /// ```
        pub fn claim_wait(
            &self,
            name: &str,
            owner: &str,
            ttl: Duration,
            timeout: Duration,
        ) -> std::result::Result<ClaimResult, HoldError> {
            let place = FilePlace::new(self.of_file()?, More::default())?;
            claim_wait(place, &Wish::new(name, owner, ttl), timeout)
        }

        /// Waits like [`claim_wait`](Self::claim_wait), and meanwhile asks the present holder to
        /// give the name up `within` this time: see [`request`](crate::Leases::request). Use a
        /// fresh owner text for each attempt. The request is withdrawn after `timeout`.
        ///
        /// ```
        /// # fn main() -> Result<(), litelease::HoldError> {
        /// # litelease_doctest::path!(path);
        /// let (seconds, db) = (Duration::from_secs, Litelease::open_own(&path)?);
        /// let held = db.hold("books", HoldOptions::new(seconds(60)))?;
        /// std::thread::spawn(move || {
        ///     while held.requested().is_none() {
        ///         std::thread::sleep(Duration::from_millis(5)); // or work
        ///     }
        ///     held.hand_over(seconds(60)).map(drop).map_err(|(_, error)| error)
        /// });
        /// let next = db.request_wait("books", "b", seconds(30), seconds(20), seconds(60))?;
        /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
        /// # Ok(())
        /// # }
        /// ```
        pub fn request_wait(
            &self,
            name: &str,
            owner: &str,
            ttl: Duration,
            within: Duration,
            timeout: Duration,
        ) -> std::result::Result<ClaimResult, HoldError> {
            let place = FilePlace::new(self.of_file()?, More::default())?;
            let wish = Wish { request: Some(within), ..Wish::new(name, owner, ttl) };
            claim_wait(place, &wish, timeout)
        }
    };
}

impl Litelease {
    waiting!();
}

impl LiteleaseRef<'_> {
    waiting!();
}

fn claim_wait(
    mut place: FilePlace<'_, FileLeases<'_>>,
    wish: &Wish<'_>,
    timeout: Duration,
) -> Result<ClaimResult, HoldError> {
    Ok(match acquire(&mut place, wish, timeout)? {
        Ok(acquired) => ClaimResult::Acquired(acquired.granted.lease),
        Err(current) => ClaimResult::Busy(current),
    })
}
