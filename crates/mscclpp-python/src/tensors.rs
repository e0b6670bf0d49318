//! `Tensors` looks at tensors of PyTorch through its table of functions for DLPack, which takes a fraction of the time that its
//! Python methods take.

use std::{
    ffi::{CStr, c_int, c_void},
    mem::MaybeUninit,
    ptr::NonNull,
    slice,
};

use mscclpp::DevicePtr;
use pyo3::{ffi, intern, prelude::*, sync::PyOnceLock, types::PyCapsule};

use crate::{
    data_types,
    dlpack::{DataType, Device, View},
};

/// `DLPackExchangeAPI`, up to what is used of it.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    older: *const c_void,
    others: [*const c_void; 3],
    look: Option<Look>,
}

/// `DLPackDLTensorFromPyObjectNoSync`: writes what a tensor is, or raises and returns another number than 0. Shape and strides
/// belong to the tensor.
type Look = unsafe extern "C" fn(*mut ffi::PyObject, *mut View) -> c_int;

const NAME: &CStr = c"dlpack_exchange_api";
/// The major version of DLPack whose tables have this form.
const MAJOR: u32 = 1;
const COMPLEX: u8 = 5;

/// The memory of a tensor.
struct Numbers {
    at: DevicePtr,
    count: u64,
    kind: (DataType, Device),
}

/// Tensors that have one type and one device.
pub(crate) struct Tensors {
    look: Look,
    first: Option<(DataType, Device)>,
}

impl Tensors {
    /// Returns None if this version of PyTorch has no such table.
    pub(crate) fn of(py: Python<'_>) -> PyResult<Option<Self>> {
        static LOOK: PyOnceLock<Option<Look>> = PyOnceLock::new();
        let look = *LOOK.get_or_try_init(py, || {
            let class = py.import("torch")?.getattr("Tensor")?;
            let Some(table) = class.getattr_opt("__dlpack_c_exchange_api__")? else { return Ok(None) };
            let table: NonNull<Exchange> = table.cast::<PyCapsule>()?.pointer_checked(Some(NAME))?.cast();
            // SAFETY: a capsule of this name has such a table, which lives for ever. All versions begin with the two numbers.
            Ok::<_, PyErr>(unsafe {
                match (*table.as_ptr()).major {
                    MAJOR => (*table.as_ptr()).look,
                    _ => None,
                }
            })
        })?;
        Ok(look.map(|look| Self { look, first: None }))
    }

    /// Returns the address of a tensor's memory, and the number of its elements. Returns None if it has another type or device
    /// than the first one, or if the memory does not hold the numbers in their order and with their signs.
    pub(crate) fn look(&mut self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<(DevicePtr, u64)>> {
        Ok(self.look_at(tensor)?.and_then(|Numbers { at, count, kind }| {
            (*self.first.get_or_insert(kind) == kind).then_some((at, count))
        }))
    }

    /// Returns the memory of a tensor, if it holds the numbers in their order and with their signs.
    fn look_at(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Numbers>> {
        let mut view = MaybeUninit::uninit();
        // SAFETY: the thread is attached to the interpreter, and `view` is valid for the write.
        if unsafe { (self.look)(tensor.as_ptr(), view.as_mut_ptr()) } != 0 {
            // The tensor is sparse or has no memory, or this is no tensor.
            drop(PyErr::take(tensor.py()));
            return Ok(None);
        }
        // SAFETY: written by a call that has not failed.
        let view: View = unsafe { view.assume_init() };
        if view.dimensions > 0 && (view.shape.is_null() || view.strides.is_null()) {
            return Ok(None);
        }
        let [shape, strides] = [view.shape, view.strides].map(|numbers| match view.dimensions {
            0 => &[],
            // SAFETY: both have a number for each dimension. They live until the tensor changes, which it does not meanwhile.
            dimensions => unsafe { slice::from_raw_parts(numbers, dimensions as usize) },
        });
        let count: i64 = shape.iter().product();
        let is_plain = count == 0 || (is_contiguous(shape, strides) && !view.data.is_null());
        if !is_plain {
            return Ok(None);
        }
        let py = tensor.py();
        if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()?
            || (view.data_type.code == COMPLEX && tensor.call_method0(intern!(py, "is_conj"))?.is_truthy()?)
        {
            return Ok(None);
        }
        let at = DevicePtr(view.data as u64 + view.byte_offset);
        Ok(Some(Numbers { at, count: count as u64, kind: (view.data_type, view.device) }))
    }
}

/// Returns the address, the number of elements and the name of the type of a tensor on a device of CUDA, or on the host if
/// `device` is None. Returns None for another object, and where the memory does not hold numbers of the types of collectives
/// in their order and with their signs.
#[pyfunction(name = "_look_at_tensor")]
pub(crate) fn look_at_tensor(
    tensor: &Bound<'_, PyAny>,
    device: Option<i32>,
) -> PyResult<Option<(u64, u64, &'static str)>> {
    let Some(tensors) = Tensors::of(tensor.py())? else { return Ok(None) };
    Ok(tensors.look_at(tensor)?.and_then(|Numbers { at, count, kind: (data_type, on) }| {
        let name = data_types::name_of_dlpack(data_type.kind())?;
        (on == Device::of(device)).then_some((at.0, count, name))
    }))
}

/// Whether the elements of a shape are next to each other, in their order.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().filter(|(n, _)| **n != 1).all(|(n, stride)| {
        let is_next = *stride == expected;
        expected *= n;
        is_next
    })
}
