//! Pointers that C code passes: where results are written, and arrays.

use std::{ffi::c_int, ptr::NonNull};

use crate::failure::Failure;

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
        NonNull::new(pointer).map(Self).ok_or_else(|| Failure::argument(format!("`{name}` is NULL")))
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
