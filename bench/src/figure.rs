//! One figure: what was measured, and what it has to reach.

/// One row of the table.
pub(crate) struct Figure {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) reach: Reach,
    /// The median, where there were several rounds.
    pub(crate) measured: f64,
    /// The smallest and the largest of all rounds.
    pub(crate) range: Option<[f64; 2]>,
    /// How the figure came about.
    pub(crate) detail: String,
}

/// What counts as reached.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    AtMost(f64),
    AtLeast(f64),
}
