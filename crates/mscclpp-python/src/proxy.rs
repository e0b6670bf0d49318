//! `Proxy`: a service of your own, whose handler is a Python function.

use std::{
    process,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use mscclpp::{
    errors::{CoreError, ProxyError},
    gpu::{KernelArgument, Owner},
    proxy::{Fifo, FifoPosition, Proxy, ProxyHandler, ProxyHandlerResult, ProxyTrigger},
};
use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::{
    device,
    enums::enumeration,
    error::{self, OrRaise},
    fifo::PyProxyTrigger,
    handle::FifoDeviceHandle,
    owned::Owned,
    uint::uint,
    waiting,
};

enumeration! {
    /// Whether a proxy goes on after a trigger.
    PyProxyHandlerResult as "ProxyHandlerResult" {
        Continue = 0,
        Stop = 1,
        Retry = 2,
    }
}

/// What the handler raised, kept for whoever stops the proxy.
type Raised = Arc<Mutex<Option<PyErr>>>;

struct Handler {
    function: Py<PyAny>,
    raised: Raised,
}

impl Handler {
    fn call(&self, py: Python<'_>, trigger: ProxyTrigger) -> PyResult<ProxyHandlerResult> {
        let answer = self.function.bind(py).call1((PyProxyTrigger::from(trigger),))?;
        match answer.extract::<PyProxyHandlerResult>() {
            Ok(PyProxyHandlerResult::Continue) => Ok(ProxyHandlerResult::Continue),
            Ok(PyProxyHandlerResult::Stop) => Ok(ProxyHandlerResult::Stop),
            Ok(PyProxyHandlerResult::Retry) => Ok(ProxyHandlerResult::Retry),
            Err(_) => Err(PyTypeError::new_err(format!(
                "the handler of a Proxy must return a ProxyHandlerResult; it returned {}",
                answer.get_type().name()?
            ))),
        }
    }
}

impl ProxyHandler for Handler {
    fn handle(
        &mut self,
        trigger: ProxyTrigger,
        _position: FifoPosition,
    ) -> Result<ProxyHandlerResult, ProxyError> {
        // No interpreter: the process ends.
        let answer = Python::try_attach(|py| self.call(py, trigger));
        answer.unwrap_or(Ok(ProxyHandlerResult::Stop)).map_err(|error| {
            let reason = format!("the handler raised: {error}");
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            ProxyError::Core(CoreError::Aborted { reason })
        })
    }
}

/// A thread that calls `handler(trigger)`, which returns a `ProxyHandlerResult`, for each trigger that kernels of the
/// current GPU push into its FIFO. What the handler raises ends the proxy for good, and is raised by `stop()`.
#[pyclass(name = "Proxy", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyProxy {
    inner: Owned<Arc<Proxy<Handler>>>,
    raised: Raised,
}

impl PyProxy {
    pub(crate) fn owner(&self) -> PyResult<Option<Owner>> {
        Ok(self.inner.get()?.fifo().owner())
    }

    fn outcome(&self, py: Python<'_>, outcome: PyResult<()>) -> PyResult<()> {
        match &*self.raised.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone_ref(py)),
            None => outcome,
        }
    }
}

#[pymethods]
impl PyProxy {
    #[new]
    #[pyo3(signature = (handler, fifo_size = Fifo::DEFAULT_SIZE))]
    fn new(
        py: Python<'_>,
        handler: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = uint)] fifo_size: u64,
    ) -> PyResult<Self> {
        if !handler.is_callable() {
            return Err(PyTypeError::new_err(format!(
                "argument 'handler': expected a function of a trigger, got {}",
                handler.get_type().name()?
            )));
        }
        let gpu = device::current(py)?;
        let raised = Raised::default();
        let handler = Handler { function: handler.clone().unbind(), raised: Arc::clone(&raised) };
        let proxy = py.detach(|| Proxy::builder(&gpu).fifo_size(fifo_size).build(handler)).or_raise()?;
        let proxy = Arc::new(proxy);
        remember(&proxy);
        Ok(Self { inner: Owned::that_may_wait("Proxy", proxy), raised })
    }

    /// Starts the thread, and with `blocking` waits until it takes triggers.
    #[pyo3(signature = (blocking = false))]
    fn start(&self, py: Python<'_>, blocking: bool) -> PyResult<()> {
        let proxy = Arc::clone(&*self.inner.get()?);
        let outcome = waiting::wait(py, move || proxy.start(blocking));
        self.outcome(py, outcome)
    }

    /// Has everything handled that was pushed before, and ends the thread.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let proxy = Arc::clone(&*self.inner.get()?);
        let outcome = waiting::wait(py, move || proxy.stop());
        self.outcome(py, outcome)
    }

    /// Ends the proxy for good, and the waits of kernels on its FIFO.
    #[pyo3(signature = (reason = "aborted by the program"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let proxy = self.inner.get()?;
        py.detach(|| proxy.abort(reason));
        Ok(())
    }

    /// Whether its thread takes triggers.
    fn is_running(&self) -> PyResult<bool> {
        Ok(self.inner.get()?.is_running())
    }

    /// What kernels push triggers with.
    fn device_handle(&self) -> PyResult<FifoDeviceHandle> {
        Ok(FifoDeviceHandle(self.inner.get()?.fifo().device_handle()))
    }

    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        slf.get().start(py, true)?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        if self.inner.is_open() { self.stop(py) } else { Ok(()) }
    }

    /// Stops it as `stop()` does, and lets go of its thread, its FIFO and the handler. Any other call then raises. A second
    /// `close()` does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.inner.is_open() {
            return Ok(());
        }
        let stopped = self.stop(py);
        self.inner.close();
        stopped
    }

    fn __repr__(&self) -> String {
        self.inner.show(|proxy| if proxy.is_running() { ", running" } else { ", not running" }.to_owned())
    }
}

/// The proxies of this process: their threads run Python code, which they must not do while the interpreter goes.
/// Each with the process that made it: the thread of a parent's proxy is not in its child.
static KNOWN: Mutex<Vec<(u32, Weak<Proxy<Handler>>)>> = Mutex::new(Vec::new());

fn remember(proxy: &Arc<Proxy<Handler>>) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, known)| known.strong_count() > 0);
    known.push((process::id(), Arc::downgrade(proxy)));
}

/// Ends them: for `atexit`.
#[pyfunction(name = "_end_proxies")]
pub(crate) fn end_all(py: Python<'_>) -> PyResult<()> {
    let known = std::mem::take(&mut *KNOWN.lock().unwrap_or_else(PoisonError::into_inner));
    let ours = known.iter().filter(|(process, _)| *process == process::id());
    for proxy in ours.filter_map(|(_, known)| known.upgrade()).filter(|proxy| proxy.is_running()) {
        proxy.abort("the interpreter exits");
        let stopped = waiting::wait(py, move || {
            // What it failed with is the abort.
            let _ = proxy.stop();
            Ok::<_, mscclpp::Error>(())
        });
        stopped.map_err(|error: PyErr| error::misuse(format!("ending a proxy at exit: {error}")))?;
    }
    Ok(())
}
