use std::{fmt, mem::MaybeUninit, sync::Arc};

use crate::{
    DevicePtr, Gpu, KernelSource, Result, Stream,
    backend::{KernelBackend, ModuleBackend},
};

/// Loaded kernels of one device.
#[derive(Clone)]
pub struct Module {
    gpu: Gpu,
    backend: Arc<dyn ModuleBackend>,
}

impl Module {
    /// Compiles `source` for the device, unless its PTX or the cache of compiled kernels makes that unnecessary, and loads
    /// it completely: nothing is left to be loaded when a kernel is first launched, which could deadlock
    /// against one that is waiting.
    ///
    /// On CUDA, loading and the drop of the last clone wait for the kernels that run on the device: do both before a
    /// kernel waits for something that comes later.
    ///
    /// Each load has `__device__` and `__constant__` variables of its own. Blocks while it compiles: some seconds, at the
    /// first time on this machine.
    ///
    /// # Errors
    /// [`crate::Error::Compile`] with the compiler's or the driver's own words; [`crate::Error::NoCompiler`] and
    /// [`crate::Error::Cache`]; [`crate::Error::System`] with all that was tried where NVRTC is needed and missing.
    pub fn load(gpu: &Gpu, source: &KernelSource<'_>) -> Result<Self> {
        Ok(Self { gpu: gpu.clone(), backend: gpu.backend().load_module(source)? })
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// [`crate::Error::NoSuchSymbol`].
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        Ok(Kernel { name: name.into(), gpu: self.gpu.clone(), backend: self.backend.kernel(name)? })
    }

    /// Address and size in bytes of a variable of the module, for example a `__constant__` array of handles.
    ///
    /// # Errors
    /// [`crate::Error::NoSuchSymbol`].
    pub fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        self.backend.symbol(name)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("gpu", &self.gpu.to_string()).finish_non_exhaustive()
    }
}

/// A kernel, ready to be launched. Keeps its module.
#[derive(Clone)]
pub struct Kernel {
    name: Arc<str>,
    gpu: Gpu,
    backend: Arc<dyn KernelBackend>,
}

impl Kernel {
    /// Submits one launch to `stream`, a stream of the same device.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, in number, order and type, and what they point to must be valid
    /// until the kernel is complete. Blocks that wait for each other must all fit on the device at once.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for a stream of another device; [`crate::Error::Driver`].
    pub unsafe fn launch(&self, stream: &Stream, config: LaunchConfig, args: &KernelArgs) -> Result<()> {
        if stream.gpu().properties().uuid != self.gpu.properties().uuid {
            return Err(crate::Error::InvalidArgument(format!(
                "kernel {} is loaded on {}, the stream is one of {}",
                self.name,
                self.gpu,
                stream.gpu()
            )));
        }
        // SAFETY: the caller's promise.
        unsafe { self.backend.launch(&**stream.backend(), config, args) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).field("gpu", &self.gpu.to_string()).finish()
    }
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads, in x alone.
    #[must_use]
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// A value that can be an argument of a kernel.
///
/// # Safety
/// The type must be plain data without padding that matters, of the same size and layout in device code.
pub unsafe trait KernelParam: Copy + 'static {}

macro_rules! kernel_param {
    ($($t:ty),*) => { $(
        // SAFETY: a primitive of the same size and layout in CUDA C++.
        unsafe impl KernelParam for $t {}
    )* };
}
kernel_param!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, usize, isize, DevicePtr);
// SAFETY: pointers are 8 bytes on both sides.
unsafe impl<T: 'static> KernelParam for *mut T {}
// SAFETY: pointers are 8 bytes on both sides.
unsafe impl<T: 'static> KernelParam for *const T {}

/// The arguments of a launch, copied in when they are pushed.
///
/// ```
/// use mscclpp_gpu::{DevicePtr, KernelArgs};
/// let args = KernelArgs::new().with(DevicePtr::NULL).with(100i32);
/// assert_eq!(args.len(), 2);
/// ```
#[derive(Debug, Clone, Default)]
pub struct KernelArgs {
    values: Vec<ArgBytes>,
}

/// One argument: its bytes in 16-byte aligned storage, as device parameters are aligned to 16 at most.
///
/// Storage of no type, so that padding may stay uninitialised and pointers stay pointers when it is copied.
#[derive(Debug, Clone)]
pub(crate) struct ArgBytes {
    storage: Box<[MaybeUninit<u128>]>,
    len: usize,
}

impl KernelArgs {
    /// No arguments yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// These arguments and `value` behind them.
    #[must_use]
    pub fn with<T: KernelParam>(mut self, value: T) -> Self {
        const { assert!(align_of::<T>() <= 16) };
        let len = size_of::<T>();
        let mut storage = vec![MaybeUninit::new(0u128); len.div_ceil(16)].into_boxed_slice();
        // SAFETY: `storage` has at least `len` bytes and `value` is plain data (`KernelParam`) of `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const value).cast::<u8>(),
                storage.as_mut_ptr().cast::<u8>(),
                len,
            );
        }
        self.values.push(ArgBytes { storage, len });
        self
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(crate) fn values(&self) -> &[ArgBytes] {
        &self.values
    }
}

impl ArgBytes {
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.storage.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
