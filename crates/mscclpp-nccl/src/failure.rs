//! What went wrong, as NCCL's interface says it: a code, and a sentence in `ncclGetLastError`.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use mscclpp::{
    Error as Below, ErrorKind,
    errors::{BootstrapError, CoreError, GpuError, Report},
    gpu::fork::Origin,
};
use mscclpp_collectives::Error;
use parking_lot::Mutex;

use crate::{abi::Code, report};

/// A call that failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// An argument that is wrong in every situation.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(Code::INVALID_ARGUMENT, text)
    }

    /// A call that is wrong as things are, or that this library does not cover.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Code::INVALID_USAGE, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidArgument(_) => Code::INVALID_ARGUMENT,
            Error::Below(below) if is_of_driver(below) => Code::UNHANDLED_CUDA_ERROR,
            Error::Failed { source, .. } if is_of_driver(source) => Code::UNHANDLED_CUDA_ERROR,
            other => code_of(other.kind()),
        };
        Self::new(code, Report(&error).to_string())
    }
}

fn is_of_driver(error: &Below) -> bool {
    matches!(error, Below::Gpu(GpuError::Driver { .. } | GpuError::Unavailable { .. }))
}

fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::System => Code::SYSTEM_ERROR,
        ErrorKind::Remote | ErrorKind::Timeout | ErrorKind::Aborted => Code::REMOTE_ERROR,
        ErrorKind::InvalidUsage => Code::INVALID_USAGE,
        _ => Code::INTERNAL_ERROR,
    }
}

impl From<Below> for Failure {
    fn from(error: Below) -> Self {
        Error::from(error).into()
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Error::from(error).into()
    }
}

impl From<CoreError> for Failure {
    fn from(error: CoreError) -> Self {
        Error::from(error).into()
    }
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Self {
        Error::from(error).into()
    }
}

/// The last failure of this process, for threads that did not see it themselves.
static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    /// Why this thread's last call failed, if it did.
    static OWN: RefCell<Option<String>> = const { RefCell::new(None) };
    /// What this thread was last given by `ncclGetLastError`, for which it has a pointer.
    static GIVEN: RefCell<CString> = RefCell::default();
}

/// Keeps what `ncclGetLastError` is to say.
pub(crate) fn remember(failure: &Failure) {
    LAST.lock().clone_from(&failure.text);
}

/// Why this thread's last call failed, or if it did not, what failed last in this process. Valid until this thread asks again.
pub(crate) fn last() -> *const c_char {
    give(OWN.with_borrow(Clone::clone).unwrap_or_else(|| LAST.lock().clone()))
}

/// A text for C code, valid until this thread asks for another.
pub(crate) fn give(text: String) -> *const c_char {
    let mut bytes = text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    GIVEN.with_borrow_mut(|given| {
        *given = CString::new(bytes).unwrap_or_default();
        given.as_ptr()
    })
}

/// What a function of the interface answers: runs its body, keeps and logs what failed. A panic ends here.
///
/// In a child forked after the first communicator was made nothing can be used: it has none of the threads behind them, and locks
/// may be held there for ever.
pub(crate) fn answered<T: Into<Code>>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> Code {
    if let Some(Err(error)) = USED_IN.get().map(|process| process.check()) {
        // No lock is taken: what was said last stays said.
        report::always(&format!("{name}: {error}"));
        return Code::INVALID_USAGE;
    }
    answered_anywhere(name, body)
}

/// As [`answered`], for what needs nothing of the process.
pub(crate) fn answered_anywhere<T: Into<Code>>(
    name: &str,
    body: impl FnOnce() -> Result<T, Failure>,
) -> Code {
    let failure = match guarded(name, body) {
        Ok(answer) => {
            OWN.take();
            return answer.into();
        }
        Err(failure) => failure,
    };
    let failure = Failure { text: format!("{name}: {}", failure.text), ..failure };
    remember(&failure);
    OWN.set(Some(failure.text.clone()));
    report::warn(&failure.text);
    failure.code
}

/// The process that has communicators or memory of this library.
static USED_IN: OnceLock<Origin> = OnceLock::new();

/// From now on, forked children of this process are told that they cannot use the library.
pub(crate) fn used_here() {
    USED_IN.get_or_init(Origin::here);
}

/// Whether this is that process, and not a child of it.
pub(crate) fn is_used_here() -> bool {
    USED_IN.get().is_some_and(|process| process.is_here())
}

/// Whether this is a child of that process.
pub(crate) fn is_foreign() -> bool {
    USED_IN.get().is_some_and(|process| !process.is_here())
}

/// Turns a panic of `body` into a failure.
pub(crate) fn guarded<T>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it says nothing");
        let text = format!("a defect in mscclpp-nccl, please report it: {name} panicked: {said}");
        Err(Failure::new(Code::INTERNAL_ERROR, text))
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn said() -> String {
        // SAFETY: it is valid until this thread asks again.
        unsafe { CStr::from_ptr(last()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_an_internal_error_that_says_where() {
        let code = answered("ncclNothing", || -> Result<(), Failure> { panic!("on {}", "purpose") });
        assert_eq!(code, Code::INTERNAL_ERROR);
        assert!(said().contains("ncclNothing panicked: on purpose"), "{}", said());
    }

    #[test]
    fn texts_for_c_end_where_they_end() {
        // SAFETY: as in `said`.
        assert_eq!(unsafe { CStr::from_ptr(give("a\0b".to_owned())) }, c"ab");
    }
}
