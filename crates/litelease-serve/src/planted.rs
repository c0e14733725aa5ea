//! Bugs that tests plant, to see that they are found.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A row that was refreshed is not counted anew.
    CountsOn,
    /// The row of a repeated claim is not stored again.
    AgainFromMemory,
    /// Counts what a program has claimed as handed over to its owner.
    AnyIsHandedOver,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug on this thread, or removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}

impl Planted {
    /// Checks whether this bug is planted.
    pub(crate) fn is_there(self) -> bool {
        #[cfg(test)]
        return PLANTED.get() == Some(self);
        #[cfg(not(test))]
        false
    }
}
