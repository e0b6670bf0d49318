//! Functions for this crate's tests and not for its users. They are no part of the API.

use std::ffi::c_void;

#[cfg(feature = "cuda")]
use crate::{DevicePtr, Result, Stream};
use crate::{Kernel, KernelArgs};

/// Returns the arguments of `kernel`, from an array of pointers as drivers take it: one pointer for each parameter.
/// `None` if the platform does not know the sizes of the parameters; simulated devices know them.
///
/// # Safety
/// `values` points to a pointer for each parameter, and each of them to a value of the parameter's type without padding.
#[must_use]
pub unsafe fn arguments_of(kernel: &Kernel, values: *const *mut c_void) -> Option<KernelArgs> {
    let mut args = KernelArgs::new();
    for (i, parameter) in kernel.parameters()?.iter().enumerate() {
        // SAFETY: one of as many pointers as there are parameters, to as many bytes as this one has.
        args = args.with_bytes(unsafe {
            std::slice::from_raw_parts((*values.add(i)).cast(), parameter.size as usize)
        });
    }
    Some(args)
}

/// Does [`Stream::write_u64`] on any CUDA device in the way for devices without stream value writes.
///
/// # Safety
/// The same as [`Stream::write_u64`]; the stream is not capturing.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a stream of another platform;
/// [`Error::Driver`](crate::Error::Driver).
#[cfg(feature = "cuda")]
pub unsafe fn write_u64_by_copy(stream: &Stream, dst: DevicePtr, value: u64) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { crate::cuda::write_u64_by_copy(&**stream.backend()?, dst, value) }
}
