//! Finds the beginning and the end of an HTTP/1 request: pure functions on the received bytes.
//!
//! A request that two readers could understand differently is refused, because such requests can be
//! smuggled past a proxy.

use std::mem::MaybeUninit;

use httparse::{Error, Status};

use crate::request::{Head, text};
use crate::response::HttpError;

/// The longest head that is accepted, in bytes.
pub(crate) const LONGEST_HEAD: usize = 16 * 1024;

/// The largest number of headers that is accepted.
const MOST_HEADERS: usize = 64;

/// The longest line of a chunk size with its extension, and of all trailers together, in bytes.
const LONGEST_LINES: usize = 1024;

/// The framing of a request: how its body is sent, and what happens after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    pub(crate) length: Length,
    /// The client waits for `100 Continue` before it sends the body.
    pub(crate) expects: bool,
    /// The response has no body.
    pub(crate) is_head: bool,
    /// The connection stays open.
    pub(crate) stays: bool,
    /// The client speaks HTTP/1.0, which has no chunks.
    pub(crate) is_old: bool,
}

/// The length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Known(usize),
    Chunked,
}

/// Parses the head at the start of `received`. Returns `None` if it is not complete yet; otherwise
/// the result of `take`, the framing, and the length of the head.
pub(crate) fn head<T>(
    received: &[u8],
    take: impl FnOnce(&Head<'_>) -> T,
) -> Result<Option<(T, Framing, usize)>, HttpError> {
    let mut headers = [const { MaybeUninit::uninit() }; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let used = match request.parse_with_uninit_headers(received, &mut headers) {
        Ok(Status::Complete(used)) if used <= LONGEST_HEAD => used,
        Ok(Status::Partial) if received.len() < LONGEST_HEAD => return Ok(None),
        Ok(_) => return Err(HttpError::new(431, "the head of the request is longer than 16 KiB")),
        Err(Error::TooManyHeaders) => {
            return Err(HttpError::new(431, format!("there are more than {MOST_HEADERS} headers")));
        }
        Err(_) => return Err(HttpError::new(400, "the head of the request is not HTTP/1.1")),
    };
    if !ends_lines(received.get(..used).unwrap_or_default()) {
        return Err(HttpError::new(400, "header lines must end with CRLF"));
    }
    let target = request.path.unwrap_or_default();
    let (authority, path, query) = split(target)
        .ok_or_else(|| HttpError::new(400, "the target of the request must begin with a slash"))?;
    let method = request.method.unwrap_or_default();
    let head = Head { method, path, query, authority, headers: request.headers };
    if authority.is_some() && head.all("host").next().is_none() {
        return Err(HttpError::new(400, "the Host header is missing"));
    }
    let framing = framing(&head, request.version == Some(0))?;
    Ok(Some((take(&head), framing, used)))
}

/// Splits a target into host, path and query. Proxies are sent a whole URL, servers only a path.
fn split(target: &str) -> Option<(Option<&str>, &str, &str)> {
    let url = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let (authority, path) = match url {
        Some(rest) => match rest.find(['/', '?']) {
            Some(at) => rest.split_at_checked(at).map(|(host, path)| (Some(host), path))?,
            None => (Some(rest), ""),
        },
        None if target.starts_with('/') => (None, target),
        None => return None,
    };
    match path.split_once('?').unwrap_or((path, "")) {
        ("", query) => Some((authority, "/", query)),
        (path, query) => Some((authority, path, query)),
    }
}

/// Checks whether every line ends with CRLF. It never stops early, which is faster.
fn ends_lines(head: &[u8]) -> bool {
    let pairs = head.iter().zip(head.get(1..).unwrap_or_default());
    let is_bare = |(first, second): (&u8, &u8)| (*second == b'\n') & (*first != b'\r');
    !head.starts_with(b"\n") & !pairs.fold(false, |is_any, pair| is_any | is_bare(pair))
}

fn framing(head: &Head<'_>, is_old: bool) -> Result<Framing, HttpError> {
    let refuse = |text: &str| Err(HttpError::new(400, text));
    let length = match (head.one("content-length"), head.one("transfer-encoding")) {
        (Ok(None), Ok(None)) => Length::Known(0),
        (Ok(Some(digits)), Ok(None)) => match text(digits).map(str::parse) {
            // `parse` would accept a sign.
            Some(Ok(length)) if digits.iter().all(u8::is_ascii_digit) => Length::Known(length),
            _ => return refuse("Content-Length must be one whole number"),
        },
        (Ok(None), Ok(Some(coding))) if coding.eq_ignore_ascii_case(b"chunked") && !is_old => {
            Length::Chunked
        }
        (Ok(None), Ok(_)) => return refuse("Transfer-Encoding must be chunked"),
        _ => {
            return refuse(
                "the body must have one length: send Content-Length or Transfer-Encoding, once",
            );
        }
    };
    let wants = |word: &str| {
        let lists = head.all("connection").filter_map(text);
        lists.flat_map(|list| list.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
    };
    let expects = head.one("expect").ok().flatten();
    Ok(Framing {
        length,
        expects: !is_old && expects.is_some_and(|text| text.eq_ignore_ascii_case(b"100-continue")),
        is_head: head.method == "HEAD",
        stays: !is_old && !wants("close"),
        is_old,
    })
}

/// The part of a chunked body that was received.
pub(crate) struct Chunks {
    body: Vec<u8>,
    /// How long the body may be.
    longest: usize,
    /// The last chunk was received; only the trailers are missing.
    is_last: bool,
}

impl Chunks {
    pub(crate) fn new(longest: usize) -> Self {
        Chunks { body: Vec::new(), longest, is_last: false }
    }

    /// Takes complete chunks off the start of `received`. Returns true at the end of the body.
    pub(crate) fn take(&mut self, received: &mut Vec<u8>) -> Result<bool, HttpError> {
        let wrong = || {
            HttpError::new(
                400,
                "the chunked body is malformed: a chunk is its size in hexadecimal, CRLF, its bytes, CRLF",
            )
        };
        while !self.is_last {
            let start = match until(received, b"\n") {
                Some(start) => start,
                None if received.len() < LONGEST_LINES => return Ok(false),
                None => return Err(wrong()),
            };
            let line = received.get(..start).unwrap_or_default();
            let size = line.strip_suffix(b"\r\n").and_then(chunk_size).ok_or_else(wrong)?;
            if size.saturating_add(self.body.len()) > self.longest {
                return Err(HttpError::too_long(self.longest));
            }
            self.is_last = size == 0;
            if self.is_last {
                received.drain(..start);
                break;
            }
            let end = start + size;
            match received.get(end..end + 2) {
                Some(b"\r\n") => {}
                Some(_) => return Err(wrong()),
                None => return Ok(false),
            }
            self.body.extend(received.get(start..end).unwrap_or_default());
            received.drain(..end + 2);
        }
        let end = match received.starts_with(b"\r\n") {
            true => Some(2),
            false => until(received, b"\r\n\r\n"),
        };
        let Some(end) = end else {
            return if received.len() < LONGEST_LINES { Ok(false) } else { Err(wrong()) };
        };
        let trailers = received.get(..end - 2).unwrap_or_default();
        if !trailers.split_inclusive(|byte| *byte == b'\n').all(is_trailer) {
            return Err(wrong());
        }
        received.drain(..end);
        Ok(true)
    }

    /// Returns how long the body is so far.
    pub(crate) fn len(&self) -> usize {
        self.body.len()
    }

    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }
}

/// Returns where `bytes` end, if they come before the lines are too long.
fn until(received: &[u8], bytes: &[u8]) -> Option<usize> {
    let lines = received.get(..LONGEST_LINES).unwrap_or(received);
    lines.windows(bytes.len()).position(|these| these == bytes).map(|at| at + bytes.len())
}

/// Parses the size of a chunk: up to 16 hex digits, and an extension, which is ignored.
fn chunk_size(line: &[u8]) -> Option<usize> {
    let (digits, extension) =
        line.split_at(line.iter().position(|byte| *byte == b';').unwrap_or(line.len()));
    let are_digits = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = text(digits).filter(|_| are_digits && text(extension).is_some())?;
    // A size that does not fit is too long in any case.
    Some(usize::from_str_radix(digits, 16).unwrap_or(usize::MAX))
}

/// Checks whether a line has a name, a colon and a value.
fn is_trailer(line: &[u8]) -> bool {
    let is_in_names = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let line = line.strip_suffix(b"\r\n").and_then(text);
    line.and_then(|line| line.split_once(':'))
        .is_some_and(|(name, _)| !name.is_empty() && name.as_bytes().iter().all(is_in_names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use litelease_wire::LONGEST;

    fn framed(text: &str) -> Result<Option<(String, Framing, usize)>, u16> {
        head(text.as_bytes(), |head| format!("{} {:?} {}", head.method, head.authority, head.path))
            .map_err(|refused| refused.status)
    }

    #[test]
    fn a_head_tells_where_its_body_ends_and_what_could_be_read_in_two_ways_is_refused() {
        use Length::{Chunked, Known};
        for (headers, expected) in [
            ("", Ok((Known(0), true))),
            ("Content-Length: 5\r\n", Ok((Known(5), true))),
            ("content-LENGTH:  5 \r\n", Ok((Known(5), true))),
            ("Content-Length: 99999999999999999999999\r\n", Err(400)),
            ("Content-Length: +5\r\n", Err(400)),
            ("Content-Length: -5\r\n", Err(400)),
            ("Content-Length: 5, 5\r\n", Err(400)),
            ("Content-Length: 5\r\nContent-Length: 5\r\n", Err(400)),
            ("Content-Length: \r\n", Err(400)),
            ("Content-Length: 0x5\r\n", Err(400)),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Err(400)),
            ("Transfer-Encoding: Chunked\r\n", Ok((Chunked, true))),
            ("Transfer-Encoding: gzip, chunked\r\n", Err(400)),
            ("Transfer-Encoding: identity\r\n", Err(400)),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(400)),
            ("Transfer-Encoding : chunked\r\n", Err(400)),
            ("Transfer-Encoding: \x0bchunked\r\n", Err(400)),
            ("Connection: close\r\n", Ok((Known(0), false))),
            ("Connection: Upgrade, CLOSE\r\n", Ok((Known(0), false))),
            ("Connection: keep-alive\r\n", Ok((Known(0), true))),
            ("X: a\r\n b\r\n", Err(400)),
            (" X: a\r\n", Err(400)),
            ("X\0: a\r\n", Err(400)),
            ("X: a\0b\r\n", Err(400)),
            (": a\r\n", Err(400)),
            ("X\r\n", Err(400)),
            // Lines must end with CRLF.
            ("X: a\n", Err(400)),
            ("X: a\nContent-Length: 5\r\n", Err(400)),
            ("X: a\rContent-Length: 5\r\n", Err(400)),
        ] {
            let text = format!("POST /x HTTP/1.1\r\n{headers}\r\n");
            let read = framed(&text).map(|read| read.map(|(_, framing, used)| (framing, used)));
            let expected = expected.map(|(length, stays)| Some((length, stays, text.len())));
            let read =
                read.map(|read| read.map(|(framing, used)| (framing.length, framing.stays, used)));
            assert_eq!(read, expected, "{headers:?}");
        }
    }

    #[test]
    fn the_first_line_is_a_method_a_target_and_a_version_that_is_known() {
        for (line, expected) in [
            ("GET / HTTP/1.1", Ok("GET None /")),
            ("GET /l/x?y#z HTTP/1.1", Ok("GET None /l/x")),
            ("HEAD //a HTTP/1.0", Ok("HEAD None //a")),
            ("GET http://h:1/p?q HTTP/1.1\r\nHost: h", Ok("GET Some(\"h:1\") /p")),
            ("GET http://h HTTP/1.1\r\nHost: h", Ok("GET Some(\"h\") /")),
            ("GET http://h?q HTTP/1.1\r\nHost: h", Ok("GET Some(\"h\") /")),
            ("GET http://h HTTP/1.1", Err(400)),
            ("OPTIONS * HTTP/1.1", Err(400)),
            ("CONNECT h:1 HTTP/1.1", Err(400)),
            ("GET https://h/ HTTP/1.1", Err(400)),
            ("GET / HTTP/1.2", Err(400)),
            ("GET / HTTP/2.0", Err(400)),
            ("GET /", Err(400)),
            ("GET  / HTTP/1.1", Err(400)),
            ("G\0T / HTTP/1.1", Err(400)),
            ("GET /\0 HTTP/1.1", Err(400)),
            ("", Ok("")),
        ] {
            let read = framed(&format!("{line}\r\n\r\n"));
            let read = read.map(|read| read.map(|(text, ..)| text).unwrap_or_default());
            assert_eq!(read.as_deref(), expected.as_deref(), "{line:?}");
        }
        for text in
            ["GET / HTTP/1.1\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\n\n", "\nGET / HTTP/1.1\r\n\r\n"]
        {
            assert_eq!(framed(text), Err(400), "{text:?}");
        }
        assert_eq!(framed("GET / HTTP/1.1\r\nHost: x\r\n"), Ok(None));
        assert_eq!(framed(&format!("GET /{} HTTP/1.1\r\n", "x".repeat(LONGEST_HEAD))), Err(431));
        let many = "X: y\r\n".repeat(MOST_HEADERS + 1);
        assert_eq!(framed(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Err(431));
        let old = framed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").ok().flatten();
        assert!(old.is_some_and(|(_, framing, _)| framing.is_old && !framing.stays));
        assert_eq!(framed("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), Err(400));
    }

    /// A body, and the bytes behind it.
    type Split = (Vec<u8>, Vec<u8>);

    /// Feeds a body to the reader, `step` bytes at a time. Returns it with the bytes behind it.
    fn chunked(text: &[u8], step: usize) -> Result<Option<Split>, u16> {
        let (mut chunks, mut received) = (Chunks::new(LONGEST), Vec::new());
        let mut parts = text.chunks(step);
        while let Some(part) = parts.next() {
            received.extend(part);
            if chunks.take(&mut received).map_err(|refused| refused.status)? {
                parts.for_each(|part| received.extend(part));
                return Ok(Some((chunks.into_body(), received)));
            }
        }
        Ok(None)
    }

    #[test]
    fn chunks_are_put_together_however_they_come() {
        let long = format!("4001\r\n{}", "x".repeat(100));
        let endless = format!("1;{}", "x".repeat(2000));
        let endless_line = format!("1;{}\r\nx\r\n0\r\n\r\n", "x".repeat(2000));
        let endless_trailers = format!("0\r\n{}\r\n", "X: y\r\n".repeat(2000));
        for (text, expected) in [
            ("0\r\n\r\n", Ok(Some(("", "")))),
            ("5\r\nhello\r\n0\r\n\r\nNEXT", Ok(Some(("hello", "NEXT")))),
            ("2;a=b\r\nhe\r\n003\r\nllo\r\n0\r\nX: y\r\n\r\nNEXT", Ok(Some(("hello", "NEXT")))),
            ("A\r\n0123456789\r\n0\r\n\r\n", Ok(Some(("0123456789", "")))),
            ("5\r\nhel", Ok(None)),
            ("5\r\nhello", Ok(None)),
            ("0\r\n", Ok(None)),
            ("5\r\nhelloXX0\r\n\r\n", Err(400)),
            ("-1\r\n\r\n", Err(400)),
            ("x\r\n\r\n", Err(400)),
            ("ffffffffffffffff\r\n", Err(413)),
            ("fffffffffffffffff\r\n", Err(400)),
            (&long, Err(413)),
            (&endless, Err(400)),
            (&endless_line, Err(400)),
            (&endless_trailers, Err(400)),
            // A size is there, and nothing before or after it.
            ("\r\n\r\n", Err(400)),
            (";x\r\n\r\n", Err(400)),
            ("5\r\nhello\r\n\r\n\r\n", Err(400)),
            ("5 \r\nhello\r\n0\r\n\r\n", Err(400)),
            (" 5\r\nhello\r\n0\r\n\r\n", Err(400)),
            ("+5\r\nhello\r\n0\r\n\r\n", Err(400)),
            ("0x5\r\nhello\r\n0\r\n\r\n", Err(400)),
            // A line ends with both characters, and has only visible ones.
            ("5\nhello\r\n0\r\n\r\n", Err(400)),
            ("5\r\nhello\n0\r\n\r\n", Err(400)),
            ("5;a\nxx\r\nhello\r\n0\r\n\r\n", Err(400)),
            ("5;a\rxx\r\nhello\r\n0\r\n\r\n", Err(400)),
            ("5;a\0\r\nhello\r\n0\r\n\r\n", Err(400)),
            // What follows the last chunk are headers, if anything.
            ("0\r\nX: y\r\nZ:\r\n\r\nNEXT", Ok(Some(("", "NEXT")))),
            ("0\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", Err(400)),
            ("0\r\nX: y\n\nGET / HTTP/1.1\r\n\r\n", Err(400)),
            ("0\r\nX : y\r\n\r\n", Err(400)),
            ("0\r\n X: y\r\n\r\n", Err(400)),
            ("0\r\n: y\r\n\r\n", Err(400)),
            ("0\r\nX: y\0\r\n\r\n", Err(400)),
            ("0\r\nX: y\rZ: a\r\n\r\n", Err(400)),
        ] {
            for step in [1, 2, 3, text.len()] {
                let read = chunked(text.as_bytes(), step);
                let expected = expected.map(|whole| {
                    whole.map(|(body, rest)| (body.as_bytes().to_vec(), rest.as_bytes().to_vec()))
                });
                assert_eq!(read, expected, "{text:.40?} by {step}");
            }
        }
    }

    #[test]
    fn random_bytes_are_refused_and_nothing_else_happens() {
        let seeds: [&[u8]; 4] = [
            b"POST /l/x/borrow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{}   ",
            b"GET http://localhost/ HTTP/1.0\r\nConnection: close, x\r\nExpect: 100-continue\r\n\r\n",
            b"5;x=y\r\nhello\r\n0\r\nTrailer: z\r\n\r\n",
            b"\r\n\r\n \t:0123456789abcdef",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut dice = move |sides: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % sides as u64) as usize
        };
        for _ in 0..200_000 {
            let mut bytes = seeds[dice(seeds.len())].to_vec();
            for _ in 0..dice(6) {
                let at = dice(bytes.len().max(1)).min(bytes.len());
                match dice(4) {
                    0 => bytes.insert(at, dice(256) as u8),
                    1 if at < bytes.len() => bytes[at] = dice(256) as u8,
                    2 if at < bytes.len() => _ = bytes.remove(at),
                    _ => bytes.truncate(at),
                }
            }
            if let Ok(Some((_, framing, used))) = head(&bytes, |head| head.path.len()) {
                assert!(used <= bytes.len(), "{bytes:?}");
                assert!(!(framing.is_old && framing.length == Length::Chunked), "{bytes:?}");
            }
            let mut received = bytes.clone();
            let mut chunks = Chunks::new(LONGEST);
            if chunks.take(&mut received).is_ok() {
                assert!(chunks.into_body().len() + received.len() <= bytes.len());
            }
        }
    }
}
