//! What this crate's tests reach and its users do not. No part of the API.

use crate::{DevicePtr, Result, Stream};

/// As [`Stream::write_u64`] of a CUDA device that has no stream value writes, on any CUDA device.
///
/// # Safety
/// As [`Stream::write_u64`]; the stream is not capturing.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] for a stream of another platform; [`crate::Error::Driver`].
pub unsafe fn write_u64_by_copy(stream: &Stream, dst: DevicePtr, value: u64) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { crate::cuda::write_u64_by_copy(&**stream.backend(), dst, value) }
}
