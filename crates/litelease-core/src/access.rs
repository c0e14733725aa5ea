//! Permissions of access keys of the service: scopes, each with a pattern of names.

use alloc::string::String;
use core::fmt;

/// A kind of call that a client of the service may make on the names that match a pattern.
///
/// ```
/// # use litelease_core::Scope;
/// assert_eq!(Scope::from_word("claim"), Some(Scope::Claim));
/// assert_eq!(Scope::Operate.word(), "operate");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// See who has a name, and watch it.
    Observe,
    /// Claim, and renew, release or transfer what was granted.
    Claim,
    /// Send items to a queue.
    Send,
    /// Receive items of a queue.
    Receive,
    /// End leases and deliveries of other clients.
    Operate,
}

/// A scope and the names that it is for: `claim:backup/*`.
///
/// In a pattern `*` stands for any text, also for an empty one and for one with `/` in it. Every
/// other character stands for itself.
///
/// ```
/// # use litelease_core::{Permission, Scope};
/// let permission = Permission::parse("claim:backup/*")?;
/// assert!(permission.allows(Scope::Claim, "backup/db/1"));
/// assert!(!permission.allows(Scope::Claim, "backup"));
/// assert!(!permission.allows(Scope::Operate, "backup/db"));
/// # Ok::<(), litelease_core::InvalidPermission>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    scope: Scope,
    pattern: String,
}

/// The longest pattern, in bytes.
const LONGEST_PATTERN: usize = 1024;

/// The reason why a text is no permission.
///
/// ```
/// # use litelease_core::{InvalidPermission, Permission};
/// assert_eq!(Permission::parse("claim"), Err(InvalidPermission::NoPattern));
/// assert_eq!(Permission::parse("write:*"), Err(InvalidPermission::UnknownScope));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPermission {
    /// There is no colon, or nothing behind it.
    NoPattern,
    /// The word before the colon is no scope.
    UnknownScope,
    /// The pattern has a control character in it, or is too long.
    BadPattern,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 5] =
        [Scope::Observe, Scope::Claim, Scope::Send, Scope::Receive, Scope::Operate];

    /// Returns the word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Scope::Observe => "observe",
            Scope::Claim => "claim",
            Scope::Send => "send",
            Scope::Receive => "receive",
            Scope::Operate => "operate",
        }
    }

    /// Returns the scope with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Scope::ALL.into_iter().find(|scope| scope.word() == word)
    }
}

impl Permission {
    /// Reads a permission: a scope, a colon and a pattern.
    pub fn parse(text: &str) -> Result<Self, InvalidPermission> {
        let (scope, pattern) = text.split_once(':').ok_or(InvalidPermission::NoPattern)?;
        let scope = Scope::from_word(scope).ok_or(InvalidPermission::UnknownScope)?;
        match pattern {
            "" => Err(InvalidPermission::NoPattern),
            // Permissions are stored one per line.
            long if long.len() > LONGEST_PATTERN || long.chars().any(char::is_control) => {
                Err(InvalidPermission::BadPattern)
            }
            pattern => Ok(Permission { scope, pattern: pattern.into() }),
        }
    }

    /// Checks whether it allows `scope` for this name.
    pub fn allows(&self, scope: Scope, name: &str) -> bool {
        self.scope == scope && matches(self.pattern.as_bytes(), name.as_bytes())
    }

    /// Checks whether it allows `scope` for some name.
    ///
    /// ```
    /// # use litelease_core::{Permission, Scope};
    /// let permission = Permission::parse("receive:mail")?;
    /// assert!(permission.allows_some(Scope::Receive));
    /// assert!(!permission.allows_some(Scope::Send));
    /// # Ok::<(), litelease_core::InvalidPermission>(())
    /// ```
    pub fn allows_some(&self, scope: Scope) -> bool {
        self.scope == scope
    }

    /// Checks whether it allows `scope` for every name that begins with `prefix`.
    ///
    /// ```
    /// # use litelease_core::{Permission, Scope};
    /// let permission = Permission::parse("observe:backup/*")?;
    /// assert!(permission.allows_all(Scope::Observe, "backup/db"));
    /// assert!(!permission.allows_all(Scope::Observe, "back"));
    /// # Ok::<(), litelease_core::InvalidPermission>(())
    /// ```
    pub fn allows_all(&self, scope: Scope, prefix: &str) -> bool {
        // The star at the end takes whatever follows a prefix that matches. Without one, some
        // longer name does not match.
        self.pattern.ends_with('*') && self.allows(scope, prefix)
    }
}

/// Checks whether a name matches a pattern. Takes time in proportion to both lengths at most.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut rest) = (0, 0);
    // Where to go on if the text behind the last star does not match here: one byte further.
    let mut last_star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(rest) {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                last_star = Some((at, rest));
            }
            Some(wanted) if wanted == byte => {
                at += 1;
                rest += 1;
            }
            _ => match &mut last_star {
                Some((behind, taken)) => {
                    *taken += 1;
                    (at, rest) = (*behind, *taken);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|byte| *byte == b'*')
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scope, self.pattern)
    }
}

impl fmt::Display for InvalidPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidPermission::NoPattern => {
                "say SCOPE:PATTERN, like claim:backup/*; * alone stands for every name"
            }
            InvalidPermission::UnknownScope => {
                "the scope must be observe, claim, send, receive or operate"
            }
            InvalidPermission::BadPattern => {
                "a pattern has at most 1024 bytes and no control characters; * stands for any text"
            }
        })
    }
}

impl core::error::Error for InvalidPermission {}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(pattern: &str, name: &str) -> bool {
        matches(pattern.as_bytes(), name.as_bytes())
    }

    #[test]
    fn a_star_stands_for_any_text_and_all_else_for_itself() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a/b"),
            ("backup/*", "backup/"),
            ("backup/*", "backup/a/b"),
            ("*/db", "a/b/db"),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("a**c", "abc"),
            ("a*", "a*"),
            ("*aab", "aaab"),
            ("日*", "日本"),
        ] {
            assert!(allows(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("backup/*", "backup"),
            ("backup/*", "Backup/a"),
            ("backup/*", "xbackup/a"),
            ("backup/*", "../backup/a"),
            ("backup/*", "backup%2Fa"),
            ("backup/?", "backup/a"),
            ("[a-z]*", "a"),
            ("backup", "backup2"),
            ("backup", "backup\0"),
            ("backup", ""),
            ("*db", "db/"),
            ("a*b*c", "acb"),
            (".*", "a"),
        ] {
            assert!(!allows(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_prefix_is_allowed_only_if_every_name_that_begins_with_it_is() {
        let all = |pattern: &str, prefix: &str| {
            let permission = Permission { scope: Scope::Observe, pattern: pattern.into() };
            permission.allows_all(Scope::Observe, prefix)
        };
        for (pattern, prefix) in
            [("*", ""), ("a/*", "a/"), ("a/*", "a/b"), ("*a*", "a"), ("**", "")]
        {
            assert!(all(pattern, prefix), "{pattern} {prefix}");
        }
        for (pattern, prefix) in [("a/*", ""), ("a/*", "a"), ("a", "a"), ("*a", "a"), ("*a*", "b")]
        {
            assert!(!all(pattern, prefix), "{pattern} {prefix}");
        }
    }

    #[test]
    fn a_pattern_made_to_be_slow_is_not() {
        let (pattern, name) = ("*a".repeat(500) + "b", "a".repeat(4096));
        assert!(!allows(&pattern, &name));
    }

    #[test]
    fn only_a_scope_and_a_pattern_are_a_permission() {
        for text in ["", "claim", "claim:", ":x", "Claim:x", "claims:x", "claim:a\nb", "claim:a\0"]
        {
            assert!(Permission::parse(text).is_err(), "{text:?}");
        }
        for text in ["claim:*", "observe:a:b", "operate:日本"] {
            let read = Permission::parse(text).map(|permission| alloc::format!("{permission}"));
            assert_eq!(read.as_deref(), Ok(text));
        }
    }
}
