//! A terminal to put a command into: what is typed, and what is on the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::rig::eventually;

/// A command in a terminal of its own.
pub struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    child: Child,
}

impl Terminal {
    /// Starts a command with a new terminal as its input, output and errors, and as what Ctrl-C is
    /// sent through.
    pub fn start(mut command: Command) -> Self {
        let (mut master, mut slave) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: two numbers are written, and the rest is left to the system.
        let opened =
            unsafe { libc::openpty(&mut master, &mut slave, none, none.cast(), none.cast()) };
        assert_eq!(opened, 0, "no terminal to be had");
        // SAFETY: both descriptors are new, and only ours.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        for end in [master.as_raw_fd(), slave.as_raw_fd()] {
            // SAFETY: no pointers are involved. What is started has its own copies.
            unsafe { libc::fcntl(end, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        command.stdin(slave.try_clone().expect("a copy"));
        command.stdout(slave.try_clone().expect("a copy"));
        command.stderr(slave);
        // SAFETY: between fork and exec only plain system calls are made.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let child = command.env("TERM", "xterm").spawn().expect("it starts");
        drop(command); // and with it our copies of the terminal's end
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, text) = (master.try_clone().expect("a copy"), screen.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                text.lock().expect("a screen").push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Terminal { keyboard: master, screen, child }
    }

    /// Types.
    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a keyboard");
    }

    /// Waits until the screen shows this, and forgets what came before and with it.
    #[track_caller]
    pub fn shows(&self, text: &str) -> String {
        let shown = eventually_shown(&self.screen, text);
        shown.unwrap_or_else(|screen| panic!("{text:?} is not on the screen:\n{screen}"))
    }

    /// Whether the screen shows this now.
    pub fn is_showing(&self, text: &str) -> bool {
        self.screen.lock().expect("a screen").contains(text)
    }

    /// Waits for the end, and gives everything that is still on the screen.
    #[track_caller]
    pub fn ends(mut self) -> (ExitStatus, String) {
        let status =
            eventually("the end of the command", || self.child.try_wait().expect("a status"));
        // What it has said last may still be on its way.
        thread::sleep(std::time::Duration::from_millis(50));
        let screen = self.screen.lock().expect("a screen").clone();
        (status, screen)
    }
}

fn eventually_shown(screen: &Mutex<String>, text: &str) -> Result<String, String> {
    for _ in 0..6000 {
        let mut shown = screen.lock().expect("a screen");
        if let Some(at) = shown.find(text) {
            let before = shown[..at + text.len()].to_owned();
            *shown = shown[at + text.len()..].to_owned();
            return Ok(before);
        }
        drop(shown);
        thread::sleep(std::time::Duration::from_millis(10));
    }
    Err(screen.lock().expect("a screen").clone())
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
