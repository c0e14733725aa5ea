//! SQLite's own VFS, with every change to a file written down on its way.
//!
//! What the recorder needs to know about Linux's VFS: when a rollback journal or a write-ahead log
//! is first synced after it was opened, its folder is synced too; and a deletion syncs the folder
//! if it is asked to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::{ptr, slice};

use rusqlite::ffi;

use crate::disk::{Event, Image};

/// The name to open databases with.
pub const NAME: &str = "litelease_recorder";

/// What was done to the files of this thread's databases.
#[derive(Default)]
struct Recorder {
    events: Vec<Event>,
    /// Which file each name stands for.
    names: BTreeMap<String, usize>,
    files: usize,
    open: BTreeMap<usize, Open>,
}

/// An open file, by the address that SQLite knows it by.
struct Open {
    file: usize,
    syncs_folder: bool,
    /// The methods that the real VFS has given it. Files that need no locks have others than the
    /// database.
    theirs: &'static ffi::sqlite3_io_methods,
    /// The same with ours in between.
    _ours: Box<ffi::sqlite3_io_methods>,
}

thread_local! {
    static RECORDER: RefCell<Recorder> = RefCell::default();
}

/// Begins to record on this thread, with these files in the folder and safe.
pub fn record(files: &Image) {
    register();
    RECORDER.with_borrow_mut(|recorder| {
        *recorder = Recorder::default();
        for (name, bytes) in files {
            let file = recorder.file(name);
            recorder.events.push(Event::Write(file, 0, bytes.clone()));
            recorder.events.push(Event::Sync(file));
        }
        recorder.events.push(Event::SyncFolder);
    });
}

/// How many events there are so far.
pub fn position() -> usize {
    RECORDER.with_borrow(|recorder| recorder.events.len())
}

/// What was recorded.
pub fn recorded() -> Vec<Event> {
    RECORDER.with_borrow_mut(|recorder| std::mem::take(recorder).events)
}

impl Recorder {
    /// The file that a name stands for; a new one if there is none.
    fn file(&mut self, name: &str) -> usize {
        if let Some(file) = self.names.get(name) {
            return *file;
        }
        let file = self.files;
        self.files += 1;
        self.names.insert(name.into(), file);
        self.events.push(Event::Link(name.into(), file));
        file
    }
}

struct Vfs {
    vfs: ffi::sqlite3_vfs,
    real: *mut ffi::sqlite3_vfs,
}

// SAFETY: it is never changed after it was registered, and SQLite's own lives for ever.
unsafe impl Send for Vfs {}
// SAFETY: as above.
unsafe impl Sync for Vfs {}

static VFS: OnceLock<Vfs> = OnceLock::new();

fn register() {
    let vfs = VFS.get_or_init(|| {
        // SAFETY: SQLite has a default VFS, which is copied with two functions replaced. All its
        // functions take the VFS that they are called with, except for `xOpen`, which is handed the
        // real one.
        unsafe {
            let real = ffi::sqlite3_vfs_find(ptr::null());
            let vfs = ffi::sqlite3_vfs {
                zName: c"litelease_recorder".as_ptr(),
                pNext: ptr::null_mut(),
                xOpen: Some(open),
                xDelete: Some(delete),
                ..*real
            };
            Vfs { vfs, real }
        }
    });
    static REGISTERED: OnceLock<()> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        // SAFETY: it lives for ever. SQLite changes nothing of it but `pNext`, under its own lock.
        let rc = unsafe { ffi::sqlite3_vfs_register((&raw const vfs.vfs).cast_mut(), 0) };
        assert_eq!(rc, ffi::SQLITE_OK);
    });
}

fn real() -> *mut ffi::sqlite3_vfs {
    VFS.get().expect("registered").real
}

/// The real methods of an open file.
fn methods(file: *mut ffi::sqlite3_file) -> &'static ffi::sqlite3_io_methods {
    RECORDER.with_borrow(|recorder| recorder.open[&(file as usize)].theirs)
}

/// The name of a file in its folder.
///
/// # Safety
/// `path` must be a C string.
unsafe fn name_of(path: *const c_char) -> String {
    // SAFETY: as promised.
    let path = unsafe { CStr::from_ptr(path) }.to_str().expect("a path in UTF-8");
    Path::new(path).file_name().expect("a name").to_str().expect("UTF-8").into()
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's arguments are handed on; the file is one of the real VFS, whose methods are
    // replaced by ours, which hand on to them.
    unsafe {
        let open = (*real()).xOpen.expect("xOpen");
        let rc = open(real(), path, file, flags, out);
        if rc != ffi::SQLITE_OK || path.is_null() {
            return rc;
        }
        let theirs = &*(*file).pMethods;
        let ours = Box::new(ffi::sqlite3_io_methods {
            // Without xFetch, which would let SQLite write past us.
            iVersion: theirs.iVersion.min(2),
            xClose: Some(close),
            xWrite: Some(write),
            xTruncate: Some(truncate),
            xSync: Some(sync),
            ..*theirs
        });
        (*file).pMethods = &raw const *ours;
        let is_journal = flags & (ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_WAL) != 0;
        let syncs_folder = is_journal && flags & ffi::SQLITE_OPEN_CREATE != 0;
        let name = name_of(path);
        RECORDER.with_borrow_mut(|recorder| {
            let number = recorder.file(&name);
            let open = Open { file: number, syncs_folder, theirs, _ours: ours };
            recorder.open.insert(file as usize, open);
        });
        rc
    }
}

unsafe extern "C" fn delete(
    _: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    sync_folder: c_int,
) -> c_int {
    // SAFETY: SQLite's arguments are handed on.
    let (rc, name) = unsafe {
        let delete = (*real()).xDelete.expect("xDelete");
        (delete(real(), path, sync_folder), name_of(path))
    };
    if rc == ffi::SQLITE_OK {
        RECORDER.with_borrow_mut(|recorder| {
            if recorder.names.remove(&name).is_some() {
                recorder.events.push(Event::Unlink(name));
            }
            if sync_folder != 0 {
                recorder.events.push(Event::SyncFolder);
            }
        });
    }
    rc
}

/// Notes what was done to an open file.
fn note(file: *mut ffi::sqlite3_file, event: impl FnOnce(usize) -> Event) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(open) = recorder.open.get(&(file as usize)) {
            let event = event(open.file);
            recorder.events.push(event);
        }
    });
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let open = RECORDER.with_borrow_mut(|recorder| recorder.open.remove(&(file as usize)));
    // SAFETY: SQLite's arguments are handed on.
    unsafe { open.expect("an open file").theirs.xClose.expect("xClose")(file) }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    count: c_int,
    at: i64,
) -> c_int {
    // SAFETY: SQLite's arguments are handed on, and the bytes are as many as it says.
    let (rc, data) = unsafe {
        let rc = methods(file).xWrite.expect("xWrite")(file, bytes, count, at);
        (rc, slice::from_raw_parts(bytes.cast::<u8>(), count as usize))
    };
    if rc == ffi::SQLITE_OK {
        note(file, |number| Event::Write(number, at as usize, data.to_vec()));
    }
    rc
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    // SAFETY: SQLite's arguments are handed on.
    let rc = unsafe { methods(file).xTruncate.expect("xTruncate")(file, size) };
    if rc == ffi::SQLITE_OK {
        note(file, |number| Event::Truncate(number, size as usize));
    }
    rc
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite's arguments are handed on.
    let rc = unsafe { methods(file).xSync.expect("xSync")(file, flags) };
    if rc == ffi::SQLITE_OK {
        note(file, Event::Sync);
        RECORDER.with_borrow_mut(|recorder| {
            if let Some(open) = recorder.open.get_mut(&(file as usize))
                && std::mem::take(&mut open.syncs_folder)
            {
                recorder.events.push(Event::SyncFolder);
            }
        });
    }
    rc
}
