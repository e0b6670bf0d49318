//! What all entry points do: count the call, fail it if a test wants that, and keep the last failed result.

use std::cell::Cell;

use mscclpp_gpu::Error;
use mscclpp_gpu_sys::{hip::HipResult, rtc::RtcResult};

use crate::control;

thread_local! {
    static LAST_ERROR: Cell<HipResult> = const { Cell::new(HipResult::SUCCESS) };
}

/// A call of `name`.
pub(crate) fn hip(name: &'static str, call: impl FnOnce() -> Result<(), HipResult>) -> HipResult {
    let result = match control::count(name) {
        Some(code) => HipResult(code),
        None => call().err().unwrap_or(HipResult::SUCCESS),
    };
    if result != HipResult::SUCCESS {
        LAST_ERROR.set(result);
    }
    result
}

/// The same of hiprtc.
pub(crate) fn hiprtc(name: &'static str, call: impl FnOnce() -> Result<(), RtcResult>) -> RtcResult {
    match control::count(name) {
        Some(code) => RtcResult(code),
        None => call().err().unwrap_or(RtcResult::SUCCESS),
    }
}

/// `hipGetLastError` gives the thread's last failed result, and takes it away.
#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> HipResult {
    LAST_ERROR.replace(HipResult::SUCCESS)
}

/// What HIP would say.
pub(crate) fn code_of(error: &Error) -> HipResult {
    match error {
        Error::InvalidArgument(_) | Error::OutOfBounds { .. } => HipResult::INVALID_VALUE,
        Error::NoSuchSymbol { .. } => HipResult::NOT_FOUND,
        Error::KernelFailed { .. } => HipResult::LAUNCH_FAILURE,
        Error::Compile { .. } => HipResult::INVALID_IMAGE,
        Error::NoSuchDevice { .. } => HipResult::INVALID_DEVICE,
        _ => HipResult::UNKNOWN,
    }
}

/// A result of a simulated device as one of HIP's, its words on standard error: HIP's results have none.
pub(crate) fn done<T>(result: Result<T, Error>) -> Result<T, HipResult> {
    result.map_err(|error| {
        eprintln!("fake HIP: {error}");
        code_of(&error)
    })
}

/// Writes through a pointer of the caller's.
///
/// # Safety
/// `to` is null or valid for the write.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), HipResult> {
    if to.is_null() {
        return Err(HipResult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller promises the rest.
    unsafe { to.write(value) };
    Ok(())
}
