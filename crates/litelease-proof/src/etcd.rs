//! A real etcd of one or three members on loopback, whose members are killed, stopped and started
//! again.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machines::Network;
use crate::rig::{free_port, report};

/// A cluster, which ends with the value.
pub struct Etcd {
    members: Vec<Member>,
    folder: TempDir,
    words: Vec<String>,
    /// `new`, or `existing` for members that join later.
    state: &'static str,
    /// The machines that its members are on, if not all on this one.
    network: Option<Arc<Network>>,
}

struct Member {
    child: Option<Child>,
    host: Ipv4Addr,
    client: u16,
    peer: u16,
}

/// Checks whether etcd is installed, and says so if not.
pub fn is_installed() -> bool {
    let is_there = Command::new("etcd").arg("--version").output().is_ok();
    if !is_there {
        report("SKIPPED: etcd is not installed");
    }
    is_there
}

impl Etcd {
    /// Starts a cluster, and waits until it answers.
    pub fn start(members: usize) -> Self {
        Etcd::start_with(members, &[])
    }

    /// Returns a cluster of one member that tests use together, each below prefixes of its own. It
    /// ends with its last user.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().expect("no panic");
        shared.upgrade().unwrap_or_else(|| {
            let etcd = Arc::new(Etcd::start(1));
            *shared = Arc::downgrade(&etcd);
            etcd
        })
    }

    /// Starts a cluster with more arguments for each member.
    pub fn start_with(members: usize, words: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let members = (0..members).map(|_| Member::here()).collect();
        let words = words.iter().map(ToString::to_string).collect();
        let mut etcd = Etcd { members, folder, words, state: "new", network: None };
        (0..etcd.members.len()).for_each(|at| etcd.spawn(at));
        if !etcd.is_encrypted() {
            etcd.wait_for_leader();
        }
        etcd
    }

    /// Starts three members, on the first three machines of a network.
    pub fn start_on(network: &Arc<Network>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let member =
            |at| Member { child: None, host: network.address(at), client: 2379, peer: 2380 };
        let (members, network) = ((0..3).map(member).collect(), Some(Arc::clone(network)));
        let mut etcd = Etcd { members, folder, words: Vec::new(), state: "new", network };
        (0..3).for_each(|at| etcd.spawn(at));
        etcd.wait_for_leader();
        etcd
    }

    /// Where a member listens to clients.
    pub fn address(&self, at: usize) -> SocketAddr {
        (self.members[at].host, self.members[at].client).into()
    }

    fn is_encrypted(&self) -> bool {
        self.words.iter().any(|word| word.contains("tls") || word.contains("cert"))
    }

    /// The URL of all members, with a prefix.
    pub fn url(&self, prefix: &str) -> String {
        let hosts: Vec<String> =
            (0..self.members.len()).map(|at| self.address(at).to_string()).collect();
        let scheme = if self.is_encrypted() { "etcds" } else { "etcd" };
        format!("{scheme}://{}/{prefix}", hosts.join(","))
    }

    /// The folder with the data of a member.
    pub fn data(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("m{at}"))
    }

    /// The folder of the whole cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a member that is not running.
    pub fn spawn(&mut self, at: usize) {
        let scheme = if self.is_encrypted() { "https" } else { "http" };
        let peer = |member: &Member| format!("http://{}:{}", member.host, member.peer);
        let all = self.members.iter().enumerate();
        let all: Vec<String> = all.map(|(at, member)| format!("m{at}={}", peer(member))).collect();
        let member = &self.members[at];
        let client = format!("{scheme}://{}", self.address(at));
        let log = fs::File::create(self.folder.path().join(format!("m{at}.log"))).expect("a log");
        let mut etcd = match &self.network {
            Some(network) => network.command(at, "etcd"),
            None => Command::new("etcd"),
        };
        etcd.args(["--name", &format!("m{at}"), "--data-dir"]).arg(self.data(at));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer(member)]);
        etcd.args(["--initial-advertise-peer-urls", &peer(member)]);
        etcd.args(["--initial-cluster", &all.join(","), "--initial-cluster-state", self.state]);
        // A busy machine must not cause elections that the test has not asked for.
        etcd.args(["--heartbeat-interval", "100", "--election-timeout", "1000"]);
        etcd.args(["--logger", "zap"]).args(&self.words);
        etcd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[at].child = Some(etcd.spawn().expect("etcd starts"));
    }

    /// Adds a member that learns and has no vote yet, and returns its URL.
    pub fn add_learner(&mut self) -> String {
        let member = Member::here();
        let peer = format!("http://127.0.0.1:{}", member.peer);
        let body = json!({ "peerURLs": [peer], "isLearner": true });
        let added = self.call(0, "cluster/member/add", &body).expect("an answer");
        assert!(added["member"].is_object(), "{added}");
        let url = format!("etcd://127.0.0.1:{}", member.client);
        self.members.push(member);
        self.state = "existing";
        self.spawn(self.members.len() - 1);
        url
    }

    /// Waits until some member has a leader, and returns the number of that one.
    pub fn wait_for_leader(&self) -> usize {
        let start = Instant::now();
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            let waited = start.elapsed();
            assert!(waited < Duration::from_secs(30), "no leader: {}", self.logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> String {
        let log = |at| fs::read_to_string(self.folder.path().join(format!("m{at}.log")));
        (0..self.members.len()).map(|at| log(at).unwrap_or_default()).collect()
    }

    /// The number of the leader, if a member knows it and it answers.
    pub fn leader(&self) -> Option<usize> {
        let mut ids = Vec::new();
        let mut leader = String::new();
        for at in 0..self.members.len() {
            let status = self.call(at, "maintenance/status", &json!({})).unwrap_or_default();
            ids.push(status["header"]["member_id"].as_str().unwrap_or_default().to_owned());
            let told = status["leader"].as_str().unwrap_or_default();
            if !told.is_empty() && told != "0" {
                leader = told.to_owned();
            }
        }
        ids.iter().position(|id| !id.is_empty() && *id == leader)
    }

    /// Calls etcd's JSON gateway at one member.
    pub fn call(&self, at: usize, path: &str, body: &Value) -> Option<Value> {
        let address = self.address(at);
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300));
        let mut stream = match &self.network {
            Some(network) => network.at_switch(connect),
            None => connect(),
        }
        .ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
        let body = body.to_string();
        let request = format!(
            "POST /v3/{path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
    }

    /// How many transactions the first member was asked for so far.
    pub fn transactions(&self) -> u64 {
        self.metric("grpc_server_handled_total", "grpc_method=\"Txn\"")
    }

    /// How many changes the first member has sent to clients that watch.
    pub fn events(&self) -> u64 {
        self.metric("etcd_debugging_mvcc_events_total", "")
    }

    /// Sums up a metric of the first member.
    fn metric(&self, name: &str, label: &str) -> u64 {
        let address = SocketAddr::from(([127, 0, 0, 1], self.members[0].client));
        let mut stream = TcpStream::connect(address).expect("a connection");
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let is_one = |line: &&str| line.starts_with(name) && line.contains(label);
        let number = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse().ok());
        text.lines().filter(is_one).filter_map(number).map(|number: f64| number as u64).sum()
    }

    /// Starts a member that is soon full.
    pub fn start_small() -> Self {
        Etcd::start_with(1, &["--quota-backend-bytes", "4194304"])
    }

    /// Fills it until it takes no new value.
    pub fn fill(&self) {
        let value = base64(&vec![7; 500_000]);
        let fill = |number: i32| {
            let body = json!({ "key": base64(format!("fill{number}").as_bytes()), "value": value });
            self.call(0, "kv/put", &body).expect("an answer")["header"].is_object()
        };
        assert!((0..100).any(|number| !fill(number)), "it is never full");
    }

    /// Makes room again after [`fill`](Etcd::fill).
    pub fn make_room(&self) {
        let all = json!({ "key": base64(b"fill"), "range_end": base64(b"fill~") });
        let deleted = self.call(0, "kv/deleterange", &all).expect("an answer");
        let revision = deleted["header"]["revision"].clone();
        let compact = json!({ "revision": revision, "physical": true });
        let compacted = self.call(0, "kv/compaction", &compact).expect("an answer");
        assert!(compacted["header"].is_object(), "{compacted}");
        assert!(self.call(0, "maintenance/defragment", &json!({})).is_some());
        let member = deleted["header"]["member_id"].clone();
        let disarm = json!({ "action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member });
        let disarmed = self.call(0, "maintenance/alarm", &disarm).expect("an answer");
        assert!(disarmed["alarms"].is_array(), "{disarmed}");
    }

    /// Puts a value under a key, past all of Litelease.
    pub fn put(&self, key: &str, value: &str) {
        let body = json!({ "key": base64(key.as_bytes()), "value": base64(value.as_bytes()) });
        let put = self.call(0, "kv/put", &body).expect("an answer");
        assert!(put["header"].is_object(), "{put}");
    }

    /// The process of a member.
    pub fn pid(&self, at: usize) -> i32 {
        self.members[at].child.as_ref().expect("it runs").id() as i32
    }

    /// Sends a signal to a member.
    pub fn signal(&self, at: usize, signal: i32) {
        // SAFETY: the process is a child of ours that was not waited for, so the number is still
        // its own.
        unsafe { libc::kill(self.pid(at), signal) };
    }

    /// Kills a member.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Member {
    /// A member on this machine that is not running yet.
    fn here() -> Self {
        Member { child: None, host: Ipv4Addr::LOCALHOST, client: free_port(), peer: free_port() }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill(at));
    }
}

/// Encodes bytes as the JSON gateway wants them.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
