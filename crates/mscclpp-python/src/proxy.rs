//! `Proxy`, a proxy whose handler is a Python function.

use std::{
    process,
    sync::{Arc, Weak},
    time::Duration,
};

use mscclpp::{
    errors::{CoreError, ProxyError},
    gpu::{KernelArgument, Owner},
    proxy::{Fifo, FifoPosition, Proxy, ProxyHandler, ProxyHandlerResult, ProxyTrigger},
};
use parking_lot::Mutex;
use pyo3::{PyTraverseError, PyVisit, prelude::*};

use crate::{
    device,
    enums::enumeration,
    error::{self, OrRaise},
    fifo::PyProxyTrigger,
    handle::FifoDeviceHandle,
    owned::Owned,
    uint::Uint,
    waiting,
};

enumeration! {
    /// Whether a proxy goes on after a trigger.
    PyProxyHandlerResult as "ProxyHandlerResult" of ProxyHandlerResult {
        Continue = 0 is Continue,
        Stop = 1 is Stop,
        Retry = 2 is Retry,
    }
}

/// The exception that the handler raised, kept for the thread that stops the proxy.
type Raised = Arc<Mutex<Option<PyErr>>>;

struct Handler {
    /// The function of the program. None when the garbage collector has freed it.
    function: Arc<Mutex<Option<Py<PyAny>>>>,
    raised: Raised,
}

impl Handler {
    fn call(&self, py: Python<'_>, trigger: ProxyTrigger) -> PyResult<ProxyHandlerResult> {
        let function = self.function.lock().as_ref().map(|function| function.clone_ref(py));
        let Some(function) = function else { return Ok(ProxyHandlerResult::Stop) };
        let answer = function.bind(py).call1((PyProxyTrigger::from(trigger),))?;
        match answer.extract::<PyProxyHandlerResult>() {
            Ok(result) => Ok(result.into()),
            Err(_) => Err(error::unexpected(
                "the handler of a Proxy must return a ProxyHandlerResult; it returned",
                &answer,
            )),
        }
    }
}

impl ProxyHandler for Handler {
    fn handle(
        &mut self,
        trigger: ProxyTrigger,
        _position: FifoPosition,
    ) -> Result<ProxyHandlerResult, ProxyError> {
        // Without an interpreter the process is about to end.
        let answer = Python::try_attach(|py| self.call(py, trigger));
        answer.unwrap_or(Ok(ProxyHandlerResult::Stop)).map_err(|error| {
            let reason = format!("the handler raised: {error}");
            *self.raised.lock() = Some(error);
            ProxyError::Core(CoreError::Aborted { reason })
        })
    }
}

/// A thread that calls `handler(trigger)`, which returns a `ProxyHandlerResult`, for each trigger that kernels of the
/// current GPU push into its FIFO. An exception of the handler ends the proxy for good, and `stop()` raises it.
#[pyclass(name = "Proxy", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyProxy {
    inner: Owned<Arc<Proxy<Handler>>>,
    /// The function, as long as the proxy exists.
    function: Weak<Mutex<Option<Py<PyAny>>>>,
    raised: Raised,
}

impl PyProxy {
    pub(crate) fn owner(&self) -> PyResult<Option<Owner>> {
        Ok(self.inner.get()?.fifo().owner())
    }

    fn outcome(&self, py: Python<'_>, outcome: PyResult<()>) -> PyResult<()> {
        match &*self.raised.lock() {
            Some(error) => Err(error.clone_ref(py)),
            None => outcome,
        }
    }
}

#[pymethods]
impl PyProxy {
    #[new]
    #[pyo3(signature = (
        handler: "collections.abc.Callable[[ProxyTrigger], ProxyHandlerResult]", fifo_size = Uint(Fifo::DEFAULT_SIZE),
    ))]
    fn new(py: Python<'_>, handler: &Bound<'_, PyAny>, fifo_size: Uint<u64>) -> PyResult<Self> {
        if !handler.is_callable() {
            return Err(error::unexpected(
                "argument 'handler': expected a function of a trigger, got",
                handler,
            ));
        }
        let gpu = device::current(py)?;
        let raised = Raised::default();
        let function = Arc::new(Mutex::new(Some(handler.clone().unbind())));
        let weak = Arc::downgrade(&function);
        let handler = Handler { function, raised: Arc::clone(&raised) };
        let proxy = py.detach(|| Proxy::builder(&gpu).fifo_size(fifo_size.0).build(handler)).or_raise()?;
        let proxy = Arc::new(proxy);
        remember(&proxy)?;
        Ok(Self { inner: Owned::that_may_wait("Proxy", proxy), function: weak, raised })
    }

    /// Shows the function to the garbage collector: it may be a method of the object that holds this one.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let function = self.function.upgrade();
        // A thread that holds the lock may be stopped meanwhile, so this does not wait for it.
        let locked = function.as_ref().and_then(|function| function.try_lock());
        locked.map_or(Ok(()), |function| visit.call(function.as_ref()))
    }

    fn __clear__(&self) {
        // Dropping the function may run Python code, which must not meet the lock.
        let function = self.function.upgrade().and_then(|function| function.lock().take());
        drop(function);
    }

    /// Starts the thread, and with `blocking` waits until it takes triggers.
    #[pyo3(signature = (blocking = false))]
    fn start(&self, py: Python<'_>, blocking: bool) -> PyResult<()> {
        let proxy = Arc::clone(&*self.inner.get()?);
        let outcome = waiting::wait(py, move || proxy.start(blocking));
        self.outcome(py, outcome)
    }

    /// Handles all triggers that were pushed before, and ends the thread.
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

    /// Whether the thread takes triggers.
    fn is_running(&self) -> PyResult<bool> {
        Ok(self.inner.get()?.is_running())
    }

    /// The handle that kernels push triggers with.
    fn device_handle(&self) -> PyResult<FifoDeviceHandle> {
        Ok(FifoDeviceHandle(self.inner.get()?.fifo().device_handle()))
    }

    fn __repr__(&self) -> String {
        self.inner.show(|proxy| if proxy.is_running() { ", running" } else { ", not running" }.to_owned())
    }
}

/// Gives a class that starts and stops a thread `with` and `close()`.
macro_rules! stoppable {
    ($type:ident, $start:ident, $stop:ident) => {
        #[pyo3::pymethods]
        impl $type {
            fn __enter__(slf: pyo3::Py<Self>, py: pyo3::Python<'_>) -> pyo3::PyResult<pyo3::Py<Self>> {
                slf.get().$start(py, true)?;
                Ok(slf)
            }

            #[pyo3(signature = (*_exception: "object"))]
            fn __exit__(
                &self,
                py: pyo3::Python<'_>,
                _exception: &pyo3::Bound<'_, pyo3::types::PyTuple>,
            ) -> pyo3::PyResult<()> {
                if self.inner.is_open() { self.$stop(py) } else { Ok(()) }
            }

            #[doc = concat!("Stops the proxy as `", stringify!($stop), "()` does, and frees what the object holds.")]
            /// Any later call raises. A second `close()` does nothing.
            fn close(&self, py: pyo3::Python<'_>) -> pyo3::PyResult<()> {
                if !self.inner.is_open() {
                    return Ok(());
                }
                let stopped = self.$stop(py);
                self.inner.close();
                stopped
            }
        }
    };
}
pub(crate) use stoppable;

stoppable!(PyProxy, start, stop);

/// How long the exit of the interpreter waits for a handler.
const PATIENCE: Duration = Duration::from_secs(10);

/// The proxies of this process, until the interpreter exits: their threads run Python code, which they must not do
/// during the exit. Each has the process that made it, because the thread of a parent's proxy does not exist in its
/// child.
static KNOWN: Mutex<Option<Vec<ProxyOfProcess>>> = Mutex::new(Some(Vec::new()));

type ProxyOfProcess = (u32, Weak<Proxy<Handler>>);

fn remember(proxy: &Arc<Proxy<Handler>>) -> PyResult<()> {
    let mut known = KNOWN.lock();
    let known = known.as_mut().ok_or_else(|| error::misuse("a Proxy while the interpreter exits"))?;
    known.retain(|(_, known)| known.strong_count() > 0);
    known.push((process::id(), Arc::downgrade(proxy)));
    Ok(())
}

/// Ends all proxies, at the interpreter's exit. A proxy that was aborted cannot start again, and no other can be
/// made.
#[pyfunction(name = "_end_proxies")]
pub(crate) fn end_all(py: Python<'_>) -> PyResult<()> {
    let known = KNOWN.lock().take().unwrap_or_default();
    let ours = known.iter().filter(|(process, _)| *process == process::id());
    let ours: Vec<_> = ours.filter_map(|(_, known)| known.upgrade()).collect();
    ours.iter().for_each(|proxy| proxy.abort("the interpreter exits"));
    // Each `stop` fails because of the abort above.
    let stop = move || ours.iter().for_each(|proxy| drop(proxy.stop()));
    waiting::wait_at_most(py, PATIENCE, stop)
}
