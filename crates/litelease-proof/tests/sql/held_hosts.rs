//! Holds in SQL in real hosts: Python, Node, Ruby, PHP, Go and Java, which compute, fork, stop,
//! exit and are killed. No host renews anything itself. `make test-hosts` runs those in Go and
//! Java.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use libc::{SIGCONT, SIGKILL, SIGSTOP};
use litelease::{HoldOptions, Litelease};
use litelease_proof::command::kill;
use litelease_proof::rig::{LONG, TestFolder, eventually, extension, report};

/// A language: it runs each line of its standard input as SQL, and prints the answer or the error.
/// Some words are not SQL: `open`, `close`, `spin` (computes for 1.5 s), `exit` (without closing)
/// and `fork`.
struct Host {
    name: &'static str,
    command: &'static [&'static str],
    program: &'static str,
    /// The file that the program is written to, if the command does not take it as an argument.
    file: Option<&'static str>,
    forks: bool,
}

const PYTHON: Host = Host {
    name: "Python",
    command: &["/usr/bin/python3", "-u", "-c"],
    file: None,
    forks: true,
    program: "
import os, signal, sqlite3, sys, time
extension, file, second = sys.argv[1:4]
def connect(path):
    db = sqlite3.connect(path, isolation_level=None)
    db.enable_load_extension(True)
    db.load_extension(extension)
    return db
def ask(db, sql):
    try:
        return str(db.execute('SELECT ' + sql).fetchone()[0])
    except sqlite3.Error as error:
        return 'error: ' + str(error)
def child():
    signal.alarm(50)
    inherited = ask(db, \"litelease_held('x')\")
    again = ask(db, \"litelease_hold('z', 60000)\")
    other = connect(second)
    own = ask(other, \"litelease_hold('child ' || %d, 1000)\" % os.getpid())
    time.sleep(0.4)
    held = ask(other, \"litelease_held('child ' || %d)\" % os.getpid())
    other.close()
    good = 'forked process' in inherited and 'before a fork' in again and own == held == '1'
    os._exit(0 if good else 1)
def fork():
    started = os.fork()
    if started == 0:
        try:
            child()
        finally:
            os._exit(2)
    return str(os.waitpid(started, 0)[1])
db = None
for line in sys.stdin:
    word = line.strip()
    if word == 'open': db = connect(file); print('opened')
    elif word == 'close': db.close(); print('closed')
    elif word == 'spin':
        end = time.monotonic() + 1.5
        while time.monotonic() < end: pass
        print('spun')
    elif word == 'fork': print(fork())
    elif word == 'exit': sys.exit(0)
    else: print(ask(db, word))
",
};

const NODE: Host = Host {
    name: "Node",
    command: &["node", "-e"],
    file: None,
    forks: false,
    program: "
const Database = require('better-sqlite3');
const [, extension, file] = process.argv;
let db;
const ask = (sql) => {
  try {
    return String(db.prepare('SELECT ' + sql).pluck().get() ?? 'None');
  } catch (error) {
    return 'error: ' + error.message;
  }
};
const spin = () => { const end = Date.now() + 1500; while (Date.now() < end); return 'spun'; };
const words = {
  open: () => { db = new Database(file); db.loadExtension(extension); return 'opened'; },
  close: () => { db.close(); return 'closed'; },
  spin,
  exit: () => process.exit(0),
};
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) =>
  console.log(words[line] ? words[line]() : ask(line)));
",
};

const RUBY: Host = Host {
    name: "Ruby",
    command: &["ruby", "-e"],
    file: None,
    forks: true,
    program: "
require 'sqlite3'
$stdout.sync = true
EXTENSION, FILE, SECOND = ARGV
def connect(path)
  db = SQLite3::Database.new(path)
  db.busy_timeout = 5000
  db.enable_load_extension(1)
  db.load_extension(EXTENSION)
  db
end
def ask(db, sql)
  answer = db.get_first_value('SELECT ' + sql)
  answer.nil? ? 'None' : answer.to_s
rescue SQLite3::Exception => error
  'error: ' + error.message
end
def child
  inherited, again = ask($db, %q(litelease_held('x'))), ask($db, %q(litelease_hold('z', 60000)))
  other = connect(SECOND)
  own = ask(other, %Q(litelease_hold('child #{Process.pid}', 1000)))
  sleep 0.4
  held = ask(other, %Q(litelease_held('child #{Process.pid}')))
  good = inherited.include?('forked process') && again.include?('before a fork')
  good && own == '1' && held == '1'
end
def run_fork
  started = fork { Process.exit!(child ? 0 : 1) }
  Process.wait2(started)[1].exitstatus.to_s
end
while (line = $stdin.gets)
  case line.strip
  when 'open' then $db = connect(FILE); puts 'opened'
  when 'close' then $db.close; puts 'closed'
  when 'spin'
    finish = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 1.5
    nil while Process.clock_gettime(Process::CLOCK_MONOTONIC) < finish
    puts 'spun'
  when 'fork' then puts run_fork
  when 'exit' then exit 0
  else puts ask($db, line.strip)
  end
end
",
};

const PHP: Host = Host {
    name: "PHP",
    command: &["php", "-d", "sqlite3.extension_dir=/", "-r"],
    file: None,
    forks: false,
    program: "
[, $extension, $file] = $argv;
function ask($db, $sql) {
    try {
        return $db->querySingle('SELECT ' . $sql) ?? 'None';
    } catch (Exception $error) {
        return 'error: ' . $error->getMessage();
    }
}
function spin() {
    $end = microtime(true) + 1.5;
    while (microtime(true) < $end);
    return 'spun';
}
while (($line = fgets(STDIN)) !== false) {
    $word = trim($line);
    if ($word === 'open') {
        $db = new SQLite3($file);
        $db->enableExceptions(true);
        $db->busyTimeout(5000);
        $db->loadExtension(ltrim($extension, '/'));
        $answer = 'opened';
    } elseif ($word === 'close') {
        $db->close();
        $answer = 'closed';
    } elseif ($word === 'spin') {
        $answer = spin();
    } elseif ($word === 'exit') {
        exit(0);
    } else {
        $answer = ask($db, $word);
    }
    echo $answer, PHP_EOL;
}
",
};

const GO: Host = Host {
    name: "Go",
    // With Debian's package of the driver, which uses the SQLite of the system.
    command: &[
        "sh",
        "-c",
        "GO111MODULE=off GOPATH=/usr/share/gocode go build -tags libsqlite3 -o \"${1%.go}\" \"$1\" && \
         exec \"${1%.go}\" \"$2\" \"$3\"",
        "sh",
    ],
    file: Some("main.go"),
    forks: false,
    program: r#"
package main

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	"github.com/mattn/go-sqlite3"
)

func main() {
	sql.Register("leased", &sqlite3.SQLiteDriver{Extensions: []string{os.Args[1]}})
	var pool *sql.DB
	var db *sql.Conn
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "open":
			pool, _ = sql.Open("leased", os.Args[2])
			conn, err := pool.Conn(context.Background())
			if err != nil {
				fmt.Println("error:", err)
				return
			}
			db = conn
			fmt.Println("opened")
		case "close":
			db.Close()
			pool.Close()
			fmt.Println("closed")
		case "spin":
			for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
			}
			fmt.Println("spun")
		case "exit":
			os.Exit(0)
		default:
			var answer sql.NullString
			row := db.QueryRowContext(context.Background(), "SELECT "+lines.Text())
			if err := row.Scan(&answer); err != nil {
				fmt.Println("error:", err)
			} else {
				fmt.Println(answer.String)
			}
		}
	}
}
"#,
};

const JAVA: Host = Host {
    name: "Java",
    command: &["java", "-cp", "/usr/share/java/sqlite-jdbc.jar"],
    file: Some("Main.java"),
    forks: false,
    program: r#"
import java.io.*;
import java.sql.*;
import org.sqlite.SQLiteConfig;

public class Main {
    static Connection open(String file, String extension) throws SQLException {
        SQLiteConfig config = new SQLiteConfig();
        config.enableLoadExtension(true);
        Connection db = DriverManager.getConnection("jdbc:sqlite:" + file, config.toProperties());
        try (PreparedStatement load = db.prepareStatement("SELECT load_extension(?)")) {
            load.setString(1, extension);
            load.execute();
        }
        return db;
    }

    static String ask(Connection db, String sql) {
        try (Statement ask = db.createStatement(); ResultSet row = ask.executeQuery("SELECT " + sql)) {
            return String.valueOf(row.getString(1));
        } catch (SQLException error) {
            return "error: " + error.getMessage();
        }
    }

    public static void main(String[] args) throws Exception {
        Connection db = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            switch (line) {
                case "open": db = open(args[1], args[0]); System.out.println("opened"); break;
                case "close": db.close(); System.out.println("closed"); break;
                case "spin":
                    long end = System.nanoTime() + 1_500_000_000L;
                    while (System.nanoTime() < end) {}
                    System.out.println("spun");
                    break;
                case "exit": System.exit(0);
                default: System.out.println(ask(db, line));
            }
        }
    }
}
"#,
};

/// A host that runs.
struct Running {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Host {
    fn command(&self, folder: &TestFolder, program: &str) -> Command {
        let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node/node_modules");
        let mut command = Command::new(self.command[0]);
        command.args(&self.command[1..]).env("NODE_PATH", modules);
        match self.file {
            Some(file) => {
                let file = folder.folder.path().join(file);
                std::fs::write(&file, program).unwrap();
                command.arg(file);
            }
            None => drop(command.arg(program)),
        }
        command.arg(extension()).arg(&folder.file).arg(folder.folder.path().join("second"));
        command
    }

    /// Starts it, if this machine has it with SQLite and extensions.
    fn start(&self, folder: &TestFolder) -> Option<Running> {
        let mut command = self.command(folder, self.program);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = process.ok()?;
        let (input, output) = (process.stdin.take()?, process.stdout.take()?);
        let mut running = Running { process, input, output: BufReader::new(output) };
        (running.ask("open") == "opened").then_some(running)
    }
}

impl Running {
    fn ask(&mut self, line: &str) -> String {
        // A host that has ended answers nothing.
        let _ = writeln!(self.input, "{line}");
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn signal(&self, signal: i32) {
        kill(self.process.id().try_into().unwrap(), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Tells the whole story of a hold in one host.
fn story(host: &Host) {
    let folder = TestFolder::new("WAL");
    let db = folder.open(LONG);
    Litelease::open_own(folder.folder.path().join("second")).unwrap();
    let Some(mut one) = host.start(&folder) else {
        return report(&format!("SKIPPED: holds in SQL from {}, which is not there", host.name));
    };
    let owner = || db.owner("x").unwrap();
    let minute = || HoldOptions::new(Duration::from_secs(60));

    // The keeper's thread renews while the host computes.
    assert_eq!(one.ask("litelease_hold('x', 1000)"), "1", "{}", host.name);
    assert_eq!(one.ask("spin"), "spun");
    assert_eq!(one.ask("litelease_held('x')"), "1", "{}", host.name);
    assert!(db.hold("x", minute()).is_err(), "{}: another process got the name", host.name);

    // An operator breaks it, and the host hears of it before the next renewal.
    let _ = db.break_lease("x").unwrap();
    let lost = eventually("the loss", || {
        Some(one.ask("litelease_held('x')")).filter(|answer| answer.starts_with("error: "))
    });
    assert!(lost.contains("the lease on \"x\" is lost: broken by an operator"), "{lost}");

    // It closes its connection, or exits without: the name is free in the next moment.
    assert_eq!(one.ask("litelease_hold('x', 60000)"), "3");
    assert_eq!(one.ask("close"), "closed");
    assert_eq!(owner(), None, "{}: closed", host.name);
    assert_eq!(one.ask("open"), "opened");
    assert_eq!(one.ask("litelease_hold('x', 60000)"), "4");
    one.ask("exit");
    one.process.wait().unwrap();
    match host.name {
        // os.Exit runs nothing of C: a successor sees that the process is gone.
        "Go" => drop(db.hold("x", minute()).unwrap()),
        _ => assert_eq!(owner(), None, "{}: ended", host.name),
    }
    let token = db.token("x").unwrap().unwrap();

    // It is killed: a successor needs no ttl to pass.
    let mut one = host.start(&folder).unwrap();
    assert_eq!(one.ask("litelease_hold('x', 3600000)"), (token + 1).to_string());
    one.signal(SIGKILL);
    one.process.wait().unwrap();
    let next = db.hold("x", minute().wait(Duration::from_secs(60))).unwrap();
    assert_eq!(next.token(), token + 2, "{}: killed", host.name);
    drop(next);

    // It is stopped past its ttl: the successor works, and the host does not believe any more.
    let mut one = host.start(&folder).unwrap();
    assert_eq!(one.ask("litelease_hold('x', 300)"), (token + 3).to_string());
    one.signal(SIGSTOP);
    let next = db.hold("x", minute().wait(Duration::from_secs(60))).unwrap();
    assert_eq!(next.token(), token + 4, "{}: stopped", host.name);
    one.signal(SIGCONT);
    let lost = one.ask("litelease_held('x')");
    assert!(lost.contains("is lost"), "{}: {lost}", host.name);
    drop(next);
    if host.forks {
        forks(host, &mut one);
    }
    report(&format!("holds in SQL from {}: the whole story", host.name));
}

/// The parent goes on holding; its children hold nothing of it, and hold in files of their own.
fn forks(host: &Host, parent: &mut Running) {
    let token = parent.ask("litelease_hold('x', 1500)");
    for fork in 0..8 {
        assert_eq!(parent.ask("fork"), "0", "{}: fork {fork}", host.name);
        assert_eq!(parent.ask("litelease_held('x')"), token, "{}: fork {fork}", host.name);
    }
}

#[test]
fn the_story_of_a_hold_from_python() {
    story(&PYTHON);
}

#[test]
fn the_story_of_a_hold_from_node() {
    story(&NODE);
}

#[test]
fn the_story_of_a_hold_from_ruby() {
    story(&RUBY);
}

#[test]
fn the_story_of_a_hold_from_php() {
    story(&PHP);
}

#[test]
fn the_story_of_a_hold_from_go_and_java() {
    if std::env::var_os("LITELEASE_HOSTS").is_none() {
        return report("SKIPPED: holds in SQL from Go and Java: make test-hosts runs them");
    }
    story(&GO);
    story(&JAVA);
}
