//! A figure that was measured, and what is to be reached.

/// One line of the table.
pub(crate) struct Figure {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) reach: Reach,
    /// The median.
    pub(crate) measured: f64,
    pub(crate) range: Option<[f64; 2]>,
    pub(crate) detail: String,
}

/// What is to be reached.
pub(crate) enum Reach {
    AtMost(f64),
    AtLeast(f64),
}
