//! Naming one grant on the command line: a name and its token.

use std::env;
use std::path::PathBuf;

use litelease::{Lease, Reason};
use serde_json::json;

use super::run::progress_pipe::PROGRESS;
use crate::exit::{Failure, Result, code};
use crate::output::{lease, owner, printable, remark, time_left};
use crate::similar::{hint, similar_at};
use crate::target::{GrantArgument, Rejection, Target, Verdict};
use crate::{Common, database};

/// The grant that is meant.
#[derive(clap::Args)]
pub(crate) struct Grant {
    /// The name that is leased
    #[arg(value_parser = super::name)]
    name: String,
    /// The token of the grant, as claim printed it [default: inside `litelease run NAME`, its own]
    #[arg(long)]
    token: Option<i64>,
}

/// The grant that is meant, by default that of the `litelease run` around this process.
#[derive(clap::Args)]
pub(crate) struct GrantOfRun {
    /// The name that is leased [default: inside `litelease run`, its own name]
    #[arg(value_parser = super::name)]
    name: Option<String>,
    /// The token of the grant, as claim printed it [default: inside `litelease run`, its own]
    #[arg(long)]
    token: Option<i64>,
}

impl GrantOfRun {
    /// Returns the grant with its name.
    pub(crate) fn named(self) -> Result<Grant> {
        let GrantOfRun { name, token } = self;
        let name = name.or_else(|| env::var("LITELEASE_NAME").ok()).ok_or_else(|| {
            Failure::usage(
                "the name is missing: give it first (inside litelease run it is not needed)",
            )
        })?;
        Ok(Grant { name, token })
    }
}

impl Grant {
    /// Returns owner and token of the `litelease run` of this name around this process.
    ///
    /// A token alone names no grant: each name counts from 1, and so does each file.
    fn of_run(&self) -> Option<(String, i64)> {
        let is_its_name = env::var("LITELEASE_NAME").is_ok_and(|name| name == self.name);
        let owner = env::var("LITELEASE_OWNER").ok().filter(|_| is_its_name)?;
        Some((owner, env::var("LITELEASE_TOKEN").ok()?.parse().ok()?))
    }

    /// Returns the pipe of the `litelease run` of this name around this process, if that has one,
    /// and its token.
    pub(crate) fn progress_pipe(&self) -> Option<(PathBuf, i64)> {
        let pipe = env::var_os(PROGRESS)?.into();
        let is_its_name = env::var("LITELEASE_NAME").is_ok_and(|name| name == self.name);
        let token = env::var("LITELEASE_TOKEN").ok()?.parse().ok()?;
        (is_its_name && self.token.is_none_or(|own| own == token)).then_some((pipe, token))
    }

    /// Returns the grant as a place takes it.
    pub(crate) fn argument(&self) -> GrantArgument {
        GrantArgument { name: self.name.clone(), token: self.token, run: self.of_run() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Releases a new grant whose token could not be printed: its caller does not know of it.
pub(crate) fn unless_told(place: &Target, granted: &Lease, told: Result<()>) -> Result<u8> {
    let Err(failure) = told else { return Ok(code::OK) };
    let (name, token) = (printable(&granted.name), granted.token);
    Err(failure.adding(match place.take_back(granted) {
        Ok(Verdict::Done(_)) => {
            format!("the lease on {name} (token {token}) was released again")
        }
        Ok(Verdict::Rejected(Rejection { reason, .. })) => {
            format!("the lease on {name} (token {token}) is over, {reason}")
        }
        Err(error) => {
            let left = time_left(granted.expires_at_ms);
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
    current: Option<Lease>,
    similar: Option<String>,
) -> Result<u8> {
    let is_unknown = reason == Reason::NeverClaimed;
    let rejection = Rejection { reason: reason.to_string(), is_unknown, current };
    report(common, name, &rejection, &database::path(common)?.display().to_string(), similar)
}

/// Reports that a verb was rejected at a place, and why.
pub(crate) fn rejected_at(
    common: &Common,
    place: &Target,
    name: &str,
    rejection: &Rejection,
) -> Result<u8> {
    let similar = if rejection.is_unknown { similar_at(place, name) } else { None };
    report(common, name, rejection, &place.shown(), similar)
}

fn report(
    common: &Common,
    name: &str,
    rejection: &Rejection,
    shown: &str,
    similar: Option<String>,
) -> Result<u8> {
    let Rejection { reason, is_unknown, current } = rejection;
    let mut text = format!("{}: rejected, {reason}", printable(name));
    if let Some(current) = current {
        text += &format!(" ({}, token {})", owner(&current.owner), current.token);
    }
    if *is_unknown {
        // Another user, or another --db, may know it.
        text += &format!(" in {shown}");
    }
    text += &hint(similar.as_ref());
    let mut value = json!({
        "rejected": reason, "name": name, "current": current.as_ref().map(lease),
    });
    if let Some(similar) = similar {
        value["did_you_mean"] = json!(similar);
    }
    remark(common, value, &text)?;
    Ok(code::NO)
}
