//! How the functions of the C interface answer: with a code, and with the text of a failure for `ncclGetLastError`.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
    sync::OnceLock,
};

use mscclpp::gpu::fork::Origin;
use parking_lot::Mutex;

use crate::{
    abi::Code,
    failure::{Failure, guarded},
    report,
};

/// Defines exported functions that return a code: the one that the body gives, or the one of its failure.
macro_rules! function {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::missing_safety_doc, reason = "a function of a C interface")]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::abi::Code {
                $crate::answers::answered(stringify!($name), || {
                    // SAFETY: callers of the C interface promise what the functions in the body ask for.
                    #[allow(unused_unsafe, reason = "many functions take numbers alone")]
                    unsafe { $body.map_err($crate::failure::Failure::from) }
                })
            }
        )*
    };
}
pub(crate) use function;

/// The text of the last failure in this process, for threads whose own last call did not fail.
static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    /// The text of the failure of this thread's last call, if it failed.
    static OWN: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The text to which the last `ncclGetLastError` of this thread gave a pointer.
    static GIVEN: RefCell<CString> = RefCell::default();
}

/// Keeps a failure as the last one of this process, for `ncclGetLastError`. In a forked child, where the lock may be held for
/// ever, only the thread's own failure is kept.
pub(crate) fn remember(failure: &Failure) {
    if check_process().is_ok() {
        LAST.lock().clone_from(&failure.text);
    }
}

/// The text of the failure of this thread's last call, or if that did not fail, of the last failure in this process. Valid until
/// this thread calls this function or [`give`] again.
pub(crate) fn last() -> *const c_char {
    let of_process = || check_process().map(|()| LAST.lock().clone()).unwrap_or_default();
    give(OWN.with_borrow(Clone::clone).unwrap_or_else(of_process))
}

/// Converts a text to a C string, which is valid until this thread calls this function again.
pub(crate) fn give(text: String) -> *const c_char {
    let mut bytes = text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    GIVEN.with_borrow_mut(|given| {
        *given = CString::new(bytes).unwrap_or_default();
        given.as_ptr()
    })
}

/// Runs the body of a function of the interface, and returns its code. Keeps and logs a failure, and turns a panic into one.
///
/// In a child that was forked after the library was first used, every such function is refused: the child has none of the threads
/// that communicators need, and locks may be held in it for ever.
pub(crate) fn answered<T: Into<Code>>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> Code {
    if let Err(failure) = check_process() {
        let text = format!("{name}: {}", failure.text);
        report::always(&text);
        OWN.set(Some(text));
        return failure.code;
    }
    answered_anywhere(name, body)
}

/// Runs the body of a function as [`answered`] does, but also in a forked child: for functions that need no communicator.
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

/// The process that made communicators or memory with this library.
static USED_IN: OnceLock<Origin> = OnceLock::new();

/// Notes that this process uses the library: in children that it forks from now on, calls are refused.
pub(crate) fn used_here() {
    USED_IN.get_or_init(Origin::here);
}

/// Whether this process uses the library. This is false in children that it forks.
pub(crate) fn is_used_here() -> bool {
    USED_IN.get().is_some_and(|process| process.is_here())
}

/// Checks that this process was not forked by one that used the library.
///
/// # Errors
/// [`Code::INVALID_USAGE`].
pub(crate) fn check_process() -> Result<(), Failure> {
    let checked = USED_IN.get().map_or(Ok(()), |process| process.check());
    checked.map_err(|error| Failure::usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn said() -> String {
        // SAFETY: the text is valid until this thread calls `last` again.
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
        // SAFETY: the text is valid until this thread calls `give` again.
        assert_eq!(unsafe { CStr::from_ptr(give("a\0b".to_owned())) }, c"ab");
    }
}
