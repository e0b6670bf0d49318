//! Arguments of kernels: from one run of bytes, as `mscclpp.utils.pack` makes it, to the parameters that a kernel has.

use std::sync::Arc;

use mscclpp::{
    KernelArgs,
    gpu::{KernelArgument, KernelObject, KernelParameter, Owner},
};
use pyo3::{intern, prelude::*, types::PyTuple};

use crate::{
    abort::first_of,
    error,
    fifo::PyFifo,
    memory_channel::{PyBaseMemoryChannel, PyMemoryChannel},
    owned,
    port_channel::{PyBasePortChannel, PyPortChannel},
    proxy::PyProxy,
    semaphore::{PyDeviceToDevice, PyHostToDevice},
};

/// A tuple of arguments, and what a kernel gets for it. Launches keep it, and so the tuple.
pub(crate) struct Prepared {
    tuple: Py<PyTuple>,
    /// With what kernels wait through.
    values: KernelArgs,
    /// Where the tensors are that can move, and in which places of the tuple.
    addresses: Vec<(usize, u64)>,
    /// [`owned::closed`] when it was prepared.
    closed: u64,
}

impl KernelObject for Prepared {}

impl Prepared {
    pub(crate) fn new(
        tuple: Bound<'_, PyTuple>,
        mut values: KernelArgs,
        addresses: Vec<(usize, u64)>,
    ) -> PyResult<Arc<Self>> {
        for argument in &tuple {
            if let Some(waited) = waited_through(&argument)? {
                values = values.with_owner(waited);
            }
        }
        Ok(Arc::new(Self { tuple: tuple.unbind(), values, addresses, closed: owned::closed() }))
    }

    /// The values and what a launch keeps: the same for all launches, so that a stream keeps it once.
    pub(crate) fn args(this: &Arc<Self>) -> KernelArgs {
        this.values.clone().with_owner(this.clone())
    }

    /// Whether it is of this very tuple, and would be prepared in the same way again.
    pub(crate) fn is_of(&self, tuple: &Bound<'_, PyTuple>) -> PyResult<bool> {
        // As this holds the tuple, no other one has its address.
        if !self.tuple.is(tuple) || self.closed != owned::closed() {
            return Ok(false);
        }
        for (place, address) in &self.addresses {
            let now = tuple.get_item(*place)?.call_method0(intern!(tuple.py(), "data_ptr"))?;
            if now.extract::<u64>()? != *address {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What knows of the waits of kernels through an argument, if they can wait through it.
fn waited_through(argument: &Bound<'_, PyAny>) -> PyResult<Option<Owner>> {
    first_of!(argument, it => (&it.waited()?).owner(); PyMemoryChannel, PyPortChannel, PyBaseMemoryChannel,
        PyBasePortChannel);
    first_of!(argument, it => Some(it.waited()?.owner()); PyHostToDevice, PyDeviceToDevice);
    first_of!(argument, it => it.owner()?; PyFifo, PyProxy);
    Ok(None)
}

/// Cuts `packed` into the arguments of a kernel. They may be where a C compiler puts the members of a struct, or one
/// directly behind the other.
pub(crate) fn unpack(kernel: &str, parameters: &[KernelParameter], packed: &[u8]) -> PyResult<KernelArgs> {
    let sizes = || parameters.iter().map(|parameter| parameter.size as usize);
    let end = parameters.last().map_or(0, |last| (last.offset + last.size) as usize);
    // An `int` for a `bool` at the end makes it longer.
    let starts: Vec<usize> = if (end..end + 8).contains(&packed.len()) {
        parameters.iter().map(|parameter| parameter.offset as usize).collect()
    } else if packed.len() == sizes().sum::<usize>() {
        let behind = |end: &mut usize, size| Some(std::mem::replace(end, *end + size));
        sizes().scan(0, behind).collect()
    } else {
        let sizes: Vec<usize> = sizes().collect();
        return Err(error::misuse(format!(
            "launch of {kernel}: its parameters have {sizes:?} bytes, {end} in all with the gaps between them, and the \
             packed arguments have {}",
            packed.len()
        )));
    };
    let values = sizes().zip(starts).map(|(size, start)| &packed[start..start + size]);
    Ok(values.fold(KernelArgs::new(), KernelArgs::with_bytes))
}
