//! Device memory that a program no longer needs while its kernels still use it.

use std::mem;

use parking_lot::Mutex;

use crate::{DeviceBuffer, Gpu, fork::Origin};

/// Buffers that are freed when the kernels that may use them are complete.
///
/// A launch keeps the buffers among its arguments. If it was given an address alone, dropping the buffer unmaps memory
/// that a kernel uses, which ends the process or the device's work. This is for programs that do not know when such
/// kernels are complete: they pass buffers to [`retire`](Self::retire), and call [`free`](Self::free) now and then, such
/// as before an allocation. Kernels on other streams than [`Gpu::default_stream`] are not seen.
///
/// ```
/// use mscclpp_gpu::{Platform, RetiredBuffers};
///
/// let retired = RetiredBuffers::new();
/// let gpu = Platform::Sim.gpu(0)?;
/// retired.retire(gpu.allocate(1 << 20)?);
/// retired.free();
/// assert!(retired.is_empty(), "no kernel runs on the default stream");
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct RetiredBuffers(Mutex<Vec<(Origin, DeviceBuffer)>>);

impl RetiredBuffers {
    /// Makes an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Keeps `buffer` until no kernel uses it.
    pub fn retire(&self, buffer: DeviceBuffer) {
        self.0.lock().push((Origin::here(), buffer));
    }

    /// Drops the buffers on whose devices the default stream has no work left. During a capture, in which the default
    /// stream cannot be queried, they stay. A forked child does not touch the buffers that its parent retired.
    pub fn free(&self) {
        // The lock is not held: a query may drop what launches needed, which may retire a buffer, and freeing takes its time.
        let retired = mem::take(&mut *self.0.lock());
        let is_kept = |(origin, buffer): &(Origin, DeviceBuffer)| !origin.is_here() || is_busy(buffer.gpu());
        let (kept, free): (Vec<_>, Vec<_>) = retired.into_iter().partition(is_kept);
        self.0.lock().extend(kept);
        drop(free);
    }

    /// Whether no buffer waits to be freed, apart from those that another thread frees now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Whether the default stream may have work. A stream that failed has none any more; one that cannot be queried may.
fn is_busy(gpu: &Gpu) -> bool {
    let Ok(stream) = gpu.default_stream() else { return false };
    // A query would end a capture that it is part of.
    if !stream.is_capturing().is_ok_and(|capturing| !capturing) {
        return true;
    }
    matches!(stream.query(), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;

    #[test]
    fn buffers_stay_while_the_default_stream_cannot_be_asked() {
        let gpu = Platform::Sim.gpu(0).unwrap();
        let (retired, stream) = (RetiredBuffers::new(), gpu.default_stream().unwrap());
        retired.retire(gpu.allocate(8).unwrap());
        stream.begin_capture().unwrap();
        retired.free();
        let kept = !retired.is_empty();
        stream.end_capture().unwrap();
        assert!(kept, "whether its kernels are complete is not known");
        stream.synchronize().unwrap();
        retired.free();
        assert!(retired.is_empty());
    }
}
