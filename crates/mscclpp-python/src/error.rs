//! Errors as exceptions: those of `mscclpp._errors`, whose arguments are a number and a text.

use std::{
    error::Error as StdError,
    ffi::{c_int, c_void},
};

use mscclpp::{
    Error, ErrorKind, Report,
    errors::{CoreError, GpuError, ProxyError},
};
use pyo3::{exceptions::PyTypeError, ffi, prelude::*, sync::PyOnceLock, types::PyType};

use crate::enums::enumeration;

enumeration! {
    /// The kind of an `Error`.
    ErrorCode as "ErrorCode" {
        SystemError = 0,
        InternalError = 1,
        RemoteError = 2,
        InvalidUsage = 3,
        Timeout = 4,
        Aborted = 5,
        ExecutorError = 6,
    }
}

impl From<ErrorKind> for ErrorCode {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::System => Self::SystemError,
            ErrorKind::Remote => Self::RemoteError,
            ErrorKind::InvalidUsage => Self::InvalidUsage,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::Aborted => Self::Aborted,
            _ => Self::InternalError,
        }
    }
}

/// The exceptions' names, here and in `mscclpp._errors`.
pub(crate) const EXCEPTIONS: [&str; 6] =
    ["BaseError", "Error", "SysError", "CudaError", "CuError", "IbError"];
pub(crate) const MODULE: &str = "mscclpp._errors";

fn exception(name: &str, code: i64, message: String) -> PyErr {
    Python::attach(|py| {
        static TYPES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
        let class = TYPES
            .get_or_try_init(py, || Ok::<_, PyErr>(py.import(MODULE)?.unbind()))
            .and_then(|module| Ok(module.bind(py).getattr(name)?.cast_into::<PyType>()?));
        match class {
            Ok(class) => PyErr::from_type(class, (code, message)),
            Err(error) => error,
        }
    })
}

/// Makes an `Error` that the Python layer itself reports.
pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> PyErr {
    exception("Error", ErrorCode::from(kind) as i64, message.into())
}

/// Makes the error for a call or an argument that can never be right.
pub(crate) fn misuse(message: impl Into<String>) -> PyErr {
    new(ErrorKind::InvalidUsage, message)
}

/// Makes the error for an object of the wrong class, whose name is appended to `expected`.
pub(crate) fn unexpected(expected: &str, object: &Bound<'_, PyAny>) -> PyErr {
    object.get_type().name().map_or_else(|e| e, |name| PyTypeError::new_err(format!("{expected} {name}")))
}

/// Makes the error of a wait that ran out of time. It has consumed nothing and can be repeated.
pub(crate) fn timeout(message: impl Into<String>) -> PyErr {
    new(ErrorKind::Timeout, message)
}

/// Raises `error` in the main thread as soon as that runs Python code again. Destructors use it, as they cannot
/// raise.
pub(crate) fn raise_soon(py: Python<'_>, error: PyErr) {
    extern "C" fn raise(error: *mut c_void) -> c_int {
        // SAFETY: called once, with what was made below, by a thread that is attached.
        let error = unsafe { Box::from_raw(error.cast::<PyErr>()) };
        Python::attach(|py| error.restore(py));
        -1
    }
    let error = Box::into_raw(Box::new(error));
    // SAFETY: the function takes what it is given, and raises when it says -1.
    if unsafe { ffi::Py_AddPendingCall(Some(raise), error.cast()) } != 0 {
        // The queue of the interpreter is full.
        // SAFETY: nobody else has it.
        unsafe { Box::from_raw(error) }.write_unraisable(py, None);
    }
}

/// Turns errors of the library into exceptions.
pub(crate) trait OrRaise<T> {
    fn or_raise(self) -> PyResult<T>;
}

impl<T, E: Into<Error>> OrRaise<T> for Result<T, E> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raise(&error.into()))
    }
}

/// Turns an error of the library into an exception.
pub(crate) fn raise(error: &Error) -> PyErr {
    let message = translated(error);
    if let Some(GpuError::Driver { code, .. }) = device_error(error) {
        return exception("CuError", i64::from(*code), message);
    }
    match (error.kind(), system_number(error)) {
        (ErrorKind::System, Some(number)) => exception("SysError", i64::from(number), message),
        (kind, _) => new(kind, message),
    }
}

/// Names in the texts of the library, and the names that Python programs use instead.
const NAMES: [(&str, &str); 20] = [
    ("Layout::Rank", "the layout \"rank\""),
    ("Layout::Token", "the layout \"token\""),
    ("Layout::Expert", "the layout \"expert\""),
    ("Layout::Flat", "the layout \"flat\""),
    ("exact(true)", "exact=True"),
    ("DevicePtr(", "("),
    ("HostToDeviceSemaphore", "Host2DeviceSemaphore"),
    ("HostToHostSemaphore", "Host2HostSemaphore"),
    ("DeviceToDeviceSemaphore", "MemoryDevice2DeviceSemaphore"),
    (
        "give Device::gpu(id), Device::CURRENT_GPU or Device::CPU",
        "give DeviceType.GPU, DeviceType.CPU or a Device",
    ),
    ("Device::CPU", "DeviceType.CPU"),
    ("ProxyHandlerResult::", "ProxyHandlerResult."),
    ("DeviceBuffer::", "RawGpuBuffer."),
    ("Gpu::allocate", "mscclpp.RawGpuBuffer"),
    ("use Gpu::stream", "pass None for the default stream"),
    ("Module::load", "KernelBuilder"),
    ("add one to Context::builder()", "this package has none for it"),
    ("(MemoryChannel::check_lines says why)", "(see the book, Device calls)"),
    (
        "name rank and tag: build_semaphore_with(), build_fastest_semaphore_with()",
        "name rank and tag: build_semaphore(connection, remote_rank, tag)",
    ),
    ("as connect_all() and mesh() do", "as connect_all() does"),
];

/// Makes the `Error` for an error of the collectives or experts.
pub(crate) fn in_python(kind: ErrorKind, error: &(dyn StdError + 'static)) -> PyErr {
    new(kind, translated(error))
}

/// Returns the text of an error and its causes, with names of Python in the place of the library's.
fn translated(error: &(dyn StdError + 'static)) -> String {
    let replaced = |text: String, (from, to): &(&str, &str)| {
        if text.contains(from) { text.replace(from, to) } else { text }
    };
    NAMES.iter().fold(Report(error).to_string(), replaced)
}

fn device_error(error: &Error) -> Option<&GpuError> {
    fn of_core(error: &CoreError) -> Option<&GpuError> {
        match error {
            CoreError::Gpu(error) => Some(error),
            _ => None,
        }
    }
    match error {
        Error::Gpu(error) | Error::Proxy(ProxyError::Gpu(error)) => Some(error),
        Error::Core(error) => of_core(error),
        Error::Exchange { source, .. } => of_core(source),
        Error::Proxy(error) => error.core().and_then(of_core),
        _ => None,
    }
}

/// Returns `errno` if an error of the operating system is the cause.
fn system_number(error: &Error) -> Option<i32> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(number) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Some(number);
        }
        cause = error.source();
    }
    None
}
