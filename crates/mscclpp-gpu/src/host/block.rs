//! What a host twin sees of its launch.

use std::{cell::Cell, fmt, ops::Range};

use super::module::HostModule;
use crate::{DevicePtr, KernelArgs, KernelParam, LaunchConfig};

/// A kernel of the Host platform: the *host twin* of the PTX entry of the same name.
///
/// It is called once per block, each block on a thread of its own. The threads of a block are folded into loops, one
/// per phase between barriers, so no thread may wait for another of its own phase. What the PTX entry keeps in a
/// `__shared__` variable is a local variable here. Device memory that others may touch meanwhile is accessed with
/// atomics, 8-byte words as 8-byte words ([`copy`](super::copy) and its like do); waits use a
/// [`Backoff`](super::Backoff) and have a bound.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use mscclpp_gpu::{DevicePtr, KernelArgs, LaunchConfig, Module, ModuleSource, Platform};
/// use mscclpp_gpu::host::{HostBlock, HostKernel};
///
/// /// `__global__ void add_one(uint64_t* words, uint64_t n)`
/// unsafe fn add_one(block: &HostBlock<'_>) {
///     let (words, n): (DevicePtr, u64) = unsafe { (block.arg(0), block.arg(1)) };
///     for thread in block.threads() {
///         let i = u64::from(block.block_idx()[0] * block.block_dim()[0] + thread);
///         if i < n {
///             let word = unsafe { AtomicU64::from_ptr(words.add(8 * i).as_mut_ptr()) };
///             word.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let gpu = Platform::Host.gpu(0)?;
/// let kernels = [HostKernel { name: "add_one", run: add_one }];
/// let module = Module::load(&gpu, &ModuleSource { ptx: "", host_kernels: &kernels, host_symbols: &[] })?;
/// let (stream, words) = (gpu.stream()?, gpu.allocate(800)?);
/// let args = KernelArgs::new().with(words.ptr()).with(100u64);
/// // SAFETY: these are its arguments, and `words` outlives the launch.
/// unsafe { module.kernel("add_one")?.launch(&stream, LaunchConfig::linear(4, 32), &args)? };
/// stream.synchronize()?;
/// let mut last = [0; 8];
/// words.read(792, &mut last)?;
/// assert_eq!(u64::from_ne_bytes(last), 1);
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct HostKernel {
    /// The name, that of the PTX entry.
    pub name: &'static str,
    /// The code.
    ///
    /// # Safety
    /// Called with the arguments of the launch, whose promises ([`crate::Kernel::launch`]) are its preconditions.
    pub run: unsafe fn(&HostBlock<'_>),
}

/// A variable of a module on the Host platform, zeroed when the module is loaded.
#[derive(Debug, Clone, Copy)]
pub struct HostSymbol {
    /// Its name.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: u64,
}

/// One block of a launch, as its host twin sees it.
pub struct HostBlock<'a> {
    config: LaunchConfig,
    index: [u32; 3],
    args: &'a KernelArgs,
    module: &'a HostModule,
    /// Units of the largest alignment there is.
    shared: Box<[Cell<u128>]>,
}

impl<'a> HostBlock<'a> {
    pub(super) fn new(
        config: LaunchConfig,
        index: [u32; 3],
        args: &'a KernelArgs,
        module: &'a HostModule,
    ) -> Self {
        let units = (config.shared_bytes as usize).div_ceil(size_of::<u128>());
        Self { config, index, args, module, shared: (0..units).map(|_| Cell::new(0)).collect() }
    }

    /// `gridDim`.
    #[must_use]
    pub fn grid_dim(&self) -> [u32; 3] {
        self.config.grid
    }

    /// `blockDim`.
    #[must_use]
    pub fn block_dim(&self) -> [u32; 3] {
        self.config.block
    }

    /// `blockIdx`.
    #[must_use]
    pub fn block_idx(&self) -> [u32; 3] {
        self.index
    }

    /// The block's threads, by their linear number: what one phase between two barriers loops over.
    #[must_use]
    pub fn threads(&self) -> Range<u32> {
        0..self.config.block.iter().product()
    }

    /// `threadIdx` of the thread with that linear number; x changes fastest.
    #[must_use]
    pub fn thread_idx(&self, thread: u32) -> [u32; 3] {
        let [x, y, _] = self.config.block;
        [thread % x, thread / x % y, thread / x / y]
    }

    /// Argument `i`.
    ///
    /// # Safety
    /// `T` must be the type that was pushed.
    ///
    /// # Panics
    /// If there is no such argument or its size is not that of `T`; the launch then fails with
    /// [`crate::Error::KernelFailed`].
    #[must_use]
    pub unsafe fn arg<T: KernelParam>(&self, i: usize) -> T {
        let Some(value) = self.args.values().get(i) else {
            panic!("argument {i} of {} was read", self.args.len());
        };
        assert!(
            value.len() == size_of::<T>(),
            "argument {i} has {} bytes, {} were read",
            value.len(),
            size_of::<T>()
        );
        // SAFETY: `value` holds the bytes of a `T` (the caller's promise; the size was compared), aligned to 16, and
        // no `T` that can be pushed needs more.
        unsafe { value.as_ptr().cast::<T>().read() }
    }

    /// Address of a variable of the module.
    ///
    /// # Panics
    /// If the module has none of that name; the launch then fails with [`crate::Error::KernelFailed`].
    #[must_use]
    pub fn symbol(&self, name: &str) -> DevicePtr {
        self.module.address(name).unwrap_or_else(|| panic!("the module has no symbol {name:?}")).0
    }

    /// The first `len` elements of the block's dynamic shared memory (`extern __shared__ T name[]`), at first zeroed.
    ///
    /// Every call gives the same memory.
    ///
    /// # Safety
    /// Whatever bits the memory has must be a `T`.
    ///
    /// # Panics
    /// If it is larger than the launch's `shared_bytes`; the launch then fails with [`crate::Error::KernelFailed`].
    #[must_use]
    pub unsafe fn shared<T: KernelParam>(&self, len: usize) -> &[Cell<T>] {
        const { assert!(align_of::<T>() <= align_of::<u128>()) };
        let bytes = len.checked_mul(size_of::<T>());
        assert!(
            bytes.is_some_and(|bytes| bytes <= self.config.shared_bytes as usize),
            "{len} elements of {} bytes were taken of {} bytes of shared memory",
            size_of::<T>(),
            self.config.shared_bytes
        );
        // SAFETY: the range is inside `shared` and aligned, both just checked; its bits are a `T` (the caller's
        // promise). Cells of other types over the same bytes are no conflict: this type is not `Sync`, so that one
        // thread alone reads and writes them.
        unsafe { std::slice::from_raw_parts(self.shared.as_ptr().cast(), len) }
    }
}

impl fmt::Debug for HostBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBlock")
            .field("config", &self.config)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
