//! Queues in a SQLite file.

use std::time::Duration;

use litelease::rusqlite::types::Value as Body;
use litelease::rusqlite::{Transaction, TransactionBehavior};
use litelease::{
    AckResult, CancelResult, GiveBackOptions, ItemInfo, ItemName, Litelease, LiteleaseRef,
    QueueInfo, SendOptions, WorkerOptions,
};

use super::{Delivery, Options, Queues, Receipt, Worker};
use crate::exit::Result;
use crate::target::{Target, Variable, file};
use crate::{Common, database};

/// A file, opened by each verb as it needs it.
pub(super) struct File {
    common: Common,
}

impl File {
    pub(super) fn new(common: &Common) -> Result<Self> {
        database::path(common)?;
        Ok(File { common: common.clone() })
    }

    fn open(&self) -> Result<Litelease> {
        database::open_existing(&self.common)
    }

    fn place(&self) -> Result<file::File> {
        file::File::new(&self.common)
    }
}

impl Queues for File {
    fn shown(&self) -> String {
        self.place().map_or_else(|_| String::new(), |place| place.shown())
    }

    fn variables(&self) -> Vec<Variable> {
        self.place().map_or_else(|_| Vec::new(), |place| place.variables())
    }

    fn check(&self) -> Result<()> {
        self.open().map(drop)
    }

    fn send(&self, queue: &str, body: &Body, delay: Duration, key: Option<&str>) -> Result<i64> {
        let db = database::open_patiently(&self.common, Duration::ZERO)?;
        let options = SendOptions::new().delay(delay);
        let options = key.into_iter().fold(options, |options, key| options.key(key));
        Ok(db.queue(queue).send_with(body, options)?)
    }

    fn receive(&self, queue: &str, visibility: Duration) -> Result<Option<Delivery>> {
        let Some(db) = database::look(&self.common)? else { return Ok(None) };
        let received = db.queue(queue).receive(visibility)?;
        Ok(received.map(|item| Delivery {
            id: item.id,
            receipt: item.receipt,
            attempt: item.attempt,
            token: item.token,
            deadline_ms: item.deadline_ms,
            body: item.body,
        }))
    }

    fn ack(&self, receipt: &str) -> Result<Receipt<()>> {
        Ok(match self.open()?.queue("").ack(receipt)? {
            AckResult::Acknowledged => Receipt::Passed(()),
            AckResult::Stale { reason } => Receipt::Stale(reason.to_string()),
        })
    }

    fn extend(&self, receipt: &str, visibility: Duration) -> Result<Receipt<i64>> {
        let db = self.open()?;
        match db.queue("").extend(receipt, visibility)? {
            Some(deadline_ms) => Ok(Receipt::Passed(deadline_ms)),
            // The newest delivery can still be acknowledged, but it is too late to extend it.
            None if db.queue("").delivery(receipt)?.is_some() => Ok(Receipt::Over),
            None => Ok(Receipt::Stale(reason(&db, receipt)?)),
        }
    }

    fn give_back(&self, receipt: &str, delay: Duration, note: Option<&str>) -> Result<Receipt<()>> {
        let db = self.open()?;
        let options = GiveBackOptions::new().delay(delay);
        let options = note.into_iter().fold(options, |options, note| options.note(note));
        let given_back = db.queue("").give_back_with(receipt, options)?;
        ended(&db, receipt, given_back)
    }

    fn bury(&self, receipt: &str, note: Option<&str>) -> Result<Receipt<()>> {
        let db = self.open()?;
        let buried = db.queue("").bury(receipt, note)?;
        ended(&db, receipt, buried)
    }

    fn list(&self) -> Result<Vec<QueueInfo>> {
        Ok(database::look(&self.common)?.map_or(Ok(Vec::new()), |db| db.queues())?)
    }

    fn info(&self, queue: &str) -> Result<Option<QueueInfo>> {
        Ok(database::look(&self.common)?.map_or(Ok(None), |db| db.queue(queue).info())?)
    }

    fn each_item(&self, queue: &str, each: &mut dyn FnMut(ItemInfo) -> bool) -> Result<()> {
        match database::look(&self.common)? {
            Some(db) => Ok(db.queue(queue).each_item(each)?),
            None => Ok(()),
        }
    }

    fn redrive(&self, queue: &str, id: Option<i64>) -> Result<u64> {
        let db = self.open()?;
        Ok(match id {
            None => db.queue(queue).redrive()?,
            Some(id) => u64::from(db.queue(queue).redrive_one(id)?),
        })
    }

    fn discard(&self, queue: &str, id: Option<i64>) -> Result<u64> {
        let db = self.open()?;
        Ok(match id {
            None => db.queue(queue).discard()?,
            Some(id) => u64::from(db.queue(queue).discard_one(id)?),
        })
    }

    fn cancel(&self, queue: &str, name: ItemName<'_>) -> Result<CancelResult> {
        Ok(self.open()?.queue(queue).cancel(name)?)
    }

    fn delete(&self, queue: &str) -> Result<bool> {
        Ok(self.open()?.queue(queue).delete()?)
    }

    fn worker(&self, queue: &str, options: Options) -> Result<Worker> {
        let db = database::open_patiently(&self.common, Duration::ZERO)?;
        let Options { work, on_trouble } = options;
        let options = WorkerOptions::from(work)
            .on_trouble(move |error| on_trouble(error.kind(), &error.to_string()));
        Ok(Worker::File(db.queue(queue).worker(options)?))
    }
}

/// Returns whether a delivery was ended as asked, or why it was not.
fn ended(db: &Litelease, receipt: &str, done: bool) -> Result<Receipt<()>> {
    if done {
        return Ok(Receipt::Passed(()));
    }
    Ok(match db.queue("").delivery(receipt)? {
        Some(_) => Receipt::Dead,
        None => Receipt::Stale(reason(db, receipt)?),
    })
}

/// Returns why a receipt does not pass. Nothing is changed by asking: an acknowledgement that would
/// pass is rolled back.
fn reason(db: &Litelease, receipt: &str) -> Result<String> {
    let tx = Transaction::new_unchecked(db.conn(), TransactionBehavior::Immediate)
        .map_err(litelease::Error::from)?;
    let answer = LiteleaseRef::joining(&tx).queue("").ack(receipt)?;
    tx.rollback().map_err(litelease::Error::from)?;
    Ok(match answer {
        AckResult::Stale { reason } => reason.to_string(),
        AckResult::Acknowledged => "ended in this moment".into(),
    })
}
