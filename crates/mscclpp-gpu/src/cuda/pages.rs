//! Which pages of device memory are near the multiprocessor where a lone block runs.

use std::{sync::Arc, time::Duration};

use super::{device::Device, module::CudaModule};
use crate::{
    DevicePtr, Error, KernelArgs, LaunchConfig, NEAR_PAGE, Result,
    backend::{DeviceBackend, KernelBackend, MemoryBackend, ModuleBackend},
    event::poll_until,
};

/// How long the kernel may take to be done: a device that is full of waiting kernels is not waited for.
const LIMIT: Duration = Duration::from_millis(100);

/// Far pages take at least this much longer than near ones (in eighths), or there is no difference worth placing for.
const FAR_EIGHTHS: u32 = 9;

/// The kernel that measures, loaded when its device is opened: later, loading might have to wait for running kernels.
pub(super) struct PageProbe {
    kernel: Arc<dyn KernelBackend>,
}

impl PageProbe {
    pub(super) fn load(device: &'static Device) -> Result<Self> {
        let module = CudaModule::load(device, mscclpp_kernels::PAGE_LATENCY)?;
        Ok(Self { kernel: module.kernel("page_latency")? })
    }

    /// Measures `pages` pages from `start` on, by reading words of theirs; where one is not zero it stops.
    ///
    /// # Errors
    /// The kernel may still come to run, later.
    ///
    /// # Safety
    /// They are live memory of `device`, after an error for ever.
    pub(super) unsafe fn near_pages(
        &self,
        device: &&'static Device,
        start: DevicePtr,
        pages: usize,
    ) -> Result<Vec<bool>> {
        let count = u32::try_from(pages)
            .map_err(|_| Error::InvalidArgument(format!("{pages} pages are too many to measure")))?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let stream = device.create_stream()?;
        let cycles = device.allocate_pinned(4 * u64::from(count))?;
        let args = KernelArgs::new().with(start).with(NEAR_PAGE / 8).with(count).with(cycles.ptr());
        // SAFETY: these are the kernel's arguments; the pages live by the caller's promise, and `cycles` until the
        // kernel has ended, or for ever.
        unsafe { self.kernel.launch(&*stream, LaunchConfig::linear(1, 1), &args)? };
        if let Err(error) = poll_until(LIMIT, || stream.query(), || "measuring where memory is".to_owned()) {
            // What the kernel writes must stay, too.
            std::mem::forget(cycles);
            return Err(error);
        }
        let cycles = read(&*cycles, pages);
        let near = nearer_half(&cycles);
        tracing::debug!(
            target: "mscclpp::gpu", device = device.id(), pages, near = near.iter().filter(|n| **n).count(),
            fastest = ?cycles.iter().min(), slowest = ?cycles.iter().max(), "measured where pages are"
        );
        Ok(near)
    }
}

/// What the kernel wrote, which has ended.
fn read(cycles: &dyn MemoryBackend, count: usize) -> Vec<u32> {
    let start = cycles.host_ptr().cast::<u32>();
    // SAFETY: the buffer has `count` numbers, and nobody writes them any more.
    (0..count).map(|i| unsafe { start.add(i).read_volatile() }).collect()
}

/// Which of them are in the faster of two groups; all, if there are no two.
fn nearer_half(cycles: &[u32]) -> Vec<bool> {
    let fastest = cycles.iter().copied().min().unwrap_or(0);
    let slowest = cycles.iter().copied().max().unwrap_or(0);
    let middle = if u64::from(slowest) * 8 < u64::from(fastest) * u64::from(FAR_EIGHTHS) {
        slowest
    } else {
        fastest.midpoint(slowest)
    };
    cycles.iter().map(|c| *c <= middle).collect()
}

#[cfg(test)]
mod tests {
    use super::nearer_half;

    #[test]
    fn two_groups_are_told_apart_and_one_is_not_split() {
        assert_eq!(nearer_half(&[1000, 1400, 1010, 1390]), [true, false, true, false]);
        assert_eq!(nearer_half(&[1000, 1010, 1020]), [true; 3]);
        assert_eq!(nearer_half(&[0, 0]), [true; 2]);
        assert!(nearer_half(&[]).is_empty());
    }
}
