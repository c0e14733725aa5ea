//! The URL of an engine in `--db`: its password is kept out of everything that others can see.

use std::env;
use std::fs;

use litelease_cluster as cluster;

use crate::Common;
use crate::exit::{Failure, Result};

/// The variable with the name of a file that has the password.
const PASSWORD_FILE: &str = "LITELEASE_PASSWORD_FILE";

/// A URL of etcd or PostgreSQL.
#[derive(Clone)]
pub(crate) struct EngineUrl {
    /// With the password.
    whole: String,
    /// Without it, for the environment of commands.
    bare: String,
    /// For people.
    shown: String,
}

impl EngineUrl {
    /// Returns the URL that `--db` or `$LITELEASE_DB` has, if it is none of a file.
    pub(crate) fn from_common(common: &Common) -> Result<Option<Self>> {
        match common.db.as_ref().and_then(|db| db.to_str()) {
            Some(url) if cluster::EngineUrl::is_url(url) => {
                EngineUrl::read("--db", url, common.is_db_argument).map(Some)
            }
            // As a file, it would be shown with its password.
            Some(text) if is_almost_url(text) => Err(Failure::usage(
                "--db: write :// after etcd or postgres; if this is a file, write ./ in front of its name",
            )),
            _ => Ok(None),
        }
    }

    /// Reads a URL. `flag` is where it comes from, and `is_argument` whether every user can see it
    /// there.
    pub(crate) fn read(flag: &str, text: &str, is_argument: bool) -> Result<Self> {
        let wrong = |reason: String| Failure::usage(format!("{flag}: {reason}"));
        let (bare, has_user, has_password) = without_password(text);
        let file = env::var_os(PASSWORD_FILE).filter(|file| !file.is_empty());
        let whole = match (file, has_user, has_password) {
            (Some(file), true, false) => {
                let password = fs::read_to_string(&file).map_err(|error| {
                    let text = format!("cannot read the password in ${PASSWORD_FILE}: {error}");
                    Failure::elsewhere("Password", text)
                })?;
                with_password(text, password.trim_end_matches(['\r', '\n']))
            }
            (None, true, false) if text.starts_with("etcd") => {
                return Err(wrong(format!(
                    "the password is missing: put it into a file, and name that in ${PASSWORD_FILE}"
                )));
            }
            _ => text.to_owned(),
        };
        let parsed =
            whole.parse::<cluster::EngineUrl>().map_err(|error| wrong(error.to_string()))?;
        check_built(&parsed, ENGINES).map_err(wrong)?;
        if is_argument && has_password {
            return Err(wrong(format!(
                "other users can see arguments, and this one has a password: leave the password out and name \
                 a file with it in ${PASSWORD_FILE}, or put the URL into $LITELEASE_DB"
            )));
        }
        Ok(EngineUrl { whole, bare, shown: parsed.to_string() })
    }

    /// Refuses what only a server on the engine has.
    pub(crate) fn needs_service(&self, what: &str) -> Failure {
        let engine = if self.has_clock() { "PostgreSQL" } else { "etcd" };
        Failure::usage(format!(
            "{what} on {engine} need the service: litelease serve --db {}, then --server",
            self.shown
        ))
    }

    /// Returns the URL with its password, only for the engine.
    pub(crate) fn whole(&self) -> &str {
        &self.whole
    }

    /// Returns the URL without its password. It still names the engine.
    pub(crate) fn bare(&self) -> &str {
        &self.bare
    }

    /// Returns the URL for people.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Checks whether the engine has a clock of its own.
    pub(crate) fn has_clock(&self) -> bool {
        !self.whole.starts_with("etcd")
    }
}

/// The engines that this program was built with.
const ENGINES: &[&str] = &[
    #[cfg(feature = "etcd")]
    "etcd",
    #[cfg(feature = "postgres")]
    "PostgreSQL",
];

/// Refuses a URL of an engine that this program was built without.
fn check_built(url: &cluster::EngineUrl, built: &[&str]) -> std::result::Result<(), String> {
    let engine = match url {
        cluster::EngineUrl::Etcd(_) => "etcd",
        _ => "PostgreSQL",
    };
    match built.contains(&engine) {
        true => Ok(()),
        false => Err(format!(
            "this litelease was built without {engine}: run `make build-cli`, and use target/release/litelease"
        )),
    }
}

/// Checks whether a text that is no URL was meant as one: it begins with a scheme of ours, and a
/// colon or slashes follow.
fn is_almost_url(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (scheme, behind) = text.split_at(end);
    let is_scheme = |known: &&str| scheme.eq_ignore_ascii_case(known);
    ["etcd", "etcds", "postgres", "postgresql"].iter().any(is_scheme)
        && (behind.starts_with(':') || behind.starts_with("//"))
}

/// Returns the URL without its password, and whether it has a user and a password.
fn without_password(url: &str) -> (String, bool, bool) {
    let (start, user, behind) = parts(url);
    match user.and_then(|user| user.split_once(':')) {
        Some((name, _)) => (format!("{start}{name}{behind}"), true, true),
        None => (url.to_owned(), user.is_some(), false),
    }
}

/// Returns the URL with a password for its user.
fn with_password(url: &str, password: &str) -> String {
    let (start, user, behind) = parts(url);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = password.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    let encoded: String = encoded.collect();
    format!("{start}{}:{encoded}{behind}", user.unwrap_or_default())
}

/// Splits a URL into the part before the user, the user with its password, and the part after it.
fn parts(url: &str) -> (&str, Option<&str>, &str) {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let rest = &url[begin..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => (&url[..begin], Some(&rest[..at]), &rest[at..]),
        None => (&url[..begin], None, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_and_put_together_around_its_password() {
        for (url, bare, has_user, has_password) in [
            ("etcd://a:1,b:2/x", "etcd://a:1,b:2/x", false, false),
            ("etcd://u:geheim@a/x?y=z", "etcd://u@a/x?y=z", true, true),
            ("etcd://u:ge@heim@a", "etcd://u@a", true, true),
            ("postgres://u@h/d", "postgres://u@h/d", true, false),
            ("postgres://u:@h/d", "postgres://u@h/d", true, true),
        ] {
            assert_eq!(without_password(url), (bare.to_owned(), has_user, has_password));
        }
        assert_eq!(with_password("etcd://u@a:1/x", "g/h:ä"), "etcd://u:g%2Fh%3A%C3%A4@a:1/x");
    }

    #[test]
    fn a_program_without_engines_says_how_to_build_one_with_them() -> cluster::Result<()> {
        for (url, engine) in [("etcd://a", "etcd"), ("postgres://a/b", "PostgreSQL")] {
            let url: cluster::EngineUrl = url.parse()?;
            assert_eq!(check_built(&url, ENGINES), Ok(()));
            let refused = check_built(&url, &[]).err().unwrap_or_default();
            assert!(
                refused.contains(&format!("without {engine}: run `make build-cli`")),
                "{refused}"
            );
        }
        Ok(())
    }

    #[test]
    fn a_password_in_an_argument_is_refused_without_showing_it() {
        let refused = EngineUrl::read("--db", "postgres://u:geheim@h/d", true).err();
        let text = refused.map(|failure| failure.to_string()).unwrap_or_default();
        assert!(
            text.contains("other users can see arguments") && !text.contains("geheim"),
            "{text}"
        );
        let read = EngineUrl::read("--db", "postgres://u:geheim@h/d", false);
        assert!(
            read.is_ok_and(
                |url| !url.shown().contains("geheim") && url.bare() == "postgres://u@h/d"
            )
        );
    }
}
