//! One file, every surface: a lease claimed through one of them is seen, respected, renewed and succeeded
//! through each of the others. The story is told once; a surface is what it is told through.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use litelease::Litelease;
use litelease_proof::rig::{extension, tell};

const TTL_MS: i64 = 3_600_000;

/// A way to reach the leases of a file, each time as a fresh process or connection.
trait Surface {
    fn name(&self) -> &'static str;
    /// The token, if the name was granted.
    fn claim(&self, file: &Path, lease: &str, owner: &str) -> Option<i64>;
    /// The token, if exactly this grant was renewed.
    fn renew(&self, file: &Path, lease: &str, owner: &str, token: i64) -> Option<i64>;
    /// Whether exactly this grant was released.
    fn release(&self, file: &Path, lease: &str, owner: &str, token: i64) -> bool;
    fn owner(&self, file: &Path, lease: &str) -> Option<String>;
}

/// The Rust crate.
struct Crate;

impl Crate {
    fn open(file: &Path) -> Litelease {
        let db = Litelease::open(file).unwrap();
        db.bootstrap().unwrap();
        db
    }

    fn grant(lease: &str, owner: &str, token: i64) -> litelease::LeaseInfo {
        let (name, owner) = (lease.to_owned(), owner.to_owned());
        litelease::LeaseInfo { name, owner, token, lease_expires_at_ms: 0 }
    }
}

impl Surface for Crate {
    fn name(&self) -> &'static str {
        "the Rust crate"
    }

    fn claim(&self, file: &Path, lease: &str, owner: &str) -> Option<i64> {
        let ttl = Duration::from_millis(TTL_MS.unsigned_abs());
        Crate::open(file).claim(lease, owner, ttl).unwrap().acquired().map(|lease| lease.token)
    }

    fn renew(&self, file: &Path, lease: &str, owner: &str, token: i64) -> Option<i64> {
        let grant = Crate::grant(lease, owner, token);
        let ttl = Duration::from_millis(TTL_MS.unsigned_abs());
        Crate::open(file).renew_exact(&grant, ttl).unwrap().renewed().map(|lease| lease.token)
    }

    fn release(&self, file: &Path, lease: &str, owner: &str, token: i64) -> bool {
        let released = Crate::open(file).release_exact(&Crate::grant(lease, owner, token)).unwrap();
        matches!(released, litelease::ReleaseResult::Released { .. })
    }

    fn owner(&self, file: &Path, lease: &str) -> Option<String> {
        Crate::open(file).owner(lease).unwrap()
    }
}

/// How a program is started: with the extension, the file and the query.
type Start = fn(&Path, &Path, &str) -> Command;

/// A program that loads the extension, runs one query and prints its answer, or nothing for NULL.
struct Program {
    name: &'static str,
    command: Start,
    extension: PathBuf,
}

impl Program {
    fn ask(&self, file: &Path, query: &str) -> Option<String> {
        // Bootstrapping is part of the query, as for a program that has just been started.
        let sql = format!("SELECT {query} FROM (SELECT litelease_bootstrap())");
        let output = (self.command)(&self.extension, file, &sql).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {sql}: {errors}", self.name);
        let answer = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        (!answer.is_empty()).then_some(answer)
    }
}

impl Surface for Program {
    fn name(&self) -> &'static str {
        self.name
    }

    fn claim(&self, file: &Path, lease: &str, owner: &str) -> Option<i64> {
        let query = format!("litelease_claim('{lease}', '{owner}', {TTL_MS})");
        self.ask(file, &query).map(|token| token.parse().unwrap())
    }

    fn renew(&self, file: &Path, lease: &str, owner: &str, token: i64) -> Option<i64> {
        let query = format!("litelease_renew('{lease}', '{owner}', {TTL_MS}, NULL, {token})");
        self.ask(file, &query).map(|token| token.parse().unwrap())
    }

    fn release(&self, file: &Path, lease: &str, owner: &str, token: i64) -> bool {
        let query = format!("litelease_release('{lease}', '{owner}', NULL, {token})");
        self.ask(file, &query).as_deref() == Some("1")
    }

    fn owner(&self, file: &Path, lease: &str) -> Option<String> {
        self.ask(file, &format!("litelease_owner('{lease}')"))
    }
}

/// The Python package, in one of the environments that `scripts/setup-python` prepares.
struct Package {
    name: &'static str,
    python: PathBuf,
}

impl Package {
    fn ask(&self, file: &Path, call: &str) -> Option<String> {
        let program = format!(
            "import sqlite3, sys
from litelease import Acquired, Litelease, Released, Renewed
db = Litelease(sqlite3.connect(sys.argv[1]))
db.bootstrap()
answer = db.{call}
if isinstance(answer, (Acquired, Renewed)):
    print(answer.lease.token)
elif isinstance(answer, (Released, str)):
    print(answer if isinstance(answer, str) else answer.token)"
        );
        let output = Command::new(&self.python).args(["-c", &program]).arg(file).output().ok()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {call}: {errors}", self.name);
        let answer = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        (!answer.is_empty()).then_some(answer)
    }
}

impl Surface for Package {
    fn name(&self) -> &'static str {
        self.name
    }

    fn claim(&self, file: &Path, lease: &str, owner: &str) -> Option<i64> {
        let call = format!("claim({lease:?}, {owner:?}, ttl_ms={TTL_MS})");
        self.ask(file, &call).map(|token| token.parse().unwrap())
    }

    fn renew(&self, file: &Path, lease: &str, owner: &str, token: i64) -> Option<i64> {
        let call = format!("renew({lease:?}, {owner:?}, ttl_ms={TTL_MS}, token={token})");
        self.ask(file, &call).map(|token| token.parse().unwrap())
    }

    fn release(&self, file: &Path, lease: &str, owner: &str, token: i64) -> bool {
        self.ask(file, &format!("release({lease:?}, {owner:?}, token={token})")).is_some()
    }

    fn owner(&self, file: &Path, lease: &str) -> Option<String> {
        self.ask(file, &format!("owner({lease:?})"))
    }
}

fn shell(extension: &Path, file: &Path, sql: &str) -> Command {
    let mut command = Command::new("sqlite3");
    command.arg(file).arg(format!(".load {}", extension.display())).arg(sql);
    command
}

fn python(extension: &Path, file: &Path, sql: &str) -> Command {
    const PROGRAM: &str = "import sqlite3, sys
db = sqlite3.connect(sys.argv[2], isolation_level=None)
db.enable_load_extension(True)
db.load_extension(sys.argv[1])
answer = db.execute(sys.argv[3]).fetchone()[0]
print('' if answer is None else answer)";
    // The python3 of the system can load extensions; others may not.
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", PROGRAM]).arg(extension).arg(file).arg(sql);
    command
}

fn node(extension: &Path, file: &Path, sql: &str) -> Command {
    const PROGRAM: &str = "const Database = require('better-sqlite3');
const [, extension, file, sql] = process.argv;
const db = new Database(file);
db.loadExtension(extension);
console.log(db.prepare(sql).pluck().get() ?? '');";
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node/node_modules");
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules).args(["-e", PROGRAM]).arg(extension).arg(file).arg(sql);
    command
}

/// The surfaces that this machine has. What is missing is told.
fn surfaces() -> Vec<Box<dyn Surface>> {
    let extension = extension();
    let mut surfaces: Vec<Box<dyn Surface>> = vec![Box::new(Crate)];
    let programs: [(&str, Start); 3] =
        [("the sqlite3 shell", shell), ("the system's Python", python), ("Node", node)];
    for (name, command) in programs {
        let probe =
            command(&extension, Path::new(":memory:"), "SELECT litelease_version()").output();
        match probe {
            Ok(output) if output.status.success() => {
                surfaces.push(Box::new(Program { name, command, extension: extension.clone() }));
            }
            _ => tell(&format!(
                "SKIPPED: {name} cannot load the extension here, or is not installed"
            )),
        }
    }
    let environments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python");
    for (name, folder) in [
        ("the package in the system's Python", "system"),
        ("the package in the other Python", "other"),
    ] {
        let python = environments.join(folder).join("bin/python");
        let probe = Command::new(&python).args(["-c", "import litelease"]).output();
        match probe {
            Ok(output) if output.status.success() => {
                surfaces.push(Box::new(Package { name, python }))
            }
            _ => tell(&format!("SKIPPED: {name} is not installed")),
        }
    }
    surfaces
}

/// A lease that `one` claims, seen by `other`, who takes over when it is released.
fn tell_the_story(one: &dyn Surface, other: &dyn Surface, file: &Path, before: i64) -> i64 {
    let (name, who) = ("scheduler", format!("{} and {}", one.name(), other.name()));
    let token = one.claim(file, name, "one").unwrap_or_else(|| panic!("{who}: not granted"));
    assert!(token > before, "{who}: token {token} after {before}");
    assert_eq!(other.owner(file, name).as_deref(), Some("one"), "{who}: seen");
    assert_eq!(other.claim(file, name, "other"), None, "{who}: blocked");
    assert_eq!(other.renew(file, name, "one", token), Some(token), "{who}: renewed");
    assert_eq!(other.renew(file, name, "one", token + 1), None, "{who}: an unknown token");
    assert!(!other.release(file, name, "other", token), "{who}: not the other's to release");
    assert!(one.release(file, name, "one", token), "{who}: released");
    let next = other.claim(file, name, "other").unwrap_or_else(|| panic!("{who}: not succeeded"));
    assert_eq!(next, token + 1, "{who}: a larger token");
    assert_eq!(one.renew(file, name, "one", token), None, "{who}: the old grant is over");
    assert!(other.release(file, name, "other", next), "{who}: released again");
    next
}

#[test]
fn a_lease_of_any_surface_is_respected_by_every_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shared.sqlite3");
    let surfaces = surfaces();
    let mut token = 0;
    for one in &surfaces {
        for other in &surfaces {
            token = tell_the_story(one.as_ref(), other.as_ref(), &file, token);
        }
    }
    let names: Vec<&str> = surfaces.iter().map(|surface| surface.name()).collect();
    tell(&format!("one file, every surface: {} told the story to each other", names.join(", ")));
    assert_eq!(token, 2 * (surfaces.len() * surfaces.len()) as i64);
}
