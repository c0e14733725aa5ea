//! Scenario files: the rules as plain text, one step a line. `scenarios/README.md` has the grammar.

use std::path::{Path, PathBuf};
use std::{env, fmt, fs, io};

use crate::queue::{self, QueueAction};
use crate::ticks::{self, TickAction};

/// One file: a history on one database.
#[derive(Debug)]
pub struct Scenario {
    /// Where it came from.
    pub path: PathBuf,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

/// One line: at this time, do this, expect that.
#[derive(Debug)]
pub struct Step {
    /// The line number, from 1.
    pub line: usize,
    /// The line as written.
    pub text: String,
    /// The time of the step, in milliseconds. A step without one happens when the step before it
    /// did.
    pub now_ms: i64,
    /// What is done.
    pub action: Action,
    /// The answer that must come, in canonical form.
    pub answer: String,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Action {
    Claim { name: String, owner: String, ttl_ms: i64, above: Option<i64> },
    ClaimFromDead { name: String, owner: String, ttl_ms: i64, dead: String, token: i64 },
    Renew { name: String, owner: String, ttl_ms: i64, token: Option<i64> },
    Release { name: String, owner: String, token: Option<i64> },
    Transfer { name: String, owner: String, new_owner: String, ttl_ms: i64, token: Option<i64> },
    Break { name: String },
    Purge { before_ms: i64 },
    Inspect { name: String },
    Owner { name: String },
    Token { name: String },
    Since { name: String },
    Begin { immediate: bool },
    Commit,
    Rollback,
    Savepoint { name: String },
    RollbackTo { name: String },
    ReleaseSavepoint { name: String },
    Conn { name: String },
    Pool { pool: String, count: i64 },
    Borrow { pool: String, lease: String, ttl_ms: i64, key: Option<String> },
    Return { pool: String, lease: String },
    RenewSlot { pool: String, lease: String, ttl_ms: i64 },
    DeletePool { pool: String },
    Slots { pool: String },
    Ensure { name: String, owner: String, ttl_ms: i64 },
    Keep { pool: String, lease: String },
    Attach { name: String, token: i64, value: String },
    Value { name: String },
    Queue(QueueAction),
    Read { name: String, reader: String, ttl_ms: i64 },
    Unread { name: String, reader: String },
    Drained { name: String, token: i64 },
    Limit { name: String, token: i64, progress_ms: Option<i64>, until_ms: Option<i64> },
    Progress { name: String, token: i64 },
    Checkpoint { name: String, token: i64, value: String },
    Request { name: String, requester: String, within_ms: i64 },
    Withdraw { name: String, requester: String },
    Requested { name: String },
    HandOver { name: String, owner: String, ttl_ms: i64, token: Option<i64> },
    TakeOver { name: String, owner: String, ttl_ms: i64 },
    Ticks(TickAction),
}

/// A line that is not of the grammar.
#[derive(Debug)]
pub struct Malformed {
    /// The file and line.
    pub place: String,
    /// What is wrong with it.
    pub reason: String,
}

/// All scenarios: those of the project, and those of the folder in `LITELEASE_SCENARIOS` if it is
/// set.
pub fn all() -> Result<Vec<Scenario>, Malformed> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut scenarios = folder(&own)?;
    if let Some(outside) = env::var_os("LITELEASE_SCENARIOS") {
        // Tests run in the folder of their crate; other programs that set this are at the root.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        scenarios.extend(folder(&root.join(outside))?);
    }
    Ok(scenarios)
}

/// The scenarios of a folder, by name. A folder that has none is a mistake.
pub fn folder(path: &Path) -> Result<Vec<Scenario>, Malformed> {
    let unreadable = |error: io::Error| malformed(path.display(), error);
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if file.extension().is_some_and(|extension| extension == "lease") {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(malformed(path.display(), "no *.lease file in this folder"));
    }
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

fn read(path: &Path) -> Result<Scenario, Malformed> {
    let text = fs::read_to_string(path).map_err(|error| malformed(path.display(), error))?;
    parse(path, &text)
}

/// Parses the text of a scenario file.
pub fn parse(path: &Path, text: &str) -> Result<Scenario, Malformed> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let place = |reason: String| malformed(format!("{}:{line}", path.display()), reason);
        let words = words(text).map_err(place)?;
        if words.is_empty() {
            continue;
        }
        let before_ms = steps.last().map(|step| step.now_ms);
        let (now_ms, action, answer) = step(&words, before_ms).map_err(place)?;
        steps.push(Step { line, text: text.trim().to_owned(), now_ms, action, answer });
    }
    Ok(Scenario { path: path.to_owned(), steps })
}

/// A word as it stands in the file: plain, or a JSON string, which is never a keyword.
#[derive(Clone, Debug, PartialEq)]
enum Word {
    Plain(String),
    Quoted(String),
}

fn words(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let length = if rest.starts_with('"') {
            let mut strings = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            match strings.next() {
                Some(Ok(string)) => words.push(Word::Quoted(string)),
                _ => return Err(format!("not a JSON string: {rest}")),
            }
            strings.byte_offset()
        } else {
            let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
            words.push(Word::Plain(rest[..length].to_owned()));
            length
        };
        rest = rest[length..].trim_start();
    }
    Ok(words)
}

fn step(words: &[Word], before_ms: Option<i64>) -> Result<(i64, Action, String), String> {
    let arrow = words.iter().position(|word| is(word, "->"));
    let (asked, answer) = words.split_at(arrow.unwrap_or(words.len()));
    let mut reader = Reader { words: asked };
    let now_ms = match (reader.takes("at"), before_ms) {
        (true, _) => Some(reader.number()?),
        (false, before_ms) => before_ms,
    };
    let action = action(&mut reader)?;
    if let Some(word) = reader.words.first() {
        return Err(format!("unexpected {}", shown(text(word))));
    }
    let answer = match answer {
        [] if action.is_about_the_connection() => "ok".to_owned(),
        [] => return Err("an answer is missing: -> ANSWER".into()),
        [_, answer @ ..] => answer.iter().map(canonical).collect::<Vec<_>>().join(" "),
    };
    match now_ms {
        Some(now_ms) => Ok((now_ms, action, answer)),
        None if action.is_about_the_connection() => Ok((0, action, answer)),
        None => Err("a time is missing: at NOW".into()),
    }
}

fn action(reader: &mut Reader<'_>) -> Result<Action, String> {
    let verb = reader.keyword()?;
    if let Some(action) = queue::parse(&verb, reader)? {
        return Ok(Action::Queue(action));
    }
    if let Some(action) = ticks::parse(&verb, reader)? {
        return Ok(Action::Ticks(action));
    }
    Ok(match verb.as_str() {
        "claim" => {
            let (name, owner) = (reader.text()?, reader.text()?);
            if reader.takes("tick") {
                return Ok(Action::Ticks(ticks::parse_claim(name, owner, reader)?));
            }
            let ttl_ms = reader.labelled("ttl")?;
            match reader.takes("from") {
                true => Action::ClaimFromDead {
                    name,
                    owner,
                    ttl_ms,
                    dead: {
                        reader.takes("dead");
                        reader.text()?
                    },
                    token: reader.labelled("token")?,
                },
                false => Action::Claim { name, owner, ttl_ms, above: reader.option("above")? },
            }
        }
        "pool" | "resize" => {
            Action::Pool { pool: reader.text()?, count: reader.labelled("count")? }
        }
        "borrow" => Action::Borrow {
            pool: reader.text()?,
            lease: reader.text()?,
            ttl_ms: reader.labelled("ttl")?,
            key: if reader.takes("key") { Some(reader.text()?) } else { None },
        },
        "return" => Action::Return { pool: reader.text()?, lease: reader.text()? },
        "renew" if reader.takes("slot") => Action::RenewSlot {
            pool: reader.text()?,
            lease: reader.text()?,
            ttl_ms: reader.labelled("ttl")?,
        },
        "keep" => Action::Keep { pool: reader.text()?, lease: reader.text()? },
        "read" => Action::Read {
            name: reader.text()?,
            reader: reader.text()?,
            ttl_ms: reader.labelled("ttl")?,
        },
        "unread" => Action::Unread { name: reader.text()?, reader: reader.text()? },
        "drained" => Action::Drained { name: reader.text()?, token: reader.labelled("token")? },
        "delete" => Action::DeletePool { pool: reader.text()? },
        "slots" => Action::Slots { pool: reader.text()? },
        "renew" => Action::Renew {
            name: reader.text()?,
            owner: reader.text()?,
            ttl_ms: reader.labelled("ttl")?,
            token: reader.option("token")?,
        },
        "release" if reader.takes("savepoint") => Action::ReleaseSavepoint { name: reader.text()? },
        "release" => Action::Release {
            name: reader.text()?,
            owner: reader.text()?,
            token: reader.option("token")?,
        },
        "transfer" => Action::Transfer {
            name: reader.text()?,
            owner: reader.text()?,
            new_owner: {
                reader.takes("to");
                reader.text()?
            },
            ttl_ms: reader.labelled("ttl")?,
            token: reader.option("token")?,
        },
        "break" => Action::Break { name: reader.text()? },
        "purge" => Action::Purge {
            before_ms: {
                reader.takes("before");
                reader.number()?
            },
        },
        "inspect" => Action::Inspect { name: reader.text()? },
        "owner" => Action::Owner { name: reader.text()? },
        "token" => Action::Token { name: reader.text()? },
        "since" => Action::Since { name: reader.text()? },
        "begin" => Action::Begin { immediate: reader.takes("immediate") },
        "commit" => Action::Commit,
        "rollback" if reader.takes("to") => Action::RollbackTo { name: reader.text()? },
        "rollback" => Action::Rollback,
        "savepoint" => Action::Savepoint { name: reader.text()? },
        "conn" => Action::Conn { name: reader.text()? },
        "ensure" => Action::Ensure {
            name: reader.text()?,
            owner: reader.text()?,
            ttl_ms: reader.labelled("ttl")?,
        },
        "attach" => Action::Attach {
            name: reader.text()?,
            token: reader.labelled("token")?,
            value: {
                reader.takes("value");
                reader.text()?
            },
        },
        "value" => Action::Value { name: reader.text()? },
        "limit" => Action::Limit {
            name: reader.text()?,
            token: reader.labelled("token")?,
            progress_ms: reader.option("progress")?,
            until_ms: reader.option("until")?,
        },
        "progress" => Action::Progress { name: reader.text()?, token: reader.labelled("token")? },
        "checkpoint" => Action::Checkpoint {
            name: reader.text()?,
            token: reader.labelled("token")?,
            value: {
                reader.takes("value");
                reader.text()?
            },
        },
        "request" => Action::Request {
            name: reader.text()?,
            requester: reader.text()?,
            within_ms: reader.labelled("within")?,
        },
        "withdraw" => Action::Withdraw { name: reader.text()?, requester: reader.text()? },
        "requested" => Action::Requested { name: reader.text()? },
        "hand" if reader.takes("over") => Action::HandOver {
            name: reader.text()?,
            owner: reader.text()?,
            ttl_ms: reader.labelled("ttl")?,
            token: reader.option("token")?,
        },
        "take" if reader.takes("over") => Action::TakeOver {
            name: reader.text()?,
            owner: reader.text()?,
            ttl_ms: reader.labelled("ttl")?,
        },
        verb => return Err(format!("no verb {verb:?}")),
    })
}

impl Action {
    /// The name that the step is about, if it is about one.
    pub fn name(&self) -> Option<&str> {
        use Action::*;
        match self {
            Claim { name, .. } | Renew { name, .. } | Release { name, .. } => Some(name),
            ClaimFromDead { name, .. } => Some(name),
            Transfer { name, .. } | Break { name } | Inspect { name } => Some(name),
            Owner { name } | Token { name } | Since { name } => Some(name),
            Ensure { name, .. } => Some(name),
            Attach { name, .. } | Value { name } => Some(name),
            Read { name, .. } | Unread { name, .. } | Drained { name, .. } => Some(name),
            Request { name, .. } | Withdraw { name, .. } | Requested { name } => Some(name),
            HandOver { name, .. } | TakeOver { name, .. } => Some(name),
            Limit { name, .. } | Progress { name, .. } | Checkpoint { name, .. } => Some(name),
            Ticks(action) => Some(action.name()),
            _ => None,
        }
    }

    /// The names and owners that the step is about.
    pub fn texts(&self) -> Vec<&str> {
        use Action::*;
        let mut texts: Vec<&str> = self.name().into_iter().collect();
        match self {
            Claim { owner, .. } | Renew { owner, .. } | Release { owner, .. } => texts.push(owner),
            Ensure { owner, .. } => texts.push(owner),
            ClaimFromDead { owner, dead, .. } => texts.extend([owner.as_str(), dead]),
            Transfer { owner, new_owner, .. } => texts.extend([owner.as_str(), new_owner]),
            _ => {}
        }
        texts
    }

    /// The ttl that the step asks for, if it asks for one.
    pub fn ttl_ms(&self) -> Option<i64> {
        use Action::*;
        match self {
            Claim { ttl_ms, .. } | Renew { ttl_ms, .. } | Transfer { ttl_ms, .. } => Some(*ttl_ms),
            ClaimFromDead { ttl_ms, .. } | Read { ttl_ms, .. } => Some(*ttl_ms),
            Borrow { ttl_ms, .. } | RenewSlot { ttl_ms, .. } => Some(*ttl_ms),
            Queue(action) => action.time_ms(),
            Ensure { ttl_ms, .. } => Some(*ttl_ms),
            HandOver { ttl_ms, .. } | TakeOver { ttl_ms, .. } => Some(*ttl_ms),
            _ => None,
        }
    }

    /// Whether this is about transactions or connections: such a step needs no time, and its answer
    /// is `ok` where none is given.
    pub fn is_about_the_connection(&self) -> bool {
        use Action::*;
        matches!(
            self,
            Begin { .. }
                | Commit
                | Rollback
                | Savepoint { .. }
                | RollbackTo { .. }
                | ReleaseSavepoint { .. }
                | Conn { .. }
        )
    }
}

/// Takes words from the front.
pub(crate) struct Reader<'w> {
    words: &'w [Word],
}

impl Reader<'_> {
    fn next(&mut self, wanted: &str) -> Result<Word, String> {
        let (first, rest) = self.words.split_first().ok_or(format!("{wanted} is missing"))?;
        self.words = rest;
        Ok(first.clone())
    }

    pub(crate) fn takes(&mut self, keyword: &str) -> bool {
        let there = self.words.first().is_some_and(|word| is(word, keyword));
        self.words = &self.words[usize::from(there)..];
        there
    }

    fn keyword(&mut self) -> Result<String, String> {
        match self.next("a verb")? {
            Word::Plain(word) => Ok(word),
            Word::Quoted(word) => Err(format!("a verb is missing before {word:?}")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, String> {
        Ok(text(&self.next("a name")?).to_owned())
    }

    pub(crate) fn number(&mut self) -> Result<i64, String> {
        let word = self.next("a number")?;
        text(&word).parse().map_err(|_| format!("not a number: {}", shown(text(&word))))
    }

    pub(crate) fn labelled(&mut self, label: &str) -> Result<i64, String> {
        if self.takes(label) { self.number() } else { Err(format!("`{label} N` is missing")) }
    }

    pub(crate) fn option(&mut self, label: &str) -> Result<Option<i64>, String> {
        if self.takes(label) { self.number().map(Some) } else { Ok(None) }
    }
}

/// A name or owner as answers have it: as it is where it is one plain word, else as a JSON string.
pub fn shown(text: &str) -> String {
    let plain = !text.is_empty()
        && !text.starts_with(['"', '#'])
        && text != "->"
        && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

fn canonical(word: &Word) -> String {
    shown(text(word))
}

fn text(word: &Word) -> &str {
    match word {
        Word::Plain(text) | Word::Quoted(text) => text,
    }
}

fn is(word: &Word, keyword: &str) -> bool {
    matches!(word, Word::Plain(plain) if plain == keyword)
}

fn malformed(place: impl fmt::Display, reason: impl fmt::Display) -> Malformed {
    Malformed { place: place.to_string(), reason: reason.to_string() }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<Step, String> {
        let scenario = parse(Path::new("x.lease"), line).map_err(|error| error.to_string())?;
        scenario.steps.into_iter().next().ok_or_else(|| "no step".into())
    }

    #[test]
    fn a_line_is_a_time_an_action_and_an_answer() {
        let step =
            one("at 100  claim scheduler a ttl 50  -> acquired 1 until 150 # the first").unwrap();
        assert_eq!(step.now_ms, 100);
        assert_eq!(step.answer, "acquired 1 until 150");
        let (name, owner) = ("scheduler".into(), "a".into());
        assert_eq!(step.action, Action::Claim { name, owner, ttl_ms: 50, above: None });
    }

    #[test]
    fn a_quoted_word_is_a_name_and_never_a_keyword() {
        let step =
            one(r#"at 1 transfer "a b" "to" to "->" ttl 5 -> transferred 2 until 6"#).unwrap();
        let Action::Transfer { name, owner, new_owner, .. } = step.action else { panic!() };
        assert_eq!((name.as_str(), owner.as_str(), new_owner.as_str()), ("a b", "to", "->"));
        assert_eq!(one(r#"at 1 owner x -> owner "b""#).unwrap().answer, "owner b");
    }

    #[test]
    fn what_is_not_of_the_grammar_is_named_with_its_place() {
        for (line, reason) in [
            ("at x claim a b ttl 5 -> ok", "x.lease:1: not a number: x"),
            ("at 1 claim a b -> ok", "x.lease:1: `ttl N` is missing"),
            ("at 1 claim a b ttl 5", "x.lease:1: an answer is missing: -> ANSWER"),
            ("claim a b ttl 5 -> ok", "x.lease:1: a time is missing: at NOW"),
            ("at 1 grab a -> ok", "x.lease:1: no verb \"grab\""),
            ("at 1 owner a b -> none", "x.lease:1: unexpected b"),
            ("at 1 owner \"a -> none", "x.lease:1: not a JSON string: \"a -> none"),
            ("at 1", "x.lease:1: a verb is missing"),
        ] {
            assert_eq!(one(line).unwrap_err(), reason);
        }
    }
}
