//! Finds user and command of the process behind an owner text, on this host.

use litelease_sys::{Liveness, ProcessInfo};

use crate::Identity;

/// A running process that holds a lease.
///
/// ```
/// # use litelease_hold::{Holder, HolderKind, Identity};
/// let me = Identity::new(HolderKind::Hold).to_string();
/// # #[cfg(target_os = "linux")]
/// assert!(Holder::find(&me).is_some_and(|holder| !holder.line().is_empty()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of its user, or the number of one that has no name here.
    pub user: String,
    /// Its program and arguments.
    pub command: Vec<String>,
}

impl Holder {
    /// Finds the process of an owner text. Returns `None` unless that very process is running here.
    pub fn find(owner: &str) -> Option<Self> {
        let who = Identity::parse(owner)?;
        let ProcessInfo { user, command } = ProcessInfo::find(who.pid)?;
        // Checked last: if it is the same process now, it was when the rest was read. For an
        // identity without a start time this proves nothing.
        let is_same = who.start.is_some() && who.liveness() == Liveness::Alive;
        is_same.then_some(Holder { user, command })
    }

    /// Returns the command in one short line, as it could be typed.
    pub fn line(&self) -> String {
        const LONGEST: usize = 60;
        let words = self.command.iter().enumerate().map(|(place, word)| match place {
            0 => quoted(word.rsplit('/').next().unwrap_or(word)),
            _ => quoted(word),
        });
        let line = words.collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    }
}

/// Quotes a word for a shell, without control characters.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./:=,@%+".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", printable(word).replace('\'', r"'\''")),
    }
}

/// Escapes control characters, so that a text cannot control a terminal.
fn printable(text: &str) -> String {
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_default().collect::<String>(),
        false => letter.into(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_in_one_short_harmless_line() {
        let line = |words: &[&str]| {
            let command = words.iter().map(|word| (*word).to_owned()).collect();
            Holder { user: String::new(), command }.line()
        };
        assert_eq!(line(&["/usr/bin/sh", "-c", "echo 'hi' > x"]), r"sh -c 'echo '\''hi'\'' > x'");
        assert_eq!(line(&["a", "", "\u{1b}[2J"]), r"a '' '\u{1b}[2J'");
        assert_eq!(line(&["ä".repeat(100).as_str()]), format!("{}…", "ä".repeat(60)));
    }

    #[test]
    fn a_running_process_is_found_and_a_successor_of_its_number_is_not() {
        let parent = Identity::of_parent();
        assert!(Holder::find(&parent.to_string()).is_some_and(|holder| !holder.command.is_empty()));
        let other = Identity { start: parent.start.map(|start| start + 1), ..parent };
        assert!(Holder::find(&other.to_string()).is_none());
        assert!(Holder::find("worker-a").is_none());
    }
}
