//! `Fifo` and `ProxyTrigger`.

use mscclpp::{
    gpu::{KernelArgument, Owner},
    proxy::{Fifo, ProxyTrigger},
};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{
    device,
    error::{self, OrRaise},
    handle::FifoDeviceHandle,
    owned::{Owned, closable},
    uint::{Uint, uint},
};

/// A trigger: 128 bits that a thread of a kernel pushes for its proxy.
#[pyclass(name = "ProxyTrigger", module = "mscclpp._mscclpp", from_py_object, get_all, set_all, eq)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyProxyTrigger {
    /// The first 64 bits.
    fst: u64,
    /// The second 64 bits. The FIFO itself uses the highest one.
    snd: u64,
}

#[pymethods]
impl PyProxyTrigger {
    #[new]
    #[pyo3(signature = (fst: "typing.SupportsIndex" = 0, snd: "typing.SupportsIndex" = 0))]
    fn new(#[pyo3(from_py_with = uint)] fst: u64, #[pyo3(from_py_with = uint)] snd: u64) -> Self {
        Self { fst, snd }
    }

    fn __repr__(&self) -> String {
        format!("ProxyTrigger(fst={:#x}, snd={:#x})", self.fst, self.snd)
    }
}

impl From<ProxyTrigger> for PyProxyTrigger {
    fn from(ProxyTrigger { fst, snd }: ProxyTrigger) -> Self {
        Self { fst, snd }
    }
}

/// A queue in which device threads of the current GPU pass triggers to the host.
#[pyclass(name = "Fifo", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyFifo {
    inner: Owned<Mutex<Fifo>>,
}

impl PyFifo {
    pub(crate) fn owner(&self) -> PyResult<Option<Owner>> {
        self.with(|fifo| (&*fifo).owner())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Fifo) -> T) -> PyResult<T> {
        Ok(work(&mut self.inner.get()?.lock()))
    }
}

#[pymethods]
impl PyFifo {
    #[new]
    #[pyo3(signature = (size = Uint(Fifo::DEFAULT_SIZE)))]
    fn new(py: Python<'_>, size: Uint<u64>) -> PyResult<Self> {
        let gpu = device::current(py)?;
        Ok(Self { inner: Owned::new("Fifo", Mutex::new(py.detach(|| Fifo::new(&gpu, size.0)).or_raise()?)) })
    }

    /// Returns the next trigger, or None. The trigger stays in the queue until `pop()`.
    fn poll(&self) -> PyResult<Option<PyProxyTrigger>> {
        self.with(|fifo| fifo.poll().map(PyProxyTrigger::from))
    }

    /// Removes the trigger that `poll()` returned.
    fn pop(&self) -> PyResult<()> {
        match self.with(|fifo| fifo.poll().map(|_| fifo.pop()))? {
            Some(()) => Ok(()),
            None => Err(error::misuse("pop: there is no trigger to take; poll() says None")),
        }
    }

    /// How many triggers the queue holds.
    fn size(&self) -> PyResult<u64> {
        self.with(|fifo| fifo.size())
    }

    /// The handle that kernels push triggers with. It is valid as long as the FIFO lives.
    fn device_handle(&self) -> PyResult<FifoDeviceHandle> {
        self.with(|fifo| FifoDeviceHandle(fifo.device_handle()))
    }

    /// Ends all waits of kernels on the queue, and all later ones.
    fn abort(&self) -> PyResult<()> {
        self.with(|fifo| fifo.abort())
    }
}

closable!(PyFifo, inner, |fifo| {
    let size = fifo.lock().size();
    format!(" for {size} triggers")
});
