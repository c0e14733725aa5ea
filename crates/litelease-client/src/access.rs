//! Where a client finds its access key, and where it may send it.

use std::env;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use litelease_sys::is_own_socket;

use crate::Error;

/// The part of a key file before the key, if it has one.
const HEADER: &str = "Authorization: Bearer ";

/// An access key, and the only socket that it may be sent to, if it has one.
pub(crate) struct Key {
    pub(crate) text: String,
    /// The socket of the server that has left the key for its own user. The key goes nowhere else:
    /// while the server is down, any program may listen at its address.
    pub(crate) socket: Option<PathBuf>,
}

impl Key {
    /// Returns a key that the user has named for this server.
    pub(crate) fn named(text: &str) -> Self {
        Key { text: text.into(), socket: None }
    }
}

/// The address of a server: a scheme, and a host with a port.
pub(crate) struct ServerUrl {
    pub(crate) base: String,
    /// The loopback address, if the host is one.
    pub(crate) loopback: Option<SocketAddr>,
    pub(crate) is_https: bool,
}

impl ServerUrl {
    /// Parses the URL of a server. `localhost` is the IPv4 loopback address, whatever a resolver
    /// says.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let invalid = || Error::InvalidUrl(url.into());
        let (scheme, rest) = url.split_once("://").ok_or_else(invalid)?;
        let (is_https, port) = match scheme {
            "http" => (false, 80),
            "https" => (true, 443),
            _ => return Err(invalid()),
        };
        let host = rest.strip_suffix('/').unwrap_or(rest);
        if host.is_empty() || host.contains(['/', '?', '#', '@', ' ']) {
            return Err(invalid());
        }
        let address = match host.split_once(':') {
            Some(("localhost", port)) => format!("127.0.0.1:{port}"),
            None if host == "localhost" => format!("127.0.0.1:{port}"),
            _ => host.to_owned(),
        };
        let ip = || {
            let ip: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
            Some(SocketAddr::new(ip, port))
        };
        let known: Option<SocketAddr> = address.parse().ok().or_else(ip);
        let loopback = known.filter(|address| address.ip().is_loopback());
        // The server's certificate is for the name, not for its address.
        let base = match loopback {
            Some(loopback) if !is_https => format!("http://{loopback}"),
            _ => format!("{scheme}://{host}"),
        };
        Ok(ServerUrl { base, loopback, is_https })
    }

    /// Finds the access key for this server: in `$LITELEASE_ACCESS_FILE`, or the local one that the
    /// server has left for its own user at this very address.
    pub(crate) fn find_key(&self) -> Result<Option<Key>, Error> {
        if let Some(path) = env::var_os("LITELEASE_ACCESS_FILE").filter(|path| !path.is_empty()) {
            let named = read(Path::new(&path)).map_err(Error::Access)?;
            return Ok(Some(Key::named(&named)));
        }
        Ok(self.local_key())
    }

    fn local_key(&self) -> Option<Key> {
        let (folder, name) = (folder()?, self.loopback?.to_string());
        let text = read(&folder.join(&name)).ok()?;
        if self.is_https {
            // The certificate proves that it is the right server.
            return Some(Key::named(&text));
        }
        let socket = folder.join(format!("{name}.sock"));
        is_own_socket(&socket).then_some(Key { text, socket: Some(socket) })
    }

    /// Checks that a key may be sent to this server.
    pub(crate) fn check(&self, key: Option<&str>) -> Result<(), Error> {
        match key {
            Some(_) if !self.is_https && self.loopback.is_none() => Err(Error::Insecure),
            _ => Ok(()),
        }
    }
}

/// Returns the folder of local keys.
fn folder() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("litelease/access"))
}

/// Reads a key file: the key alone, or the header that carries it.
fn read(path: &Path) -> std::io::Result<String> {
    let content = fs::read_to_string(path)?;
    let content = content.trim();
    Ok(content.strip_prefix(HEADER).unwrap_or(content).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_scheme_and_a_host_and_a_key_goes_only_where_it_is_safe() {
        for (url, base, is_safe) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070", true),
            ("http://localhost:7070/", "http://127.0.0.1:7070", true),
            ("http://localhost", "http://127.0.0.1:80", true),
            ("http://[::1]:7070", "http://[::1]:7070", true),
            ("https://lease.example", "https://lease.example", true),
            ("https://localhost:7070", "https://localhost:7070", true),
            ("http://lease.example:7070", "http://lease.example:7070", false),
            ("http://10.0.0.7:7070", "http://10.0.0.7:7070", false),
            ("http://localhost.evil.example", "http://localhost.evil.example", false),
            ("http://127.0.0.1.evil.example:1", "http://127.0.0.1.evil.example:1", false),
        ] {
            let server = ServerUrl::parse(url).ok();
            assert_eq!(server.as_ref().map(|server| server.base.as_str()), Some(base), "{url}");
            let is_fine = server.is_some_and(|server| server.check(Some("key")).is_ok());
            assert_eq!(is_fine, is_safe, "{url}");
        }
        for url in ["", "localhost:7070", "ftp://x", "http://", "http://x/v1", "http://u@x"] {
            assert!(ServerUrl::parse(url).is_err(), "{url}");
        }
    }
}
