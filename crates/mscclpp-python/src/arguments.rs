//! Arguments of kernels: from one run of bytes, as `mscclpp.utils.pack` makes it, to the parameters that a kernel has.

use std::sync::Arc;

use mscclpp::{
    KernelArgs,
    errors::GpuError,
    gpu::{KernelArgument, KernelObject, KernelParameter, KernelWait, Owner},
};
use pyo3::{intern, prelude::*, types::PyTuple};

use crate::{
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
    /// Without an owner.
    values: KernelArgs,
    /// Where the tensors are that can move, and in which places of the tuple.
    addresses: Vec<(usize, u64)>,
    /// [`owned::closed`] when it was prepared.
    closed: u64,
    /// What kernels wait through.
    waited: Vec<Owner>,
}

/// That of all channels and semaphores in the tuple.
impl KernelObject for Prepared {
    fn peers(&self) -> Vec<String> {
        self.waited.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.waited.waits()
    }

    fn may_have_failed(&self) -> bool {
        self.waited.may_have_failed()
    }

    fn check(&self) -> Result<(), GpuError> {
        self.waited.check()
    }
}

impl Prepared {
    pub(crate) fn new(
        tuple: Bound<'_, PyTuple>,
        values: KernelArgs,
        addresses: Vec<(usize, u64)>,
    ) -> PyResult<Arc<Self>> {
        let mut waited = Vec::new();
        for argument in &tuple {
            waited.extend(waited_through(&argument)?);
        }
        Ok(Arc::new(Self { tuple: tuple.unbind(), values, addresses, closed: owned::closed(), waited }))
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
    if let Ok(it) = argument.cast::<PyMemoryChannel>() {
        return Ok((&it.get().channel()?).owner());
    }
    if let Ok(it) = argument.cast::<PyPortChannel>() {
        return Ok((&it.get().channel()?).owner());
    }
    if let Ok(it) = argument.cast::<PyBaseMemoryChannel>() {
        return Ok((&it.get().channel()?).owner());
    }
    if let Ok(it) = argument.cast::<PyBasePortChannel>() {
        return Ok((&it.get().channel()?).owner());
    }
    if let Ok(it) = argument.cast::<PyHostToDevice>() {
        return Ok(Some(it.get().shared()?.semaphore().owner()));
    }
    if let Ok(it) = argument.cast::<PyDeviceToDevice>() {
        return Ok(Some(it.get().semaphore()?.owner()));
    }
    if let Ok(it) = argument.cast::<PyFifo>() {
        return it.get().owner();
    }
    if let Ok(it) = argument.cast::<PyProxy>() {
        return it.get().owner();
    }
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
