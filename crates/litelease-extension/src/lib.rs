//! The loadable extension: the SQL functions of `litelease-store`, for any SQLite that loads it.
//!
//! It contains no SQLite. SQLite passes a table of its functions, from which this makes the table
//! of the store. A process may have more than one SQLite library, so each gets a slot of its own
//! here.

#[cfg(unix)]
mod python;
mod routines;

use std::ffi::{c_char, c_int};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::OnceLock;

use litelease_store::{Api, Callbacks, Connection, Library, c_string, code, sqlite3};

use crate::routines::Routines;

/// The oldest SQLite whose table has every function that is used, in SQLite's way of counting.
const OLDEST: c_int = 3_034_001;

/// How many SQLite libraries one process may have. Python's own and one more are two.
const MAX_LIBRARIES: usize = 4;

/// The libraries that have loaded the extension, by the address of their table.
static LIBRARIES: [OnceLock<(usize, Api)>; MAX_LIBRARIES] =
    [const { OnceLock::new() }; MAX_LIBRARIES];

/// The library in the n-th slot.
struct LoadedLibrary<const N: usize>;

impl<const N: usize> Library for LoadedLibrary<N> {
    fn api() -> &'static Api {
        match LIBRARIES[N].get() {
            Some((_, api)) => api,
            // Only functions that were registered through this table ask for it.
            None => std::process::abort(),
        }
    }
}

/// The entry point that SQLite tries first.
///
/// # Safety
/// Only SQLite may call it, to load an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    db: *mut sqlite3,
    error: *mut *mut c_char,
    routines: *const Routines,
) -> c_int {
    // SAFETY: SQLite's table begins with functions that every version has.
    let table = unsafe { &*routines };
    let version = table.version();
    let loaded = if version < OLDEST {
        Err(format!(
            "litelease needs SQLite 3.34.1 or newer, and this is {}.{}.{}",
            version / 1_000_000,
            version / 1_000 % 1_000,
            version % 1_000
        ))
    } else {
        // A panic must not unwind into SQLite.
        // SAFETY: SQLite keeps the connection open as long as its functions are registered.
        let loaded = catch_unwind(|| unsafe { load(db, table) });
        loaded.unwrap_or_else(|_| Err("litelease: internal error".into()))
    };
    match loaded {
        Ok(()) => code::OK,
        Err(message) => {
            if !error.is_null() {
                // SAFETY: SQLite wants the message in `error`, in memory that it can free.
                unsafe { *error = c_string(&message, |size| table.malloc(size)) };
            }
            code::ERROR
        }
    }
}

/// The entry point that SQLite derives from the name of the file.
///
/// # Safety
/// As for [`sqlite3_extension_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_liteleaseext_init(
    db: *mut sqlite3,
    error: *mut *mut c_char,
    routines: *const Routines,
) -> c_int {
    // SAFETY: as promised.
    unsafe { sqlite3_extension_init(db, error, routines) }
}

/// # Safety
/// `db` must be an open connection of the library that the table belongs to, and stay so while its
/// functions are registered.
pub(crate) unsafe fn load(db: *mut sqlite3, table: &'static Routines) -> Result<(), String> {
    // SAFETY: as promised; each arm names the slot that it uses.
    unsafe {
        match slot_of(table)? {
            0 => register::<LoadedLibrary<0>>(db),
            1 => register::<LoadedLibrary<1>>(db),
            2 => register::<LoadedLibrary<2>>(db),
            _ => register::<LoadedLibrary<3>>(db),
        }
    }
}

/// # Safety
/// As for [`load`], with the library in its slot.
unsafe fn register<L: Library>(db: *mut sqlite3) -> Result<(), String> {
    // SAFETY: as promised; so it is below.
    let connection = unsafe { Connection::from_raw(db, L::api()) };
    #[cfg(unix)]
    // SAFETY: as above.
    let registered = unsafe { litelease_hold::file::sql::register::<L>(connection) };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let registered = unsafe { litelease_store::sql::register::<L>(connection, &[]) };
    registered.map_err(|error| format!("litelease: {error}"))
}

/// Returns the slot of the library that a table belongs to. A new library takes the next one.
pub(crate) fn slot_of(table: &'static Routines) -> Result<usize, String> {
    let address = ptr::from_ref(table) as usize;
    for (place, library) in LIBRARIES.iter().enumerate() {
        let callbacks = match place {
            0 => Callbacks::calling::<LoadedLibrary<0>>(),
            1 => Callbacks::calling::<LoadedLibrary<1>>(),
            2 => Callbacks::calling::<LoadedLibrary<2>>(),
            _ => Callbacks::calling::<LoadedLibrary<3>>(),
        };
        let api = table.api(callbacks).ok_or("litelease: this SQLite lacks a function")?;
        if library.get_or_init(|| (address, api)).0 == address {
            return Ok(place);
        }
    }
    Err(format!("litelease: more than {MAX_LIBRARIES} SQLite libraries in one process"))
}

/// The tables of the known libraries, each with the store's table.
pub(crate) fn libraries() -> impl Iterator<Item = (&'static Routines, &'static Api)> {
    let known = LIBRARIES.iter().filter_map(OnceLock::get);
    // SAFETY: the address is that of a table that lives as long as its library, which stays.
    known.map(|(address, api)| (unsafe { &*(*address as *const Routines) }, api))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, c_void};

    unsafe extern "C" fn old_version() -> c_int {
        3_034_000
    }

    unsafe extern "C" fn leaking_malloc(size: c_int) -> *mut c_void {
        vec![0u8; usize::try_from(size).unwrap_or(0)].leak().as_mut_ptr().cast()
    }

    #[test]
    fn a_host_that_is_too_old_gets_an_error_and_lives() {
        // A table with only the two functions that may be called there.
        let table = Routines::for_test(old_version, leaking_malloc);
        let mut error = ptr::null_mut();
        // SAFETY: the connection is not touched on an old host.
        let rc =
            unsafe { sqlite3_extension_init(ptr::null_mut(), &raw mut error, &raw const table) };
        assert_eq!(rc, code::ERROR);
        // SAFETY: the message was just written, and ends with a NUL.
        let message = unsafe { CStr::from_ptr(error) }.to_string_lossy();
        assert_eq!(message, "litelease needs SQLite 3.34.1 or newer, and this is 3.34.0");
    }
}
