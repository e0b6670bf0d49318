//! Memory of Python programs: an address and a size, or an object with the buffer protocol.

use std::ptr;

use pyo3::{
    buffer::PyUntypedBuffer, exceptions::PyTypeError, inspect::PyStaticExpr, prelude::*,
    type_hint_identifier, type_hint_subscript, type_hint_union, types::PyBool,
};

use crate::error;

/// Memory of a program. While this lives, the buffer of an object can neither move nor be resized, although other
/// threads of the program run meanwhile.
pub(crate) struct Memory {
    at: *const u8,
    size: usize,
    _view: Option<PyUntypedBuffer>,
}

impl Memory {
    /// Returns a copy of the bytes.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        // SAFETY: `size` bytes of a buffer whose view is held, or memory for which the program says so, which is what an
        // address in this API means. Nothing else has the vector.
        unsafe { ptr::copy_nonoverlapping(self.at, bytes.as_mut_ptr(), self.size) };
        bytes
    }

    /// Overwrites the memory with received bytes, whose number must be the size of the memory.
    pub(crate) fn write(&self, what: &str, bytes: &[u8]) -> PyResult<()> {
        if bytes.len() != self.size {
            return Err(error::misuse(format!(
                "{what}: {} bytes came where {} were to be received; they are lost",
                bytes.len(),
                self.size
            )));
        }
        // SAFETY: `size` bytes of a writable buffer whose view is held, or memory for which the program says so, which is
        // what an address in this API means. Nothing else has `bytes`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.cast_mut(), self.size) };
        Ok(())
    }
}

/// The text of the error about an argument of another type.
const NO_BYTES: &str = "the data must be an address (int), or an object with a buffer such as bytes; it is";

/// Returns the address and the number of the bytes of `data`.
pub(crate) fn locate(
    what: &str,
    data: &Bound<'_, PyAny>,
    size: Option<usize>,
    writable: bool,
) -> PyResult<Memory> {
    // Arrays and tensors of one integer convert to a number, too, and are no addresses. Numbers of NumPy are.
    let may_be_address = !data.is_instance_of::<PyBool>() && !data.hasattr("__setitem__")?;
    if may_be_address && let Ok(address) = data.extract::<usize>() {
        let Some(size) = size else {
            return Err(PyTypeError::new_err(format!("{what}: the data is an address, so a size is needed")));
        };
        if address == 0 && size > 0 {
            return Err(error::misuse(format!("{what}: the address of {size} bytes is 0")));
        }
        return Ok(Memory { at: ptr::with_exposed_provenance(address), size, _view: None });
    }
    let Ok(buffer) = PyUntypedBuffer::get(data) else {
        return Err(error::unexpected(&format!("{what}: {NO_BYTES}"), data));
    };
    of_buffer(what, buffer, size, writable)
}

fn of_buffer(what: &str, buffer: PyUntypedBuffer, size: Option<usize>, writable: bool) -> PyResult<Memory> {
    if !buffer.is_c_contiguous() || writable && buffer.readonly() {
        let how = if writable { "contiguous and writable" } else { "contiguous" };
        return Err(error::misuse(format!("{what}: the data's memory must be {how}")));
    }
    let len = buffer.len_bytes();
    match size {
        Some(size) if size > len => {
            Err(error::misuse(format!("{what}: the data has {len} bytes, fewer than the size of {size}")))
        }
        size => {
            let (at, size) = (buffer.buf_ptr().cast_const().cast(), size.unwrap_or(len));
            Ok(Memory { at, size, _view: Some(buffer) })
        }
    }
}

/// Bytes from an object with a buffer, or from a sequence of numbers.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = type_hint_union!(
        type_hint_identifier!("typing_extensions", "Buffer"),
        type_hint_subscript!(type_hint_identifier!("collections.abc", "Sequence"), u8::INPUT_TYPE)
    );

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        // An array is also a sequence, of numbers that may have several bytes.
        if let Ok(buffer) = PyUntypedBuffer::get(&object) {
            return Ok(Self(of_buffer("the argument", buffer, None, false)?.read()));
        }
        let expected = "expected an object with a buffer such as bytes, or numbers from 0 to 255, got";
        object.extract().map(Self).map_err(|_| error::unexpected(expected, &object))
    }
}
