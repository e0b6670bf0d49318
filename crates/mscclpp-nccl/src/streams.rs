//! Streams, as C code names them.

use mscclpp::{Gpu, Platform, Stream};

use crate::{abi::Handle, failure::Failure, sim};

/// The stream of a handle: a `cudaStream_t` on GPUs, where NULL is the default stream; on simulated devices one of
/// [`sim`].
///
/// # Safety
/// It is a live stream of `gpu`, and stays so until what is put into it is complete.
pub(crate) unsafe fn of(gpu: &Gpu, handle: Handle) -> Result<Stream, Failure> {
    match gpu.platform() {
        Platform::Sim => sim::stream_of(gpu, handle),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { Stream::from_raw(gpu, handle)? }),
    }
}
