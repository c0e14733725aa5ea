//! Naming one grant on the command line: a name and its token.

use litelease::{LeaseInfo, Litelease, Reason};
use serde_json::json;

use crate::exit::{Result, code};
use crate::output::{answer, lease, owner, printable};

/// The grant that is meant.
#[derive(clap::Args)]
pub(crate) struct Grant {
    /// What is leased
    #[arg(value_parser = super::name)]
    name: String,
    /// The token of the grant, as claim printed it; inside `litelease run` it is known
    #[arg(long, env = "LITELEASE_TOKEN", hide_env_values = true)]
    token: i64,
}

impl Grant {
    /// The grant as the verbs take it. They match owner and token; the token alone finds the owner.
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

/// Tells that a verb was rejected, and why.
pub(crate) fn rejected(
    as_json: bool,
    name: &str,
    reason: Reason,
    current: Option<LeaseInfo>,
) -> Result<u8> {
    let mut text = format!("{}: rejected, {reason}", printable(name));
    if let Some(current) = &current {
        text += &format!(" ({}, token {})", owner(&current.owner), current.token);
    }
    let value = json!({
        "rejected": reason.to_string(), "name": name, "current": current.as_ref().map(lease),
    });
    answer(as_json, value, &text);
    Ok(code::NO)
}
