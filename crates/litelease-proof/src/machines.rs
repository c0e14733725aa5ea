//! Machines of the test's own: network namespaces on one switch, each with a cable that can be
//! pulled and roads that can be blocked in one direction. It needs root; without, [`Network::new`]
//! returns nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::rig::report;

/// Machines on one switch. They are gone with the value.
pub struct Network {
    id: String,
    machines: usize,
    /// How many faults block each road, from one machine to another.
    blocks: Mutex<BTreeMap<(usize, usize), u32>>,
}

impl Network {
    /// Connects so many machines, and says so if that is not allowed here.
    pub fn new(machines: usize) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("ll{}n{number}", std::process::id());
        let network = Network { id, machines, blocks: Mutex::default() };
        let is_made = network.make();
        if !is_made {
            report(
                "SKIPPED: cut cables and blocked roads, because network namespaces are not allowed",
            );
        }
        is_made.then_some(network)
    }

    fn make(&self) -> bool {
        let switch = self.switch();
        let is_there = ip(&["netns", "add", &switch])
            && ip(&["-n", &switch, "link", "add", "switch", "type", "bridge"])
            && ip(&["-n", &switch, "addr", "add", "10.77.0.254/24", "dev", "switch"])
            && ip(&["-n", &switch, "link", "set", "switch", "up"]);
        is_there && (0..self.machines).all(|at| self.connect(at))
    }

    fn connect(&self, at: usize) -> bool {
        let (switch, machine, cable) = (self.switch(), self.machine(at), format!("cable{at}"));
        let address = format!("{}/24", self.address(at));
        let pair = ["-n", &switch, "link", "add", &cable, "type", "veth", "peer", "name", "eth0"];
        ip(&["netns", "add", &machine])
            && ip(&[&pair[..], &["netns", &machine]].concat())
            && ip(&["-n", &switch, "link", "set", &cable, "master", "switch", "up"])
            && ip(&["-n", &machine, "addr", "add", &address, "dev", "eth0"])
            && ip(&["-n", &machine, "link", "set", "lo", "up"])
            && ip(&["-n", &machine, "link", "set", "eth0", "up"])
    }

    fn switch(&self) -> String {
        format!("{}s", self.id)
    }

    fn machine(&self, at: usize) -> String {
        format!("{}m{at}", self.id)
    }

    /// The address of a machine.
    pub fn address(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, at as u8 + 1)
    }

    /// A program on a machine. Its process is the one that is started.
    pub fn command(&self, at: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.machine(at))).arg(program);
        command
    }

    /// Pulls the cable of a machine, or plugs it in.
    pub fn plug(&self, at: usize, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        must_ip(&["-n", &self.switch(), "link", "set", &format!("cable{at}"), state]);
    }

    /// Drops all that a machine sends to another one, until this is taken back as often as it was
    /// asked for.
    pub fn block(&self, from: usize, to: usize, is_blocked: bool) {
        let mut blocks = self.blocks.lock().expect("no panic");
        let count = blocks.entry((from, to)).or_default();
        let verb = match (is_blocked, *count) {
            (true, 0) => Some("add"),
            (false, 1) => Some("del"),
            _ => None,
        };
        *count = if is_blocked { *count + 1 } else { *count - 1 };
        if let Some(verb) = verb {
            let to = format!("{}/32", self.address(to));
            must_ip(&["-n", &self.machine(from), "route", verb, "blackhole", &to]);
        }
    }

    /// Does something at the switch, from where all machines with a cable can be reached.
    pub fn at_switch<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.switch())).expect("the switch");
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                // SAFETY: the descriptor is open. Only this thread moves, and it ends below.
                let moved = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(moved, 0, "the switch cannot be entered");
                work()
            });
            inside.join().expect("no panic")
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        (0..self.machines).for_each(|at| _ = ip(&["netns", "del", &self.machine(at)]));
        ip(&["netns", "del", &self.switch()]);
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).output().is_ok_and(|output| output.status.success())
}

/// Makes a change that must succeed.
#[track_caller]
fn must_ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().expect("ip runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {error}", words.join(" "));
}
