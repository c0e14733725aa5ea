//! The callbacks that SQLite calls, one set per SQLite library.

use crate::present::{presented, presenting, refused};
use crate::rule_fn::rule_fn;
use crate::sqlite::{Api, SqlFunction};

/// A SQLite library that this program drives: each has a table of functions, and so needs copies of
/// our functions that know that table.
pub trait Library {
    /// Returns the functions of the library.
    fn api() -> &'static Api;
}

/// Our functions for one library.
#[derive(Clone, Copy)]
pub struct Callbacks {
    pub(crate) rule_fn: SqlFunction,
    pub(crate) presented: SqlFunction,
    pub(crate) presenting: SqlFunction,
    pub(crate) refused: SqlFunction,
}

impl Callbacks {
    /// Returns the callbacks that call back into `L`.
    pub const fn calling<L: Library>() -> Self {
        Callbacks {
            rule_fn: rule_fn::<L>,
            presented: presented::<L>,
            presenting: presenting::<L>,
            refused: refused::<L>,
        }
    }
}
