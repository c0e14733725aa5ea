//! The compares of docs/fencing.md for PostgreSQL and Redis, on real servers that the tests start
//! on loopback.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use litelease_proof::rig::{eventually, free_port, report};

/// A block of code of the document, by the words after its fence.
fn block(words: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fencing.md");
    let text = fs::read_to_string(path).unwrap();
    let start = format!("```{words}\n");
    let rest = text.split_once(&start).unwrap_or_else(|| panic!("no block {words:?}")).1;
    rest.split_once("\n```").unwrap().0.to_owned()
}

/// A server that is killed when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis_refuses_an_old_token() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        report("SKIPPED: there is no redis-server");
        return;
    }
    let port = free_port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut server = Command::new("redis-server");
    server.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(folder.path());
    let _server = Server(server.stdout(Stdio::null()).spawn().unwrap());
    let address = format!("127.0.0.1:{port}");
    eventually("redis comes up", || TcpStream::connect(&address).is_ok());

    let script = block("lua redis");
    let ask = |words: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    eventually("redis comes up", || ask(&["PING"]) == "PONG");
    let put = |token: i64, value: &str| {
        let token = format!("{token:019}");
        ask(&["EVAL", &script, "2", "fence:import", "results", &token, value])
    };
    // Two that a floating point number could not tell apart, and one that has more digits than
    // another.
    let large = (1 << 53) + 1;
    for (token, value, answer) in [
        (9, "nine", "1"),
        (10, "ten", "1"),
        (10, "again", "1"),
        (9, "late", "0"),
        (large, "large", "1"),
        (large - 1, "late", "0"),
        (i64::MAX, "last", "1"),
    ] {
        assert_eq!(put(token, value), answer, "{token}");
        let expected = if answer == "1" { value } else { &ask(&["GET", "results"]) };
        assert_eq!(ask(&["GET", "results"]), expected);
        assert_ne!(ask(&["GET", "results"]), "late");
    }
}

/// PostgreSQL's programs are not on the PATH in Debian.
fn postgres() -> Option<std::path::PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

#[test]
fn postgresql_refuses_an_old_token() {
    let Some(bin) = postgres() else {
        report("SKIPPED: there is no PostgreSQL server");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let port = free_port().to_string();
    // It refuses to run as root.
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let run = |program: &str| {
        let path = bin.join(program);
        if !is_root {
            return Command::new(path);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
        command
    };
    if is_root {
        let given = Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap();
        assert!(given.success());
    }
    let made = run("initdb")
        .args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"])
        .arg(&data)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut server = run("postgres");
    server
        .arg("-D")
        .arg(&data)
        .args(["-p", &port, "-h", "127.0.0.1", "-F", "-k"])
        .arg(folder.path());
    let _server = Server(server.current_dir(folder.path()).stderr(Stdio::null()).spawn().unwrap());
    let ask = |settings: &[&str], sql: &str| {
        let file = folder.path().join("statement.sql");
        fs::write(&file, sql).unwrap();
        let mut psql = Command::new("psql");
        psql.args([
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "postgres",
            "-XqAt",
            "-v",
            "ON_ERROR_STOP=1",
        ]);
        let output = psql.args(settings).arg("-f").arg(file).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    };
    eventually("PostgreSQL comes up", || ask(&[], "SELECT 1").is_ok());

    ask(&[], &format!("CREATE TABLE results (value text);\n{}", block("sql postgres"))).unwrap();
    let script = block("sql postgres-use").replace(":value", ":'value'");
    let put = |token: i64, value: &str| {
        let (token, value) = (format!("token={token}"), format!("value={value}"));
        ask(&["-v", &token, "-v", &value], &script)
    };
    put(7, "seven").unwrap();
    put(8, "eight").unwrap();
    put(8, "again").unwrap();
    let refused = put(7, "late").unwrap_err();
    assert!(refused.contains("stale fencing token 7 of import"), "{refused}");
    put(i64::MAX, "last").unwrap();
    assert!(put(8, "late").is_err());
    assert_eq!(ask(&[], "SELECT value FROM results").unwrap(), "seven\neight\nagain\nlast");
}
