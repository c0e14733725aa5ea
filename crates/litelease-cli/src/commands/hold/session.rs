//! One hold, from waiting for the name to releasing it: a loop over everything that can happen.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use litelease::{Cancel, Loss};
use litelease_hold::{HandoverRequest, HoldError};
use litelease_sys::children;
use serde_json::{Value, json};
use signal_hook::consts::SIGTSTP;

use super::super::run::child::{self, Ending};
use super::lines::{self, Output};
use crate::Common;
use crate::exit::{Failure, Result, code};
use crate::output::{complain, printable};
use crate::target::{HoldRequest, Tenure};
use crate::waiting::while_waiting;

/// An event of the loop.
pub(super) enum Event {
    /// The waiting is over, one way or the other.
    Acquired(Result<Tenure>),
    /// The program that started this one has written a line.
    Line(String),
    /// That program has closed the pipe or has died.
    InputEnded,
    /// Standard output cannot be written.
    OutputFailed(Failure),
    Signal(i32),
    /// The lease is lost.
    Lost,
    /// A successor asks for the lease.
    Requested(HandoverRequest),
}

/// How long the end of the waiting is waited for. A claim that is under way takes longer only if
/// the place is in the way.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time between two reads of the clock: after a suspend, an alarm is late.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits for the name with `hold` and holds it until it is released or lost. Returns the exit code.
pub(super) fn run(
    wanted: HoldRequest,
    common: &Common,
    hold: impl Fn(&HoldRequest) -> Result<Tenure> + Send + 'static,
) -> Result<u8> {
    let (sender, events) = channel();
    let ending = child::forward_signals(sender.clone(), Event::Signal)?;
    let output = Output::start(sender.clone())?;
    let voice = Voice { name: wanted.name.clone(), as_json: common.json, output };
    let (ttl, cancel) = (wanted.ttl, wanted.cancel.clone());
    wait_on_thread(wanted, common, sender.clone(), hold)?;
    lines::read(sender.clone())?;
    let tenure = match wait(&events, &voice, common) {
        Waited::Acquired(Ok(tenure)) => tenure,
        Waited::Acquired(Err(failure)) if failure.code == code::NO => {
            if common.json || !common.quiet {
                failure.print(common.json);
            }
            return Ok(code::NO);
        }
        Waited::Acquired(Err(failure)) => return Err(failure),
        Waited::Unwanted(ended) => {
            ending.begin();
            stop_waiting(&cancel, &events);
            voice.output.close();
            return ended.map(|()| code::OK);
        }
    };
    let lost = sender.clone();
    tenure.held.on_lost(move |_| drop(lost.send(Event::Lost)));
    tenure.held.on_request(move |request| {
        drop(sender.send(Event::Requested(request.clone())));
    });
    HoldLoop { tenure, events, voice, ttl, ending }.run()
}

/// A lease that is held for the program that started this one.
struct HoldLoop {
    tenure: Tenure,
    events: Receiver<Event>,
    voice: Voice,
    ttl: Duration,
    ending: Ending,
}

impl HoldLoop {
    /// Holds the name until it is released or lost.
    fn run(mut self) -> Result<u8> {
        // This process may have been stopped since the claim.
        if let Err(lost) = self.tenure.held.check() {
            return self.lose(&lost.reason);
        }
        if let Err(failure) = self.voice.granted(&self.tenure) {
            return self.release(Some(failure));
        }
        loop {
            let pause = self.tenure.held.trusted_for().min(LONGEST_PAUSE);
            let event = self.events.recv_timeout(pause);
            // Before any answer: this process may have been stopped for longer than it is trusted.
            if let Err(lost) = self.tenure.held.check() {
                return self.lose(&lost.reason);
            }
            let said = match event {
                Ok(Event::Line(line)) => match self.obey(&line) {
                    ControlFlow::Continue(session) => {
                        self = session;
                        continue;
                    }
                    ControlFlow::Break(ended) => return ended,
                },
                Ok(Event::Signal(SIGTSTP)) => {
                    children::stop_self();
                    Ok(())
                }
                Ok(Event::InputEnded | Event::Signal(_)) => return self.release(None),
                Ok(Event::OutputFailed(failure)) => Err(failure),
                Ok(Event::Requested(request)) => self.voice.requested(&request),
                Ok(Event::Lost | Event::Acquired(_)) | Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => return self.release(None),
            };
            if let Err(failure) = said {
                return self.release(Some(failure));
            }
        }
    }

    /// Carries out a line of input, and returns the exit code if that ends the hold.
    fn obey(self, line: &str) -> ControlFlow<Result<u8>, Self> {
        let said = match line {
            "release" => return ControlFlow::Break(self.release(None)),
            "hand-over" => return self.hand_over(),
            "progress" => match self.tenure.held.progress() {
                Ok(()) => self.voice.print("ok", || json!({ "ok": "progress" })),
                Err(lost) => return ControlFlow::Break(self.lose(&lost.reason)),
            },
            "check" => match self.tenure.held.trusted_for() {
                Duration::ZERO => return ControlFlow::Break(self.lose_now()),
                trusted => self.voice.trusted(trusted),
            },
            unknown => self.voice.error(&format!(
                "unknown line {:?}: write release, check, progress or hand-over",
                printable(unknown)
            )),
        };
        match said {
            Ok(()) => ControlFlow::Continue(self),
            Err(failure) => ControlFlow::Break(self.release(Some(failure))),
        }
    }

    fn hand_over(mut self) -> ControlFlow<Result<u8>, Self> {
        match self.tenure.held.hand_over::<litelease::Error>(self.ttl) {
            Ok(handed) => {
                let said = self.voice.handed_over(&handed.owner, handed.token);
                self.voice.output.close();
                ControlFlow::Break(said.map(|()| code::OK))
            }
            Err((held, error)) => {
                self.tenure.held = held;
                let text = match error {
                    HoldError::NotRequested => "no successor has requested the name".into(),
                    error => error.to_string(),
                };
                match self.voice.error(&text) {
                    Ok(()) => ControlFlow::Continue(self),
                    Err(failure) => ControlFlow::Break(self.release(Some(failure))),
                }
            }
        }
    }

    /// Releases the name, and passes on why that had to be, if it is a failure.
    fn release(self, failure: Option<Failure>) -> Result<u8> {
        let HoldLoop { tenure, voice, ending, .. } = self;
        ending.begin();
        let released = tenure.release(None);
        let ended = match (released, failure) {
            (Err(loss), None) if loss.may_pass() => {
                let name = printable(&voice.name);
                let text = format!("{name} could not be released and ends by itself: {loss}");
                Err(Failure::failed("NotReleased", text))
            }
            (Err(loss), None) => voice.lost(&loss).map(|()| code::LOST),
            (_, Some(failure)) => Err(failure),
            (Ok(()), None) => Ok(code::OK),
        };
        voice.output.close();
        ended
    }

    fn lose_now(self) -> Result<u8> {
        let reason = self.tenure.held.lost().reason().unwrap_or(Loss::Expired);
        self.lose(&reason)
    }

    fn lose(self, reason: &Loss) -> Result<u8> {
        let said = self.voice.lost(reason);
        self.voice.output.close();
        said.map(|()| code::LOST)
    }
}

/// The end of the wait.
enum Waited {
    Acquired(Result<Tenure>),
    /// The program wants the name no more, or cannot be answered.
    Unwanted(Result<()>),
}

fn wait(events: &Receiver<Event>, voice: &Voice, common: &Common) -> Waited {
    loop {
        let said = match events.recv() {
            Ok(Event::Acquired(acquired)) => return Waited::Acquired(acquired),
            Ok(Event::Line(line)) if line == "release" => return Waited::Unwanted(Ok(())),
            Ok(Event::Line(_)) => voice.error("the name is not granted yet"),
            Ok(Event::InputEnded) => {
                if !common.quiet && !common.json {
                    let name = printable(&voice.name);
                    complain(&format!("litelease: standard input has ended: {name} is not held"));
                }
                return Waited::Unwanted(Ok(()));
            }
            Ok(Event::Signal(SIGTSTP)) => {
                children::stop_self();
                Ok(())
            }
            Ok(Event::Signal(_)) => return Waited::Unwanted(Ok(())),
            Ok(Event::OutputFailed(failure)) => Err(failure),
            Ok(Event::Lost | Event::Requested(_)) => Ok(()),
            Err(_) => Err(Failure::failed("Threads", "the waiting thread is gone")),
        };
        if said.is_err() {
            return Waited::Unwanted(said);
        }
    }
}

/// Waits for the name on a thread, so that lines and signals are noticed meanwhile.
fn wait_on_thread(
    wanted: HoldRequest,
    common: &Common,
    events: Sender<Event>,
    hold: impl Fn(&HoldRequest) -> Result<Tenure> + Send + 'static,
) -> Result<()> {
    let common = common.clone();
    let body = move || {
        let acquired = while_waiting(&common, &wanted.name, || hold(&wanted));
        // If the session has ended meanwhile, the tenure is dropped, which releases it.
        let _ = events.send(Event::Acquired(acquired));
    };
    thread::Builder::new().name("wait".into()).spawn(body)?;
    Ok(())
}

/// Ends the wait, and releases a grant that arrives at this moment.
fn stop_waiting(cancel: &Cancel, events: &Receiver<Event>) {
    cancel.cancel();
    let begin = Instant::now();
    while let Some(left) = CANCEL_TIMEOUT.checked_sub(begin.elapsed()) {
        match events.recv_timeout(left) {
            Ok(Event::Acquired(acquired)) => {
                // If this fails, the lease ends by itself.
                let _ = acquired.map(|tenure| tenure.release(None));
                return;
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// The lines that the program reads.
struct Voice {
    name: String,
    as_json: bool,
    output: Output,
}

impl Voice {
    fn granted(&self, tenure: &Tenure) -> Result<()> {
        let token = tenure.held.token();
        let is_slot =
            |variable: &&(&str, Option<std::ffi::OsString>)| variable.0 == "LITELEASE_SLOT";
        let slot = tenure.variables.iter().find(is_slot).and_then(|(_, slot)| slot.as_ref());
        let Some(slot) = slot.and_then(|slot| slot.to_str()?.parse::<i64>().ok()) else {
            let value = || json!({ "granted": { "name": self.name, "token": token } });
            return self.print(&format!("granted {token}"), value);
        };
        let value = || json!({ "granted": { "name": self.name, "token": token, "slot": slot } });
        self.print(&format!("granted {token} {slot}"), value)
    }

    fn requested(&self, request: &HandoverRequest) -> Result<()> {
        let HandoverRequest { requester, until_ms } = request;
        let value = json!({ "name": self.name, "requester": requester, "until_ms": until_ms });
        self.print("requested", || json!({ "requested": value }))
    }

    fn handed_over(&self, to: &str, token: i64) -> Result<()> {
        let value = json!({ "name": self.name, "token": token, "to": to });
        self.print(&format!("handed-over {token}"), || json!({ "handed_over": value }))
    }

    fn trusted(&self, time: Duration) -> Result<()> {
        let trusted_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.print(&format!("trusted {trusted_ms}"), || json!({ "trusted_ms": trusted_ms }))
    }

    fn lost(&self, reason: &Loss) -> Result<()> {
        let text = printable(&reason.to_string());
        let value = json!({ "name": self.name, "reason": text });
        self.print(&format!("lost {text}"), || json!({ "lost": value }))
    }

    fn error(&self, text: &str) -> Result<()> {
        self.print(&format!("error {text}"), || json!({ "error": text }))
    }

    fn print(&self, text: &str, value: impl FnOnce() -> Value) -> Result<()> {
        match self.as_json {
            true => self.output.print(&value().to_string()),
            false => self.output.print(text),
        }
    }
}
