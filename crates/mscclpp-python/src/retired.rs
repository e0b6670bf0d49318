//! Device memory that programs have dropped.
//!
//! Programs drop arrays when a kernel that works on them has been launched, or even between packing its arguments and
//! launching it: with other libraries, whose memory goes back to a pool, nothing comes of it. Unmapping the memory of a
//! kernel that runs ends the process, or the device's work. So memory that was dropped is kept, and freed when more is asked
//! for, or kernels have been waited for, and nothing runs on the default stream of its device.

use std::{
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use mscclpp::{DeviceBuffer, Gpu};

/// A buffer that is retired when it is dropped.
pub(crate) struct RetireOnDrop(pub(crate) DeviceBuffer);

impl Drop for RetireOnDrop {
    fn drop(&mut self) {
        let retired = (process::id(), self.0.clone());
        RETIRED.lock().unwrap_or_else(PoisonError::into_inner).push(retired);
    }
}

/// Each with the process that dropped it: a forked child leaves those of its parent alone.
static RETIRED: Mutex<Vec<(u32, DeviceBuffer)>> = Mutex::new(Vec::new());

/// Whether this process has launched a kernel at all. A launch comes before the sweep that it matters for, in the
/// program's order.
static HAS_LAUNCHED: AtomicBool = AtomicBool::new(false);

/// From now on kernels may run.
pub(crate) fn launching() {
    HAS_LAUNCHED.store(true, Ordering::Relaxed);
}

/// Frees what no kernel can use any more.
pub(crate) fn sweep() {
    let here = process::id();
    let free: Vec<_> = {
        let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
        retired.extract_if(.., |(process, buffer)| *process == here && !is_busy(buffer.gpu())).collect()
    };
    // Without the lock: freeing may take its time.
    drop(free);
}

/// Whether work is left on the default stream. A stream that failed does nothing any more.
fn is_busy(gpu: &Gpu) -> bool {
    HAS_LAUNCHED.load(Ordering::Relaxed)
        && matches!(gpu.default_stream().and_then(|stream| stream.query()), Ok(false))
}
