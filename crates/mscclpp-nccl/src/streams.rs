//! The streams and events that C code names by handles.

use std::ptr::NonNull;

use mscclpp::{Event, Gpu, Platform, Stream};

use crate::{abi::Handle, calls::Call, failure::Failure, sim};

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

/// Records the event of a call, if it has one, in the call's stream: on GPUs a `cudaEvent_t`, on simulated devices a handle of
/// [`sim`]. The header of NCCL allows that it is recorded before the launch.
///
/// # Safety
/// The event is a live one of `gpu`.
pub(crate) unsafe fn record_launch(gpu: &Gpu, call: &Call, stream: &Stream) -> Result<(), Failure> {
    let Some(handle) = call.launch_event.map(NonNull::as_ptr) else { return Ok(()) };
    let event = match gpu.platform() {
        Platform::Sim => sim::event_of(handle)?,
        // SAFETY: the caller's promise.
        _ => unsafe { Event::from_raw(gpu, handle)? },
    };
    Ok(stream.record(&event)?)
}
