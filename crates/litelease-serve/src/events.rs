//! The state of a pool as server-sent events: once, and again whenever it has changed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

use crate::answer::{self, Body, Refused, Response};
use crate::http::App;
use crate::job::{Answer, Id, State, Trouble};
use crate::writer::Changed;

/// Changes that come faster than this are told together.
const BREATH: Duration = Duration::from_millis(50);

/// A comment keeps the connection from being taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Answers with a stream, if there is such a pool.
pub(crate) async fn stream(app: &Arc<App>, id: Id) -> Result<Response, Refused> {
    let changes = app.changes.subscribe();
    let Answer::State(state) = app.look(&id).await? else {
        return Err(Trouble::Database.into());
    };
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(tell(Arc::clone(app), id, state, changes, sender));
    let mut response = Response::new(200, "text/event-stream", "");
    response.body = Body::Stream(receiver);
    Ok(response)
}

async fn tell(
    app: Arc<App>,
    id: Id,
    mut state: State,
    mut changes: broadcast::Receiver<Changed>,
    sender: mpsc::Sender<Bytes>,
) {
    let mut stop = app.stop.clone();
    loop {
        let text = format!("data: {}\n\n", answer::state(&state));
        if sender.send(text.into()).await.is_err() {
            return;
        }
        loop {
            let is_over = tokio::select! {
                is_ours = next(&mut changes, &id) => !is_ours,
                () = tokio::time::sleep(until_expiry(&state)) => false,
                () = tokio::time::sleep(HEARTBEAT) => {
                    if sender.send(": \n\n".into()).await.is_err() {
                        return;
                    }
                    continue;
                }
                _ = stop.changed() => true,
                () = sender.closed() => true,
            };
            if is_over {
                return;
            }
            tokio::time::sleep(BREATH).await;
            match app.look(&id).await {
                Ok(Answer::State(now)) if is_same(&now, &state) => {}
                Ok(Answer::State(now)) => {
                    state = now;
                    break;
                }
                Err(Trouble::NoSuchPool) => {
                    let _ = sender.send("event: gone\ndata: {}\n\n".into()).await;
                    return;
                }
                // The client connects again by itself.
                _ => return,
            }
        }
    }
}

/// Waits for a change of this pool. False if there can be no more.
async fn next(changes: &mut broadcast::Receiver<Changed>, id: &Id) -> bool {
    loop {
        match changes.recv().await {
            Ok(Some(changed)) if changed != *id => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return true,
            Err(RecvError::Closed) => return false,
        }
    }
}

fn until_expiry(state: &State) -> Duration {
    let next = state.slots.iter().map(|row| row.slot.expires_at_ms).min();
    let left_ms = next.map_or(i64::MAX, |at_ms| at_ms.saturating_sub(litelease::now_ms()));
    Duration::from_millis(left_ms.max(1).unsigned_abs())
}

/// Whether nothing but time has passed.
fn is_same(a: &State, b: &State) -> bool {
    (a.info, &a.slots, a.waiters) == (b.info, &b.slots, b.waiters)
}
