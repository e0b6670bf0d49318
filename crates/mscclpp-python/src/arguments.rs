//! Arguments of kernels: splits the packed bytes that `mscclpp.utils.pack` makes into the parameters of a kernel.

use std::sync::Arc;

use mscclpp::{
    KernelArgs,
    gpu::{KernelArgument, KernelObject, KernelParameter, Owner},
};
use pyo3::{intern, prelude::*, types::PyTuple};

use crate::{
    error,
    fifo::PyFifo,
    macros::first_of,
    memory_channel::{PyBaseMemoryChannel, PyMemoryChannel},
    owned,
    port_channel::{PyBasePortChannel, PyPortChannel},
    proxy::PyProxy,
    semaphore_kinds::{PyDeviceToDevice, PyHostToDevice},
};

/// A tuple of arguments, and the values that a kernel gets for it. Launches keep this, and so the tuple.
pub(crate) struct Prepared {
    tuple: Py<PyTuple>,
    /// The values, with the objects that kernels wait through.
    values: KernelArgs,
    /// The tensors in the tuple that can move: their places in the tuple, and their addresses.
    addresses: Vec<(usize, u64)>,
    /// The value of [`owned::closed`] when the tuple was prepared.
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

    /// Returns the values, with this object as owner. It is the same object for all launches, so a stream keeps it
    /// once.
    pub(crate) fn args(this: &Arc<Self>) -> KernelArgs {
        this.values.clone().with_owner(this.clone())
    }

    /// Whether this was made of the same tuple, and would be the same if it were made again now.
    pub(crate) fn is_of(&self, tuple: &Bound<'_, PyTuple>) -> PyResult<bool> {
        // This object holds the tuple, so no other tuple can have the same address.
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

/// Returns the owner that reports the waits of kernels through an argument. Returns none for an argument through
/// which kernels cannot wait.
fn waited_through(argument: &Bound<'_, PyAny>) -> PyResult<Option<Owner>> {
    first_of!(argument, it => (&it.waited()?).owner(); PyMemoryChannel, PyPortChannel, PyBaseMemoryChannel,
        PyBasePortChannel);
    first_of!(argument, it => Some(it.waited()?.owner()); PyHostToDevice, PyDeviceToDevice);
    first_of!(argument, it => it.owner()?; PyFifo, PyProxy);
    Ok(None)
}

/// Cuts `packed` into the arguments of a kernel. The arguments lie either where a C compiler puts the members of a
/// struct, or without gaps.
pub(crate) fn unpack(kernel: &str, parameters: &[KernelParameter], packed: &[u8]) -> PyResult<KernelArgs> {
    let sizes = || parameters.iter().map(|parameter| parameter.size as usize);
    let end = parameters.last().map_or(0, |last| (last.offset + last.size) as usize);
    // An `int` given for a `bool` at the end makes the bytes longer.
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
