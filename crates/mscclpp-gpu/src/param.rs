use crate::DevicePtr;

/// A value that can be an argument of a kernel.
///
/// Structs derive it, and the derive checks its promises at compile time: a layout that device code has too, fields that
/// are such values, and no padding.
///
/// ```
/// use mscclpp_gpu::{DevicePtr, KernelParam};
///
/// /// The same as in the kernel's source: `struct Part { float* data; uint32_t first; uint32_t count; };`
/// #[derive(Clone, Copy, KernelParam)]
/// #[repr(C)]
/// struct Part {
///     data: DevicePtr,
///     first: u32,
///     count: u32,
/// }
/// assert_eq!(Part { data: DevicePtr(0), first: 3, count: 4 }.to_bytes().len(), 16);
/// ```
///
/// The trait cannot be derived for a struct with padding, such as these four bytes:
///
/// ```compile_fail,E0080
/// # use mscclpp_gpu::{DevicePtr, KernelParam};
/// #[derive(Clone, Copy, KernelParam)]
/// #[repr(C)]
/// struct Part {
///     data: DevicePtr,
///     first: u32,
/// }
/// ```
///
/// nor with a field that is no such value:
///
/// ```compile_fail,E0277
/// # use mscclpp_gpu::KernelParam;
/// #[derive(Clone, Copy, KernelParam)]
/// #[repr(C)]
/// struct Flag(bool);
/// ```
///
/// nor in a layout that Rust chooses:
///
/// ```compile_fail
/// # use mscclpp_gpu::KernelParam;
/// #[derive(Clone, Copy, KernelParam)]
/// struct Flag(u8);
/// ```
///
/// # Safety
/// The type must be plain data without padding, so that all its bytes may be read, and any bytes must be a value. Its size
/// and layout must be the same in device code.
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
// SAFETY: the elements follow each other on both sides.
unsafe impl<T: KernelParam, const N: usize> KernelParam for [T; N] {}
// SAFETY: pointers are 8 bytes on both sides.
unsafe impl<T: 'static> KernelParam for *mut T {}
// SAFETY: pointers are 8 bytes on both sides.
unsafe impl<T: 'static> KernelParam for *const T {}
