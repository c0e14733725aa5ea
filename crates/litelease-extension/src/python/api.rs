//! The functions of CPython that are called here, by address, and counted references.
//!
//! The library is linked with no Python: the package passes the addresses when it loads it. All of
//! them are in CPython's stable ABI, or have been exported since 3.3. Their callers hold the GIL.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_longlong, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use crate::python::this_process;

/// A `PyObject*`.
pub(crate) type Raw = *mut c_void;

/// The table of functions, in the order of their names.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        /// Their names, separated by spaces.
        pub(crate) const NAMES: &CStr =
            match CStr::from_bytes_with_nul(concat!($(stringify!($name), " ",)* "\0").as_bytes()) {
                Ok(names) => names,
                Err(_) => c"",
            };
    };
}

functions! {
    PyCFunction_NewEx: fn(*const Method, Raw, Raw) -> Raw;
    PyCapsule_GetPointer: fn(Raw, *const c_char) -> *mut c_void;
    PyCapsule_New: fn(*mut c_void, *const c_char, Option<unsafe extern "C" fn(Raw)>) -> Raw;
    PyBytes_AsStringAndSize: fn(Raw, *mut *mut c_char, *mut isize) -> c_int;
    PyBytes_FromStringAndSize: fn(*const c_char, isize) -> Raw;
    PyDict_New: fn() -> Raw;
    PyDict_SetItemString: fn(Raw, *const c_char, Raw) -> c_int;
    PyErr_CheckSignals: fn() -> c_int;
    PyErr_Clear: fn();
    PyErr_Fetch: fn(*mut Raw, *mut Raw, *mut Raw);
    PyErr_NormalizeException: fn(*mut Raw, *mut Raw, *mut Raw);
    PyErr_Restore: fn(Raw, Raw, Raw);
    PyErr_WarnEx: fn(Raw, *const c_char, isize) -> c_int;
    PyErr_WriteUnraisable: fn(Raw);
    PyEval_RestoreThread: fn(*mut c_void);
    PyEval_SaveThread: fn() -> *mut c_void;
    PyException_SetTraceback: fn(Raw, Raw) -> c_int;
    PyFloat_AsDouble: fn(Raw) -> c_double;
    PyFloat_FromDouble: fn(c_double) -> Raw;
    PyList_GetItem: fn(Raw, isize) -> Raw;
    PyList_New: fn(isize) -> Raw;
    PyList_SetItem: fn(Raw, isize, Raw) -> c_int;
    PyList_Size: fn(Raw) -> isize;
    PyLong_AsLongLong: fn(Raw) -> c_longlong;
    PyLong_FromLongLong: fn(c_longlong) -> Raw;
    PyObject_Call: fn(Raw, Raw, Raw) -> Raw;
    PyObject_GetAttr: fn(Raw, Raw) -> Raw;
    PyObject_IsInstance: fn(Raw, Raw) -> c_int;
    PyObject_IsTrue: fn(Raw) -> c_int;
    PyObject_SetAttr: fn(Raw, Raw, Raw) -> c_int;
    PyObject_Str: fn(Raw) -> Raw;
    PyObject_Type: fn(Raw) -> Raw;
    PyTuple_GetItem: fn(Raw, isize) -> Raw;
    PyTuple_New: fn(isize) -> Raw;
    PyTuple_SetItem: fn(Raw, isize, Raw) -> c_int;
    PyTuple_Size: fn(Raw) -> isize;
    PyUnicode_AsUTF8AndSize: fn(Raw, *mut isize) -> *const c_char;
    PyUnicode_FromStringAndSize: fn(*const c_char, isize) -> Raw;
    PyUnicode_InternFromString: fn(*const c_char) -> Raw;
    Py_DecRef: fn(Raw);
    Py_IncRef: fn(Raw);
}

/// CPython's `PyMethodDef`.
#[repr(C)]
pub(crate) struct Method {
    pub(crate) name: *const c_char,
    pub(crate) function: unsafe extern "C" fn(Raw, Raw) -> Raw,
    pub(crate) flags: c_int,
    pub(crate) doc: *const c_char,
}

/// `METH_VARARGS`: the function gets itself and a tuple.
pub(crate) const VARARGS: c_int = 1;

// SAFETY: a definition is never changed, and its texts live for ever.
unsafe impl Sync for Method {}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Stores the addresses. A second call changes nothing.
///
/// # Safety
/// They must be those of [`NAMES`], in their order.
pub(crate) unsafe fn set_functions(addresses: *const *const c_void) {
    // SAFETY: as promised; the struct is as many pointers to functions, in the same order.
    FUNCTIONS.get_or_init(|| unsafe { ptr::read(addresses.cast::<Functions>()) });
}

/// Returns the functions. No code here runs before they were set.
#[inline]
pub(crate) fn py() -> &'static Functions {
    match FUNCTIONS.get() {
        Some(functions) => functions,
        None => std::process::abort(),
    }
}

/// A reference of our own to an object.
pub(crate) struct Object(Raw);

/// Marks that an exception is set in Python. Every caller passes it on.
#[derive(Debug)]
pub(crate) struct Raised;

pub(crate) type Result<T, E = Raised> = std::result::Result<T, E>;

impl Object {
    /// Takes over a reference that a function has returned; null means that it has raised.
    pub(crate) fn owned(raw: Raw) -> Result<Self> {
        if raw.is_null() { Err(Raised) } else { Ok(Object(raw)) }
    }

    /// Makes another reference to a living object.
    pub(crate) fn borrowed(raw: Raw) -> Result<Self> {
        if raw.is_null() {
            return Err(Raised);
        }
        // SAFETY: the object is alive.
        unsafe { (py().Py_IncRef)(raw) };
        Ok(Object(raw))
    }

    pub(crate) fn as_raw(&self) -> Raw {
        self.0
    }

    /// Gives the reference away.
    pub(crate) fn into_raw(self) -> Raw {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    pub(crate) fn attribute(&self, name: &Object) -> Result<Object> {
        // SAFETY: both are alive.
        Object::owned(unsafe { (py().PyObject_GetAttr)(self.0, name.0) })
    }

    pub(crate) fn set_attribute(&self, name: &Object, value: &Object) -> Result<()> {
        // SAFETY: all are alive.
        done(unsafe { (py().PyObject_SetAttr)(self.0, name.0, value.0) })
    }

    pub(crate) fn call(&self, arguments: Vec<Object>) -> Result<Object> {
        let arguments = tuple(arguments)?;
        // SAFETY: both are alive, and there are no keywords.
        Object::owned(unsafe { (py().PyObject_Call)(self.0, arguments.0, ptr::null_mut()) })
    }

    pub(crate) fn is_true(&self) -> Result<bool> {
        // SAFETY: it is alive.
        match unsafe { (py().PyObject_IsTrue)(self.0) } {
            -1 => Err(Raised),
            truth => Ok(truth != 0),
        }
    }

    pub(crate) fn is_instance(&self, class: &Object) -> bool {
        // SAFETY: both are alive. A class whose check raises has no instances.
        match unsafe { (py().PyObject_IsInstance)(self.0, class.0) } {
            -1 => {
                clear();
                false
            }
            is_one => is_one != 0,
        }
    }

    /// Returns the address of its class, for comparisons.
    pub(crate) fn class(&self) -> Raw {
        // SAFETY: it is alive, and keeps its class alive.
        unsafe {
            let class = (py().PyObject_Type)(self.0);
            if !class.is_null() {
                (py().Py_DecRef)(class);
            }
            class
        }
    }

    /// Returns its text, if it is a `str`.
    pub(crate) fn text(&self) -> Result<&str> {
        let mut length = 0;
        // SAFETY: the text lives as long as the object, and is UTF-8 of this length.
        unsafe {
            let start = (py().PyUnicode_AsUTF8AndSize)(self.0, &raw mut length);
            if start.is_null() {
                return Err(Raised);
            }
            let bytes = std::slice::from_raw_parts(start.cast(), length.unsigned_abs());
            Ok(str::from_utf8_unchecked(bytes))
        }
    }

    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        let (mut start, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the bytes live as long as the object.
        unsafe {
            done((py().PyBytes_AsStringAndSize)(self.0, &raw mut start, &raw mut length))?;
            Ok(std::slice::from_raw_parts(start.cast(), length.unsigned_abs()))
        }
    }

    /// Returns the answer of `str()`, or an empty text if that raises.
    pub(crate) fn shown(&self) -> String {
        // SAFETY: it is alive.
        let shown = Object::owned(unsafe { (py().PyObject_Str)(self.0) });
        let text = shown.as_ref().ok().and_then(|shown| shown.text().ok()).map(str::to_owned);
        text.unwrap_or_else(|| {
            clear();
            String::new()
        })
    }

    /// Returns an item of a tuple.
    pub(crate) fn item(&self, at: usize) -> Result<Object> {
        // SAFETY: it is alive; what is no tuple raises.
        Object::borrowed(unsafe { (py().PyTuple_GetItem)(self.0, at.cast_signed()) })
    }

    pub(crate) fn tuple_len(&self) -> Result<usize> {
        // SAFETY: it is alive; what is no tuple raises.
        usize::try_from(unsafe { (py().PyTuple_Size)(self.0) }).map_err(|_| Raised)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: it is a reference of our own.
        unsafe { (py().Py_DecRef)(self.0) };
    }
}

/// The target of a capsule, under its name.
pub(crate) trait InCapsule: Send + Sync + 'static {
    const NAME: &'static CStr;

    /// Called when its capsule is freed.
    fn freed(&self) {}
}

/// Makes a capsule with a reference, which it gives back when it is freed.
pub(crate) fn capsule_of<T: InCapsule>(value: Arc<T>) -> Result<Object> {
    let raw = Arc::into_raw(value);
    // SAFETY: the capsule gives the reference back with its destructor.
    unsafe {
        let capsule =
            (py().PyCapsule_New)(raw.cast_mut().cast(), T::NAME.as_ptr(), Some(free::<T>));
        if capsule.is_null() {
            drop(Arc::from_raw(raw));
        }
        Object::owned(capsule)
    }
}

/// Frees the target of a capsule. Keeps the GIL, because the interpreter may be ending.
unsafe extern "C" fn free<T: InCapsule>(capsule: Raw) {
    // SAFETY: Python calls it once, for a capsule of `capsule_of`.
    let value = unsafe {
        let raw = (py().PyCapsule_GetPointer)(capsule, T::NAME.as_ptr());
        if raw.is_null() {
            return;
        }
        Arc::from_raw(raw.cast::<T>())
    };
    let _ = catch_unwind(AssertUnwindSafe(|| {
        value.freed();
        drop(value);
    }));
}

/// Returns another reference to the target of a capsule.
pub(crate) fn in_capsule<T: InCapsule>(capsule: &Object) -> Result<Arc<T>> {
    // SAFETY: the capsule has a reference, and this makes another.
    unsafe {
        let raw = (py().PyCapsule_GetPointer)(capsule.as_raw(), T::NAME.as_ptr()).cast::<T>();
        if raw.is_null() {
            return Err(Raised);
        }
        Arc::increment_strong_count(raw);
        Ok(Arc::from_raw(raw))
    }
}

/// The target of a capsule that owns it, under its name.
pub(crate) trait Boxed: 'static {
    const NAME: &'static CStr;
}

/// Makes a capsule of a value, which is dropped when the capsule is freed.
pub(crate) fn boxed<T: Boxed>(value: T) -> Result<Object> {
    let raw = Box::into_raw(Box::new(value));
    // SAFETY: the capsule frees the value with its destructor.
    unsafe {
        let capsule = (py().PyCapsule_New)(raw.cast(), T::NAME.as_ptr(), Some(free_box::<T>));
        if capsule.is_null() {
            drop(Box::from_raw(raw));
        }
        Object::owned(capsule)
    }
}

unsafe extern "C" fn free_box<T: Boxed>(capsule: Raw) {
    // SAFETY: Python calls it once, for a capsule of `boxed` to which nothing refers.
    unsafe {
        let raw = (py().PyCapsule_GetPointer)(capsule, T::NAME.as_ptr());
        if !raw.is_null() {
            let value = Box::from_raw(raw.cast::<T>());
            let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
        }
    }
}

/// Returns the value that a capsule owns.
pub(crate) fn in_box<T: Boxed>(capsule: &Object) -> Result<&T> {
    // SAFETY: the capsule keeps the value alive, and outlives the reference to it.
    unsafe {
        let raw = (py().PyCapsule_GetPointer)(capsule.as_raw(), T::NAME.as_ptr());
        raw.cast::<T>().as_ref().ok_or(Raised)
    }
}

/// A value that a forked process leaves alone, because its locks may be held for ever there.
pub(crate) struct OfProcess<T> {
    process: u64,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        OfProcess { process: this_process(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value, or none in a forked process.
    pub(crate) fn get(&self) -> Option<&T> {
        (self.process == this_process()).then_some(&*self.value)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: it is not used any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

fn done(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Raised) }
}

/// Clears the exception that is set.
pub(crate) fn clear() {
    // SAFETY: the GIL is held.
    unsafe { (py().PyErr_Clear)() };
}

pub(crate) fn string(text: &str) -> Result<Object> {
    // SAFETY: the text has this length.
    Object::owned(unsafe {
        (py().PyUnicode_FromStringAndSize)(text.as_ptr().cast(), text.len().cast_signed())
    })
}

pub(crate) fn interned(text: &CStr) -> Result<Object> {
    // SAFETY: it is a C string.
    Object::owned(unsafe { (py().PyUnicode_InternFromString)(text.as_ptr()) })
}

pub(crate) fn integer(number: i64) -> Result<Object> {
    // SAFETY: the GIL is held.
    Object::owned(unsafe { (py().PyLong_FromLongLong)(number) })
}

pub(crate) fn float(number: f64) -> Result<Object> {
    // SAFETY: the GIL is held.
    Object::owned(unsafe { (py().PyFloat_FromDouble)(number) })
}

pub(crate) fn bytes(bytes: &[u8]) -> Result<Object> {
    // SAFETY: there are so many.
    Object::owned(unsafe {
        (py().PyBytes_FromStringAndSize)(bytes.as_ptr().cast(), bytes.len().cast_signed())
    })
}

pub(crate) fn tuple(items: Vec<Object>) -> Result<Object> {
    // SAFETY: the new tuple has a place for each item, and takes over its reference.
    unsafe {
        let made = Object::owned((py().PyTuple_New)(items.len().cast_signed()))?;
        for (at, item) in (0..).zip(items) {
            done((py().PyTuple_SetItem)(made.0, at, item.into_raw()))?;
        }
        Ok(made)
    }
}

pub(crate) fn list(items: Vec<Object>) -> Result<Object> {
    // SAFETY: the new list has a place for each item, and takes over its reference.
    unsafe {
        let made = Object::owned((py().PyList_New)(items.len().cast_signed()))?;
        for (at, item) in (0..).zip(items) {
            done((py().PyList_SetItem)(made.0, at, item.into_raw()))?;
        }
        Ok(made)
    }
}

/// Takes the exception that is set.
pub(crate) fn take_exception() -> Result<Object> {
    let (mut class, mut value, mut trace) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: each of the three is null or a reference that is ours then.
    unsafe {
        (py().PyErr_Fetch)(&raw mut class, &raw mut value, &raw mut trace);
        (py().PyErr_NormalizeException)(&raw mut class, &raw mut value, &raw mut trace);
        let (_class, trace) = (Object::owned(class), Object::owned(trace));
        let value = Object::owned(value)?;
        if let Ok(trace) = trace {
            (py().PyException_SetTraceback)(value.0, trace.0);
        }
        Ok(value)
    }
}

/// Sets an exception, such as one that was taken.
pub(crate) fn set_exception(exception: Object) -> Raised {
    let class = Object::borrowed(exception.class());
    // SAFETY: the class is alive, and both references are given away.
    unsafe {
        let class = class.map_or(ptr::null_mut(), Object::into_raw);
        (py().PyErr_Restore)(class, exception.into_raw(), ptr::null_mut());
    }
    Raised
}

/// `ResourceWarning`, once it is known.
static RESOURCE_WARNING: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Stores the class of warnings. It lives as long as the process.
pub(crate) fn set_resource_warning(class: Object) {
    RESOURCE_WARNING.store(class.into_raw(), Ordering::SeqCst);
}

/// Warns while an object is freed. An exception that is set stays set, and one that the warning
/// turns into is only reported.
pub(crate) fn warn_of_resource(text: &str) {
    let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
    let (mut class, mut value, mut trace) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the GIL is held, the class lives for ever, and what is fetched is given back.
    unsafe {
        (py().PyErr_Fetch)(&raw mut class, &raw mut value, &raw mut trace);
        let warning = RESOURCE_WARNING.load(Ordering::SeqCst);
        if !warning.is_null() && (py().PyErr_WarnEx)(warning, text.as_ptr(), 1) != 0 {
            (py().PyErr_WriteUnraisable)(ptr::null_mut());
        }
        (py().PyErr_Restore)(class, value, trace);
    }
}

/// Lets Python handle the signals that have come. Their handlers may raise.
pub(crate) fn check_signals() -> Result<()> {
    // SAFETY: the GIL is held.
    done(unsafe { (py().PyErr_CheckSignals)() })
}

/// True if no code releases the GIL any more.
static KEEPS_GIL: AtomicBool = AtomicBool::new(false);

/// Keeps the GIL from now on. The end of the runtime also ends interpreters that were left alive,
/// on its own thread, and ends a thread that takes the GIL back in one of those.
pub(crate) fn keep_gil() {
    KEEPS_GIL.store(true, Ordering::SeqCst);
}

pub(crate) fn is_gil_kept() -> bool {
    KEEPS_GIL.load(Ordering::SeqCst)
}

/// Runs `work` without the GIL.
pub(crate) fn without_gil(work: impl FnOnce()) {
    if is_gil_kept() {
        return work();
    }
    // SAFETY: the GIL is held, and is taken again by the same thread.
    unsafe {
        let thread = (py().PyEval_SaveThread)();
        work();
        (py().PyEval_RestoreThread)(thread);
    }
}
