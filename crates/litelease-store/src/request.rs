//! Handoff: requests for a live lease, and the verbs that answer them. A request ends with the
//! grant.

use litelease_core::{
    self as rule, Claimant, Lease, RenewResult, Request, RequestResult, Row, TakenOver, Term,
    TransferResult,
};

use crate::change::Change;
use crate::schema::Table;
use crate::side_tables::Side;
use crate::sqlite::Value;
use crate::{Error, Store, When};

/// The latest request for each name, with the grant that is requested. The first one makes the
/// table.
pub(crate) const REQUESTS: Table = Table {
    name: "litelease_requests",
    definition: "(
  name TEXT PRIMARY KEY,
  token INTEGER NOT NULL CHECK (token >= 1),
  requester TEXT NOT NULL,
  until_ms INTEGER NOT NULL,
  repeated_at_ms INTEGER NOT NULL
)",
};

/// Stores a request, and replaces the one before.
pub(crate) const REQUEST: &str = "INSERT INTO main.litelease_requests
(name, token, requester, until_ms, repeated_at_ms) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, requester = excluded.requester,
until_ms = excluded.until_ms, repeated_at_ms = excluded.repeated_at_ms";

/// Deletes a request of this requester's for this grant.
pub(crate) const WITHDRAW: &str = "DELETE FROM main.litelease_requests
WHERE name = ?1 AND requester = ?2 AND token = ?3";

/// Reads a request, whichever grant it is for.
pub(crate) const REQUEST_OF: &str = "SELECT token, until_ms, repeated_at_ms, requester
FROM main.litelease_requests WHERE name = ?1";

impl Store {
    /// Asks the live holder of `name` to give it up: from `within_ms` from now on its renewals are
    /// refused. The requester repeats the request, or it lapses. It changes no expiry.
    pub fn request<T>(
        &self,
        name: &str,
        requester: &str,
        within_ms: i64,
        when: When,
        keep: impl Fn(RequestResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("request", Some(name), || {
            self.within(self.boundary()?, || {
                let now_ms = when.now_ms();
                let (write, answer) = self.read_row(name, |row| {
                    let found = self.request_of(name)?;
                    let found = found.as_ref().map(|(requester, found)| (&**requester, *found));
                    let step = rule::request(row, found, requester, within_ms, now_ms)?;
                    Ok((step.write, keep(step.answer)))
                })?;
                if let Some(request) = write {
                    self.write_request(name, requester, request)?;
                }
                Ok(answer)
            })
        })
    }

    /// Keeps an open request of this requester's from lapsing. Answers the token of the grant that
    /// it is for, or none if there is no such request.
    pub fn repeat_request(
        &self,
        name: &str,
        requester: &str,
        when: When,
    ) -> Result<Option<i64>, Error> {
        self.with_context("repeat the request for", Some(name), || {
            self.within(self.boundary()?, || {
                let now_ms = when.now_ms();
                let open = self.open_request(name, now_ms)?;
                let Some((_, request)) = open.filter(|(found, _)| *found == *requester) else {
                    return Ok(None);
                };
                let repeated = Request { repeated_at_ms: now_ms, ..request };
                self.write_request(name, requester, repeated)?;
                Ok(Some(request.token))
            })
        })
    }

    /// Withdraws the request of this requester's for the newest grant of `name`, and answers
    /// whether there was one.
    pub fn withdraw_request(&self, name: &str, requester: &str) -> Result<bool, Error> {
        self.with_context("withdraw the request for", Some(name), || {
            self.within(self.boundary()?, || {
                let found = self.read_row(name, |row| {
                    let found = self.request_of(name)?;
                    Ok(found.filter(|(_, request)| row.token() == Some(request.token)))
                })?;
                let Some((_, request)) = found.filter(|(found, _)| *found == *requester) else {
                    return Ok(false);
                };
                self.delete_request(name, requester, request.token)?;
                Ok(true)
            })
        })
    }

    /// Returns the open request for the live grant of `name`, if there is one. Needs no write lock.
    pub fn requested<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(&str, Request) -> T,
    ) -> Result<Option<T>, Error> {
        self.with_context("read the request for", Some(name), || {
            self.settle()?;
            let open = self.open_request(name, when.now_ms())?;
            Ok(open.map(|(requester, request)| keep(&requester, request)))
        })
    }

    /// Returns the live lease on `name`, and the open request for it, in one snapshot. Needs no
    /// write lock.
    pub fn inspect_with_request<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(Lease<&str>, Option<(&str, Request)>) -> T,
    ) -> Result<Option<T>, Error> {
        self.with_context("inspect", Some(name), || {
            self.settle()?;
            self.read_row(name, |row| {
                let now_ms = when.now_ms();
                let Some(lease) = row.live(now_ms) else { return Ok(None) };
                let found = self.request_of(name)?.filter(|(_, found)| found.is_open(row, now_ms));
                let found = found.as_ref().map(|(requester, request)| (&**requester, *request));
                Ok(Some(keep(lease, found)))
            })
        })
    }

    /// Hands a live lease to its requester, under a new token.
    pub fn hand_over<T>(
        &self,
        name: &str,
        who: Claimant<'_>,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(TransferResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("hand over", Some(name), || {
            // The text to store must outlive the decision, so it is read before, and compared under
            // the write lock.
            let mut expected = self.read_row(name, |_| Ok(self.request_of(name)?))?;
            loop {
                let mut found = None;
                let requester = expected.take().map(|(requester, _)| requester);
                let boundary = self.boundary()?;
                let decide = |row: Row<'_>, floor, now_ms| {
                    found = self.request_of(name)?;
                    let same = found.as_ref().zip(requester.as_deref());
                    let request = same.filter(|((found, _), expected)| **found == **expected);
                    let request = request.map(|((_, request), expected)| (expected, *request));
                    let term = Term::new(ttl_ms, now_ms)?;
                    Ok(rule::hand_over(row, who, request, term, floor)?.map(&keep))
                };
                let answer = self.ending("handed_over", boundary, |boundary| {
                    self.change_carrying_tick(boundary, name, when, decide)
                })?;
                // Another owner's request is open by now: then the lease is theirs.
                let is_same = found.as_ref().map(|(found, _)| found) == requester.as_ref();
                if is_same || found.is_none() {
                    return Ok(answer);
                }
                expected = found;
            }
        })
    }

    /// Ends any owner's live lease and grants the name in one commit.
    pub fn take_over<'q, T>(
        &self,
        name: &'q str,
        owner: &'q str,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(TakenOver<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("take over", Some(name), || {
            self.ending("taken_over", self.boundary()?, |boundary| {
                self.change(boundary, name, when, Change::Grant, |row, floor, now_ms| {
                    let term = Term::new(ttl_ms, now_ms)?;
                    Ok(rule::take_over(row, owner, term, floor)?.map(&keep))
                })
            })
        })
    }

    /// Takes a lease that was handed to this requester since its request, and renews it. Answers
    /// only once.
    pub fn accept<T>(
        &self,
        name: &str,
        requester: &str,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(Lease<&str>) -> T,
    ) -> Result<Option<T>, Error> {
        self.with_context("accept", Some(name), || {
            self.within(self.boundary()?, || {
                let now_ms = when.now_ms();
                let handed = self.read_row(name, |row| {
                    let found = self.request_of(name)?.filter(|(found, _)| *found == *requester);
                    let handed = found.filter(|(_, request)| {
                        rule::is_handed_to(row, requester, *request, now_ms)
                    });
                    Ok(handed.zip(row.token()))
                })?;
                let Some(((_, request), token)) = handed else { return Ok(None) };
                let who = Claimant { owner: requester, token: Some(token) };
                let renewed = self.renew(name, who, ttl_ms, when, |answer| match answer {
                    RenewResult::Renewed(lease) => Some(keep(lease)),
                    RenewResult::Rejected { .. } => None,
                })?;
                if renewed.is_some() {
                    self.delete_request(name, requester, request.token)?;
                }
                Ok(renewed)
            })
        })
    }

    /// Reads the request that is stored for `name`, in the snapshot of a statement on its row.
    pub(crate) fn request_of(&self, name: &str) -> Result<Option<(String, Request)>, Error> {
        if !self.has(Side::Requests)? {
            return Ok(None);
        }
        self.statements.request.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Text(name)])?;
            if !run.step()? {
                return Ok(None);
            }
            let number = |index| run.column(index).and_then(Value::integer);
            let requester = run.column(3).and_then(Value::text);
            match (number(0), number(1), number(2), requester) {
                (Some(token), Some(until_ms), Some(repeated_at_ms), Some(requester)) => {
                    let request = Request { token, until_ms, repeated_at_ms };
                    Ok(Some((requester.to_owned(), request)))
                }
                _ => Err(REQUESTS.mismatch(format!("the row of {name:?} is damaged"))),
            }
        })
    }

    fn open_request(&self, name: &str, now_ms: i64) -> Result<Option<(String, Request)>, Error> {
        self.read_row(name, |row| {
            Ok(self.request_of(name)?.filter(|(_, request)| request.is_open(row, now_ms)))
        })
    }

    fn write_request(&self, name: &str, requester: &str, request: Request) -> Result<(), Error> {
        let Request { token, until_ms, repeated_at_ms } = request;
        let values = [
            Value::Text(name),
            Value::Integer(token),
            Value::Text(requester),
            Value::Integer(until_ms),
            Value::Integer(repeated_at_ms),
        ];
        self.write_side(Side::Requests, REQUEST, &values)
    }

    fn delete_request(&self, name: &str, requester: &str, token: i64) -> Result<(), Error> {
        let values = [Value::Text(name), Value::Text(requester), Value::Integer(token)];
        self.write_side(Side::Requests, WITHDRAW, &values)
    }
}
