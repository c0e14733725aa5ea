//! The command when what it says cannot be written: standard output and standard error that are
//! full, closed, or a pipe whose reader has left.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use libc::{SIGPIPE, SIGTERM};
use litelease::Litelease;
use litelease_proof::command::{Desk, kill, outcome};
use litelease_proof::rig::{LONG, acquired, eventually};

/// Where output goes that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    Full,
    Closed,
    BrokenPipe,
}

const SINKS: [Sink; 3] = [Sink::Full, Sink::Closed, Sink::BrokenPipe];

impl Sink {
    /// Becomes standard output (1) or standard error (2) of a command.
    fn attach(self, command: &mut Command, descriptor: i32) {
        let stdio = match self {
            Sink::Full => File::options().write(true).open("/dev/full").unwrap().into(),
            Sink::Closed => Stdio::null(),
            Sink::BrokenPipe => {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                writer.into()
            }
        };
        match descriptor {
            1 => command.stdout(stdio),
            _ => command.stderr(stdio),
        };
        if self == Sink::Closed {
            // SAFETY: between fork and exec only a plain system call is made.
            unsafe {
                command.pre_exec(move || {
                    libc::close(descriptor);
                    Ok(())
                })
            };
        }
    }
}

/// What a command does with an answer that it cannot write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has an answer, and says that it could not be told: 74, or SIGPIPE in a pipe.
    NotTold,
    /// It has nothing to say on standard output, and ends with this.
    Code(i32),
}

use End::{Code, NotTold};

/// Every command that ends by itself, on a desk where `held` is held by `a` under token 1, and
/// `free` is not.
const COMMANDS: &[(&str, End)] = &[
    ("run new -- true", Code(0)),
    ("run --slots 2 few -- true", Code(0)),
    // With an input that stays open it has tests of its own.
    ("hold --ttl 50ms new", Code(64)),
    ("borrow --pool-file none -- true", Code(64)),
    ("access add ci --allow observe:*", NotTold),
    ("access list", NotTold),
    ("access remove nobody", NotTold),
    ("credential rotate", NotTold),
    ("credential issuer", NotTold),
    ("credential issue held --token 1 -a x", Code(69)),
    ("credential keys", Code(69)),
    ("credential verify x --keys none --issuer 0123456789abcdef0123456789abcdef -a x", Code(69)),
    ("run -n held -- true", Code(1)),
    ("run -n held --json -- true", Code(1)),
    ("run new -- no-such-command", Code(127)),
    ("every soon new -- true", Code(64)),
    ("ticks", NotTold),
    ("ticks --json", NotTold),
    ("ticks skip new", NotTold),
    ("ticks again none", Code(1)),
    ("ticks forget none", Code(1)),
    ("history", NotTold),
    ("history --json", Code(1)),
    ("history on", NotTold),
    ("history off", NotTold),
    ("top --once", NotTold),
    ("top --once --json", NotTold),
    ("status", NotTold),
    ("status --json", NotTold),
    ("status nobody", NotTold),
    ("who held", NotTold),
    ("who free", NotTold),
    ("who -q free", Code(1)),
    ("wait free", NotTold),
    ("wait held -w 10ms", NotTold),
    ("watch held --for 10ms", NotTold),
    ("watch held --for 10ms --json", NotTold),
    ("claim new", NotTold),
    ("claim new --json", NotTold),
    ("claim new --above 40", NotTold),
    ("claim new -w 1s", NotTold),
    ("claim held", Code(1)),
    ("claim held --json", NotTold),
    ("lease ensure new --owner a", NotTold),
    ("lease ensure held --owner a", NotTold),
    ("lease ensure held --owner b", Code(1)),
    ("lease ensure held --owner b --json", NotTold),
    ("renew held --token 1", NotTold),
    ("release held --token 1", NotTold),
    ("release held --token 7", NotTold),
    ("lease transfer held --token 1 --to b", NotTold),
    ("lease request new", NotTold),
    ("lease request held -w 10ms", Code(1)),
    ("lease request held -w 10ms --json", NotTold),
    ("lease take-over held --yes", NotTold),
    ("lease take-over held", Code(64)),
    ("lease progress held --token 1", NotTold),
    ("lease progress held --token 7", NotTold),
    ("break held --yes", NotTold),
    ("break held", Code(64)),
    ("purge --older-than 30d", NotTold),
    ("queue send q x", NotTold),
    ("queue receive q", NotTold),
    ("queue receive q --json", NotTold),
    ("queue receive none", Code(1)),
    ("queue ack 1-x", NotTold),
    ("queue extend 1-x", NotTold),
    ("queue give-back 1-x", NotTold),
    ("queue bury 1-x", NotTold),
    ("queue list", NotTold),
    ("queue list q", NotTold),
    ("queue list q --json", NotTold),
    ("queue dead q", NotTold),
    ("queue redrive q", NotTold),
    ("queue discard q --yes", NotTold),
    ("queue discard q", Code(64)),
    ("queue cancel q 1", NotTold),
    ("queue delete q --yes", NotTold),
    ("work q --drain -- true", Code(0)),
    ("work q --drain --json -- true", NotTold),
    ("pools", NotTold),
    ("pools --json", NotTold),
    ("guard add orders held", NotTold),
    ("guard remove orders", NotTold),
    ("status --shards orders", Code(64)),
    ("guard list", NotTold),
    ("guard list --json", NotTold),
    ("restore-fence --yes", NotTold),
    ("move --to nothing://x", Code(64)),
    ("write -- true", Code(0)),
    ("write --status", NotTold),
    ("doctor", NotTold),
    ("doctor --json", NotTold),
    ("demo", NotTold),
    ("generate completions bash", NotTold),
    ("generate man", NotTold),
    ("generate man run", NotTold),
    ("help", NotTold),
    ("help run", NotTold),
    ("--help", NotTold),
    ("run -h", NotTold),
    ("--version", NotTold),
    ("walk", Code(64)),
];

fn desk() -> (Desk, Litelease) {
    let desk = Desk::new();
    let db = desk.db();
    // Many desks are made, and none outlives a power cut.
    db.conn().execute_batch("PRAGMA synchronous = OFF").unwrap();
    acquired(db.claim("held", "a", LONG));
    let free = acquired(db.claim("free", "a", LONG));
    db.release(&free).unwrap();
    db.conn().execute_batch("CREATE TABLE orders (id)").unwrap();
    db.queue("q").send("x").unwrap();
    (desk, db)
}

/// Whether a command has ended as it should, given where its output went.
fn is_right(end: End, sink: Sink, status: ExitStatus) -> bool {
    match (end, sink) {
        (Code(code), _) => status.code() == Some(code),
        (NotTold, Sink::BrokenPipe) => status.signal() == Some(SIGPIPE),
        (NotTold, _) => status.code() == Some(74),
    }
}

#[test]
fn whatever_cannot_be_printed_is_an_exit_code_and_never_a_panic() {
    std::thread::scope(|scope| {
        for sink in SINKS {
            scope.spawn(move || {
                COMMANDS.iter().for_each(|(line, end)| cannot_print(line, *end, sink))
            });
        }
    });
}

fn cannot_print(line: &str, end: End, sink: Sink) {
    let words: Vec<&str> = line.split(' ').collect();
    let (desk, db) = desk();
    let mut command = desk.command(&words);
    sink.attach(command.stdin(Stdio::null()), 1);
    let output = command.output().unwrap();
    let (_, _, errors) = outcome(&output);
    let case = format!("{line}, {sink:?}: {:?} {errors}", output.status);
    assert!(is_right(end, sink, output.status), "{case}");
    let lines = errors.lines().count();
    match (end, sink) {
        (NotTold, Sink::BrokenPipe) => assert_eq!(lines, 0, "quietly: {case}"),
        (NotTold, _) => {
            assert!(errors.contains("cannot write to standard output"), "{case}");
            assert_eq!(lines, 1, "{case}");
        }
        _ => assert!(lines <= 1, "{case}"),
    }
    is_left_as_it_should(&db, line, &case);

    // Nor if that cannot be reported, either.
    let (desk, db) = self::desk();
    let mut command = desk.command(&words);
    sink.attach(command.stdin(Stdio::null()), 1);
    sink.attach(&mut command, 2);
    let status = command.status().unwrap();
    let case = format!("{line}, {sink:?}, errors too: {status:?}");
    assert!(is_right(end, sink, status), "{case}");
    is_left_as_it_should(&db, line, &case);
}

/// A grant that was not printed is released, unless repeating the command prints it; earlier grants
/// are as the verb left them.
fn is_left_as_it_should(db: &Litelease, line: &str, case: &str) {
    // Who asks again is told the same token, so that `ensure` keeps the lease.
    let kept = if line.starts_with("lease ensure new") { Some(1) } else { None };
    assert_eq!(db.inspect("new").unwrap().map(|lease| lease.token), kept, "{case}");
    if line.starts_with("claim new") {
        let token = if line.contains("above") { 41 } else { 1 };
        assert_eq!(db.token("new").unwrap(), Some(token), "it was granted: {case}");
    }
    let held = db.inspect("held").unwrap().map(|lease| (lease.owner, lease.token));
    let is_ended = [
        "release held --token 1",
        "lease transfer",
        "lease take-over held --yes",
        "break held --yes",
        "restore-fence",
    ];
    match is_ended.iter().any(|verb| line.starts_with(verb)) {
        true => assert_eq!(held, None, "{case}"),
        false => assert_eq!(held, Some(("a".into(), 1)), "{case}"),
    }
    if line.starts_with("lease transfer") {
        assert_eq!(db.token("held").unwrap(), Some(2), "it was handed over: {case}");
    }
}

#[test]
fn no_command_was_forgotten() {
    let desk = Desk::new();
    let commands = subcommands(&desk, "");
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        // Its subcommands, too, where there are more than `help`.
        let inner = subcommands(&desk, &command);
        let all = if inner.is_empty() { vec![command] } else { inner };
        for command in all {
            // Serving does not end by itself and has a test of its own.
            let is_tried = COMMANDS.iter().any(|(line, _)| {
                line.strip_prefix(&*command)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            });
            assert!(is_tried || command == "serve", "{command} is not in the list");
        }
    }
}

/// Returns the subcommands that the help of a command lists.
fn subcommands(desk: &Desk, command: &str) -> Vec<String> {
    let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
    let (_, help, _) = outcome(&desk.run(&words));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && (*name != "help" || command.is_empty()));
    names.map(|name| format!("{command} {name}").trim().to_owned()).collect()
}

/// Another owner may have been granted the name in the meantime: exactly the own grant is released.
#[test]
fn only_the_grant_that_could_not_be_told_is_released() {
    let desk = Desk::new();
    let db = desk.db();
    let mut fifo = desk.folder.path().join("fifo").into_os_string().into_encoded_bytes();
    fifo.push(0);
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr().cast(), 0o600) }, 0);
    // Its output is a full pipe, so that it is granted the name and cannot say so for a while.
    let path = desk.folder.path().join("fifo");
    let reader = File::options().read(true).write(true).open(&path).unwrap();
    let mut writer = {
        use std::os::unix::fs::OpenOptionsExt;
        File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap()
    };
    while writer.write(&[0; 4096]).is_ok() {}
    while writer.write(&[0]).is_ok() {}
    drop(writer);
    let output = File::options().write(true).open(&path).unwrap();
    let mut claim = desk.command(&["claim", "x", "--ttl", "10m"]);
    let mut claim = claim.stdout(output).stderr(Stdio::piped()).spawn().unwrap();
    let first = eventually("it is granted", || db.inspect("x").unwrap());
    let _ = db.break_lease("x").unwrap();
    let second = acquired(db.claim("x", "b", LONG));
    drop(reader); // the last reader leaves
    let status = eventually("its end", || claim.try_wait().unwrap());
    assert_eq!(status.signal(), Some(SIGPIPE));
    assert!(second.token > first.token);
    assert_eq!(db.inspect("x").unwrap(), Some(second), "the successor is left alone");
}

#[test]
fn a_command_under_run_still_ends_by_a_broken_pipe() {
    let desk = Desk::new();
    let mut shell = Command::new("bash");
    let line = "litelease run x -- sh -c 'yes; echo $? >&2' | head -n 1; echo ${PIPESTATUS[0]}";
    desk.environment(shell.args(["-c", line]));
    let (code, said, errors) = outcome(&shell.output().unwrap());
    assert_eq!((code, said.as_str(), errors.as_str()), (0, "y\n0\n", "141\n"));
}

#[test]
fn a_service_whose_log_is_full_serves_all_the_same() {
    for sink in SINKS {
        let desk = Desk::new();
        // The test cannot read which port it took, so it passes one that was free a moment ago.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut command = desk.command(&["serve", "--listen", &address.to_string()]);
        sink.attach(command.stdin(Stdio::null()), 1);
        sink.attach(&mut command, 2);
        let mut server = command.spawn().unwrap();
        for path in ["/healthz", "/nowhere", "/healthz"] {
            let answer = eventually("an answer", || {
                assert_eq!(server.try_wait().unwrap(), None, "{sink:?}: it has ended");
                let mut stream = TcpStream::connect(address).ok()?;
                stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
                let request =
                    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).ok()?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).ok()?;
                Some(answer)
            });
            let expected = if path == "/healthz" { "HTTP/1.1 200" } else { "HTTP/1.1 404" };
            assert!(answer.starts_with(expected), "{sink:?}, {path}: {answer}");
        }
        kill(server.id() as i32, SIGTERM);
        let status = eventually("its end", || server.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{sink:?}");
    }
}
