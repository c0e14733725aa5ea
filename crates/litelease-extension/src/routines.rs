//! SQLite's `sqlite3_api_routines`: the table of its functions that it hands to an extension.
//!
//! The table only ever grows at its end, so the position of a function never changes. The last
//! function that is used here came with SQLite 3.34.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

use litelease_store::{Api, Callbacks, sqlite3};

/// Declares the table: one pointer per name, in the order of SQLite's header.
macro_rules! routines {
    ($($name:ident)*) => {
        /// The table, up to the last function that is used. Older versions have a shorter one.
        #[repr(C)]
        pub struct Routines { $($name: *const c_void,)* }

        impl Routines {
            #[cfg(test)]
            const EMPTY: Routines = Routines { $($name: std::ptr::null(),)* };

            fn by_name(find: &impl Fn(&CStr) -> *const c_void) -> Self {
                let find = |name: &str| CStr::from_bytes_with_nul(name.as_bytes()).map(find);
                Routines {
                    $($name: find(concat!("sqlite3_", stringify!($name), "\0"))
                        .unwrap_or(std::ptr::null()),)*
                }
            }
        }
    };
}

// The members of `struct sqlite3_api_routines` in sqlite3ext.h, in their order: a test of the
// project compares them.
routines! {
    aggregate_context aggregate_count bind_blob bind_double bind_int bind_int64 bind_null
    bind_parameter_count bind_parameter_index bind_parameter_name bind_text bind_text16
    bind_value busy_handler busy_timeout changes close collation_needed collation_needed16
    column_blob column_bytes column_bytes16 column_count column_database_name
    column_database_name16 column_decltype column_decltype16 column_double column_int
    column_int64 column_name column_name16 column_origin_name column_origin_name16
    column_table_name column_table_name16 column_text column_text16 column_type column_value
    commit_hook complete complete16 create_collation create_collation16 create_function
    create_function16 create_module data_count db_handle declare_vtab enable_shared_cache
    errcode errmsg errmsg16 exec expired finalize free free_table get_autocommit get_auxdata
    get_table global_recover interruptx last_insert_rowid libversion libversion_number malloc
    mprintf open open16 prepare prepare16 profile progress_handler realloc reset result_blob
    result_double result_error result_error16 result_int result_int64 result_null result_text
    result_text16 result_text16be result_text16le result_value rollback_hook set_authorizer
    set_auxdata xsnprintf step table_column_metadata thread_cleanup total_changes trace
    transfer_bindings update_hook user_data value_blob value_bytes value_bytes16 value_double
    value_int value_int64 value_numeric_type value_text value_text16 value_text16be
    value_text16le value_type vmprintf overload_function prepare_v2 prepare16_v2 clear_bindings
    create_module_v2 bind_zeroblob blob_bytes blob_close blob_open blob_read blob_write
    create_collation_v2 file_control memory_highwater memory_used mutex_alloc mutex_enter
    mutex_free mutex_leave mutex_try open_v2 release_memory result_error_nomem
    result_error_toobig sleep soft_heap_limit vfs_find vfs_register vfs_unregister xthreadsafe
    result_zeroblob result_error_code test_control randomness context_db_handle
    extended_result_codes limit next_stmt sql status backup_finish backup_init backup_pagecount
    backup_remaining backup_step compileoption_get compileoption_used create_function_v2
    db_config db_mutex db_status extended_errcode log soft_heap_limit64 sourceid stmt_status
    strnicmp unlock_notify wal_autocheckpoint wal_checkpoint wal_hook blob_reopen vtab_config
    vtab_on_conflict close_v2 db_filename db_readonly db_release_memory errstr stmt_busy
    stmt_readonly stricmp uri_boolean uri_int64 uri_parameter xvsnprintf wal_checkpoint_v2
    auto_extension bind_blob64 bind_text64 cancel_auto_extension load_extension malloc64 msize
    realloc64 reset_auto_extension result_blob64 result_text64 strglob value_dup value_free
    result_zeroblob64 bind_zeroblob64 value_subtype result_subtype status64 strlike
    db_cacheflush system_errno trace_v2 expanded_sql set_last_insert_rowid prepare_v3
    prepare16_v3 bind_pointer result_pointer value_pointer vtab_nochange value_nochange
    vtab_collation keyword_count keyword_name keyword_check str_new str_finish str_appendf
    str_vappendf str_append str_appendall str_appendchar str_reset str_errcode str_length
    str_value create_window_function normalized_sql stmt_isexplain value_frombind drop_modules
    hard_heap_limit64 uri_key filename_database filename_journal filename_wal create_filename
    free_filename database_file_object txn_state
}

/// A function that SQLite calls for each new connection, with the connection, room for a message,
/// and its table.
pub(crate) type Entry =
    unsafe extern "C" fn(*mut sqlite3, *mut *mut c_char, *const Routines) -> c_int;

/// SQLite's `sqlite3_vfs`, version 3.
#[repr(C)]
struct Vfs {
    version: c_int,
    file_size: c_int,
    longest_path: c_int,
    next: *const Vfs,
    name: *const c_char,
    data: *const c_void,
    functions: [*const c_void; 16],
}

// SAFETY: SQLite never changes its table.
unsafe impl Sync for Routines {}

impl Routines {
    /// A table with only the functions that an old host may be asked for.
    #[cfg(test)]
    pub(crate) fn for_test(
        version: unsafe extern "C" fn() -> c_int,
        malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    ) -> Self {
        Routines {
            libversion_number: version as *const c_void,
            malloc: malloc as *const c_void,
            ..Routines::EMPTY
        }
    }

    /// Returns the version of the library, in SQLite's way of counting. Every version has this.
    pub(crate) fn version(&self) -> c_int {
        // SAFETY: the function in this place has this type.
        unsafe {
            let function: unsafe extern "C" fn() -> c_int = transmute(self.libversion_number);
            function()
        }
    }

    /// Returns memory that the library can free. Every version has this.
    pub(crate) fn malloc(&self, size: c_int) -> *mut c_void {
        // SAFETY: the function in this place has this type.
        unsafe {
            let function: unsafe extern "C" fn(c_int) -> *mut c_void = transmute(self.malloc);
            function(size)
        }
    }

    /// Registers a copy of the default VFS under another name while `work` runs. Only connections
    /// of this library can be opened with it. Returns `None` if that fails.
    pub(crate) fn with_vfs<T>(&self, name: &CStr, work: impl FnOnce() -> T) -> Option<T> {
        // SAFETY: the functions in these places have these types. The copy lives until it is
        // unregistered, and a VFS of version 3 has all fields of the structure.
        unsafe {
            let find: unsafe extern "C" fn(*const c_char) -> *const Vfs = transmute(self.vfs_find);
            let register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int =
                transmute(self.vfs_register);
            let unregister: unsafe extern "C" fn(*mut Vfs) -> c_int =
                transmute(self.vfs_unregister);
            let default = find(ptr::null()).as_ref().filter(|vfs| vfs.version >= 3)?;
            let mut copy = Vfs { next: ptr::null(), name: name.as_ptr(), ..*default };
            if register(&raw mut copy, 0) != 0 {
                return None;
            }
            let done = work();
            unregister(&raw mut copy);
            Some(done)
        }
    }

    /// Has SQLite call `entry` for each connection that it opens from now on. Returns whether it
    /// will. Repeating it changes nothing.
    pub(crate) fn at_each_open(&self, entry: Entry) -> bool {
        if self.auto_extension.is_null() {
            return false;
        }
        // SAFETY: the function in this place has this type, but for the arguments of `entry`, which
        // SQLite passes.
        unsafe {
            let register: unsafe extern "C" fn(Entry) -> c_int = transmute(self.auto_extension);
            register(entry) == 0
        }
    }

    /// Returns the functions of a library by their names; null for those that it lacks.
    pub(crate) fn looked_up(find: impl Fn(&CStr) -> *const c_void) -> Self {
        Routines { interruptx: find(c"sqlite3_interrupt"), ..Routines::by_name(&find) }
    }
}

/// Makes the table that the store works with, of the functions with these names.
macro_rules! used {
    ($($name:ident)*) => {
        impl Routines {
            /// Returns the table that the store works with; none if the library lacks a function.
            /// Only for libraries that are new enough.
            #[allow(clippy::missing_transmute_annotations)] // the field says what each function is
            pub(crate) fn api(&self, callbacks: Callbacks) -> Option<Api> {
                if [self.interruptx, $(self.$name,)*].iter().any(|function| function.is_null()) {
                    return None;
                }
                // SAFETY: the function in each place has the type of the field, apart from what its
                // pointers point to, which is opaque to both sides.
                Some(unsafe {
                    Api {
                        interrupt: transmute(self.interruptx),
                        $($name: transmute(self.$name),)*
                        callbacks,
                    }
                })
            }
        }
    };
}

used! {
    bind_blob64 bind_double bind_int64 bind_null bind_pointer bind_text64 busy_timeout changes
    clear_bindings close_v2 column_value create_function_v2 create_module_v2 db_config
    db_filename db_mutex db_readonly declare_vtab errmsg extended_errcode file_control finalize
    get_autocommit last_insert_rowid malloc open_v2 prepare_v3 reset result_blob64 result_double
    result_error result_error_code result_int64 result_null result_text64 set_last_insert_rowid
    step stmt_status total_changes txn_state uri_boolean user_data value_blob value_bytes
    value_double value_int64 value_pointer value_text value_type vtab_collation vtab_config
}
