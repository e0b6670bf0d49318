//! The shape and the arguments of a launch.

use std::{any::Any, mem::MaybeUninit, sync::Arc};

use crate::{DevicePtr, Error, KernelArgument, Owner, Platform, Result, argument::Kept};

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// The number of threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads each, in one dimension.
    #[must_use]
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// That devices of the platform can run it. What a device allows a kernel may be less.
    pub(crate) fn check(&self, kernel: &str, platform: Platform) -> Result<()> {
        let Self { grid, block, .. } = self;
        let most = if platform == Platform::Hip { [MAX_THREADS; 3] } else { MAX_BLOCK };
        let refused = |why: String| Err(Error::InvalidArgument(format!("launch of {kernel}: {why}")));
        if (0..3).any(|i| !(1..=MAX_GRID[i]).contains(&grid[i])) {
            return refused(format!("a grid of {grid:?} blocks; each must be 1 to {MAX_GRID:?}"));
        }
        let threads = block.iter().fold(1, |n: u32, dim| n.saturating_mul(*dim));
        if (0..3).any(|i| !(1..=most[i]).contains(&block[i])) || threads > MAX_THREADS {
            return refused(format!(
                "blocks of {block:?} threads; each must be 1 to {most:?}, all {MAX_THREADS} at most"
            ));
        }
        Ok(())
    }
}

// CUDA's limits, the same on all of its devices. AMD GPUs allow more threads in z.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u32 = 1024;

/// A parameter of a kernel: where it is among all of them, laid out as the members of a struct, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParameter {
    /// Bytes from the start of the first one.
    pub offset: u64,
    /// In bytes.
    pub size: u64,
}

/// A value that can be an argument of a kernel.
///
/// # Safety
/// The type must be plain data without padding, so that all its bytes may be read. Its size and layout must be the same
/// in device code.
pub unsafe trait KernelParam: Copy + 'static {
    /// The value's bytes, as kernels read them from memory.
    ///
    /// ```
    /// # use mscclpp_gpu::KernelParam;
    /// assert_eq!(1u32.to_bytes(), 1u32.to_ne_bytes());
    /// ```
    #[must_use]
    fn to_bytes(&self) -> Vec<u8> {
        Self::slice_to_bytes(std::slice::from_ref(self))
    }

    /// The bytes of all of them, one after the other.
    #[must_use]
    fn slice_to_bytes(params: &[Self]) -> Vec<u8> {
        // SAFETY: the memory of the slice, all bytes of which are initialised (the trait's promise).
        unsafe { std::slice::from_raw_parts(params.as_ptr().cast(), size_of_val(params)) }.to_vec()
    }
}

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

/// The arguments of a launch, and what must live until it is complete.
///
/// Values are copied when they are given. For an object, such as a buffer or a channel, the kernel gets the address or
/// the device handle, and launches keep the object alive until they are complete. A graph in which a launch is captured
/// keeps it as long as the graph exists, and until the graph's own launches are complete. The same arguments may be
/// used for any number of launches, and may be dropped after the first.
///
/// ```
/// # use mscclpp_gpu::{KernelArgs, Platform};
/// # let gpu = Platform::Host.gpu(0)?;
/// let (data, table) = (gpu.allocate(1024)?, gpu.allocate(64)?);
/// // The kernel gets `data`, and an address inside `table`, which must live as long.
/// let args = KernelArgs::new().with(&data).with(100i32).with(table.ptr().add(8)).keeping(table);
/// assert_eq!(args.len(), 3);
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct KernelArgs {
    values: Vec<ArgBytes>,
    owners: Vec<Owner>,
    /// The first argument that has no value.
    refused: Option<Error>,
}

/// One argument: its bytes in 16-byte aligned storage, as device parameters are aligned to 16 at most.
///
/// Storage of no type, so that pointers stay pointers when it is copied.
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

    /// Adds `argument` after these: a value, or a reference to an object such as a buffer or a channel.
    ///
    /// If an argument has no value, such as the address of a memory that is not mapped, launches with these arguments
    /// fail.
    #[must_use]
    #[allow(clippy::needless_pass_by_value, reason = "a number, or a reference")]
    pub fn with<A: KernelArgument>(mut self, argument: A) -> Self {
        match argument.param() {
            Ok(value) => self.values.push(ArgBytes::of(value)),
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
        self.owners.extend(argument.owner());
        self
    }

    /// Makes launches with these arguments also keep `object` alive, which is not an argument itself: a clone of a
    /// channel whose device handle the kernel finds in memory, an `Arc`, or a tuple or list of these.
    #[must_use]
    pub fn keeping<T: Any + Send + Sync>(mut self, object: T) -> Self {
        self.owners.push(Arc::new(Kept(object)));
        self
    }

    /// As [`KernelArgs::keeping`], for an object that says for whom kernels wait through it. An [`Owner`] that is given to
    /// many launches is kept once.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owners.push(owner);
        self
    }

    /// How many arguments there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no arguments.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds an argument that is given as its bytes, for programs that know a parameter's size but not its type.
    ///
    /// ```
    /// # use mscclpp_gpu::KernelArgs;
    /// let args = KernelArgs::new().with_bytes(&100i32.to_ne_bytes());
    /// assert_eq!(args.len(), 1);
    /// ```
    #[must_use]
    pub fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.values.push(ArgBytes::copied(bytes));
        self
    }

    pub(crate) fn values(&self) -> &[ArgBytes] {
        &self.values
    }

    /// What must live until a launch is complete.
    pub(crate) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// That each argument has a value, and that they are as many and as large as the parameters, if these are known.
    pub(crate) fn check(&self, kernel: &str, parameters: Option<&[KernelParameter]>) -> Result<()> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let Some(parameters) = parameters else { return Ok(()) };
        let given = self.values.iter().map(|value| value.len() as u64);
        let taken = parameters.iter().map(|parameter| parameter.size);
        if given.clone().eq(taken.clone()) {
            return Ok(());
        }
        let (given, taken): (Vec<_>, Vec<_>) = (given.collect(), taken.collect());
        Err(Error::InvalidArgument(format!(
            "launch of {kernel}: its parameters have {taken:?} bytes, the arguments {given:?}"
        )))
    }
}

impl ArgBytes {
    fn of<T: KernelParam>(value: T) -> Self {
        const { assert!(align_of::<T>() <= 16) };
        // SAFETY: `value` is plain data without padding (`KernelParam`).
        Self::copied(unsafe { std::slice::from_raw_parts((&raw const value).cast(), size_of::<T>()) })
    }

    fn copied(bytes: &[u8]) -> Self {
        let mut storage = vec![MaybeUninit::new(0u128); bytes.len().div_ceil(16)].into_boxed_slice();
        // SAFETY: `storage` has at least as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), storage.as_mut_ptr().cast::<u8>(), bytes.len());
        }
        Self { storage, len: bytes.len() }
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.storage.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
