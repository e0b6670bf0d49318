//! The kernels of the suite: each call is one launch, which is waited for.

use std::sync::Arc;

use mscclpp_core::{HostToDeviceSemaphoreHandle, Semaphore};
use mscclpp_gpu::{DeviceBuffer, Gpu, KernelArgs, KernelParam, KernelSource, LaunchConfig, Module, Stream};
use parking_lot::Mutex;

use crate::pair::PATIENCE;

const SOURCE: KernelSource<'static> = KernelSource::new("conformance.cu", include_str!("conformance.cu"));

/// A device with the suite's kernels loaded. Clones share them.
#[derive(Clone)]
pub(crate) struct Device {
    gpu: Gpu,
    module: Arc<Module>,
    /// Streams, and words for a number, that no launch uses at the moment. They are kept: before it frees something,
    /// a driver may wait for all kernels of the process, also for those that wait for the next launch.
    idle: Arc<Mutex<Vec<(Stream, DeviceBuffer)>>>,
}

/// The devices loaded so far: a GPU loads no module while a kernel waits.
static LOADED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

impl Device {
    pub(crate) fn of(gpu: &Gpu) -> Self {
        let mut loaded = LOADED.lock();
        if let Some(device) = loaded.iter().find(|d| d.gpu.properties().uuid == gpu.properties().uuid) {
            return device.clone();
        }
        let module = Arc::new(Module::load(gpu, &SOURCE).expect("the suite's kernels"));
        let device = Self { gpu: gpu.clone(), module, idle: Arc::default() };
        loaded.push(device.clone());
        device
    }

    /// Launches one block with `args` and a word for its number, waits for it, and returns the number.
    ///
    /// # Safety
    /// `args` are the kernel's other arguments, and memory that they point to lives until this returns.
    pub(crate) unsafe fn run(&self, kernel: &str, threads: u32, args: KernelArgs) -> u64 {
        let kernel = self.module.kernel(kernel).expect("a kernel of the suite");
        let idle = self.idle.lock().pop();
        let (stream, number) = idle.unwrap_or_else(|| {
            (self.gpu.stream().expect("a stream"), self.gpu.allocate(8).expect("a place for a number"))
        });
        let args = args.with(number.ptr());
        // SAFETY: the caller's promise; the word lives until the stream has been waited for, and if that fails, for
        // ever.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, threads), &args).expect("a launch") };
        if let Err(error) = stream.synchronize_timeout(4 * PATIENCE) {
            std::mem::forget(number);
            panic!("a kernel of the suite: {error}");
        }
        let mut bytes = [0; 8];
        number.read(0, &mut bytes).expect("reading a number");
        self.idle.lock().push((stream, number));
        u64::from_ne_bytes(bytes)
    }
}

/// Begins the arguments of a kernel with the handle that most kernels take first.
pub(crate) fn with<T: KernelParam>(handle: T) -> KernelArgs {
    KernelArgs::new().with(handle)
}

/// Returns how many of `times` waits by a kernel of the device that `semaphore` is on find a signal; the kernel stops
/// at the first that does not. Blocks until the kernel has ended.
///
/// # Panics
/// Panics if the semaphore's endpoint is on a CPU, or the kernel cannot be compiled or does not end.
#[must_use]
pub fn semaphore_waits(semaphore: &Semaphore, max_spins: i64, times: u64) -> u64 {
    let handle = HostToDeviceSemaphoreHandle::of(semaphore).expect("a handle");
    let gpu = semaphore.connection().local_gpu().expect("its endpoint is on a GPU");
    // SAFETY: the handle belongs to a semaphore that lives until the kernel has ended.
    unsafe { Device::of(gpu).run("semaphore_waits", 1, with(handle).with(max_spins).with(times)) }
}
