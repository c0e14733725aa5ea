//! The head of a request.

use httparse::Header;

/// The head of a request.
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    /// The path without its query.
    pub(crate) path: &'a str,
    /// The query after the question mark, or an empty text.
    pub(crate) query: &'a str,
    /// The host in the target itself: in requests to proxies.
    pub(crate) authority: Option<&'a str>,
    pub(crate) headers: &'a [Header<'a>],
}

impl<'a> Head<'a> {
    /// Returns all values of a header. `name` must be in lower case.
    pub(crate) fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let is_named = move |header: &&Header<'a>| is_lower_case(name, header.name);
        self.headers.iter().filter(is_named).map(|header| header.value.trim_ascii())
    }

    /// Returns the value of a header that may be sent once. `Err` if it was sent twice or is not
    /// text.
    pub(crate) fn one(&self, name: &'static str) -> Result<Option<&'a [u8]>, ()> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) if is_text(value) => Ok(Some(value)),
            _ => Err(()),
        }
    }
}

/// Returns a value as text, if it has visible characters only.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    is_text(value).then(|| std::str::from_utf8(value).ok())?
}

/// Checks whether `this` is `other` in lower case.
fn is_lower_case(this: &str, other: &str) -> bool {
    let mut pairs = this.bytes().zip(other.bytes());
    this.len() == other.len() && pairs.all(|(this, other)| this == other.to_ascii_lowercase())
}

fn is_text(value: &[u8]) -> bool {
    value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
}
