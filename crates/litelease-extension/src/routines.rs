//! SQLite's `sqlite3_api_routines`: the table of its functions that it hands to an extension.
//!
//! The table only ever grows at its end, so the place of a function never changes. Those that are used are
//! listed here by their place; the last of them came with SQLite 3.34.

use std::ffi::{c_int, c_void};
use std::mem::transmute;

use litelease_store::{Api, Callbacks};

/// How many functions the table of SQLite 3.34 has.
const LENGTH: usize = 253;

/// The table, up to the last function that is used. Older versions have a shorter one.
#[repr(C)]
pub struct Routines([*const c_void; LENGTH]);

// SAFETY: SQLite never changes its table.
unsafe impl Sync for Routines {}

impl Routines {
    /// A table with nothing but what an old host is asked for.
    #[cfg(test)]
    pub(crate) fn for_test(
        version: unsafe extern "C" fn() -> c_int,
        malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    ) -> Self {
        let mut table = [std::ptr::null(); LENGTH];
        table[67] = version as *const c_void;
        table[68] = malloc as *const c_void;
        Routines(table)
    }

    /// The version of the library, in SQLite's way of counting. Every version has this.
    pub(crate) fn version(&self) -> c_int {
        // SAFETY: the function in this place has this type.
        unsafe {
            let function: unsafe extern "C" fn() -> c_int = transmute(self.0[67]);
            function()
        }
    }

    /// Memory that the library can free. Every version has this.
    pub(crate) fn malloc(&self, size: c_int) -> *mut c_void {
        // SAFETY: the function in this place has this type.
        unsafe {
            let function: unsafe extern "C" fn(c_int) -> *mut c_void = transmute(self.0[68]);
            function(size)
        }
    }

    /// The table that the store works with. Only for libraries that are new enough.
    #[allow(clippy::missing_transmute_annotations)] // the field says what each function is
    pub(crate) fn api(&self, callbacks: Callbacks) -> Api {
        // SAFETY: the function in each place has the type of the field, apart from what its pointers point
        // to, which is opaque to both sides.
        unsafe {
            Api {
                bind_blob64: transmute(self.0[193]),
                bind_double: transmute(self.0[3]),
                bind_int64: transmute(self.0[5]),
                bind_null: transmute(self.0[6]),
                bind_pointer: transmute(self.0[219]),
                bind_text64: transmute(self.0[194]),
                changes: transmute(self.0[15]),
                clear_bindings: transmute(self.0[118]),
                column_value: transmute(self.0[39]),
                create_function_v2: transmute(self.0[162]),
                create_module_v2: transmute(self.0[119]),
                db_filename: transmute(self.0[180]),
                declare_vtab: transmute(self.0[50]),
                errmsg: transmute(self.0[53]),
                extended_errcode: transmute(self.0[166]),
                finalize: transmute(self.0[57]),
                get_autocommit: transmute(self.0[60]),
                last_insert_rowid: transmute(self.0[65]),
                malloc: transmute(self.0[68]),
                prepare_v3: transmute(self.0[217]),
                reset: transmute(self.0[77]),
                result_blob64: transmute(self.0[201]),
                result_double: transmute(self.0[79]),
                result_error: transmute(self.0[80]),
                result_error_code: transmute(self.0[146]),
                result_int64: transmute(self.0[83]),
                result_null: transmute(self.0[84]),
                result_text64: transmute(self.0[202]),
                set_last_insert_rowid: transmute(self.0[216]),
                step: transmute(self.0[94]),
                stmt_status: transmute(self.0[170]),
                txn_state: transmute(self.0[252]),
                user_data: transmute(self.0[101]),
                value_blob: transmute(self.0[102]),
                value_bytes: transmute(self.0[103]),
                value_double: transmute(self.0[105]),
                value_int64: transmute(self.0[107]),
                value_pointer: transmute(self.0[221]),
                value_text: transmute(self.0[109]),
                value_type: transmute(self.0[113]),
                vtab_config: transmute(self.0[177]),
                callbacks,
            }
        }
    }
}
