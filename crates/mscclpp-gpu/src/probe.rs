//! Reads a few words of device memory while kernels run, without waiting for the kernels.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{DevicePtr, Gpu, PinnedBuffer, Platform, Result, Stream};

/// The longest time of a read; a device that works answers within microseconds.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time on simulated devices, whose threads wait for a processor like any others.
const TIMEOUT_ON_SIM: Duration = Duration::from_secs(10);
const BYTES: u64 = 4096;

/// Copies words to the host on a stream of its own, which is made at the first read. Any number of threads may read; they
/// take turns.
pub struct Probe {
    gpu: Gpu,
    means: Mutex<Option<(Stream, PinnedBuffer)>>,
}

impl Probe {
    /// Makes a probe for words that `gpu` reaches.
    #[must_use]
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), means: Mutex::default() }
    }

    /// Returns the 8-byte words at `at`, read one after the other, in that order. Waits for at most a second; for ten on
    /// simulated devices, which a busy machine slows down.
    ///
    /// # Safety
    /// Each must be a word of memory that the device reaches. After a call that timed out, it must stay valid for as
    /// long as the device still needs it.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) if the device does not answer; [`Error::Driver`](crate::Error::Driver).
    pub unsafe fn read(&self, at: &[DevicePtr]) -> Result<Vec<u64>> {
        let timeout = if self.gpu.platform() == Platform::Sim { TIMEOUT_ON_SIM } else { TIMEOUT };
        let deadline = Instant::now() + timeout;
        let mut means = self.means.lock();
        let (stream, pinned) = match means.take() {
            Some(means) => means,
            None => (self.gpu.stream()?, self.gpu.allocate_pinned(BYTES)?),
        };
        let mut words = Vec::with_capacity(at.len());
        for chunk in at.chunks((BYTES / 8) as usize) {
            let copied = (0..).step_by(8).zip(chunk).try_for_each(|(offset, word)| {
                // SAFETY: the caller's promise for the source; the destination is inside `pinned`, which is kept until
                // the copy is done, or for ever.
                unsafe { stream.copy(pinned.ptr().add(offset), *word, 8) }
            });
            let left = deadline.saturating_duration_since(Instant::now());
            if let Err(error) = copied.and_then(|()| stream.poll_until_complete(left)) {
                // Some copies may still be made.
                std::mem::forget(pinned);
                return Err(error);
            }
            for offset in (0..8 * chunk.len() as u64).step_by(8) {
                words.push(pinned.word(offset)?.load(Ordering::Acquire));
            }
        }
        *means = Some((stream, pinned));
        Ok(words)
    }
}

mscclpp_os::debug_fields!(Probe, |this| gpu: this.gpu.to_string(), ..);
