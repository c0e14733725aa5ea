//! The head of a request, as both versions of HTTP have it.

use httparse::Header;

/// What a request says before its body.
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    /// Without its query.
    pub(crate) path: &'a str,
    /// The host where the address itself has it: in HTTP/2, and in what a proxy is sent.
    pub(crate) authority: Option<&'a str>,
    pub(crate) headers: &'a [Header<'a>],
}

impl<'a> Head<'a> {
    /// The values of a header, as many as there are. Its name is in lower case.
    pub(crate) fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let is_named = move |header: &&Header<'a>| is_lower_case(name, header.name);
        self.headers.iter().filter(is_named).map(|header| header.value.trim_ascii())
    }

    /// The value of a header that may be there once. `Err` if it is there twice or is no text.
    pub(crate) fn one(&self, name: &'static str) -> Result<Option<&'a [u8]>, ()> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) if is_text(value) => Ok(Some(value)),
            _ => Err(()),
        }
    }
}

/// A value of visible characters.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    is_text(value).then(|| std::str::from_utf8(value).ok())?
}

/// Whether this is the other text in lower case.
fn is_lower_case(this: &str, other: &str) -> bool {
    let mut pairs = this.bytes().zip(other.bytes());
    this.len() == other.len() && pairs.all(|(this, other)| this == other.to_ascii_lowercase())
}

fn is_text(value: &[u8]) -> bool {
    value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
}
