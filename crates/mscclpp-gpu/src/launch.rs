//! What a launch is given: its shape and its arguments.

use std::mem::MaybeUninit;

use crate::DevicePtr;

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
/// The type must be plain data without padding, so that all its bytes may be read, of the same size and layout in device
/// code.
pub unsafe trait KernelParam: Copy + 'static {
    /// Its bytes, as kernels read them from memory.
    ///
    /// ```
    /// # use mscclpp_gpu::KernelParam;
    /// assert_eq!(1u32.to_bytes(), 1u32.to_ne_bytes());
    /// ```
    #[must_use]
    fn to_bytes(&self) -> Vec<u8> {
        Self::slice_to_bytes(std::slice::from_ref(self))
    }

    /// The bytes of all of them, one behind the other.
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

/// The arguments of a launch, copied in when they are pushed.
///
/// ```
/// # use mscclpp_gpu::{DevicePtr, KernelArgs};
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
