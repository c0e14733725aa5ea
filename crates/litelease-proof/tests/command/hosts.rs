//! The programs of docs/holding-from-any-language.md, run as they stand on the page.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libc::SIGKILL;
use litelease_proof::command::{Desk, Run, outcome, stays};
use litelease_proof::rig::{LONG, eventually, report};

/// A language of the page.
struct Host {
    /// What its blocks are marked with.
    language: &'static str,
    /// The program without which it is left out.
    tool: &'static str,
    /// The file that the block is put into.
    program: &'static str,
    /// The work of the program, in a file: it writes its token to `working`, waits for the file
    /// `finish`, and then writes `finished`.
    work: (&'static str, &'static str),
    /// Compiles the program, if that must be, and runs it.
    build: &'static str,
    start: &'static str,
}

const NODE: Host = Host {
    language: "js",
    tool: "node",
    program: "program.js",
    work: (
        "work.js",
        "const fs = require('node:fs');
         global.work = async (token) => {
           fs.writeFileSync('working', token + '\\n');
           while (!fs.existsSync('finish')) await new Promise((next) => setTimeout(next, 20));
           fs.writeFileSync('finished', '\\n');
         };",
    ),
    build: "true",
    start: "exec node -r ./work.js program.js",
};

const RUBY: Host = Host {
    language: "ruby",
    tool: "ruby",
    program: "program.rb",
    work: (
        "work.rb",
        "def work(token)
           File.write('working', token + \"\\n\")
           sleep 0.02 until File.exist?('finish')
           File.write('finished', \"\\n\")
         end",
    ),
    build: "true",
    start: "exec ruby -r ./work.rb program.rb",
};

const SHELL: Host = Host {
    language: "bash",
    tool: "bash",
    program: "program.sh",
    work: (
        "work.sh",
        "work() { echo $1 > working; until [ -e finish ]; do sleep 0.02; done; echo > finished; }",
    ),
    build: "true",
    start: "BASH_ENV=work.sh exec bash program.sh",
};

const GO: Host = Host {
    language: "go",
    tool: "go",
    program: "program.go",
    work: (
        "work.go",
        "package main
         import (\"os\"; \"time\")
         func work(token string) {
           os.WriteFile(\"working\", []byte(token + \"\\n\"), 0o600)
           for {
             if _, missing := os.Stat(\"finish\"); missing == nil { break }
             time.Sleep(20 * time.Millisecond)
           }
           os.WriteFile(\"finished\", []byte(\"\\n\"), 0o600)
         }",
    ),
    build: "GO111MODULE=off go build -o program program.go work.go",
    start: "exec ./program",
};

const JAVA: Host = Host {
    language: "java",
    tool: "javac",
    program: "Nightly.java",
    work: (
        "Work.java",
        "import java.nio.file.*;
         class Work {
           static void run(String token) throws Exception {
             Files.writeString(Path.of(\"working\"), token + \"\\n\");
             while (!Files.exists(Path.of(\"finish\"))) Thread.sleep(20);
             Files.writeString(Path.of(\"finished\"), \"\\n\");
           }
         }",
    ),
    build: "javac Nightly.java Work.java",
    start: "exec java Nightly",
};

const PHP: Host = Host {
    language: "php",
    tool: "php",
    program: "program.php",
    work: (
        "work.php",
        "<?php
         function steps() {
           yield fn($token) => file_put_contents('working', $token . \"\\n\");
           while (!file_exists('finish')) yield fn($token) => usleep(20000);
           yield fn($token) => file_put_contents('finished', \"\\n\");
         }",
    ),
    build: "true",
    start: "exec php -d auto_prepend_file=work.php program.php",
};

/// Returns the one program of the page in a language.
fn program(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(page.join("../../docs/holding-from-any-language.md")).unwrap();
    let opening = format!("```{language}\n");
    let blocks: Vec<&str> = page.split(&opening).skip(1).collect();
    assert_eq!(blocks.len(), 1, "{language}");
    blocks[0].split("```").next().unwrap().to_owned()
}

fn shell(desk: &Desk, script: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).current_dir(desk.folder.path()).stdin(Stdio::null());
    desk.environment(&mut shell);
    // Go keeps what it has built there.
    shell.env("GOCACHE", std::env::temp_dir().join("litelease-go-cache"));
    shell
}

/// Runs a program to its end, takes its lease away from it, and kills it.
fn check(host: &Host) {
    let program = program(host.language);
    for word in ["renew", "sleep", "setInterval"] {
        assert!(!program.contains(word), "{}: no loop renews", host.language);
    }
    let is_there = Command::new("sh").args(["-c", &format!("command -v {}", host.tool)]).output();
    if !is_there.unwrap().status.success() {
        return report(&format!("SKIPPED: the program in {}, which is not installed", host.tool));
    }
    let desk = Desk::new();
    let path = |name: &str| desk.folder.path().join(name);
    fs::write(path(host.program), program).unwrap();
    fs::write(path(host.work.0), host.work.1).unwrap();
    let (code, said, errors) = outcome(&shell(&desk, host.build).output().unwrap());
    assert_eq!(code, 0, "{}: {said}{errors}", host.language);
    let spawn = || {
        for file in ["working", "finish", "finished"] {
            let _ = fs::remove_file(path(file));
        }
        Run { child: shell(&desk, host.start).stderr(Stdio::piped()).spawn().unwrap() }
    };
    let start = || (spawn(), desk.read("working"));
    let token = || desk.db().token("nightly").unwrap().unwrap().to_string();
    let is_free = || desk.db().owner("nightly").unwrap().is_none();

    let (run, working) = start();
    assert_eq!(working, token());
    assert!(stays(Duration::from_millis(300), || !is_free()), "{}", host.language);
    fs::write(path("finish"), "").unwrap();
    let (code, errors) = run.end();
    assert_eq!((code, errors.as_str()), (0, ""), "{}", host.language);
    eventually("the release", || is_free().then_some(()));
    assert!(path("finished").exists());

    let (run, _) = start();
    assert_eq!(outcome(&desk.run(&["break", "nightly", "--yes"])).0, 0);
    let (code, errors) = run.end();
    assert_ne!(code, 0, "{}: {errors}", host.language);
    fs::write(path("finish"), "").unwrap();
    assert!(stays(Duration::from_millis(200), || !path("finished").exists()), "{}", host.language);

    let (run, _) = start();
    run.signal(SIGKILL);
    let begin = Instant::now();
    // The job of the shell goes on until it is done, and has the pipe as long.
    fs::write(path("finish"), "").unwrap();
    let (code, _, errors) = outcome(&desk.run(&["wait", "nightly", "-w", "1m"]));
    assert_eq!(code, 0, "{}: {errors}", host.language);
    let time = begin.elapsed();
    assert!(time < Duration::from_secs(15), "{}: less than the ttl: {time:?}", host.language);

    // While another owner has the name, the work does not begin.
    let _ = desk.db().claim("nightly", "a", LONG).unwrap();
    let waits = spawn();
    assert!(stays(Duration::from_millis(300), || !path("working").exists()), "{}", host.language);
    waits.signal(SIGKILL);
}

#[test]
fn the_programs_for_node_ruby_and_the_shell_run_as_written() {
    [NODE, RUBY, SHELL].iter().for_each(check);
}

/// `make test-hosts` installs what these need.
#[test]
fn the_programs_for_go_java_and_php_run_as_written() {
    if std::env::var_os("LITELEASE_HOSTS").is_none() {
        return report("SKIPPED: the programs in Go, Java and PHP: make test-hosts runs them");
    }
    [GO, JAVA, PHP].iter().for_each(check);
}
