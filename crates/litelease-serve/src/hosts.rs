//! Checks the origin of a request: refuses pages of other sites, and host names that an attacker
//! has pointed at this server (DNS rebinding).

use std::net::{IpAddr, Ipv6Addr};

use crate::page;
use crate::request::{Head, text};
use crate::response::HttpError;

/// Checks Host and Origin of a request.
pub(crate) fn check(head: &Head<'_>, known: &[String]) -> Result<(), HttpError> {
    let wrong = || unknown(None);
    let mut hosts = head.all("host");
    let host = match (head.authority, hosts.next(), hosts.next()) {
        (_, _, Some(_)) => {
            return Err(HttpError::new(400, "there is more than one Host header: send one"));
        }
        (Some(authority), None, _) => authority,
        // The host in the target counts, and a Host header beside it must be the same.
        (Some(authority), Some(host), _) if authority.as_bytes() != host => return Err(wrong()),
        (_, Some(host), _) => text(host).ok_or_else(wrong)?,
        (None, None, _) => return Err(HttpError::new(400, "the Host header is missing")),
    };
    if !is_known(host, known) {
        return Err(unknown(Some(host)));
    }
    let is_own = |origin: &[u8]| {
        let origin = text(origin).unwrap_or_default();
        let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        of.is_some_and(|of| of.eq_ignore_ascii_case(host))
    };
    let is_foreign =
        head.all("sec-fetch-site").any(|site| site == b"cross-site") && !is_visit(head);
    match head.all("origin").all(is_own) && !is_foreign {
        true => Ok(()),
        false => Err(HttpError::new(
            403,
            "a page of another site may not use this server: its Origin is not this server",
        )),
    }
}

/// Refuses a host, and tells how to allow it if it is a name.
fn unknown(host: Option<&str>) -> HttpError {
    let name = host.map(|host| host.split(':').next().unwrap_or(host)).filter(|name| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        (1..=253).contains(&name.len()) && name.bytes().all(is_part)
    });
    let text = "this server is not known by that host name";
    HttpError::new(
        421,
        match name {
            Some(name) => format!("{text}: to allow it, start litelease serve with --host {name}"),
            None => text.into(),
        },
    )
}

/// Checks whether a user has followed a link to a page. That is safe: pages are the same for all
/// users, do nothing when loaded, and cannot be framed.
fn is_visit(head: &Head<'_>) -> bool {
    matches!(head.method, "GET" | "HEAD")
        && page::FILES.iter().any(|file| file.path == head.path)
        && head.one("sec-fetch-mode") == Ok(Some(b"navigate"))
}

/// Checks whether a host is an IP address, which cannot be rebound, or a name of this server.
fn is_known(host: &str, known: &[String]) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                return address.parse::<Ipv6Addr>().is_ok() && is_port(port);
            }
            None => return false,
        },
        None => host.split_at(host.bytes().position(|byte| byte == b':').unwrap_or(host.len())),
    };
    let is_ours = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok()
        || known.iter().any(|known| known.eq_ignore_ascii_case(name));
    is_ours && is_port(port)
}

fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        // `parse` would accept a sign.
        Some(number) => {
            number.parse::<u16>().is_ok() && number.bytes().all(|byte| byte.is_ascii_digit())
        }
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
            "localhost:+80",
            "localhost:",
            "localhost:65536",
            "[::1]:+80",
        ] {
            assert!(!is_known(host, &known), "{host}");
        }
    }

    #[test]
    fn a_link_of_another_site_leads_to_a_page_and_to_nothing_else() {
        let header = |name, value: &'static str| httparse::Header { name, value: value.as_bytes() };
        let host = header("Host", "localhost");
        let site = header("Sec-Fetch-Site", "cross-site");
        let mode = |mode| header("Sec-Fetch-Mode", mode);
        let (visit, fetch) = (mode("navigate"), mode("no-cors"));
        let foreign = header("Origin", "http://evil.example");
        for (method, path, headers, is_fine) in [
            ("GET", "/", vec![host, site, visit], true),
            ("HEAD", "/docs", vec![host, site, visit], true),
            ("GET", "/", vec![host, site], false),
            ("GET", "/", vec![host, site, fetch], false),
            ("GET", "/", vec![host, site, visit, fetch], false),
            ("POST", "/", vec![host, site, visit], false),
            ("GET", "/", vec![host, site, visit, foreign], false),
            ("GET", "/metrics", vec![host, site, visit], false),
            ("GET", "/l/0b5b1f0e-1111-4222-8333-444455556666", vec![host, site, visit], false),
            ("GET", "/l/0b5b1f0e-1111-4222-8333-444455556666", vec![host], true),
        ] {
            let head = Head { method, path, query: "", authority: None, headers: &headers };
            let checked = check(&head, &[]).map_err(|refused| refused.status);
            assert_eq!(
                checked,
                if is_fine { Ok(()) } else { Err(403) },
                "{method} {path} {headers:?}"
            );
        }
        // Under a foreign host name not even a page is served.
        let evil = [header("Host", "evil.example"), site, visit];
        let head = Head { method: "GET", path: "/", query: "", authority: None, headers: &evil };
        assert_eq!(check(&head, &[]).map_err(|refused| refused.status), Err(421));
    }
}
