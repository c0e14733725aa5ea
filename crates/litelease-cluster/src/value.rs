//! Values: what a live grant has attached to its name. They end with the grant.

use litelease_core::{self as rule, GrantRef, GrantResult};

use crate::change::Kind;
use crate::cluster::Cluster;
use crate::engine::{Error, Result, SideKind};
use crate::payload::Payload;

/// The largest value, in bytes: what a row of every engine has room for.
pub(crate) const MOST_BYTES: usize = 64 << 10;

/// A value that a live grant has attached to its name.
///
/// ```
/// use litelease_cluster::Value;
///
/// assert_eq!(Value::from("10.0.0.7:4000"), Value::Text("10.0.0.7:4000".into()));
/// assert_eq!(Value::from(7), Value::Integer(7));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// No value: attaching it removes the one before.
    #[default]
    Null,
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Integer(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::Real(number)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Value::Blob(bytes)
    }
}

impl Value {
    /// Checks that every engine has room for it.
    pub(crate) fn check(&self) -> Result<()> {
        let bytes = match self {
            Value::Text(text) => text.len(),
            Value::Blob(bytes) => bytes.len(),
            Value::Null | Value::Integer(_) | Value::Real(_) => 0,
        };
        match bytes > MOST_BYTES {
            true => {
                let reason = format!("has {bytes} bytes: at most {MOST_BYTES} are allowed");
                Err(Error::InvalidName { what: "value", reason })
            }
            false => Ok(()),
        }
    }
}

/// Values of grants.
impl Cluster {
    /// Attaches a value to a live grant, instead of the one before: the address of a leader, or the
    /// data of a member. It may have 64 KiB.
    ///
    /// It ends with the grant. For a token that is not the newest, or not live, it returns `Stale`
    /// and stores nothing. Attaching [`Value::Null`] removes the value.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let ttl = Duration::from_secs(30);
    /// let lease = cluster.claim("leader", "a", ttl)?.acquired().expect("it is free");
    /// assert_eq!(cluster.attach(&lease, "10.0.0.7:4000")?, GrantResult::Done);
    /// assert_eq!(cluster.value("leader")?, Some("10.0.0.7:4000".into()));
    ///
    /// cluster.release(&lease)?;
    /// assert_eq!(cluster.value("leader")?, None);
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn attach<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        value: impl Into<Value>,
    ) -> Result<GrantResult> {
        let (GrantRef { name, token, .. }, value) = (grant.into(), value.into());
        value.check()?;
        self.change_payload(name, Kind::OnLive, |at_now, payload| {
            let answer = rule::attach(at_now.holders_row(), token, at_now.now_ms);
            let payload = Payload { value: value.clone(), ..payload };
            Ok((Some(payload).filter(|_| answer.is_done()), answer))
        })
    }

    /// Returns the value that the live grant of `name` has attached.
    pub fn value(&self, name: &str) -> Result<Option<Value>> {
        let payload = self.read(name, |at_now| {
            let is_live = at_now.holders_row().live(at_now.now_ms).is_some();
            is_live.then(|| at_now.payload()).transpose()
        })??;
        Ok(payload.map(|payload| payload.value).filter(|value| *value != Value::Null))
    }

    /// Returns the values of all names, each with the token that it was attached under. One whose
    /// token is not that of a live grant has ended.
    pub fn values(&self) -> Result<Vec<(String, i64, Value)>> {
        let engine = &self.shared.engine;
        let read = || engine.list_beside(SideKind::Payload);
        let sides = self.until_answered(&mut self.patience(), read)?;
        // A damaged one concerns its own name only.
        let values = sides.into_iter().filter_map(|(name, side)| {
            let value = Payload::read(&name, Some(&side)).ok()?.value;
            Some((name, side.token, value))
        });
        Ok(values.filter(|(.., value)| *value != Value::Null).collect())
    }
}
