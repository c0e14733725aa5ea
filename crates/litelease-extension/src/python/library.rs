//! Finds the SQLite library that Python's own connections use, and proves that it is the right one.
//!
//! A second library on the same file would drop the locks of the first. Equal versions prove
//! nothing: a process may have two copies of one library. So a VFS with a random name is registered
//! in the library that was found, and Python must be able to open a database with it.

use std::ffi::CString;
use std::sync::OnceLock;

use litelease_hold::unique;
use litelease_store::Api;
use litelease_sys::functions_of;

use crate::python::Context;
use crate::python::api::{self, Object, Result};
use crate::routines::Routines;
use crate::{OLDEST, libraries, slot_of};

static FOUND: OnceLock<&'static Api> = OnceLock::new();

/// The functions of the library, once it is found.
pub(crate) fn found() -> Option<&'static Api> {
    FOUND.get().copied()
}

/// Finds the library. Its arguments are the file of the module `_sqlite3`, or None if it has none,
/// and a function that opens and closes a database by its URI. Answers whether there is one.
pub(crate) fn find_library(context: &'static Context, arguments: Object) -> Result<Object> {
    let names = &context.names;
    let (file, open) = (arguments.item(0)?, arguments.item(1)?);
    if found().is_none() {
        let file = match names.is_none(&file) {
            true => None,
            false => CString::new(file.text()?).ok(),
        };
        if let Some(api) = search(file, &open) {
            let _ = FOUND.set(api);
        }
    }
    api::integer(i64::from(found().is_some()))
}

fn search(file: Option<CString>, open: &Object) -> Option<&'static Api> {
    // First those that have loaded the extension, then by the names of the functions.
    if let Some((_, api)) = libraries().find(|(table, _)| is_pythons(table, open)) {
        return Some(api);
    }
    let find = functions_of(file.as_deref())?;
    if find(c"sqlite3_libversion_number").is_null() {
        return None;
    }
    let table = Routines::looked_up(find);
    if table.version() < OLDEST || !is_pythons(&table, open) {
        return None;
    }
    let table: &'static Routines = Box::leak(Box::new(table));
    let place = slot_of(table).ok()?;
    libraries().nth(place).map(|(_, api)| api)
}

/// Checks whether Python's connections belong to this library.
fn is_pythons(table: &Routines, open: &Object) -> bool {
    let name = unique();
    let Ok(vfs) = CString::new(name.clone()) else { return false };
    let opened = table.with_vfs(&vfs, || -> Result<()> {
        let uri = api::string(&format!("file:litelease?mode=memory&vfs={name}"))?;
        open.call(vec![uri]).map(drop)
    });
    match opened {
        Some(Ok(())) => true,
        Some(Err(_)) => {
            // Another library does not know the VFS.
            api::clear();
            false
        }
        None => false,
    }
}
