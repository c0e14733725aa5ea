//! Compares SQL text from the schema with ours.
//!
//! SQLite itself respells a table: ALTER TABLE … RENAME quotes its name. So white space does not
//! count, and neither do quotes around an identifier. Everything else does, comments and letter
//! case too.

/// The characters that SQLite takes for white space. Unicode has more, which to SQLite are part of
/// a word.
const WHITE: [char; 5] = [' ', '\t', '\n', '\r', '\x0c'];

/// The quotes around an identifier. Single quotes make a string.
const QUOTES: [(char, char); 3] = [('"', '"'), ('`', '`'), ('[', ']')];

/// The longest definition that a reason shows, in characters.
const MOST_SHOWN: usize = 1_000;

/// Compares a table as the schema has it with ours. Returns both texts if they differ, in words
/// that follow "the table x is not as Litelease makes it".
pub(crate) fn difference(found: &str, ours: &str) -> Option<String> {
    let is_ours = is_same(found, ours);
    (!is_ours).then(|| format!("it is `{}`, and should be `{}`", shown(found), shown(ours)))
}

/// Checks whether two pieces of SQL are the same but for white space and the quotes around
/// identifiers.
pub(crate) fn is_same(found: &str, ours: &str) -> bool {
    let (mut found, mut ours) = (word_by_word(found), word_by_word(ours));
    loop {
        match (found.next(), ours.next()) {
            (None, None) => return true,
            (Some(found), Some(ours)) if means(found, ours) => {}
            _ => return false,
        }
    }
}

/// Checks whether SQLite reads both words alike. We write keywords and types in capitals, so a word
/// in small letters is an identifier, and it may be quoted.
fn means(found: &str, ours: &str) -> bool {
    let inner = |(open, close)| found.strip_prefix(open)?.strip_suffix(close);
    let is_identifier = ours.starts_with(|first: char| first.is_ascii_lowercase());
    found == ours || is_identifier && QUOTES.into_iter().filter_map(inner).any(|it| it == ours)
}

/// Returns a definition on one line, cut if it is long.
fn shown(sql: &str) -> String {
    let line = sql.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_SHOWN) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// Returns the words, quoted pieces and punctuation marks of a piece of SQL, without the white
/// space.
pub(crate) fn word_by_word(sql: &str) -> impl Iterator<Item = &str> {
    let mut rest = sql;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(WHITE);
        let first = rest.chars().next()?;
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
        let end = match first {
            '"' | '\'' | '`' => rest[1..].find(first).map_or(rest.len(), |at| at + 2),
            '[' => rest.find(']').map_or(rest.len(), |at| at + 1),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool_rows::SLOTS;
    use crate::schema::{META, RESOURCES, Table};

    fn right(table: &Table) -> String {
        format!("CREATE TABLE {} {}", table.name, table.definition)
    }

    /// Replaces a piece of the lease table.
    #[track_caller]
    fn with(from: &str, to: &str) -> String {
        let right = right(&RESOURCES);
        let changed = right.replacen(from, to, 1);
        assert_ne!(changed, right, "{from}");
        changed
    }

    #[test]
    fn white_space_and_quotes_around_identifiers_are_no_difference() {
        let lease = right(&RESOURCES);
        let same = [
            lease.split_whitespace().collect::<Vec<_>>().join(" "),
            lease.replace('(', "\t(\r\n"),
            lease.replace(", ", ",").replace(" (", "(").replace(" >= ", ">="),
            lease.replace("owner TEXT", "\"owner\"TEXT"),
        ];
        for sql in &same {
            assert_eq!(difference(sql, &lease), None);
        }
        for (open, close) in QUOTES {
            for name in ["litelease_resources", "name", "owner", "token", "lease_expires_at_ms"] {
                let quoted = lease.replace(name, &format!("{open}{name}{close}"));
                assert_eq!(difference(&quoted, &lease), None);
            }
        }
        let (slots, meta) = (right(&SLOTS), right(&META));
        let quoted = slots.replace("key", "\"key\"").replace("slot ", "\"slot\" ");
        assert_eq!(difference(&quoted, &slots), None);
        assert_eq!(difference(&meta.replace("(token_floor ", "(\"token_floor\" "), &meta), None);
    }

    #[test]
    fn everything_else_is_a_difference_and_both_texts_are_shown() {
        let lease = right(&RESOURCES);
        for changed in [
            // A string in a CHECK is never NULL, so this one is always violated.
            with("(owner IS NULL", "('owner' IS NULL"),
            with("(owner IS NULL", "(\"own\"\"er\" IS NULL"),
            with("(owner IS NULL", "(\"owner\"\"\" IS NULL"),
            with("(owner IS NULL", "(\"Owner\" IS NULL"),
            with("(token >= 1)", "(token >= \"1\")"),
            with("(token >= 1)", "(token >= 0)"),
            with(" CHECK (token >= 1)", ""),
            with("  owner TEXT", "  'owner' TEXT"),
            with("  owner TEXT", "  owner \"TEXT\""),
            with("  owner TEXT", "  owner text"),
            with("  owner TEXT", "  \" owner\" TEXT"),
            with("  owner TEXT,", "  owner TEXT, note TEXT,"),
            with("owner TEXT,", "owner TEXT, -- who\n"),
            with("owner TEXT,", "owner TEXT/**/,"),
            with("litelease_resources", "'litelease_resources'"),
            with("litelease_resources", "Litelease_Resources"),
            format!("{lease} WITHOUT ROWID"),
            "CREATE VIRTUAL TABLE litelease_resources USING fts5(name)".into(),
        ] {
            let reason = difference(&changed, &lease).unwrap_or_default();
            assert!(
                reason.contains(&shown(&changed)) && reason.contains(&shown(&lease)),
                "{reason}"
            );
        }
        let long = format!("CREATE TABLE litelease_resources ({})", "é".repeat(100_000));
        assert!(difference(&long, &lease).unwrap_or_default().len() < 4_000);
    }

    #[test]
    fn odd_text_is_a_difference_and_no_panic() {
        let right = right(&RESOURCES);
        let texts = [
            "",
            "(",
            ")))",
            "'",
            "\"",
            "[",
            "`",
            "é",
            "CREATE TABLE 'x",
            ",,,",
            "((((",
            "--",
            "/*",
            "/*/",
            "\"\"",
            "CREATE TABLE litelease_resources",
            "CREATE TABLE litelease_resources (",
            "\"\"\"",
            "''''",
            "()(),",
            "CREATE TABLE litelease_resources (,)",
            "CREATE TABLE litelease_resources ()",
        ];
        for text in texts {
            assert!(difference(text, &right).is_some(), "{text}");
        }
        // Cut off anywhere, or with any one character in any place, it is not ours, and still no
        // panic.
        for (at, _) in right.char_indices() {
            assert!(difference(&right[..at], &right).is_some(), "{}", &right[..at]);
            for odd in ["\"", "'", "[", "`", "(", ")", "--", "/*", "x", "é", "\u{b}", "0"] {
                let changed = format!("{}{odd}{}", &right[..at], &right[at..]);
                assert!(difference(&changed, &right).is_some(), "{changed}");
            }
        }
    }
}
