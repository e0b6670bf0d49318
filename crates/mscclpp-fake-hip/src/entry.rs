//! The frame of all entry points: it counts the call, makes it fail if a test asks for that, and keeps the last
//! failed result.

use std::cell::Cell;

use mscclpp_gpu::Error;
use mscclpp_gpu_sys::{hip::HipResult, rtc::RtcResult};

use crate::control;

thread_local! {
    static LAST_ERROR: Cell<HipResult> = const { Cell::new(HipResult::SUCCESS) };
}

/// Runs a call of the HIP function `name`.
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

/// Runs a call of the hiprtc function `name`.
pub(crate) fn hiprtc(name: &'static str, call: impl FnOnce() -> Result<(), RtcResult>) -> RtcResult {
    match control::count(name) {
        Some(code) => RtcResult(code),
        None => call().err().unwrap_or(RtcResult::SUCCESS),
    }
}

/// Returns the thread's last failed result, and clears it.
#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> HipResult {
    LAST_ERROR.replace(HipResult::SUCCESS)
}

/// Returns the code that HIP would return for the error.
pub(crate) fn code_of(error: &Error) -> HipResult {
    match error {
        Error::InvalidArgument(_) | Error::OutOfBounds { .. } => HipResult::INVALID_VALUE,
        Error::NoSuchSymbol { .. } => HipResult::NOT_FOUND,
        Error::KernelFailed { .. } | Error::Race { .. } => HipResult::LAUNCH_FAILURE,
        Error::Compile { .. } => HipResult::INVALID_IMAGE,
        Error::NoSuchDevice { .. } => HipResult::INVALID_DEVICE,
        _ => HipResult::UNKNOWN,
    }
}

/// Converts a result of a simulated device to one of HIP. The error's text goes to standard error: HIP's results have
/// none.
pub(crate) fn done<T>(result: Result<T, Error>) -> Result<T, HipResult> {
    result.map_err(|error| {
        eprintln!("fake HIP: {error}");
        code_of(&error)
    })
}

/// Returns the result of a precondition of HIP: `INVALID_VALUE` if it does not hold.
pub(crate) fn require(holds: bool) -> Result<(), HipResult> {
    if holds { Ok(()) } else { Err(HipResult::INVALID_VALUE) }
}

/// A pointer of the caller through which a value is returned: null, or valid for the write.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// The pointer is null or valid for the write, as long as this is used.
    pub(crate) unsafe fn of(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub(crate) fn give(&self, value: T) -> Result<(), HipResult> {
        require(!self.0.is_null())?;
        // SAFETY: not null, so valid: this is made by `of`, or is what the caller of an entry point promises to pass.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// Exports functions under HIP's names. Each returns the result of its block, unless a test asks for another.
macro_rules! entry_points {
    (@ $call:ident $result:ty: $($(#[$about:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        $(#[$about])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::entry::$call(stringify!($name), || $body)
        }
    )* };
    (hiprtc: $($functions:tt)*) => {
        $crate::entry::entry_points! { @ hiprtc mscclpp_gpu_sys::rtc::RtcResult: $($functions)* }
    };
    ($($functions:tt)*) => {
        $crate::entry::entry_points! { @ hip mscclpp_gpu_sys::hip::HipResult: $($functions)* }
    };
}
pub(crate) use entry_points;
