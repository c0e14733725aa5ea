//! Compares SQL text from the schema with ours, token by token, and names the first difference.
//!
//! SQLite itself respells a table: ALTER TABLE … RENAME quotes its name. So white space does not
//! count, and neither do quotes around an identifier. Everything else does, comments and letter
//! case too.

use std::borrow::Cow;

/// What SQLite takes for white space. Unicode has more, which to SQLite is part of a word.
pub(crate) const WHITE: [char; 5] = [' ', '\t', '\n', '\r', '\x0c'];

/// The longest piece of a foreign definition that a reason shows.
const MOST_SHOWN: usize = 200;

/// The most missing and extra columns that a reason lists.
const MOST_COLUMNS: usize = 8;

/// One token of SQL: its text, and where that begins.
#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    raw: &'a str,
    start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A bare word or a number.
    Word,
    /// An identifier in double quotes, backticks or brackets. Where no column has its name, SQLite
    /// may take one in double quotes for a string; those that we compare with are the names of
    /// columns that are there.
    Quoted,
    /// A string in single quotes. SQLite takes it for an identifier in some places; it never writes
    /// one so.
    Text,
    Comment,
    /// Any other character, and a quote that is never closed.
    Punctuation,
}

impl<'a> Token<'a> {
    /// The identifier or word without its quotes.
    fn name(&self) -> Cow<'a, str> {
        let mut inner = self.raw.chars();
        match (self.kind, inner.next(), inner.next_back()) {
            (Kind::Quoted | Kind::Text, Some(quote), Some(_)) if quote != '[' => {
                let quote = quote.to_string();
                inner.as_str().replace(&quote.repeat(2), &quote).into()
            }
            (Kind::Quoted, ..) => inner.as_str().into(),
            _ => self.raw.into(),
        }
    }

    fn is(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.raw.eq_ignore_ascii_case(word)
    }

    fn is_punctuation(&self, raw: &str) -> bool {
        self.kind == Kind::Punctuation && self.raw == raw
    }

    /// Tells whether SQLite reads both tokens alike. Only identifiers may be quoted in place of a
    /// bare word: a quoted keyword is something else, and so may be a quoted word that names no
    /// column.
    fn means(&self, wanted: &Token<'_>, identifiers: &[&str]) -> bool {
        match (self.kind, wanted.kind) {
            (Kind::Comment, _) => false,
            (Kind::Quoted, Kind::Quoted) => self.name() == wanted.name(),
            (Kind::Quoted, Kind::Word) => {
                identifiers.contains(&wanted.raw) && self.name() == wanted.raw
            }
            (found, wanted_kind) => found == wanted_kind && self.raw == wanted.raw,
        }
    }
}

/// Splits SQL into tokens, as SQLite does as far as this comparison depends on it.
fn tokens(sql: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = sql.trim_start_matches(WHITE);
    while let Some(first) = rest.chars().next() {
        let (kind, length) = match first {
            '"' | '`' => end_of_quoted(rest, first).map_or((Kind::Punctuation, rest.len()), quoted),
            '\'' => end_of_quoted(rest, first)
                .map_or((Kind::Punctuation, rest.len()), |length| (Kind::Text, length)),
            '[' => rest.find(']').map_or((Kind::Punctuation, rest.len()), |at| quoted(at + 1)),
            '-' if rest.starts_with("--") => (Kind::Comment, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => {
                (Kind::Comment, rest[2..].find("*/").map_or(rest.len(), |at| at + 4))
            }
            c if is_word(c) => (Kind::Word, rest.find(|c| !is_word(c)).unwrap_or(rest.len())),
            c => (Kind::Punctuation, c.len_utf8()),
        };
        let (raw, after) = rest.split_at(length);
        tokens.push(Token { kind, raw, start: sql.len() - rest.len() });
        rest = after.trim_start_matches(WHITE);
    }
    tokens
}

fn quoted(length: usize) -> (Kind, usize) {
    (Kind::Quoted, length)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

/// The length of what is in quotes at the front; a doubled quote does not end it.
fn end_of_quoted(sql: &str, quote: char) -> Option<usize> {
    let mut quotes = sql.match_indices(quote).map(|(at, _)| at).skip(1).peekable();
    while let Some(at) = quotes.next() {
        if quotes.next_if_eq(&(at + 1)).is_none() {
            return Some(at + 1);
        }
    }
    None
}

/// Tells whether two pieces of SQL are the same but for white space and the quoting of
/// `identifiers`.
pub(crate) fn is_same(found: &str, wanted: &str, identifiers: &[&str]) -> bool {
    found == wanted || all_mean(&tokens(found), &tokens(wanted), identifiers)
}

fn all_mean(found: &[Token<'_>], wanted: &[Token<'_>], identifiers: &[&str]) -> bool {
    let mut pairs = found.iter().zip(wanted);
    found.len() == wanted.len() && pairs.all(|(found, wanted)| found.means(wanted, identifiers))
}

/// The first difference between a table as the schema has it and as it should be, in words that
/// follow "the table x is not as Litelease makes it".
pub(crate) fn difference(found: &str, wanted: &str) -> Option<String> {
    if found == wanted {
        return None;
    }
    let (found_tokens, wanted_tokens) = (tokens(found), tokens(wanted));
    if let [create, kind, ..] = &found_tokens[..]
        && create.is("CREATE")
        && kind.is("VIRTUAL")
    {
        return Some("it is a virtual table".into());
    }
    let ours = Definition::of(wanted, &wanted_tokens);
    let identifiers = ours.identifiers();
    if all_mean(&found_tokens, &wanted_tokens, &identifiers) {
        return None;
    }
    if let Some(comment) = found_tokens.iter().find(|token| token.kind == Kind::Comment) {
        return Some(format!("it has a comment, `{}`", shortened(comment.raw.trim_end())));
    }
    let theirs = Definition::of(found, &found_tokens);
    let compared = Comparison { theirs: &theirs, ours: &ours, identifiers: &identifiers };
    Some(compared.reason())
}

/// A CREATE TABLE statement in its parts, or what looks like one.
struct Definition<'a> {
    sql: &'a str,
    /// `CREATE TABLE name`
    head: &'a [Token<'a>],
    columns: Vec<&'a [Token<'a>]>,
    constraints: Vec<&'a [Token<'a>]>,
    /// What follows the columns: `WITHOUT ROWID`, `STRICT`.
    tail: &'a [Token<'a>],
}

impl<'a> Definition<'a> {
    fn of(sql: &'a str, tokens: &'a [Token<'a>]) -> Self {
        let open =
            tokens.iter().position(|token| token.is_punctuation("(")).unwrap_or(tokens.len());
        let (head, rest) = tokens.split_at(open);
        let inner = rest.get(1..).unwrap_or_default();
        let close = end_of_parentheses(inner);
        let parts = split(&inner[..close], |token| token.is_punctuation(","));
        let (constraints, columns) = parts.into_iter().partition(|part| is_constraint(part));
        let tail = inner.get(close + 1..).unwrap_or_default();
        Definition { sql, head, columns, constraints, tail }
    }

    /// The names of the table and of its columns.
    fn identifiers(&self) -> Vec<&'a str> {
        let names = self.columns.iter().filter_map(|column| column.first());
        self.head.last().into_iter().chain(names).map(|token| token.raw).collect()
    }

    /// A piece of it as it was written, on one line.
    fn shown(&self, tokens: &[Token<'_>]) -> String {
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
            return "nothing".into();
        };
        let text = &self.sql[first.start..last.start + last.raw.len()];
        let line = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        format!("`{}`", shortened(&line.replace("( ", "(").replace(" )", ")")))
    }
}

/// The place of the parenthesis that closes what has been opened before the first token.
fn end_of_parentheses(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            token if token.is_punctuation("(") => depth += 1,
            token if token.is_punctuation(")") && depth == 0 => return at,
            token if token.is_punctuation(")") => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Splits at tokens outside parentheses, which are left out.
fn split<'a>(
    tokens: &'a [Token<'a>],
    mut ends: impl FnMut(&Token<'_>) -> bool,
) -> Vec<&'a [Token<'a>]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        match token {
            token if token.is_punctuation("(") => depth += 1,
            token if token.is_punctuation(")") => depth -= 1,
            _ => {}
        }
        depth == 0 && ends(token)
    });
    parts.collect()
}

/// Tells a constraint of the table from a column. None of these words can be a column's bare name.
fn is_constraint(part: &[Token<'_>]) -> bool {
    let words = ["CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"];
    part.first().is_some_and(|first| words.iter().any(|word| first.is(word)))
}

/// A column definition without the name: its type, and its constraints.
fn type_and_clauses<'a>(column: &'a [Token<'a>]) -> (&'a [Token<'a>], Vec<&'a [Token<'a>]>) {
    let rest = column.get(1..).unwrap_or_default();
    let mut starts = Vec::new();
    let mut depth = 0;
    for (at, token) in rest.iter().enumerate() {
        match token {
            token if token.is_punctuation("(") => depth += 1,
            token if token.is_punctuation(")") => depth -= 1,
            token if depth == 0 && starts_clause(token, at.checked_sub(1).map(|at| &rest[at])) => {
                starts.push(at);
            }
            _ => {}
        }
    }
    let ends = starts.iter().skip(1).copied().chain([rest.len()]);
    let clauses = starts.iter().zip(ends).map(|(start, end)| &rest[*start..end]).collect();
    (&rest[..starts.first().copied().unwrap_or(rest.len())], clauses)
}

fn starts_clause(token: &Token<'_>, before: Option<&Token<'_>>) -> bool {
    let words = [
        "CONSTRAINT",
        "NOT",
        "NULL",
        "PRIMARY",
        "UNIQUE",
        "CHECK",
        "DEFAULT",
        "COLLATE",
        "REFERENCES",
        "GENERATED",
        "AS",
    ];
    let goes_on =
        before.is_some_and(|it| ["NOT", "DEFAULT", "ALWAYS"].iter().any(|word| it.is(word)));
    !goes_on && words.iter().any(|word| token.is(word))
}

/// Two definitions that are not the same.
struct Comparison<'a> {
    theirs: &'a Definition<'a>,
    ours: &'a Definition<'a>,
    identifiers: &'a [&'a str],
}

impl Comparison<'_> {
    fn reason(&self) -> String {
        self.name()
            .or_else(|| self.columns())
            .or_else(|| self.order())
            .or_else(|| {
                let mut pairs = self.theirs.columns.iter().zip(&self.ours.columns);
                pairs.find_map(|(theirs, ours)| self.column(theirs, ours))
            })
            .or_else(|| self.constraints())
            .or_else(|| self.tail())
            .unwrap_or_else(|| {
                let sql = self.theirs.sql.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
                format!("it is defined in another order, as `{}`", shortened(&sql))
            })
    }

    fn same(&self, theirs: &[Token<'_>], ours: &[Token<'_>]) -> bool {
        all_mean(theirs, ours, self.identifiers)
    }

    fn name(&self) -> Option<String> {
        if self.same(self.theirs.head, self.ours.head) {
            return None;
        }
        let head = self.theirs.shown(self.theirs.head);
        Some(format!("expected {}, found {head}", self.ours.shown(self.ours.head)))
    }

    /// Missing and extra columns.
    fn columns(&self) -> Option<String> {
        let (theirs, ours) = (names(&self.theirs.columns), names(&self.ours.columns));
        let missing = ours.iter().filter(|name| !theirs.contains(name));
        let missing = missing.map(|name| format!("missing column `{name}`"));
        let extra = theirs.iter().filter(|name| !ours.contains(name));
        let extra = extra.map(|name| format!("extra column `{}`", shortened(name)));
        let mut all: Vec<String> = missing.chain(extra).collect();
        if all.len() > MOST_COLUMNS {
            let more = all.len() - MOST_COLUMNS;
            all.truncate(MOST_COLUMNS);
            all.push(format!("and {more} more"));
        }
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn order(&self) -> Option<String> {
        let (theirs, ours) = (names(&self.theirs.columns), names(&self.ours.columns));
        if theirs.len() > ours.len() {
            return Some("a column is there twice".into());
        }
        let (found, wanted) = theirs.iter().zip(&ours).find(|(found, wanted)| found != wanted)?;
        Some(format!("column `{found}` stands where `{wanted}` should be"))
    }

    fn column(&self, theirs: &[Token<'_>], ours: &[Token<'_>]) -> Option<String> {
        if self.same(theirs, ours) {
            return None;
        }
        let name = ours.first()?.raw;
        if !self.same(theirs.get(..1)?, &ours[..1]) {
            return Some(format!("expected `{name}`, found {}", self.theirs.shown(&theirs[..1])));
        }
        let (their_type, their_clauses) = type_and_clauses(theirs);
        let (our_type, our_clauses) = type_and_clauses(ours);
        if !self.same(their_type, our_type) {
            let called = |definition: &Definition<'_>, words: &[Token<'_>]| match words {
                [] => "without a type".into(),
                words => definition.shown(words).trim_matches('`').to_owned(),
            };
            let (found, wanted) = (called(self.theirs, their_type), called(self.ours, our_type));
            return Some(format!("column `{name}` is {found}, not {wanted}"));
        }
        let what = format!("column `{name}`");
        match self.unmatched(&their_clauses, &our_clauses) {
            (Some(extra), Some(missing)) => {
                Some(format!("{what} has {extra} in the place of {missing}"))
            }
            (Some(extra), None) => Some(format!("{what} has {extra}, which is not ours")),
            (None, Some(missing)) => Some(format!("{what} has lost its {missing}")),
            (None, None) => Some(format!("{what} is defined as {}", self.theirs.shown(theirs))),
        }
    }

    fn constraints(&self) -> Option<String> {
        match self.unmatched(&self.theirs.constraints, &self.ours.constraints) {
            (Some(extra), Some(missing)) => {
                Some(format!("it has the constraint {extra} in the place of {missing}"))
            }
            (Some(extra), None) => {
                Some(format!("it has the constraint {extra}, which is not ours"))
            }
            (None, Some(missing)) => Some(format!("the constraint {missing} is missing")),
            (None, None) => None,
        }
    }

    fn tail(&self) -> Option<String> {
        let is_same = self.same(self.theirs.tail, self.ours.tail);
        (!is_same).then(|| format!("it is {}", self.theirs.shown(self.theirs.tail)))
    }

    /// The first clause of theirs that is not ours, and the first of ours that they lack.
    fn unmatched(
        &self,
        theirs: &[&[Token<'_>]],
        ours: &[&[Token<'_>]],
    ) -> (Option<String>, Option<String>) {
        let extra = theirs.iter().find(|found| !ours.iter().any(|ours| self.same(found, ours)));
        let missing = ours.iter().find(|ours| !theirs.iter().any(|found| self.same(found, ours)));
        (
            extra.map(|clause| self.theirs.shown(clause)),
            missing.map(|clause| self.ours.shown(clause)),
        )
    }
}

fn names<'a>(columns: &[&'a [Token<'a>]]) -> Vec<Cow<'a, str>> {
    columns.iter().filter_map(|column| column.first()).map(Token::name).collect()
}

fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(MOST_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::CHECKPOINTS;
    use crate::pool_rows::SLOTS;
    use crate::schema::{META, RESOURCES, Table};

    fn right(table: &Table) -> String {
        format!("CREATE TABLE {} {}", table.name, table.definition)
    }

    #[track_caller]
    fn check(change: impl Fn(&str) -> String, reason: Option<&str>) {
        let right = right(&RESOURCES);
        let changed = change(&right);
        assert!(reason.is_none() || changed != right, "nothing was changed");
        assert_eq!(difference(&changed, &right).as_deref(), reason, "{changed}");
    }

    #[test]
    fn white_space_is_no_difference() {
        check(|sql| sql.to_owned(), None);
        check(|sql| sql.split_whitespace().collect::<Vec<_>>().join(" "), None);
        check(|sql| sql.replace('(', "\t(\r\n"), None);
        check(|sql| sql.replace(", ", ",").replace(" (", "(").replace(" >= ", ">="), None);
        check(|sql| sql.replace("owner TEXT", "\"owner\"TEXT"), None);
    }

    #[test]
    fn quotes_around_identifiers_are_no_difference() {
        for (open, close) in [("\"", "\""), ("`", "`"), ("[", "]")] {
            for name in ["litelease_resources", "name", "owner", "token", "lease_expires_at_ms"] {
                check(|sql| sql.replace(name, &format!("{open}{name}{close}")), None);
            }
        }
        let slots = right(&SLOTS);
        let quoted = slots.replace("key", "\"key\"").replace("slot ", "\"slot\" ");
        assert_eq!(difference(&quoted, &slots), None);
        let quoted = slots.replace("(pool, key)", "(\"pool\", [key])");
        assert_eq!(difference(&quoted, &slots), None);
        let meta = right(&META);
        assert_eq!(difference(&meta.replace("(token_floor ", "(\"token_floor\" "), &meta), None);
    }

    #[test]
    fn quotes_around_anything_else_are_a_difference() {
        let expected = "expected `owner`, found ";
        let cases = [
            // A string in a CHECK is never NULL, so this one is always violated.
            (
                "(owner IS NULL",
                "('owner' IS NULL",
                "it has the constraint `CHECK ((\'owner\' IS NULL",
            ),
            (
                "(owner IS NULL",
                "(\"own\"\"er\" IS NULL",
                "it has the constraint `CHECK ((\"own\"\"er\"",
            ),
            ("(owner IS NULL", "(\"owner\"\"\" IS NULL", "it has the constraint `CHECK ("),
            ("(owner IS NULL", "(\"Owner\" IS NULL", "it has the constraint `CHECK ("),
            ("(owner IS NULL", "(\"note\" IS NULL", "it has the constraint `CHECK ("),
            ("(token >= 1)", "(token >= \"1\")", "column `token` has `CHECK (token >= \"1\")` in"),
            ("(token >= 1)", "('token' >= 1)", "column `token` has `CHECK ('token' >= 1)` in"),
            ("  owner TEXT", "  'owner' TEXT", expected),
            ("  owner TEXT", "  owner \"TEXT\"", "column `owner` is \"TEXT\", not TEXT"),
            ("  owner TEXT", "  \" owner\" TEXT", "missing column `owner`, extra column ` owner`"),
            (
                "  owner TEXT",
                "  \"owner TEXT\"",
                "missing column `owner`, extra column `owner TEXT`",
            ),
            ("  owner TEXT", "  \"owner\" \"TEXT\"", "column `owner` is \"TEXT\", not TEXT"),
            (
                "litelease_resources",
                "'litelease_resources'",
                "expected `CREATE TABLE litelease_resour",
            ),
            ("  owner TEXT,", "  owner TEXT, \"CHECK\" TEXT,", "extra column `CHECK`"),
            ("  owner TEXT,", "  owner TEXT, \"a,b\" TEXT,", "extra column `a,b`"),
            ("  owner TEXT,", "  owner TEXT, \"a\"\"b\" TEXT,", "extra column `a\"b`"),
            ("  owner TEXT,", "  owner TEXT, [a)b] TEXT,", "extra column `a)b`"),
        ];
        let right = right(&RESOURCES);
        for (from, to, reason) in cases {
            let changed = right.replacen(from, to, 1);
            assert_ne!(changed, right, "{from}");
            let found = difference(&changed, &right).unwrap_or_default();
            assert!(found.starts_with(reason), "{to}: {found}");
        }
    }

    #[test]
    fn the_first_difference_names_the_column() {
        check(
            |sql| sql.replace("owner TEXT,", "owner BLOB,"),
            Some("column `owner` is BLOB, not TEXT"),
        );
        check(
            |sql| sql.replace("token INTEGER", "token TEXT"),
            Some("column `token` is TEXT, not INTEGER"),
        );
        check(
            |sql| sql.replace("  owner TEXT,", "  owner,"),
            Some("column `owner` is without a type, not TEXT"),
        );
        check(
            |sql| sql.replace(" CHECK (token >= 1)", ""),
            Some("column `token` has lost its `CHECK (token >= 1)`"),
        );
        check(
            |sql| sql.replace("token >= 1", "token >= 0"),
            Some("column `token` has `CHECK (token >= 0)` in the place of `CHECK (token >= 1)`"),
        );
        check(
            |sql| sql.replace("name TEXT", "name TEXT COLLATE NOCASE"),
            Some("column `name` has `COLLATE NOCASE`, which is not ours"),
        );
        check(
            |sql| sql.replace("owner TEXT,", "owner TEXT DEFAULT NULL,"),
            Some("column `owner` has `DEFAULT NULL`, which is not ours"),
        );
        check(
            |sql| sql.replace("  owner TEXT,", "  owner TEXT GENERATED ALWAYS AS ('me'),"),
            Some("column `owner` has `GENERATED ALWAYS AS ('me')`, which is not ours"),
        );
        check(
            |sql| {
                sql.replace(
                    "created_at_ms INTEGER NOT NULL",
                    "created_at_ms INTEGER NOT NULL ON CONFLICT IGNORE",
                )
            },
            Some(
                "column `created_at_ms` has `NOT NULL ON CONFLICT IGNORE` in the place of `NOT NULL`",
            ),
        );
        check(
            |sql| sql.replace("NOT NULL CHECK (token >= 1)", "CHECK (token >= 1) NOT NULL"),
            Some("column `token` is defined as `token INTEGER CHECK (token >= 1) NOT NULL`"),
        );
        check(|sql| sql.replace("  owner TEXT,\n", ""), Some("missing column `owner`"));
        check(
            |sql| sql.replace("created_at_ms", "made"),
            Some("missing column `created_at_ms`, extra column `made`"),
        );
        check(
            |sql| sql.replace("NOT NULL,\n  CHECK", "NOT NULL, notes TEXT,\n CHECK"),
            Some("extra column `notes`"),
        );
        check(
            |sql| {
                sql.replace(
                    "  name TEXT PRIMARY KEY,\n  owner TEXT,",
                    "  owner TEXT,\n  name TEXT PRIMARY KEY,",
                )
            },
            Some("column `owner` stands where `name` should be"),
        );
        check(
            |sql| sql.replace("owner TEXT,", "owner TEXT, owner TEXT,"),
            Some("a column is there twice"),
        );
        check(
            |sql| sql.replace("owner TEXT,", "owner TEXT, -- who\n"),
            Some("it has a comment, `-- who`"),
        );
        check(
            |sql| sql.replace("owner TEXT,", "owner TEXT/**/,"),
            Some("it has a comment, `/**/`"),
        );
        check(|sql| format!("{sql} WITHOUT ROWID"), Some("it is `WITHOUT ROWID`"));
        check(
            |sql| sql.replace("\n)", ",\n UNIQUE (owner)\n)"),
            Some("it has the constraint `UNIQUE (owner)`, which is not ours"),
        );
        check(
            |sql| sql.split(",\n  CHECK (").next().unwrap_or_default().to_owned() + ")",
            Some(
                "the constraint `CHECK ((owner IS NULL AND lease_expires_at_ms IS NULL) OR (owner IS NOT NULL \
                 AND lease_expires_at_ms IS NOT NULL))` is missing",
            ),
        );
        check(
            |sql| sql.replace("litelease_resources", "Litelease_Resources"),
            Some(
                "expected `CREATE TABLE litelease_resources`, found `CREATE TABLE Litelease_Resources`",
            ),
        );
        check(
            |_| "CREATE VIRTUAL TABLE litelease_resources USING fts5(name)".into(),
            Some("it is a virtual table"),
        );
    }

    #[test]
    fn a_table_of_somebody_else_is_told_in_a_few_words() {
        let columns: Vec<String> = (0..500).map(|at| format!("c{at}")).collect();
        let sql = format!("CREATE TABLE litelease_checkpoints ({})", columns.join(","));
        let reason = difference(&sql, &right(&CHECKPOINTS)).unwrap_or_default();
        assert!(reason.starts_with("missing column `name`, missing column `token`"), "{reason}");
        assert!(reason.ends_with("extra column `c3`, and 496 more"), "{reason}");
        let sql = format!("CREATE TABLE litelease_checkpoints ({})", "x".repeat(100_000));
        let reason = difference(&sql, &right(&CHECKPOINTS)).unwrap_or_default();
        assert!(reason.len() < 400, "{reason}");
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
