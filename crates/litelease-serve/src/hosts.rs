//! Who may call: not a page of another site, and not by a name that somebody else has pointed at this server.

use std::net::{IpAddr, Ipv6Addr};

use crate::answer::Refused;
use crate::request::{Head, text};

/// Checks Host and Origin of a request.
pub(crate) fn check(head: &Head<'_>, known: &[String]) -> Result<(), Refused> {
    let wrong = || Refused::new(421, "this server is not known by that host name");
    let mut hosts = head.all("host");
    let host = match (head.authority, hosts.next(), hosts.next()) {
        (_, _, Some(_)) => return Err(Refused::new(400, "there is more than one Host header")),
        (Some(authority), None, _) => authority,
        // What is in the address comes first, and a header beside it must be no other.
        (Some(authority), Some(host), _) if authority.as_bytes() != host => return Err(wrong()),
        (_, Some(host), _) => text(host).ok_or_else(wrong)?,
        (None, None, _) => return Err(Refused::new(400, "the Host header is missing")),
    };
    if !is_known(host, known) {
        return Err(wrong());
    }
    let is_own = |origin: &[u8]| {
        let origin = text(origin).unwrap_or_default();
        let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        of.is_some_and(|of| of.eq_ignore_ascii_case(host))
    };
    let is_foreign = head.all("sec-fetch-site").any(|site| site == b"cross-site");
    match head.all("origin").all(is_own) && !is_foreign {
        true => Ok(()),
        false => Err(Refused::new(403, "a page of another origin may not use this server")),
    }
}

/// Whether a host is an address, which nobody can rebind, or a name of ours.
fn is_known(host: &str, known: &[String]) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                return address.parse::<Ipv6Addr>().is_ok() && is_port(port);
            }
            None => return false,
        },
        None => match host.find(':') {
            Some(at) => host.split_at(at),
            None => (host, ""),
        },
    };
    let is_ours = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok()
        || known.iter().any(|known| known.eq_ignore_ascii_case(name));
    is_ours && is_port(port)
}

fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        Some(number) => number.parse::<u16>().is_ok(),
        None => text.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_of_ours_are_known_and_all_others_are_not() {
        let known = ["pools.example".to_owned()];
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:7777",
            "[::1]:80",
            "[::1]",
            "10.0.0.7",
            "pools.example:1",
        ] {
            assert!(is_known(host, &known), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "localhost:80:80",
            "localhost:http",
            "[::1",
            "[evil]:80",
            "[::1]evil",
            "xpools.example",
            "user@localhost",
        ] {
            assert!(!is_known(host, &known), "{host}");
        }
    }
}
