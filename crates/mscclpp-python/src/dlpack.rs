//! Device memory as DLPack tensors, the form in which array libraries hand each other memory.

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
    slice,
};

use mscclpp::{DeviceBuffer, Platform};
use pyo3::{ffi, prelude::*, types::PyCapsule};

use crate::{data_types, error, retired::RetireOnDrop};

/// An array over device memory, which it keeps alive.
pub(crate) struct Tensor {
    buffer: RetireOnDrop,
    data_type: DataType,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    bits: u8,
    lanes: u16,
}

impl DataType {
    /// Returns the code of the kind, and the bits.
    pub(crate) fn kind(self) -> (u8, u32) {
        (self.code, u32::from(self.bits) * u32::from(self.lanes))
    }
}

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Device {
    kind: i32,
    id: i32,
}

impl Device {
    /// Returns the CUDA device with a number, or the host. DLPack's kind of the host is 1, and that of CUDA is 2.
    pub(crate) fn of(gpu: Option<i32>) -> Self {
        gpu.map_or(Self { kind: 1, id: 0 }, |id| Self { kind: 2, id })
    }

    /// Returns the kind, and the number among the devices of that kind.
    pub(crate) fn numbers(self) -> (i32, i32) {
        (self.kind, self.id)
    }
}

/// `DLTensor`.
#[repr(C)]
pub(crate) struct View {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) dimensions: i32,
    pub(crate) data_type: DataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensor`, followed by the arrays that it points to.
#[repr(C)]
struct Managed {
    view: View,
    context: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Managed)>,
    tensor: Tensor,
}

/// The name of a capsule until a library takes over its memory. Then the capsule gets another name.
const NAME: &CStr = c"dltensor";

impl Tensor {
    pub(crate) fn new(
        buffer: DeviceBuffer,
        name: &str,
        shape: Vec<i64>,
        strides: Vec<i64>,
    ) -> PyResult<Self> {
        let (code, bits) = data_types::of_dlpack(name)?;
        let size = u64::from(bits / 8);
        let shape = if shape.is_empty() { vec![(buffer.len() / size) as i64] } else { shape };
        let strides = if strides.is_empty() { row_major(&shape) } else { strides };
        if strides.len() != shape.len() {
            return Err(error::misuse(format!(
                "argument 'strides': {} of them for {} dimensions",
                strides.len(),
                shape.len()
            )));
        }
        // The offset of the last element.
        let mut last = Some(0u64);
        for (n, stride) in shape.iter().zip(&strides) {
            let (Ok(n), Ok(stride)) = (u64::try_from(*n), u64::try_from(*stride)) else {
                return Err(error::misuse(format!(
                    "shape {shape:?} or strides {strides:?} have negative numbers"
                )));
            };
            last = last.and_then(|last| n.saturating_sub(1).checked_mul(stride)?.checked_add(last));
        }
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(size));
        if !shape.contains(&0) && end.is_none_or(|end| end > buffer.len()) {
            return Err(error::misuse(format!(
                "shape {shape:?} with strides {strides:?} of {name} reaches past the end of {} bytes",
                buffer.len()
            )));
        }
        let data_type = DataType { code, bits, lanes: 1 };
        Ok(Self { buffer: RetireOnDrop(buffer), data_type, shape, strides })
    }
}

fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i]);
    }
    strides
}

/// Returns a buffer's device.
pub(crate) fn device(buffer: &DeviceBuffer) -> Device {
    Device::of((buffer.gpu().platform() == Platform::Cuda).then(|| buffer.gpu().id() as i32))
}

/// Puts a tensor into a capsule.
pub(crate) fn capsule(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let managed = Box::into_raw(Box::new(Managed {
        view: View {
            data: tensor.buffer.0.ptr().as_mut_ptr(),
            device: device(&tensor.buffer.0),
            dimensions: tensor.shape.len() as i32,
            data_type: tensor.data_type,
            shape: tensor.shape.as_ptr().cast_mut(),
            strides: tensor.strides.as_ptr().cast_mut(),
            byte_offset: 0,
        },
        context: std::ptr::null_mut(),
        delete: Some(delete),
        // Moving it leaves the vectors' memory where it is.
        tensor,
    }));
    // SAFETY: attached to the interpreter; the pointer is not null and the name lives for ever. The destructor frees what
    // nobody has taken over.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(destroy));
        if capsule.is_null() {
            delete(managed);
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

type Seen = (u64, u8, u32, Vec<i64>, Option<Vec<i64>>);

/// The address of the array in a capsule, the code of the kind of its numbers, their bits, the shape, and the strides in
/// numbers if there are any. The memory stays the array's.
#[pyfunction(name = "_of_dlpack")]
#[pyo3(signature = (capsule: "object"))]
pub(crate) fn look(capsule: &Bound<'_, PyCapsule>) -> PyResult<Seen> {
    let view: NonNull<View> = capsule.pointer_checked(Some(NAME))?.cast();
    // SAFETY: a capsule of this name has a tensor that begins with the view. It lives as long as the capsule.
    let view = unsafe { view.as_ref() };
    let numbers = |at: *mut i64| match (at.is_null(), usize::try_from(view.dimensions)) {
        // SAFETY: shape and strides have a number for each dimension.
        (false, Ok(n)) => Some(unsafe { slice::from_raw_parts(at, n) }.to_vec()),
        _ => None,
    };
    let (code, bits) = view.data_type.kind();
    let address = view.data.addr() as u64 + view.byte_offset;
    Ok((address, code, bits, numbers(view.shape).unwrap_or_default(), numbers(view.strides)))
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: called once, by whoever has the tensor, with what `capsule` made.
    drop(unsafe { Box::from_raw(managed) });
}

unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with the capsule. One that was taken over has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
