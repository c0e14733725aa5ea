//! The overview, and what its page asks for besides.

use std::sync::Arc;

use litelease_wire::{ItemBody, Overview, OverviewEvents, OwnKey, ReadItem, ReadKey, ReadOverview};

use super::App;
use super::call::{Context, Handle, Handled, which};
use crate::access::Which;
use crate::events::{self, Target};
use crate::overview::{Rows, compose};
use crate::response::{HttpError, Response};
use crate::value::from_row;

impl App {
    /// Reads the overview of all that begins with a text.
    pub(crate) async fn overview(&self, prefix: Arc<str>) -> Result<Overview, HttpError> {
        let rows = self.read_beside(move |db, now_ms| Rows::read(db, &prefix, now_ms)).await?;
        // Requests that wait are in memory only.
        let mut memory = self.read(false, None, |reader| Ok(reader.memory())).await?;
        self.holders.add_to(&mut memory, rows.grants());
        let (most, now_ms) = (self.options.thresholds, (self.options.clock)());
        Ok(compose(rows, &memory, &mut self.processes(), &most, now_ms))
    }
}

impl Handle for ReadOverview {
    async fn handle(self, context: Context<'_>) -> Handled {
        let prefix: Arc<str> = self.prefix.unwrap_or_default().into();
        context.admit(Which::Under(Arc::clone(&prefix))).await?;
        Ok(Response::json(200, &context.app.overview(prefix).await?))
    }
}

impl Handle for OverviewEvents {
    async fn handle(self, context: Context<'_>) -> Handled {
        let names = which(None, self.prefix)?;
        events::stream(context.app, Target::Overview(names, context.caller)).await
    }
}

impl Handle for ReadKey {
    async fn handle(self, context: Context<'_>) -> Handled {
        let caller = context.caller;
        let own = context.app.read(true, None, move |reader| reader.own_key(caller)).await?;
        let (name, allow) = own.unzip();
        Ok(Response::json(200, &OwnKey { allow: allow.unwrap_or_default(), name }))
    }
}

impl Handle for ReadItem {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ReadItem { queue, id } = self;
        context.admit(Which::One(queue.as_str().into())).await?;
        let of = queue.clone();
        let read =
            move |db: &litelease::Litelease, _| db.with_store(|store| store.item_body(&of, id));
        match context.app.read_beside(read).await? {
            Some(body) => {
                let body = from_row(body.value());
                Ok(Response::json(200, &ItemBody { body, id, queue }))
            }
            None => Err(HttpError::new(404, "there is no such item in the queue any more")),
        }
    }
}
