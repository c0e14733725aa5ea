//! What the project says about itself is true.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root());
    cargo
}

/// Runs a command that must succeed, and gives what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_programs_in_the_readme_compile_and_run_as_written() {
    let readme = read("README.md");
    let first = readme.lines().position(|line| line == "```rust").unwrap();
    assert!(first < 20, "a program is on the first screen");
    let programs: Vec<&str> =
        readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(programs.len(), 3);

    // As a newcomer would: a new project, the crate added by its path, the program pasted.
    let project = tempfile::tempdir().unwrap();
    let krate = root().join("crates/litelease");
    let manifest = format!(
        "[package]\nname = \"newcomer\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nlitelease = {{ path = {krate:?} }}\n"
    );
    fs::create_dir(project.path().join("src")).unwrap();
    fs::write(project.path().join("Cargo.toml"), manifest).unwrap();
    // The same versions as this build, so that SQLite need not be compiled again.
    fs::copy(root().join("Cargo.lock"), project.path().join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_BIN_EXE_worker")).ancestors().nth(2).unwrap();
    let newcomer = |program: &str| {
        fs::write(project.path().join("src/main.rs"), program).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["run", "-q", "--target-dir"]).arg(target).current_dir(project.path());
        run(&mut cargo)
    };
    assert_eq!(newcomer(programs[0]), "only this process works, under token 1\n");
    assert!(project.path().join("app.sqlite3").exists());
    assert_eq!(newcomer(programs[1]), "got token 1\n");
    assert_eq!(newcomer(programs[1]), "currently owned by worker-a\n");
    newcomer(programs[2]);
}

#[test]
fn the_lines_of_the_readme_fit_a_terminal() {
    let readme = read("README.md");
    let long = readme.lines().filter(|line| line.chars().count() > 100);
    assert_eq!(long.collect::<Vec<_>>(), [""; 0]);
}

/// The first column of docs/reference/verbs.md, and of the short table in README.
#[test]
fn every_verb_of_the_documents_is_one_of_the_crate() {
    let source: String =
        tracked("crates/litelease/src/*.rs").iter().map(|file| read(file)).collect();
    for (document, least) in [("docs/reference/verbs.md", 50), ("README.md", 6)] {
        let text = read(document);
        let table = text.split_once("| verb | what it does |\n").map_or("", |(_, table)| table);
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let verbs = rows.filter_map(|row| row.split('|').nth(1)).flat_map(quoted);
        let verbs: Vec<&str> = verbs.filter_map(|verb| verb.rsplit('.').next()).collect();
        assert!(verbs.len() >= least, "{document}: {verbs:?}");
        for verb in verbs {
            let is_known = source.contains(&format!("pub fn {verb}("))
                || source.contains(&format!("pub fn {verb}<"))
                || source.contains(&format!("pub struct {verb}"));
            assert!(is_known, "{document} names the verb `{verb}`, which does not exist");
        }
    }
}

/// A reader finds each page from docs/README.md.
#[test]
fn the_list_of_pages_has_every_page() {
    let list = read("docs/README.md");
    for page in tracked("docs/*.md") {
        let name = page.trim_start_matches("docs/");
        let is_listed = list.contains(&format!("({name})")) || list.contains(&format!("({name}#"));
        let is_recipe = name.starts_with("recipes/") && name != "recipes/README.md";
        assert!(is_listed || is_recipe || name == "README.md", "docs/README.md lacks {name}");
    }
}

#[test]
fn the_examples_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.sqlite3");
    let example = |name: &str| {
        let mut cargo = cargo();
        cargo.args(["run", "-q", "-p", "litelease", "--example", name, "--"]).arg(&file);
        run(&mut cargo)
    };
    let basic = example("basic_claim");
    assert!(basic.contains("works under token 1") && basic.ends_with("done\n"), "{basic}");
    assert!(example("basic_claim").contains("works under token 2"));
    let batch = example("transactional_claim");
    assert!(batch.contains("batch 1 is imported, and the lease released"), "{batch}");
    assert!(example("transactional_claim").contains("batch 2 is ours, under token 2"));
    let page = read("docs/queues.md");
    let block = |kind: &str| {
        let begin = format!("```{kind}\n");
        page.split_once(&begin).and_then(|(_, rest)| rest.split("```").next()).unwrap_or_default()
    };
    assert_eq!(example("paused_worker"), block("text"), "as docs/queues.md shows it");
    let shown: Vec<&str> =
        block("rust,no_run").lines().filter(|line| !line.starts_with("# ")).collect();
    assert!(read("examples/paused_worker.rs").contains(&shown.join("\n")), "{shown:?}");
    let mut credential = cargo();
    credential.args(["run", "-q", "-p", "litelease", "--features", "credentials"]);
    credential.args(["--example", "credential", "--"]).arg(folder.path().join("credential"));
    let page = read("docs/recipes/credential.md");
    let shown = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(
        Some(run(&mut credential).as_str()),
        shown,
        "as docs/recipes/credential.md shows it"
    );
    let single = |words: &[&str]| {
        let mut cargo = cargo();
        let file = folder.path().join("notes.sqlite3");
        cargo.args(["run", "-q", "-p", "litelease", "--example", "single_writer", "--"]);
        run(cargo.args(words).arg(file))
    };
    assert_eq!(single(&["write", "first"]), "note 1\n");
    assert_eq!(single(&["write", "second"]), "note 2\n");
    assert_eq!(single(&["count"]), "2\n");
}

/// The words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the files that git has below a folder of the project, or that match a pattern.
pub(crate) fn tracked(pattern: &str) -> Vec<String> {
    let listed = run(Command::new("git").args(["ls-files", "--", pattern]).current_dir(root()));
    listed.lines().map(str::to_owned).collect()
}

/// Checks whether a document may name a file by this path: in full, or by its last parts
/// (`src/rig.rs`). A folder is named in full and ends with a slash; `*` is a part of a name.
fn names(path: &str, file: &str) -> bool {
    if path.ends_with('/') {
        return file.starts_with(path);
    }
    let (path, file): (Vec<_>, Vec<_>) = (path.split('/').collect(), file.split('/').collect());
    let fits = |(pattern, name): (&&str, &&str)| match pattern.split_once('*') {
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
        None => pattern == name,
    };
    path.len() <= file.len() && path.iter().rev().zip(file.iter().rev()).all(fits)
}

#[test]
fn the_paths_in_the_documents_for_engineers_exist() {
    let files = tracked(".");
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = read(document);
        let is_path = |word: &&str| {
            let has_ending = [".rs", ".py", ".md", ".toml"].iter().any(|end| word.ends_with(end));
            (word.contains('/') || has_ending) && !word.contains([' ', '{']) && *word != "//!"
        };
        let paths: Vec<&str> = quoted(&text).filter(is_path).collect();
        assert!(paths.len() > 10, "{document} names {paths:?}");
        for path in paths {
            let exists = files.iter().any(|file| names(path, file));
            assert!(exists, "{document} names `{path}`, which does not exist");
        }
    }
}

/// CONTRIBUTING.md says which tests belong to a change: each is a test file.
#[test]
fn the_tests_that_contributing_names_exist() {
    let files = tracked("crates/litelease-proof/tests");
    let text = read("CONTRIBUTING.md");
    let columns = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let is_test = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let tests: Vec<&str> = columns.flat_map(|(_, run)| quoted(run)).filter(is_test).collect();
    assert!(tests.len() > 20, "CONTRIBUTING.md names {tests:?}");
    for test in tests {
        let exists = files.iter().any(|file| names(&format!("{test}.rs"), file));
        assert!(exists, "CONTRIBUTING.md names the test `{test}`, which does not exist");
    }
}

#[test]
fn every_source_file_begins_with_its_job() {
    let files = tracked("crates/*/src/*.rs");
    assert!(files.len() > 100);
    for file in files {
        let says = read(&file).starts_with("//! ");
        assert!(says, "{file} must begin with a `//! ` line that says what it is for");
    }
}

/// Returns the numbers of the comment lines that are too long to be read at a glance. Code and
/// tables in them may be longer.
fn long_comments(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let is_long = |line: &str| {
        let comment = line
            .trim_start()
            .strip_prefix("//")
            .map(|text| text.trim_start_matches(['/', '!']).trim_start());
        is_code = match comment {
            Some(text) if text.starts_with("```") => !is_code,
            Some(_) => is_code,
            None => false,
        };
        comment.is_some_and(|text| !is_code && !text.starts_with('|')) && line.chars().count() > 100
    };
    let lines: Vec<bool> = text.lines().map(is_long).collect();
    (1..).zip(lines).filter_map(|(number, is_long)| is_long.then_some(number)).collect()
}

#[test]
fn comments_have_at_most_100_columns() {
    let long = format!("// {}", "a".repeat(98));
    let code = format!("{long}\n/// ```\n{long}\n/// ```\nlet a = 1;\n    {long}\n/// | {long}");
    assert_eq!(long_comments(&code), [1, 6]);
    for file in tracked("*.rs") {
        let lines = long_comments(&read(&file));
        assert!(lines.is_empty(), "{file} has comments over 100 columns in the lines {lines:?}");
    }
}

/// The source files that contain `unsafe`, and why they need it.
const UNSAFE: &[(&str, &str, &[&str])] = &[
    (
        "drives SQLite through its C functions, and is called back by it",
        "crates/litelease-store/src",
        &["closing.rs", "hosted.rs", "open.rs", "present.rs", "rule_fn.rs", "sqlite.rs"],
    ),
    ("is called by SQLite: holds in SQL", "crates/litelease-hold/src/file", &["sql.rs"]),
    (
        "is called by SQLite: the SQL functions and tables",
        "crates/litelease-store/src/sql",
        &["call.rs", "table.rs"],
    ),
    (
        "is loaded by SQLite, and called by Python through ctypes",
        "crates/litelease-extension/src",
        &["lib.rs", "routines.rs"],
    ),
    (
        "calls CPython by the addresses of its functions, and is called by it",
        "crates/litelease-extension/src/python",
        &[
            "api.rs",
            "holds.rs",
            "host.rs",
            "mod.rs",
            "opened.rs",
            "session.rs",
            "values.rs",
            "waiting.rs",
        ],
    ),
    (
        "hands the connections of rusqlite to the store",
        "crates/litelease/src",
        &[
            "connection_cache.rs",
            "functions.rs",
            "handle.rs",
            "leases.rs",
            "linked_sqlite.rs",
            "raw.rs",
        ],
    ),
    ("asks SQLite whether a file has moved", "crates/litelease/src", &["file.rs"]),
    (
        "calls the system",
        "crates/litelease-sys/src/unix",
        &[
            "access.rs",
            "children.rs",
            "clock.rs",
            "files.rs",
            "process.rs",
            "sentinel.rs",
            "standard.rs",
            "terminal.rs",
        ],
    ),
    (
        "calls Linux",
        "crates/litelease-sys/src/linux",
        &["clock.rs", "files.rs", "parent.rs", "processes.rs", "wakeup.rs", "watch.rs"],
    ),
    ("calls other Unix systems", "crates/litelease-sys/src/other_unix", &["clock.rs"]),
    ("is called by SQLite: its update hook", "crates/litelease-serve/src/mirror", &["watch.rs"]),
    (
        "forks while there is one thread, and is called before `main`",
        "crates/litelease-cli/src",
        &[
            "commands/run/child.rs",
            "commands/run/session.rs",
            "commands/work/session.rs",
            "stream.rs",
        ],
    ),
    (
        "tests: a file system for SQLite, forks, signals, terminals and network namespaces",
        "crates/litelease-proof/src",
        &[
            "bin/worker.rs",
            "command.rs",
            "etcd.rs",
            "machines.rs",
            "postgres.rs",
            "rig.rs",
            "terminal.rs",
            "vfs.rs",
        ],
    ),
];

/// The files that compare an expiry with a time, and why they cannot call `is_live`.
const EXPIRIES: &[(&str, &str)] = &[
    (
        "crates/litelease-cluster/src/postgres/sql/guards.sql",
        "SQL of another database: strict guards",
    ),
    ("crates/litelease-cluster/src/postgres/sql/verbs.sql", "SQL of another database: the verbs"),
    (
        "crates/litelease-cluster/src/postgres/statements.rs",
        "SQL of another database: saving a row",
    ),
    (
        "crates/litelease-serve/src/committer/tests/beside.rs",
        "a test: for how long a client trusts a lease",
    ),
    ("crates/litelease-store/src/history.rs", "SQL: triggers, in files without our code"),
    ("crates/litelease-store/src/pool_rows.rs", "SQL: finds slots by an index"),
    ("crates/litelease-store/src/purge.rs", "SQL: finds what is to be deleted"),
    ("crates/litelease-store/src/read.rs", "SQL: finds readers by an index"),
    ("crates/litelease-store/src/retire.rs", "SQL: counts slots"),
    ("crates/litelease-store/src/side_tables.rs", "SQL: counts readers"),
    ("crates/litelease-store/src/trigger.rs", "SQL: strict guards, in files without our code"),
];

#[test]
fn expiry_is_judged_in_one_function_and_in_the_sql_that_cannot_call_it() {
    let compares = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        let times = ["expires_at_ms", "updated_at_ms)", "deadline_ms", "until_ms", "expiry"];
        times.iter().any(|time| {
            [" > ", " < ", " <= "].iter().any(|sign| code.contains(&format!("{time}{sign}")))
        })
    };
    let files = tracked("crates/*/src/*.rs").into_iter().chain(tracked("crates/*/src/*.sql"));
    let files = files.filter(|file| !file.starts_with("crates/litelease-proof/"));
    let found: BTreeSet<String> = files.filter(|file| read(file).lines().any(compares)).collect();
    let listed = EXPIRIES.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, listed, "call is_live, or say in EXPIRIES why not");
}

#[test]
fn unsafe_is_only_in_the_files_that_call_c_or_are_called_by_it() {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let has_unsafe = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.split(|c| !is_word(c)).any(|word| word == "unsafe")
    };
    let files = tracked("crates/*/src/*.rs").into_iter();
    let found: BTreeSet<String> = files.filter(|file| read(file).lines().any(has_unsafe)).collect();
    let listed: BTreeSet<String> = UNSAFE
        .iter()
        .flat_map(|(_, folder, files)| files.iter().map(move |file| format!("{folder}/{file}")))
        .collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "{new:?} contain `unsafe`: do without, or say why in UNSAFE");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "{gone:?} contain no `unsafe`: take them out of UNSAFE");
}

/// Files outside of `litelease-sys` that tell systems apart or use what only some of them have.
const TELLS_SYSTEMS_APART: &[(&str, &str)] = &[
    ("crates/litelease-cli/src/stream.rs", "a function that the loader calls before `main`"),
    ("crates/litelease-extension/src/lib.rs", "the binding for Python is for Unix"),
    ("crates/litelease-extension/src/python/writer.rs", "paths as Python encodes them"),
    ("crates/litelease-serve/src/local_socket.rs", "a Unix socket beside the local key"),
];

/// Another operating system is a folder in `litelease-sys`, and nothing elsewhere.
#[test]
fn only_one_crate_calls_the_operating_system() {
    let mut files = tracked("crates/*/src/*.rs");
    files.retain(|file| !["sys", "proof"].iter().any(|name| file.contains(&format!("-{name}/"))));
    let tells_apart = |file: &String| {
        let text = read(file);
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.any(|line| {
            let words =
                ["libc::", "std::os::", "cfg(unix", "cfg(not(unix", "target_os", "target_vendor"];
            words.iter().any(|word| line.contains(word)) && !line.trim_start().starts_with("//")
        })
    };
    let found: BTreeSet<String> = files.into_iter().filter(tells_apart).collect();
    let listed = TELLS_SYSTEMS_APART.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, listed, "left: found, right: TELLS_SYSTEMS_APART");
}

/// A heading of docs/proofs.md is a folder of tests, and its table has a line for each file in it.
#[test]
fn docs_proofs_describes_every_test_file_under_its_area() {
    let mut files: Vec<String> = tracked("crates/litelease-proof/tests")
        .iter()
        .filter_map(|path| path.strip_prefix("crates/litelease-proof/tests/"))
        .filter(|path| !path.ends_with("/main.rs"))
        .map(str::to_owned)
        .collect();

    let (mut area, mut described) = ("", Vec::new());
    let proofs = read("docs/proofs.md");
    for line in proofs.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            area = quoted(heading).next().unwrap_or_default();
        } else if let Some(file) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next())
        {
            described.push(Path::new(area).join(file).display().to_string());
        }
    }
    files.sort();
    described.sort();
    assert_eq!(described, files, "left: docs/proofs.md, right: crates/litelease-proof/tests");
    assert!(files.len() > 40);
}

/// The headings of a document, as links have them.
fn headings(path: &Path) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_lowercase).collect();
    lines.into_iter().filter(|line| line.starts_with('#')).map(|line| {
        let words = line.trim_start_matches('#').trim().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect()
    })
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    for document in tracked("*.md") {
        let text = read(&document);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("https://")) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let base = root().join(&document);
            let path = match path {
                "" => base,
                path => base.parent().unwrap().join(path),
            };
            assert!(path.exists(), "{document} links to {target}");
            let linked = heading.is_empty() || headings(&path).any(|known| known == heading);
            assert!(linked, "{document} links to {target}");
        }
    }
}

#[test]
fn the_sql_functions_use_only_what_the_store_exports() {
    let source = root().join("crates/litelease-store/src");
    let exports = read("crates/litelease-store/src/lib.rs");
    let private = exports.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let private: Vec<String> = private.map(|module| format!("crate::{module}::")).collect();
    assert!(private.len() > 20, "{private:?}");
    let files = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect()
    };
    for path in files(&source.join("sql")) {
        let text = fs::read_to_string(&path).unwrap();
        let known = private.iter().find(|module| text.contains(*module));
        assert_eq!(known, None, "{}", path.display());
    }
    for path in files(&source) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("crate::sql::"), "{} uses the SQL functions", path.display());
    }
}

#[test]
fn dependencies_point_inward() {
    for (krate, may_know) in [
        ("litelease-core", &[][..]),
        ("litelease-store", &["litelease-core", "litelease-sys"]),
        (
            "litelease-extension",
            // The keeper judges owner texts for hosts that hold leases by themselves, and the file
            // lock is the write lock of hosts that write on connections of their own.
            &["litelease-core", "litelease-hold", "litelease-store", "litelease-sys"],
        ),
        ("litelease-sys", &["libc"]),
        (
            "litelease-credentials",
            &[
                "base64",
                "jsonwebtoken",
                "litelease-core",
                "litelease-sys",
                "ring",
                "serde",
                "serde_json",
            ],
        ),
        ("litelease-hold", &["litelease-core", "litelease-sys"]),
        (
            "litelease",
            &["litelease-core", "litelease-hold", "litelease-store", "litelease-sys", "rusqlite"],
        ),
        ("litelease-wire", &["base64", "litelease-core", "serde", "serde_json"]),
        (
            "litelease-client",
            &[
                "http-body-util",
                "hyper",
                "hyper-util",
                "litelease-core",
                "litelease-hold",
                "litelease-sys",
                "litelease-wire",
                "serde",
                "serde_json",
                "tokio",
                "tokio-rustls",
                "webpki-roots",
            ],
        ),
        (
            "litelease-serve",
            &[
                "bytes",
                "httparse",
                "httpdate",
                "itoa",
                "litelease",
                "litelease-cluster",
                // The rule of what is stuck is a function of it.
                "litelease-core",
                "litelease-hold",
                "litelease-store",
                "litelease-sys",
                "litelease-wire",
                "ring",
                "rustls",
                "serde",
                "serde_json",
                "socket2",
                "tokio",
                "tokio-rustls",
                "tracing",
                "uuid",
            ],
        ),
        (
            "litelease-cluster",
            &[
                "bytes",
                "h2",
                "http",
                "httpdate",
                "litelease-core",
                "litelease-hold",
                "percent-encoding",
                "prost",
                "rustls",
                "rustls-native-certs",
                "serde_json",
                "tokio",
                "tokio-postgres",
                "tokio-rustls",
            ],
        ),
    ] {
        let arguments = ["tree", "-p", krate, "-e", "normal", "--depth", "1", "--prefix", "none"];
        let tree = run(cargo().args(arguments));
        let known: Vec<&str> =
            tree.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(known, may_know, "{krate}");
    }
}

/// What several machines need stays out of the crate for one file: it is built from these crates
/// and no others.
#[test]
fn the_embedded_crate_gets_no_larger() {
    let arguments = ["tree", "-p", "litelease", "-e", "normal", "--prefix", "none", "--no-dedupe"];
    let tree = run(cargo().args(arguments));
    let mut known: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    known.sort();
    known.dedup();
    let all = [
        "bitflags",
        "fallible-iterator",
        "fallible-streaming-iterator",
        "libc",
        "libsqlite3-sys",
        "litelease",
        "litelease-core",
        "litelease-hold",
        "litelease-store",
        "litelease-sys",
        "rusqlite",
        "smallvec",
    ];
    assert_eq!(known, all);
}

/// Verbs over an engine of one's own are built without what talks to etcd and PostgreSQL.
#[test]
fn engines_on_servers_cost_nothing_without_their_features() {
    let known = |features: &[&str]| {
        let arguments = ["tree", "-p", "litelease-cluster", "-e", "normal", "--prefix", "none"];
        let tree = run(cargo().args(arguments).arg("--no-default-features").args(features));
        let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        tree.lines().map(name).collect::<BTreeSet<String>>()
    };
    let ours = ["libc", "litelease-cluster", "litelease-core", "litelease-hold", "litelease-sys"];
    // What a grant carries is JSON on every engine.
    let json = ["itoa", "memchr", "serde_core", "serde_json", "zmij"];
    let all = ours.into_iter().chain(json).map(str::to_owned);
    assert_eq!(known(&[]), all.collect());
    assert!(!known(&["--features", "etcd"]).contains("tokio-postgres"));
    assert!(!known(&["--features", "postgres"]).contains("h2"));
}

/// Signatures are behind a feature, and a service that only verifies them gets no SQLite.
#[test]
fn credentials_cost_nothing_without_their_feature_and_verifiers_need_no_sqlite() {
    let tree = |arguments: &[&str]| {
        let arguments = [&["tree", "-e", "normal", "--prefix", "none"], arguments].concat();
        run(cargo().args(arguments))
    };
    let signs = |tree: &str| tree.contains("jsonwebtoken v") || tree.contains("ring v");
    assert!(!signs(&tree(&["-p", "litelease"])));
    assert!(signs(&tree(&["-p", "litelease", "--features", "credentials"])));
    let verifier = tree(&["-p", "litelease-credentials"]);
    assert!(signs(&verifier) && !verifier.contains("sqlite"), "{verifier}");
}

/// SQLite hands an extension a table of functions. A name in the wrong position would call another
/// function.
#[test]
fn the_extensions_table_has_the_order_of_sqlites_own_header() {
    let version = run(Command::new("rustc").arg("-vV"));
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let arguments = ["metadata", "--format-version", "1", "--offline", "--filter-platform", host];
    let metadata = run(cargo().args(arguments));
    let is_sqlite =
        |path: &&str| path.contains("/libsqlite3-sys-") && path.ends_with("/Cargo.toml");
    let manifest = metadata.split('"').find(is_sqlite).expect("libsqlite3-sys is a dependency");
    let header = Path::new(manifest).with_file_name("sqlite3").join("sqlite3ext.h");
    let header = fs::read_to_string(header).unwrap().replace("SQLITE_CDECL", "");

    let (_, members) = header.split_once("struct sqlite3_api_routines {").unwrap();
    // Each member is `type (*name)(arguments);`.
    let member =
        |text: &'_ str| Some(text.split_once("(*")?.1.split_once(')')?.0.trim().to_owned());
    let members: Vec<String> = members.split(';').filter_map(member).collect();

    let source = read("crates/litelease-extension/src/routines.rs");
    let (_, table) = source.split_once("routines! {\n").unwrap();
    let table: Vec<&str> = table.split('}').next().unwrap().split_whitespace().collect();
    assert!(table.len() > 250, "the table was found");
    assert_eq!(table, members[..table.len()]);
}
