//! The streams and events that C code names by handles.

use std::{ffi::c_void, ptr::NonNull};

use mscclpp::{Event, Gpu, Platform, Stream};

use crate::{abi::Handle, failure::Failure, sim};

/// The stream that a handle names: on GPUs a `cudaStream_t`, where NULL is the default stream; on simulated devices a handle of
/// [`sim`].
///
/// # Safety
/// The handle names a live stream of `gpu`, which is not destroyed before the work in it is complete.
pub(crate) unsafe fn of(gpu: &Gpu, handle: Handle) -> Result<Stream, Failure> {
    match gpu.platform() {
        Platform::Sim => sim::stream_of(gpu, handle),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { Stream::from_raw(gpu, handle)? }),
    }
}

/// The event that a handle names: on GPUs a `cudaEvent_t`, on simulated devices a handle of [`sim`].
///
/// # Safety
/// The event is a live one of `gpu`.
pub(crate) unsafe fn event_of(gpu: &Gpu, handle: NonNull<c_void>) -> Result<Event, Failure> {
    match gpu.platform() {
        Platform::Sim => sim::event_of(handle.as_ptr()),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { Event::from_raw(gpu, handle.as_ptr())? }),
    }
}
