//! Pointers that C code passes: where results are written, arrays, and structs of old and new headers.

use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    ptr::{self, NonNull},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    abi::{Handle, Versioned},
    failure::Failure,
};

/// A new handle, which is no address. No handle is given twice, so one that is not valid any more names nothing else.
pub(crate) fn next_handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    ptr::without_provenance_mut(NEXT.fetch_add(0x10, Ordering::Relaxed))
}

/// A pointer of C code, never null, to which a result is written.
pub(crate) struct OutPointer<T>(NonNull<T>);

impl<T> Clone for OutPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for OutPointer<T> {}

impl<T> OutPointer<T> {
    /// Checks `pointer`, which the caller passed as the argument called `name`.
    ///
    /// # Safety
    /// `pointer` is null, or valid for writes of a `T` as long as this is used.
    ///
    /// # Errors
    /// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if `pointer` is null.
    pub(crate) unsafe fn at(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        NonNull::new(pointer)
            .map(Self)
            .ok_or_else(|| Failure::argument(format!("`{name}`: the out argument is NULL")))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: the caller of `at` promised that the address is valid for writes.
        unsafe { self.0.as_ptr().write(value) }
    }
}

/// Copies the `count` values at `pointer`, which C code passed as the argument called `name`.
///
/// # Safety
/// `pointer` is null, or valid for reads of `count` values.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if `count` is negative, or if `pointer` is null and
/// `count` is not 0.
pub(crate) unsafe fn array<T: Copy>(pointer: *const T, count: c_int, name: &str) -> Result<Vec<T>, Failure> {
    let count =
        usize::try_from(count).map_err(|_| Failure::argument(format!("{count} elements of `{name}`")))?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(Failure::argument(format!("`{name}` is NULL")));
    }
    // SAFETY: `pointer` is not null, and the caller promised that `count` values are there.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec())
}

/// The size that a struct of the program states, of whatever version it is.
///
/// # Safety
/// `given` points to as many bytes as its first field says, which begin with that field and a mark.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if the struct was not initialised.
pub(crate) unsafe fn stated_size<T: Versioned>(given: *const T) -> Result<usize, Failure> {
    // SAFETY: the caller promises that the struct begins with its size.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    if !(T::LEAST..=1 << 16).contains(&size) {
        return Err(Failure::argument(format!(
            "the size in {} is {size}; initialise it with {}",
            T::NAME,
            T::INITIALIZER
        )));
    }
    // SAFETY: the caller promises the mark behind the size.
    let magic = unsafe { given.cast::<usize>().add(1).cast::<c_uint>().read_unaligned() };
    if magic != T::MAGIC {
        return Err(Failure::argument(format!(
            "the mark in {} is {magic:#x}; initialise it with {}",
            T::NAME,
            T::INITIALIZER
        )));
    }
    Ok(size)
}

/// Reads a struct of the program. The fields that an older header has not are as the initialiser sets them.
///
/// # Safety
/// `given` is what [`stated_size`] asks for, and any bytes are valid values of the fields.
///
/// # Errors
/// The same as of [`stated_size`].
pub(crate) unsafe fn versioned<T: Versioned>(given: *const T) -> Result<T, Failure> {
    let mut read = T::INITIAL;
    // SAFETY: the caller's promise; at most the size of `read` is copied.
    unsafe {
        let size = stated_size(given)?.min(size_of::<T>());
        ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut read).cast(), size);
    }
    Ok(read)
}

/// Copies a text that C code passed. NULL is none.
///
/// # Safety
/// `pointer` is null or points to a C string.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}
