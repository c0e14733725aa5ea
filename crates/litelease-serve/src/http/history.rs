//! The history.

use litelease_wire::ListHistory;

use super::call::{Context, Handle, Handled, USUAL_PAGE, milliseconds, which, wrong_after};
use crate::listings::{self, HistoryPage};

impl Handle for ListHistory {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ListHistory { name, prefix, object, kind, since, newer, after, limit } = self;
        let id = |id: String| id.parse().map_err(|_| wrong_after());
        let (newer, after) = (newer.map(id).transpose()?, after.map(id).transpose()?);
        let (names, limit) = (which(name, prefix)?, limit.unwrap_or(USUAL_PAGE));
        context.admit(names.clone()).await?;
        let since_ms = since.map(milliseconds);
        let page = HistoryPage { names, object, kind, since_ms, newer, after, limit };
        context.answer_beside(move |db, _| listings::history(db, &page)).await
    }
}
