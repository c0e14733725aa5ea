//! Naming one grant on the command line: a name and its token.

use litelease::{LeaseInfo, Litelease, Reason, ReleaseResult};
use serde_json::json;

use crate::exit::{Result, code};
use crate::output::{lease, owner, printable, remark, time_left};
use crate::similar::hint;
use crate::{Common, database};

/// The grant that is meant.
#[derive(clap::Args)]
pub(crate) struct Grant {
    /// What is leased
    #[arg(value_parser = super::name)]
    name: String,
    /// The token of the grant, as claim printed it; not needed inside `litelease run`
    #[arg(long, env = "LITELEASE_TOKEN", hide_env_values = true)]
    token: i64,
}

impl Grant {
    /// Returns the grant as the verbs take it. They match owner and token; the token finds the
    /// owner.
    pub(crate) fn find(&self, db: &Litelease) -> Result<LeaseInfo> {
        let current = db.inspect(&self.name)?;
        let owner = current.filter(|current| current.token == self.token).map(|found| found.owner);
        Ok(LeaseInfo {
            name: self.name.clone(),
            // Nobody is called that, so the answer is why not.
            owner: owner.unwrap_or_default(),
            token: self.token,
            lease_expires_at_ms: 0,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Releases a new grant whose token could not be printed: its caller does not know of it.
pub(crate) fn unless_told(db: &Litelease, granted: &LeaseInfo, told: Result<()>) -> Result<u8> {
    let Err(failure) = told else { return Ok(code::OK) };
    let (name, token) = (printable(&granted.name), granted.token);
    Err(failure.adding(match db.release(granted) {
        Ok(ReleaseResult::Released { .. }) => {
            format!("the lease on {name} (token {token}) was released again")
        }
        Ok(ReleaseResult::Rejected { reason, .. }) => {
            format!("the lease on {name} (token {token}) is over, {reason}")
        }
        Err(error) => {
            let left = time_left(granted.lease_expires_at_ms);
            format!(
                "the lease on {name} (token {token}) could not be released and ends in {left}: {error}"
            )
        }
    }))
}

/// Reports that a verb was rejected, and why.
pub(crate) fn rejected(
    common: &Common,
    name: &str,
    reason: Reason,
    current: Option<LeaseInfo>,
    similar: Option<String>,
) -> Result<u8> {
    let mut text = format!("{}: rejected, {reason}", printable(name));
    if let Some(current) = &current {
        text += &format!(" ({}, token {})", owner(&current.owner), current.token);
    }
    if reason == Reason::NeverClaimed {
        // Another user, or another --db, may know it.
        text += &format!(" in {}", database::path(common)?.display());
    }
    text += &hint(similar.as_ref());
    let mut value = json!({
        "rejected": reason.to_string(), "name": name, "current": current.as_ref().map(lease),
    });
    if let Some(similar) = similar {
        value["did_you_mean"] = json!(similar);
    }
    remark(common, value, &text)?;
    Ok(code::NO)
}
