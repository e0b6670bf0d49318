//! Memory that Python programs name: by address and size, or as an object with the buffer protocol.

use std::ptr;

use pyo3::{
    buffer::PyUntypedBuffer, exceptions::PyTypeError, inspect::PyStaticExpr, prelude::*,
    type_hint_identifier, type_hint_subscript, type_hint_union,
};

use crate::error;

/// Bytes to send: those of `bytes`-like objects, or of memory at an address.
pub(crate) fn read(what: &str, data: &Bound<'_, PyAny>, size: Option<usize>) -> PyResult<Vec<u8>> {
    let (address, size) = locate(what, data, size, false)?;
    let mut bytes = vec![0; size];
    // SAFETY: an object's buffer that is `size` bytes long, or memory for which the program says so, which is what an
    // address in this API means. Nothing else has the vector.
    unsafe { ptr::copy_nonoverlapping(address, bytes.as_mut_ptr(), size) };
    Ok(bytes)
}

/// Puts what was received where the program wants it; the size must be the same.
pub(crate) fn write(what: &str, data: &Bound<'_, PyAny>, size: Option<usize>, bytes: &[u8]) -> PyResult<()> {
    let (address, size) = locate(what, data, size, true)?;
    if bytes.len() != size {
        return Err(error::misuse(format!(
            "{what}: {} bytes came where {size} were to be received; they are lost",
            bytes.len()
        )));
    }
    // SAFETY: a writable buffer of that size, or memory for which the program says so, which is what an address in this
    // API means. Nothing else has `bytes`.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast_mut(), size) };
    Ok(())
}

/// What is wrong with other data.
const NO_BYTES: &str = "the data must be an address (int), or an object with a buffer such as bytes; it is";

/// Where the bytes of `data` are, and how many. Valid as long as `data` is kept and not resized.
pub(crate) fn locate(
    what: &str,
    data: &Bound<'_, PyAny>,
    size: Option<usize>,
    writable: bool,
) -> PyResult<(*const u8, usize)> {
    if let Ok(address) = data.extract::<usize>() {
        let Some(size) = size else {
            return Err(PyTypeError::new_err(format!("{what}: the data is an address, so a size is needed")));
        };
        if address == 0 && size > 0 {
            return Err(error::misuse(format!("{what}: the address of {size} bytes is 0")));
        }
        return Ok((ptr::with_exposed_provenance(address), size));
    }
    let Ok(buffer) = PyUntypedBuffer::get(data) else {
        return Err(error::unexpected(&format!("{what}: {NO_BYTES}"), data));
    };
    if !buffer.is_c_contiguous() || writable && buffer.readonly() {
        let how = if writable { "contiguous and writable" } else { "contiguous" };
        return Err(error::misuse(format!("{what}: the data's memory must be {how}")));
    }
    let len = buffer.len_bytes();
    match size {
        Some(size) if size > len => {
            Err(error::misuse(format!("{what}: the data has {len} bytes, fewer than the size of {size}")))
        }
        size => Ok((buffer.buf_ptr().cast_const().cast(), size.unwrap_or(len))),
    }
}

/// Bytes in whatever form: an object with a buffer, or a sequence of numbers.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = type_hint_union!(
        type_hint_identifier!("typing_extensions", "Buffer"),
        type_hint_subscript!(type_hint_identifier!("collections.abc", "Sequence"), u8::INPUT_TYPE)
    );

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<Vec<u8>>() {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => read("the argument", &object, None).map(Self),
        }
    }
}
