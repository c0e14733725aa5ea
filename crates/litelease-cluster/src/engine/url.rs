//! URLs that name an engine. Errors name the wrong part of a URL and never show a password.

use std::fmt;

use crate::engine::{Error, Result};

/// An engine, as a URL names it.
///
/// ```
/// # use litelease_cluster::EngineUrl;
/// let url: EngineUrl = "etcd://10.0.0.1:2379,10.0.0.2:2379/jobs".parse()?;
/// assert!(matches!(&url, EngineUrl::Etcd(url) if url.hosts.len() == 2 && url.prefix == "jobs"));
///
/// let secret: EngineUrl = "postgres://app:geheim@db.example/app".parse()?;
/// assert_eq!(secret.to_string(), "postgres://app:***@db.example:5432/app?schema=litelease");
/// # Ok::<(), litelease_cluster::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineUrl {
    /// `etcd://` or `etcds://`.
    Etcd(EtcdUrl),
    /// `postgres://` or `postgresql://`.
    Postgres(PostgresUrl),
}

/// `etcd://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/PREFIX]`; with TLS `etcds://`, and then
/// `?ca=FILE`, `cert=FILE` and `key=FILE`.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUrl {
    /// The user and the password, if the cluster asks for them.
    pub user: Option<(String, String)>,
    /// The members, each a host and a port.
    pub hosts: Vec<(String, u16)>,
    /// The prefix of every key.
    pub prefix: String,
    /// Connections are encrypted.
    pub tls: bool,
    /// A file with the certificates to trust instead of the system's.
    pub ca: Option<String>,
    /// Files with this client's certificate and its key.
    pub certificate: Option<(String, String)>,
}

/// `postgres://…` as libpq has it, and `?schema=NAME`.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// The user and the password; without them the system's user and no password.
    pub user: Option<(String, Option<String>)>,
    /// The servers, each a host (or the folder of a Unix socket) and a port.
    pub hosts: Vec<(String, u16)>,
    /// The database; without it that of the user's name.
    pub database: Option<String>,
    /// The schema with our tables.
    pub schema: String,
    /// `disable`, `prefer`, `require`, `verify-ca` or `verify-full`.
    pub sslmode: String,
    /// A file with the certificates to trust instead of the system's.
    pub sslrootcert: Option<String>,
    /// The name of this client in the server's lists.
    pub application_name: Option<String>,
}

const ETCD: &str = "etcd://HOST:PORT[,HOST:PORT…][/PREFIX]";
const POSTGRES: &str = "postgres://HOST[:PORT]/DATABASE";

impl EngineUrl {
    /// Checks whether a text is meant as a URL and not as a file: it begins with a scheme and
    /// `://`.
    ///
    /// ```
    /// # use litelease_cluster::EngineUrl;
    /// assert!(EngineUrl::is_url("etcd://localhost"));
    /// assert!(!EngineUrl::is_url("data/app.sqlite3"));
    /// ```
    pub fn is_url(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
        })
    }
}

impl std::str::FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((scheme, rest)) = text.split_once("://").filter(|_| EngineUrl::is_url(text))
        else {
            return Err(invalid(format!("this is no URL: write {ETCD} or {POSTGRES}")));
        };
        let parts = Parts::split(rest)?;
        match scheme {
            "etcd" => EtcdUrl::from_parts(parts, false).map(EngineUrl::Etcd),
            "etcds" => EtcdUrl::from_parts(parts, true).map(EngineUrl::Etcd),
            "postgres" | "postgresql" => PostgresUrl::from_parts(parts).map(EngineUrl::Postgres),
            scheme => Err(invalid(format!(
                "{scheme}:// is no engine of Litelease: write {ETCD} or {POSTGRES}"
            ))),
        }
    }
}

/// The parts of a key that follow a prefix: rows, tokens, rows of the service, and the floor.
const OURS: [&str; 5] = ["p", "r", "t", "s", "m"];

impl EtcdUrl {
    fn from_parts(parts: Parts<'_>, tls: bool) -> Result<Self> {
        let hosts = parts.hosts(2379, ETCD)?;
        let user = match parts.user()? {
            None => None,
            Some((user, Some(password))) => Some((user, password)),
            Some((_, None)) => {
                return Err(invalid("the password is missing: write USER:PASSWORD@HOST".into()));
            }
        };
        let (mut ca, mut cert, mut key) = (None, None, None);
        for (name, value) in parts.parameters()? {
            match name.as_str() {
                "ca" if tls => ca = Some(value),
                "cert" if tls => cert = Some(value),
                "key" if tls => key = Some(value),
                "ca" | "cert" | "key" => {
                    return Err(invalid(format!("the parameter {name} needs etcds://")));
                }
                _ => return Err(unknown_parameter(&name, "ca, cert and key")),
            }
        }
        let certificate = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(invalid("the parameters cert and key go together".into())),
        };
        let prefix = decoded("the prefix", parts.path.trim_matches('/'))?;
        // Its keys would be among those of the leases below a shorter prefix.
        if let Some(part) = prefix.split('/').skip(1).find(|part| OURS.contains(part)) {
            return Err(invalid(format!(
                "the prefix must not have the part {part:?} after the first one: leases below the prefix before it \
                 use such keys; write another word"
            )));
        }
        Ok(EtcdUrl { user, hosts, prefix, tls, ca, certificate })
    }
}

impl PostgresUrl {
    fn from_parts(parts: Parts<'_>) -> Result<Self> {
        let mut url = PostgresUrl {
            user: parts.user()?,
            hosts: Vec::new(),
            database: None,
            schema: "litelease".into(),
            sslmode: "prefer".into(),
            sslrootcert: None,
            application_name: None,
        };
        let database = decoded("the database", parts.path.trim_start_matches('/'))?;
        url.database = Some(database).filter(|database| !database.is_empty());
        for (name, value) in parts.parameters()? {
            match name.as_str() {
                "schema" if is_identifier(&value) => url.schema = value,
                "schema" => {
                    return Err(invalid(
                        "the schema must have 1 to 63 letters, digits and underscores, and begin \
                         with no digit"
                            .into(),
                    ));
                }
                "host" => url.hosts.push((value, 5432)),
                "sslmode" if SSL_MODES.contains(&value.as_str()) => url.sslmode = value,
                "sslmode" => {
                    return Err(invalid(format!("sslmode is one of {}", SSL_MODES.join(", "))));
                }
                "sslrootcert" => url.sslrootcert = Some(value),
                "application_name" => url.application_name = Some(value),
                _ => {
                    let known = "schema, host, sslmode, sslrootcert and application_name";
                    return Err(unknown_parameter(&name, known));
                }
            }
        }
        if url.hosts.is_empty() || !parts.hosts.is_empty() {
            url.hosts.splice(0..0, parts.hosts(5432, POSTGRES)?);
        }
        Ok(url)
    }
}

const SSL_MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

fn is_identifier(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// A URL behind its scheme: `[user@]hosts[/path][?query]`.
struct Parts<'u> {
    user: Option<&'u str>,
    hosts: &'u str,
    path: &'u str,
    query: &'u str,
}

impl<'u> Parts<'u> {
    fn split(rest: &'u str) -> Result<Self> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, behind) = rest.split_at(end);
        // A password with one of these characters would be read as a host, a path and a query,
        // which errors show.
        if behind.contains(['@', '#']) {
            return Err(invalid(
                "an @ or # comes after the hosts: in a user, a password or a prefix write / as %2F, \
                 ? as %3F, # as %23 and @ as %40"
                    .into(),
            ));
        }
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let (path, query) = behind.split_once('?').unwrap_or((behind, ""));
        Ok(Parts { user, hosts, path, query })
    }

    fn user(&self) -> Result<Option<(String, Option<String>)>> {
        let Some(user) = self.user else { return Ok(None) };
        let (user, password) = match user.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (user, None),
        };
        if user.is_empty() {
            return Err(invalid("the user before @ is missing".into()));
        }
        let password = password.map(|password| decoded("the password", password)).transpose()?;
        Ok(Some((decoded("the user", user)?, password)))
    }

    fn hosts(&self, default_port: u16, form: &str) -> Result<Vec<(String, u16)>> {
        if self.hosts.is_empty() {
            return Err(invalid(format!("the host is missing: write {form}")));
        }
        let hosts = self.hosts.split(',').enumerate();
        hosts.map(|(index, host)| one_host(host, index + 1, default_port)).collect()
    }

    fn parameters(&self) -> Result<Vec<(String, String)>> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                let name = decoded("a parameter", name)?;
                if value.is_empty() {
                    return Err(invalid(format!("the parameter {name} has no value")));
                }
                Ok((name, decoded("a parameter", value)?))
            })
            .collect()
    }
}

/// Reads one host. Errors name it by its number, because its text may be a part of a password.
fn one_host(text: &str, number: usize, default_port: u16) -> Result<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) => (host, port),
            None => return Err(invalid(format!("host {number} has [ without ]"))),
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() {
        return Err(invalid(format!("host {number} is empty")));
    }
    let is_address = text.starts_with('[') && host.parse::<std::net::Ipv6Addr>().is_ok();
    let is_name = |c: char| c.is_alphanumeric() || "-._".contains(c);
    if !is_address && (text.starts_with('[') || !host.chars().all(is_name)) {
        return Err(invalid(format!("host {number} is no name or address")));
    }
    let port = match port {
        "" => Some(default_port),
        port => port
            .strip_prefix(':')
            .filter(|port| port.bytes().all(|digit| digit.is_ascii_digit()))
            .and_then(|port| port.parse().ok())
            .filter(|port| *port != 0),
    };
    let port = port.ok_or_else(|| {
        invalid(format!("the port of host {number} is not a number from 1 to 65535"))
    })?;
    Ok((host.to_owned(), port))
}

fn decoded(what: &str, text: &str) -> Result<String> {
    let wrong = || invalid(format!("{what} is not percent-encoded UTF-8"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(wrong)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

fn unknown_parameter(name: &str, known: &str) -> Error {
    invalid(format!("there is no parameter {name:?}: the parameters are {known}"))
}

fn invalid(reason: String) -> Error {
    Error::InvalidUrl(reason)
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineUrl::Etcd(url) => {
                let user = url.user.as_ref().map(|(user, _)| (user.as_str(), true));
                f.write_str(if url.tls { "etcds://" } else { "etcd://" })?;
                write_authority(f, user, &url.hosts)?;
                write!(f, "/{}", url.prefix)
            }
            EngineUrl::Postgres(url) => {
                let user = url.user.as_ref();
                let user = user.map(|(user, password)| (user.as_str(), password.is_some()));
                f.write_str("postgres://")?;
                write_authority(f, user, &url.hosts)?;
                let database = url.database.as_deref().unwrap_or_default();
                write!(f, "/{database}?schema={}", url.schema)
            }
        }
    }
}

fn write_authority(
    f: &mut fmt::Formatter<'_>,
    user: Option<(&str, bool)>,
    hosts: &[(String, u16)],
) -> fmt::Result {
    if let Some((user, has_password)) = user {
        write!(f, "{user}{}@", if has_password { ":***" } else { "" })?;
    }
    for (index, (host, port)) in hosts.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { "," })?;
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}")?,
            false => write!(f, "{host}:{port}")?,
        }
    }
    Ok(())
}

impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineUrl({self})")
    }
}

impl fmt::Debug for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUrl({})", EngineUrl::Etcd(self.clone()))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({})", EngineUrl::Postgres(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_url_is_refused_and_names_the_part_without_the_password() {
        for (url, named) in [
            ("", "no URL"),
            ("app.sqlite3", "no URL"),
            ("://host", "no URL"),
            ("etcd://", "host is missing"),
            ("etcd:///prefix", "host is missing"),
            ("etcd://a/jobs/r", "the part \"r\""),
            ("etcd://a/jobs%2Fs/more", "the part \"s\""),
            ("etcd://u:geheim@", "host is missing"),
            ("etcd://u:geheim@/x", "host is missing"),
            ("etcd://a:1,,b:2", "host 2 is empty"),
            ("etcd://a:1,", "host 2 is empty"),
            ("etcd://:2379", "host 1 is empty"),
            ("etcd://a:0", "port of host 1"),
            ("etcd://a:b", "port of host 1"),
            ("etcd://a:65536", "port of host 1"),
            ("etcd://a:1,b:-1", "port of host 2"),
            ("etcd://a:+1", "port of host 1"),
            ("etcd://[::1:2379", "[ without ]"),
            ("etcd://[nothing]:2379", "no name or address"),
            ("etcd://a b:2379", "no name or address"),
            ("etcd://u@a", "password is missing"),
            ("etcd://:geheim@a", "user before @ is missing"),
            ("etcd://u:geheim%zz@a", "password is not percent-encoded"),
            ("etcd://u:geheim%ff@a", "password is not percent-encoded"),
            ("etcd://u:geheim%@a", "password is not percent-encoded"),
            // Passwords with characters that end a host.
            ("etcd://u:geheim/geheim@a", "@ or # comes after"),
            ("etcd://u:1?geheim@a", "@ or # comes after"),
            ("etcd://u:geheim#geheim@a", "@ or # comes after"),
            ("etcd://u:geheim/", "port of host 1"),
            ("etcd://u:geheim", "port of host 1"),
            ("etcd://a/x#y", "@ or # comes after"),
            ("etcd://a?ca=x", "needs etcds"),
            ("etcd://a?geschwindigkeit=1", "no parameter \"geschwindigkeit\""),
            ("etcds://a?cert=x", "cert and key go together"),
            ("etcds://a?ca", "ca has no value"),
            ("redis://u:geheim@a", "redis:// is no engine"),
            ("http://u:geheim@a", "http:// is no engine"),
            ("postgres:///app", "host is missing"),
            ("postgres://u:geheim@h:x/app", "port of host 1"),
            ("postgres://h/app?schema=a-b", "the schema must"),
            ("postgres://h/app?schema=1a", "the schema must"),
            ("postgres://h/app?sslmode=maybe", "sslmode is one of"),
            ("postgres://h/app?pass=geheim", "no parameter \"pass\""),
            ("postgres://h/app?password=geheim", "no parameter \"password\""),
        ] {
            let error = url.parse::<EngineUrl>().err();
            assert!(matches!(error, Some(Error::InvalidUrl(_))), "{url}: {error:?}");
            let text = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains(named), "{url}: {text}");
            assert!(!text.contains("geheim"), "{url}: {text}");
        }
    }

    #[test]
    fn good_urls_are_read_and_shown_without_their_password() -> Result<()> {
        for (url, shown) in [
            ("etcd://a", "etcd://a:2379/"),
            ("etcd://a:1,b,[::1]:3/jobs/x/", "etcd://a:1,b:2379,[::1]:3/jobs/x"),
            ("etcds://u:ge%2Fheim@a?ca=ca.pem&cert=c&key=k", "etcds://u:***@a:2379/"),
            ("etcd://u:ge@heim@a", "etcd://u:***@a:2379/"),
            ("postgres://h", "postgres://h:5432/?schema=litelease"),
            ("postgresql://u@h,i:1/app?schema=s", "postgres://u@h:5432,i:1/app?schema=s"),
            ("postgres:///app?host=/run/x", "postgres:///run/x:5432/app?schema=litelease"),
        ] {
            let parsed: EngineUrl = url.parse()?;
            assert_eq!(parsed.to_string(), shown);
            assert!(!format!("{parsed:?}").contains("heim"));
            match parsed {
                EngineUrl::Etcd(url) => assert!(!format!("{url:?}").contains("heim")),
                EngineUrl::Postgres(url) => assert!(!format!("{url:?}").contains("heim")),
            }
        }
        let EngineUrl::Etcd(url) = "etcds://u:ge%2Fheim@a?ca=ca%20.pem".parse()? else {
            return Err(invalid("not etcd".into()));
        };
        assert_eq!(url.user, Some(("u".into(), "ge/heim".into())));
        assert_eq!(url.ca.as_deref(), Some("ca .pem"));
        Ok(())
    }
}
