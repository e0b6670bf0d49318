//! Turns driver results into errors that say what a user can do.

use std::ffi::{CStr, c_char};

use mscclpp_gpu_sys::cuda::{CuResult, Driver};

use crate::{Error, Platform, Result};

/// An error unless `result` is success.
pub(super) fn check(driver: &Driver, result: CuResult, operation: impl Into<String>) -> Result<()> {
    if result == CuResult::SUCCESS { Ok(()) } else { Err(failure(driver, result, operation)) }
}

pub(super) fn failure(driver: &Driver, result: CuResult, operation: impl Into<String>) -> Error {
    Error::Driver {
        operation: operation.into(),
        code: result.0,
        name: name(driver, result),
        description: description(driver, result),
    }
}

/// The whole platform cannot be used.
pub(super) fn unavailable(driver: &Driver, operation: &str, result: CuResult) -> Error {
    Error::Unavailable {
        platform: Platform::Cuda,
        reason: format!(
            "{operation} of {} failed: {} ({}): {}",
            driver.path(),
            name(driver, result),
            result.0,
            description(driver, result)
        ),
    }
}

/// Logs what failed in a `drop`.
pub(super) fn log_failure(driver: &Driver, result: CuResult, operation: &str) {
    if result != CuResult::SUCCESS {
        log_error(&failure(driver, result, operation));
    }
}

/// Logs what failed in a `drop`. At the end of the process the driver may be gone already, which is no failure.
pub(super) fn log_error(error: &Error) {
    if !matches!(error, Error::Driver { code, .. } if *code == CuResult::DEINITIALIZED.0) {
        tracing::warn!(target: "mscclpp::gpu", "{error}");
    }
}

fn name(driver: &Driver, result: CuResult) -> String {
    result
        .name()
        .map(str::to_owned)
        .or_else(|| text(driver.get_error_name, result))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn description(driver: &Driver, result: CuResult) -> String {
    let words = text(driver.get_error_string, result).unwrap_or_else(|| "no description".to_owned());
    match hint(result) {
        Some(hint) => format!("{words}; {hint}"),
        None => words,
    }
}

type TextOf = unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult;

fn text(of: TextOf, result: CuResult) -> Option<String> {
    let mut words = std::ptr::null();
    // SAFETY: `words` is valid for the write; these functions need no initialisation.
    let found = unsafe { of(result, &raw mut words) };
    if found != CuResult::SUCCESS || words.is_null() {
        return None;
    }
    // SAFETY: the driver's texts are static and NUL-terminated.
    Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

/// What to do, where the driver's words do not say it.
fn hint(result: CuResult) -> Option<&'static str> {
    Some(match result {
        CuResult::NOT_INITIALIZED => {
            "a process forked after CUDA was initialised cannot use it: fork before the first CUDA call, or start a \
             new program"
        }
        CuResult::STUB_LIBRARY => {
            "the library found is the toolkit's stub; libcuda.so.1 of the NVIDIA driver is needed"
        }
        CuResult::DEVICE_UNAVAILABLE => {
            "another process has it in exclusive mode (`nvidia-smi -q -d COMPUTE`)"
        }
        CuResult::NO_DEVICE => "see `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        CuResult::SYSTEM_NOT_READY => "machines with NVSwitch need the service nvidia-fabricmanager running",
        CuResult::SYSTEM_DRIVER_MISMATCH => {
            "libcuda.so and the kernel module are of different versions: reload the module or restart, and in a \
             container mount the host's library"
        }
        CuResult::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the forward-compatibility package does not support this GPU: remove it from LD_LIBRARY_PATH"
        }
        CuResult::UNSUPPORTED_PTX_VERSION => "the driver is older than the compiler that made the PTX",
        CuResult::ILLEGAL_ADDRESS | CuResult::LAUNCH_FAILED => {
            "a kernel or copy submitted before failed; the device cannot be used again in this process"
        }
        CuResult::STREAM_CAPTURE_UNSUPPORTED => {
            "a stream that is being captured cannot be asked or waited for, nor can its device: do that before the capture \
             begins or after it has ended"
        }
        CuResult::STREAM_CAPTURE_INVALIDATED => {
            "a call that no capture allows has broken this one: begin it anew, and make that call before or after it"
        }
        CuResult::STREAM_CAPTURE_IMPLICIT => {
            "the default stream waits for blocking streams, of which one is being captured: use a stream of Gpu::stream, \
             capture a non-blocking one, or do this before or after the capture"
        }
        CuResult::UNKNOWN => {
            "often /dev/nvidia-uvm is missing or not accessible, or the kernel module is in error (`dmesg`)"
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
            (CuResult::NOT_INITIALIZED, "fork"),
            (CuResult::NO_DEVICE, "CUDA_VISIBLE_DEVICES"),
            (CuResult::SYSTEM_NOT_READY, "fabricmanager"),
            (CuResult::SYSTEM_DRIVER_MISMATCH, "kernel module"),
            (CuResult::UNKNOWN, "nvidia-uvm"),
            (CuResult::STREAM_CAPTURE_UNSUPPORTED, "before the capture"),
            (CuResult::STREAM_CAPTURE_INVALIDATED, "begin it anew"),
            (CuResult::STREAM_CAPTURE_IMPLICIT, "Gpu::stream"),
        ] {
            assert!(hint(result).is_some_and(|hint| hint.contains(word)), "{result:?}");
        }
        assert_eq!(hint(CuResult(123_456)), None);
    }

    #[test]
    fn text_survives_a_driver_that_knows_nothing() {
        unsafe extern "C" fn nothing(_: CuResult, _: *mut *const c_char) -> CuResult {
            CuResult::INVALID_VALUE
        }
        assert_eq!(text(nothing, CuResult(7)), None);
    }
}
