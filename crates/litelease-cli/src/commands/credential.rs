//! `litelease credential`: signed grants, for services that cannot see the file.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use litelease::Gate;
use litelease::credentials::{Error, IssueResult, Issuer, KeyError, Refused, Verified, Verifier};
use serde_json::json;

use super::grant::{Grant, GrantOfRun, rejected};
use crate::duration::{parse, parse_positive, shown};
use crate::exit::{Failure, Result, code};
use crate::output::{answer, owner, printable, remark, say};
use crate::similar::similar_if;
use crate::{Common, database};

/// Sign a live lease for a service that cannot see the file, and check what was signed
///
/// A credential is a JWT with the name, the owner and the fencing token of a lease that is live. It
/// lasts until the lease expires at the latest, and for 5 minutes at most (see rotate --max-ttl).
/// It cannot be taken back: that of a released lease is valid until it expires.
///
/// The keys are in a folder that only you can read. A service needs the public ones, which `keys`
/// prints, and the id that `issuer` prints.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease credential rotate                 make the first key, or a new one
  litelease credential keys --out jwks.json   for the services that verify
  litelease run upload -- sh -c 'curl -H \"Authorization: Bearer $(litelease credential issue -a storage)\" ...'
  litelease credential verify --keys jwks.json --issuer ID -a storage < credential

Exit codes: 0 done or valid; 1 the lease is not live, or the credential is refused; 64 usage; 69 the
file or the keys cannot be used.")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Print a credential for a live lease; inside `litelease run` it needs no name
    Issue {
        #[command(flatten)]
        grant: GrantOfRun,
        /// The service that is to accept it
        #[arg(short, long, value_name = "SERVICE")]
        audience: String,
        /// How long it lasts: at most until the lease ends, and as long as the key allows
        #[arg(long, default_value = "1m", value_name = "TIME", value_parser = parse_positive)]
        ttl: Duration,
        #[command(flatten)]
        folder: Folder,
    },
    /// Check a credential, without the file of the leases
    Verify {
        /// The credential [default: from standard input, where no other process sees it]
        credential: Option<String>,
        /// The public keys of the issuer, as a JWK set
        #[arg(long, value_name = "FILE")]
        keys: PathBuf,
        /// The id of the issuer, as `litelease credential issuer` prints it
        #[arg(long, value_name = "ID")]
        issuer: String,
        /// The service that it must be for
        #[arg(short, long, value_name = "SERVICE")]
        audience: String,
        /// How far clocks may disagree
        #[arg(long, default_value = "0s", value_name = "TIME", value_parser = parse)]
        leeway: Duration,
        /// A file that remembers the newest token of each name, and refuses older ones
        #[arg(long, value_name = "FILE")]
        gate: Option<PathBuf>,
    },
    /// Make a new key, which signs from now on; the one before counts until its last credential has
    /// expired
    Rotate {
        /// The longest time of a credential under the new key
        #[arg(long, default_value = "5m", value_name = "TIME", value_parser = parse_positive)]
        max_ttl: Duration,
        #[command(flatten)]
        folder: Folder,
    },
    /// Print the public keys as a JWK set
    Keys {
        /// Write them to this file, as a whole
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        folder: Folder,
    },
    /// Print the id of the file, which its credentials name as their issuer
    Issuer,
}

/// The folder with the keys.
#[derive(clap::Args)]
struct Folder {
    /// The folder with the keys [default: credentials, in your folder for state]
    #[arg(long, env = "LITELEASE_CREDENTIALS", hide_env_values = true, value_name = "FOLDER")]
    credentials: Option<PathBuf>,
}

impl Folder {
    fn issuer(self) -> Result<Issuer> {
        let own = || database::state_folder().map(|state| state.join("credentials"));
        let folder = self.credentials.filter(|folder| !folder.as_os_str().is_empty()).or_else(own);
        let missing =
            || Failure::usage("$HOME is not set: name the folder of the keys with --credentials");
        Ok(Issuer::at(folder.ok_or_else(missing)?))
    }
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    match args.verb {
        Verb::Issue { grant, audience, ttl, folder } => {
            issue(&grant.named()?, &audience, ttl, &folder.issuer()?, common)
        }
        Verb::Verify { credential, keys, issuer, audience, leeway, gate } => {
            let credential = credential.map_or_else(from_input, Ok)?;
            let verifier = Verifier::reading(keys, &issuer, &audience)?.leeway(leeway);
            let verified = match gate {
                Some(gate) => Gate::open(gate)?.admit_credential(&verifier, &credential),
                None => verifier.verify(&credential).map_err(Error::from),
            };
            verify(verified, common)
        }
        Verb::Rotate { max_ttl, folder } => {
            let key = folder.issuer()?.rotate(max_ttl)?;
            answer(common, json!({ "key": key }), &key)?;
            Ok(code::OK)
        }
        Verb::Keys { out, folder } => {
            let keys = folder.issuer()?.keys()?;
            match out {
                Some(path) => keys.save(path)?,
                None => say(&keys.to_json())?,
            }
            Ok(code::OK)
        }
        Verb::Issuer => {
            let issuer = database::open_existing(common)?.issuer()?;
            answer(common, json!({ "issuer": issuer }), &issuer)?;
            Ok(code::OK)
        }
    }
}

fn issue(
    grant: &Grant,
    audience: &str,
    ttl: Duration,
    issuer: &Issuer,
    common: &Common,
) -> Result<u8> {
    let argument = grant.argument();
    let (named, db) = (argument.named()?, database::open_existing(common)?);
    match issuer.issue(&db, named, audience, ttl)? {
        IssueResult::Issued(issued) => {
            let value = json!({
                "credential": issued.credential,
                "issuer": issued.issuer,
                "key": issued.key_id,
                "expires_at_ms": issued.expires_at_ms,
            });
            answer(common, value, &issued.credential)?;
            Ok(code::OK)
        }
        IssueResult::TooShort(_) => {
            let name = printable(grant.name());
            let text = format!(
                "{name}: less than a second is left, too short for a credential: renew the lease, or give a longer --ttl"
            );
            remark(common, json!({ "rejected": "too short", "name": grant.name() }), &text)?;
            Ok(code::NO)
        }
        IssueResult::Rejected { reason } => {
            let similar = similar_if(&db, grant.name(), &reason);
            rejected(common, grant.name(), reason, None, similar)
        }
    }
}

fn verify(verified: std::result::Result<Verified, Error>, common: &Common) -> Result<u8> {
    let verified = match verified {
        Err(Error::Refused(Refused::Keys(error))) => return Err(error.into()),
        Err(Error::Refused(refused)) => {
            let value = json!({ "refused": refused.kind(), "message": refused.to_string() });
            remark(common, value, &format!("refused: {refused}"))?;
            return Ok(code::NO);
        }
        verified => verified?,
    };
    let left = shown(verified.expires_at_ms - litelease::now_ms());
    let (name, who) = (printable(&verified.name), owner(&verified.owner));
    let text = format!("{name}: token {}, {who}, for {left} more", verified.token);
    let value = json!({
        "name": verified.name,
        "owner": verified.owner,
        "token": verified.token,
        "issuer": verified.issuer,
        "key": verified.key_id,
        "issued_at_ms": verified.issued_at_ms,
        "expires_at_ms": verified.expires_at_ms,
    });
    remark(common, value, &text)?;
    Ok(code::OK)
}

/// Reads a credential from standard input. One that is too long is cut, and refused as it is then.
fn from_input() -> Result<String> {
    let mut text = Vec::new();
    let most = u64::try_from(2 * litelease::credentials::MAX_CREDENTIAL).unwrap_or(u64::MAX);
    std::io::stdin().take(most).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::InvalidIssuer(_)
            | KeyError::NoAudience
            | KeyError::InvalidMaxTtl
            | KeyError::TooLong { .. } => Failure::usage(error),
            error => Failure::elsewhere(error.kind(), error),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Lease(error) => error.into(),
            Error::Keys(error) => error.into(),
            error => Failure::failed(error.kind(), error),
        }
    }
}
