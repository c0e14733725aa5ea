//! The service next to a transaction per request and to Redis, all durable on a disk whose every sync takes a
//! millisecond, with clients that borrow and return as fast as they are answered.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::writers::build_shim;

const CLIENTS: usize = 64;
const SLOTS: usize = 64;
const WAITERS: usize = 10_000;
const WAIT: &str = r#"{"ttl":60,"wait":300}"#;
const POOL: &str = "00000000-0000-4000-8000-000000000001";

/// A server that is killed when this is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints the table. Answers whether the figures were reached.
pub(crate) fn run(seconds: u64) -> Result<bool> {
    let shim = build_shim()?;
    // Files on tmpfs: only the shim's syncs take time.
    let shm = Path::new("/dev/shm");
    let folder = if shm.is_dir() { tempfile::tempdir_in(shm)? } else { tempfile::tempdir()? };
    println!(
        "{CLIENTS} clients, {SLOTS} slots, durable, every sync 1 ms, {seconds} s each, two rounds\n"
    );
    let redis = Command::new("redis-server").arg("--version").output().is_ok();
    let (mut ours, mut single, mut native) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..2 {
        let db = |name: &str| folder.path().join(format!("{name}{round}.sqlite3"));
        ours.push(of_http(&litelease(&shim, &db("batch"), &[])?, seconds)?);
        single.push(of_http(&litelease(&shim, &db("single"), &["--max-batch", "1"])?, seconds)?);
        if redis {
            native.push(of_redis(&redis_server(&shim, folder.path())?, seconds)?);
        }
    }
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let mut reached = true;
    println!("{:<44} {:>9}", "", "calls/s");
    println!("{:<44} {:>9.0}", "litelease serve", best(&ours));
    for (what, rates, reach) in [
        ("one transaction per request, the same server", &single, 18.0),
        ("Redis, appendfsync always, its own protocol", &native, 1.1),
    ] {
        if rates.is_empty() {
            println!("{what:<44}   SKIPPED: it is not installed");
            continue;
        }
        let ratio = best(&ours) / best(rates);
        println!("{what:<44} {:>9.0}   ours are {ratio:.2} times that, reach {reach}", best(rates));
        reached &= ratio >= reach;
    }
    let woken = wake_up(&litelease(&shim, &folder.path().join("wake.sqlite3"), &[])?)?;
    println!(
        "\na blocked borrower is answered {:.2} ms after the return was sent (median)",
        woken * 1e3
    );
    if redis {
        let other = redis_wake_up(&redis_server(&shim, folder.path())?)?;
        let ratio = woken / other;
        println!(
            "Redis BLPOP, appendfsync always: {:.2} ms; ours is {ratio:.2} times that, reach <= 1.3",
            other * 1e3
        );
        reached &= ratio <= 1.3;
    }
    println!("\nmemory of the server for each of {WAITERS} borrowers that wait");
    let plain = memory(&litelease(&shim, &folder.path().join("plain.sqlite3"), &[])?, wait_http1)?;
    let shared =
        memory(&litelease(&shim, &folder.path().join("shared.sqlite3"), &[])?, wait_http2)?;
    println!("HTTP/1: {plain:.1} KiB; HTTP/2: {shared:.1} KiB, reach <= 8 on one of them");
    reached &= plain.min(shared) <= 8.0;
    Ok(reached)
}

fn litelease(shim: &Path, db: &Path, flags: &[&str]) -> Result<Server> {
    let program = std::env::current_exe()?.with_file_name("litelease");
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", shim)
        .args(["serve", "--listen", "127.0.0.1:0", "--db"])
        .arg(db)
        .args(flags);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let address = line.trim().trim_start_matches("listening at http://").parse();
    match address {
        Ok(address) => Ok(Server { child, address }),
        Err(_) => Err(format!("litelease serve did not start: {line:?}").into()),
    }
}

fn redis_server(shim: &Path, folder: &Path) -> Result<Server> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let data = tempfile::tempdir_in(folder)?.keep();
    let port = address.port().to_string();
    let mut command = Command::new("redis-server");
    command.env("LD_PRELOAD", shim).args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(data);
    let child = command.stdout(Stdio::null()).spawn()?;
    let server = Server { child, address };
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        if started.elapsed() > Duration::from_secs(20) {
            return Err("redis-server did not start".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

/// Calls per second of clients that borrow and return.
fn of_http(server: &Server, seconds: u64) -> Result<f64> {
    register(server, SLOTS)?;
    rate(seconds, || {
        let mut client = Http::open(server.address)?;
        Ok(move || {
            let lent = client.ask("POST", "/borrow", r#"{"ttl":60,"wait":10}"#)?;
            let lease = field(&lent, "lease").ok_or_else(|| io::Error::other(lent.clone()))?;
            client.ask("POST", "/return", &format!("{{\"lease\":\"{lease}\"}}"))?;
            Ok(2)
        })
    })
}

/// The same for Redis: slots are members of a sorted set of those that are free, and each grant has a token.
fn of_redis(server: &Server, seconds: u64) -> Result<f64> {
    let mut client = Redis::open(server.address)?;
    for slot in 0..SLOTS {
        client.ask(&["ZADD", "free", &slot.to_string(), &slot.to_string()])?;
    }
    // What a borrow means: the lowest free one, a lease that ends, and a token.
    let borrow = "local s = redis.call('ZPOPMIN', 'free') if not s[1] then return nil end \
                  local t = redis.call('INCR', 'token') redis.call('SET', ARGV[1], s[1], 'PX', 60000) return {s[1], t}";
    let back = "local s = redis.call('GET', ARGV[1]) if not s then return 0 end \
                redis.call('DEL', ARGV[1]) redis.call('ZADD', 'free', s, s) return 1";
    let (borrow, back) = (client.load(borrow)?, client.load(back)?);
    let number = AtomicU64::new(0);
    let (borrow, back, number) = (&borrow, &back, &number);
    rate(seconds, || {
        let mut client = Redis::open(server.address)?;
        let lease = format!("lease-{}", number.fetch_add(1, Ordering::Relaxed));
        Ok(move || {
            client.ask(&["EVALSHA", borrow, "0", &lease])?;
            client.ask(&["EVALSHA", back, "0", &lease])?;
            Ok(2)
        })
    })
}

/// What all clients do per second together.
fn rate<W: FnMut() -> io::Result<u64>>(
    seconds: u64,
    client: impl Fn() -> io::Result<W> + Sync,
) -> Result<f64> {
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let work = || -> io::Result<()> {
            let mut step = client()?;
            while !is_over.load(Ordering::Relaxed) {
                calls.fetch_add(step()?, Ordering::Relaxed);
            }
            Ok(())
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        // The first moments do not count.
        thread::sleep(Duration::from_millis(500));
        let (before, started) = (calls.load(Ordering::Relaxed), Instant::now());
        thread::sleep(Duration::from_secs(seconds));
        let done = calls.load(Ordering::Relaxed) - before;
        let rate = done as f64 / started.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        Ok(rate)
    })
}

/// How long after a return the one who waits is answered: the median of many, in seconds.
fn wake_up(server: &Server) -> Result<f64> {
    register(server, 1)?;
    let mut holder = Http::open(server.address)?;
    let mut waiter = Http::open(server.address)?;
    let mut lent = holder.ask("POST", "/borrow", r#"{"ttl":60}"#)?;
    let mut times = Vec::new();
    for _ in 0..300 {
        waiter.send("POST", "/borrow", r#"{"ttl":60,"wait":10}"#)?;
        thread::sleep(Duration::from_millis(4));
        let lease = field(&lent, "lease").unwrap_or_default();
        let started = Instant::now();
        holder.send("POST", "/return", &format!("{{\"lease\":\"{lease}\"}}"))?;
        lent = waiter.receive()?;
        times.push(started.elapsed());
        holder.receive()?;
    }
    Ok(median(times))
}

fn redis_wake_up(server: &Server) -> Result<f64> {
    let mut holder = Redis::open(server.address)?;
    let mut waiter = Redis::open(server.address)?;
    let mut times = Vec::new();
    for _ in 0..300 {
        waiter.send(&["BLPOP", "free", "10"])?;
        thread::sleep(Duration::from_millis(4));
        let started = Instant::now();
        holder.send(&["RPUSH", "free", "0"])?;
        waiter.receive()?;
        times.push(started.elapsed());
        holder.receive()?;
    }
    Ok(median(times))
}

/// How much memory one of many borrowers that wait takes, in KiB.
fn memory<T>(server: &Server, wait: fn(SocketAddr) -> Result<T>) -> Result<f64> {
    register(server, 0)?;
    let resident = || -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", server.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        Ok(line.split_whitespace().nth(1).unwrap_or("0").parse()?)
    };
    let before = resident()?;
    let waiting = wait(server.address)?;
    let after = resident()?;
    let metrics = Http::open(server.address)?.get("/metrics")?;
    if !metrics.contains(&format!("litelease_waiters {WAITERS}\n")) {
        return Err("not all of them wait".into());
    }
    drop(waiting);
    Ok((after - before) / WAITERS as f64)
}

fn wait_http1(address: SocketAddr) -> Result<Vec<Http>> {
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let mut client = Http::open(address)?;
        client.send("POST", "/borrow", WAIT)?;
        waiting.push(client);
    }
    thread::sleep(Duration::from_secs(1));
    Ok(waiting)
}

/// They share connections, a hundred each.
fn wait_http2(
    address: SocketAddr,
) -> Result<(tokio::runtime::Runtime, Vec<h2::client::ResponseFuture>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let waiting = runtime.block_on(async {
        let mut waiting = Vec::new();
        for _ in 0..WAITERS / 100 {
            let stream = tokio::net::TcpStream::connect(address).await?;
            let (mut client, connection) = h2::client::handshake(stream).await?;
            tokio::spawn(connection);
            for _ in 0..100 {
                client = client.ready().await?;
                let request = http::Request::post(format!("http://localhost/l/{POOL}/borrow"))
                    .header("content-type", "application/json")
                    .body(())?;
                let (response, mut body) = client.send_request(request, false)?;
                body.send_data(WAIT.into(), true)?;
                waiting.push(response);
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Result::Ok(waiting)
    })?;
    Ok((runtime, waiting))
}

fn register(server: &Server, count: usize) -> Result<()> {
    Http::open(server.address)?.ask("PUT", "", &format!("{{\"count\":{count}}}"))?;
    Ok(())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64()
}

/// A connection that keeps alive and knows just enough of HTTP.
struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Http { stream: BufReader::new(stream) })
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<String> {
        self.send(method, path, body)?;
        self.receive()
    }

    fn get(&mut self, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.receive()
    }

    fn send(&mut self, method: &str, path: &str, body: &str) -> io::Result<()> {
        let request = format!(
            "{method} /l/{POOL}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())
    }

    fn receive(&mut self) -> io::Result<String> {
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

fn field(json: &str, name: &str) -> Option<String> {
    let rest = json.split(&format!("\"{name}\":\"")).nth(1)?;
    rest.split('"').next().map(str::to_owned)
}

/// A connection that knows just enough of Redis.
struct Redis {
    stream: BufReader<TcpStream>,
}

impl Redis {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Redis { stream: BufReader::new(stream) })
    }

    fn load(&mut self, script: &str) -> io::Result<String> {
        Ok(self.ask(&["SCRIPT", "LOAD", script])?.trim().to_owned())
    }

    fn ask(&mut self, words: &[&str]) -> io::Result<String> {
        self.send(words)?;
        self.receive()
    }

    fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.get_mut().write_all(request.as_bytes())
    }

    fn receive(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let number = line.get(1..).and_then(|rest| rest.trim().parse::<i64>().ok()).unwrap_or(-1);
        match line.chars().next() {
            Some('-') => Err(io::Error::other(line)),
            Some('$') if number >= 0 => {
                let mut text = vec![0; usize::try_from(number).unwrap_or(0) + 2];
                self.stream.read_exact(&mut text)?;
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            Some('*') => {
                let parts = (0..number.max(0)).map(|_| self.receive());
                Ok(parts.collect::<io::Result<Vec<_>>>()?.join(" "))
            }
            _ => Ok(line),
        }
    }
}
