//! Turns results of the HIP runtime into errors that say what a user can do.
//!
//! HIP keeps the last failed result of a thread for `hipGetLastError`. Other code asks there about its own calls, so
//! this library removes the results of its calls.

use std::ffi::{CStr, c_char};

use mscclpp_gpu_sys::hip::{Hip, HipResult};

use crate::{Error, Platform, Result};

/// An error unless `result` is success.
pub(super) fn check(hip: &Hip, result: HipResult, operation: impl Into<String>) -> Result<()> {
    if result == HipResult::SUCCESS { Ok(()) } else { Err(failure(hip, result, operation)) }
}

pub(super) fn failure(hip: &Hip, result: HipResult, operation: impl Into<String>) -> Error {
    forget(hip);
    Error::Driver {
        operation: operation.into(),
        code: result.0,
        name: name(hip, result),
        description: description(hip, result),
    }
}

/// Takes the thread's last failed result away, which was an answer and no failure.
pub(super) fn forget(hip: &Hip) {
    // SAFETY: it takes nothing. It gives the result that it takes away.
    let _known = unsafe { (hip.get_last_error)() };
}

/// The whole platform cannot be used.
pub(super) fn unavailable(hip: &Hip, operation: &str, result: HipResult) -> Error {
    forget(hip);
    Error::Unavailable {
        platform: Platform::Hip,
        reason: format!(
            "{operation} of {} failed: {} ({}): {}",
            hip.path(),
            name(hip, result),
            result.0,
            description(hip, result)
        ),
    }
}

/// Logs what failed in a `drop`.
pub(super) fn log_failure(hip: &Hip, result: HipResult, operation: &str) {
    if result != HipResult::SUCCESS {
        log_error(&failure(hip, result, operation));
    }
}

/// Logs what failed in a `drop`. At the end of the process the runtime may be gone already, which is no failure.
pub(super) fn log_error(error: &Error) {
    if !matches!(error, Error::Driver { code, .. } if *code == HipResult::DEINITIALIZED.0) {
        tracing::warn!(target: "mscclpp::gpu", "{error}");
    }
}

fn name(hip: &Hip, result: HipResult) -> String {
    result
        .name()
        .map(str::to_owned)
        .or_else(|| text(hip.get_error_name, result))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn description(hip: &Hip, result: HipResult) -> String {
    let words = text(hip.get_error_string, result).unwrap_or_else(|| "no description".to_owned());
    match hint(result) {
        Some(hint) => format!("{words}; {hint}"),
        None => words,
    }
}

type TextOf = unsafe extern "C" fn(HipResult, *mut *const c_char) -> HipResult;

fn text(of: TextOf, result: HipResult) -> Option<String> {
    let mut words = std::ptr::null();
    // SAFETY: `words` is valid for the write; these functions need no initialisation.
    let found = unsafe { of(result, &raw mut words) };
    if found != HipResult::SUCCESS || words.is_null() {
        return None;
    }
    // SAFETY: the runtime's texts are static and NUL-terminated.
    Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

/// What to do, where the runtime's words do not say it.
fn hint(result: HipResult) -> Option<&'static str> {
    Some(match result {
        HipResult::NO_DEVICE => {
            "see `rocminfo` and HIP_VISIBLE_DEVICES; /dev/kfd and /dev/dri must be open to this user (groups render \
             and video)"
        }
        HipResult::INSUFFICIENT_DRIVER => "the kernel's amdgpu driver is older than this ROCm",
        HipResult::NO_BINARY_FOR_GPU => "the code was compiled for another architecture",
        HipResult::ILLEGAL_ADDRESS | HipResult::LAUNCH_FAILURE => {
            "a kernel or copy submitted before failed; the device cannot be used again in this process"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_meet_first_comes_with_advice() {
        for (result, word) in [
            (HipResult::NO_DEVICE, "/dev/kfd"),
            (HipResult::INSUFFICIENT_DRIVER, "amdgpu"),
            (HipResult::LAUNCH_FAILURE, "before"),
        ] {
            assert!(hint(result).is_some_and(|hint| hint.contains(word)), "{result:?}");
        }
        assert_eq!(hint(HipResult(123_456)), None);
    }
}
