//! The hidden set-up of the examples in the documentation of `litelease`.
//!
//! An example begins with one of these macros, in a hidden line. Each brings the names of the crate
//! and `Duration` into scope, and defines what it is given a name for.

/// The names that examples use.
pub mod prelude {
    pub use std::time::Duration;

    pub use litelease::rusqlite::Connection;
    pub use litelease::*;
    pub use tempfile::tempdir;
}

/// Opens a new database in memory, with its tables: `memory!(db)`.
#[macro_export]
macro_rules! memory {
    ($db:ident) => {
        #[allow(unused_imports)]
        use $crate::prelude::*;
        #[allow(unused_mut)]
        let mut $db = Litelease::from_connection(Connection::open_in_memory()?);
        $db.bootstrap()?;
    };
}

/// Opens a new file in a temporary folder, with its tables: `file!(db)`.
#[macro_export]
macro_rules! file {
    ($db:ident) => {
        $crate::path!(path);
        #[allow(unused_mut)]
        let mut $db = Litelease::open_own(path)?;
    };
}

/// Names a file in a temporary folder, which is removed at the end: `path!(path)`.
#[macro_export]
macro_rules! path {
    ($path:ident) => {
        #[allow(unused_imports)]
        use $crate::prelude::*;
        let folder = tempdir().unwrap();
        let $path = folder.path().join("app.sqlite3");
    };
}
