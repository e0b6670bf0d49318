//! Turns results of a driver into errors that say what a user can do.

use std::{
    ffi::{CStr, c_char},
    fmt,
};

use mscclpp_gpu_sys::Code;

use super::api::Api;
use crate::{Error, Result};

/// An error unless `result` is success.
pub(crate) fn check<D: Api>(driver: &D, result: D::Code, operation: impl fmt::Display) -> Result<()> {
    if result == D::Code::SUCCESS { Ok(()) } else { Err(failure(driver, result, operation)) }
}

pub(crate) fn failure<D: Api>(driver: &D, result: D::Code, operation: impl fmt::Display) -> Error {
    driver.forget();
    Error::Driver {
        operation: operation.to_string(),
        code: result.number(),
        name: name(driver, result),
        description: description(driver, result),
    }
}

/// The whole platform cannot be used.
pub(crate) fn unavailable<D: Api>(driver: &D, operation: &str, result: D::Code) -> Error {
    driver.forget();
    Error::Unavailable {
        platform: D::PLATFORM,
        reason: format!(
            "{operation} of {} failed: {} ({}): {}",
            driver.path(),
            name(driver, result),
            result.number(),
            description(driver, result)
        ),
    }
}

/// Logs what failed in a `drop`.
pub(crate) fn log_failure<D: Api>(driver: &D, result: D::Code, operation: impl fmt::Display) {
    if result != D::Code::SUCCESS {
        log_error::<D>(&failure(driver, result, operation));
    }
}

/// Logs what failed in a `drop`. At the end of the process the driver may be gone already, which is no failure.
pub(crate) fn log_error<D: Api>(error: &Error) {
    if !matches!(error, Error::Driver { code, .. } if *code == D::Code::DEINITIALIZED.number()) {
        tracing::warn!(target: "mscclpp::gpu", "{error}");
    }
}

fn name<D: Api>(driver: &D, result: D::Code) -> String {
    let known = result.name().map(str::to_owned);
    known
        .or_else(|| text(driver.functions().get_error_name.1, result))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn description<D: Api>(driver: &D, result: D::Code) -> String {
    let words = text(driver.functions().get_error_string.1, result);
    let words = words.unwrap_or_else(|| "no description".to_owned());
    match D::hint(result) {
        Some(hint) => format!("{words}; {hint}"),
        None => words,
    }
}

type TextOf<C> = unsafe extern "C" fn(C, *mut *const c_char) -> C;

fn text<C: Code>(of: TextOf<C>, result: C) -> Option<String> {
    let mut words = std::ptr::null();
    // SAFETY: `words` is valid for the write; these functions need no initialisation.
    let found = unsafe { of(result, &raw mut words) };
    if found != C::SUCCESS || words.is_null() {
        return None;
    }
    // SAFETY: the driver's texts are static and NUL-terminated.
    Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Checks that the errors which users meet first come with advice.
    pub(crate) fn comes_with_advice<D: Api>(cases: &[(D::Code, &str)], unknown: D::Code) {
        for (code, word) in cases {
            assert!(D::hint(*code).is_some_and(|hint| hint.contains(word)), "{:?}", code.name());
        }
        assert_eq!(D::hint(unknown), None);
    }

    #[test]
    fn text_survives_a_driver_that_knows_nothing() {
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(transparent)]
        struct Number(u32);

        impl Code for Number {
            const SUCCESS: Self = Self(0);
            const NOT_READY: Self = Self(1);
            const DEINITIALIZED: Self = Self(2);
            const NOT_FOUND: Self = Self(3);

            fn number(self) -> u32 {
                self.0
            }

            fn name(self) -> Option<&'static str> {
                None
            }
        }

        unsafe extern "C" fn nothing(_: Number, _: *mut *const c_char) -> Number {
            Number::NOT_READY
        }
        assert_eq!(text(nothing, Number(7)), None);
    }
}
