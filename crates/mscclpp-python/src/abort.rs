//! Waiting for kernels, and giving up what they wait through when their time runs out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp::{
    Error, Gpu, Stream,
    errors::GpuError,
    gpu::{Abort, KernelWait},
};
use pyo3::prelude::*;

use crate::{
    communicator::PyCommunicator,
    device::current,
    error::{self, OrRaise},
    macros::first_of,
    memory_channel::{PyBaseMemoryChannel, PyMemoryChannel},
    port_channel::{PyBasePortChannel, PyPortChannel, PyProxyService},
    retired,
    semaphore::PySemaphore,
    semaphore_kinds::{PyDeviceToDevice, PyHostToDevice},
    waiting,
};

/// An object that kernels wait through, with the facade's type of errors.
struct Waited<T>(Arc<T>);

impl<T: Abort> Abort for Waited<T>
where
    Error: From<T::Error>,
{
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }

    fn check(&self) -> Result<(), Error> {
        Ok(self.0.check()?)
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.0.settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        self.0.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.0.waits()
    }
}

type AnyWaited = Box<dyn Abort<Error = Error> + Send + Sync>;

fn waited<T: Abort + Send + Sync + 'static>(object: T) -> AnyWaited
where
    Error: From<T::Error>,
{
    Box::new(Waited(Arc::new(object)))
}

fn given(object: &Bound<'_, PyAny>) -> PyResult<AnyWaited> {
    if let Ok(it) = object.cast::<PyProxyService>() {
        return Ok(Box::new(Waited(it.get().service(object.py())?)));
    }
    first_of!(object, it => waited(it.waited()?); PyCommunicator, PyMemoryChannel, PyBaseMemoryChannel, PyPortChannel,
        PyBasePortChannel, PySemaphore, PyHostToDevice, PyDeviceToDevice);
    Err(error::unexpected(
        "argument 'abort': expected what kernels wait through, a channel, a semaphore of kernels, a ProxyService or a \
         Communicator, or a list of these, got",
        object,
    ))
}

/// All objects that kernels wait through, and the time that the kernels were given.
struct Given {
    all: Vec<AnyWaited>,
    gpu: Gpu,
    limit: Duration,
}

impl Given {
    fn list(&self) -> Vec<&(dyn Abort<Error = Error> + Send + Sync)> {
        self.all.iter().map(|each| &**each).collect()
    }
}

fn all_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<AnyWaited>> {
    match object.extract::<Vec<Bound<'_, PyAny>>>() {
        Ok(list) => list.iter().map(given).collect(),
        Err(_) => Ok(vec![given(object)?]),
    }
}

impl Abort for Given {
    type Error = Error;

    /// Aborts with a reason of its own, because the given one names the time of the last attempt instead of the whole
    /// time.
    fn abort(&self, _reason: &str) {
        let Self { gpu, limit, .. } = self;
        let reason = format!("work on {gpu} did not finish within {limit:?}");
        self.list().abort(&reason);
    }

    fn check(&self) -> Result<(), Error> {
        self.list().check()
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.list().settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        self.list().peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.list().waits()
    }
}

/// Waits until everything that was launched on the default stream of the current GPU is complete. If it is not
/// complete in time, the objects in `abort` are aborted, which ends kernels that wait through them.
#[pyfunction(name = "_synchronize")]
#[pyo3(signature = (timeout_sec, abort: "object"))]
pub(crate) fn synchronize(
    py: Python<'_>,
    timeout_sec: f64,
    abort: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let limit = waiting::seconds(timeout_sec)?;
    let abort = abort.map(all_of).transpose()?;
    let gpu = current(py)?;
    let stream = gpu.default_stream().or_raise()?;
    let given = abort.map(|all| Given { all, gpu, limit });
    let done = wait_for(py, stream, limit, given);
    py.detach(retired::sweep);
    done
}

fn wait_for(py: Python<'_>, stream: Stream, limit: Duration, given: Option<Given>) -> PyResult<()> {
    let start = Instant::now();
    let left = move || limit.saturating_sub(start.elapsed());
    // Ctrl-C ends this part, and aborts nothing. Which ranks the kernels wait for is asked only when the time has run
    // out.
    waiting::repeat(py, None, None, |slice| match stream.query_timeout(slice.min(left())) {
        Ok(false) if !left().is_zero() => Err(GpuError::Timeout {
            operation: format!("work on a stream of {}", stream.gpu()),
            after: slice,
            remedy: "",
        }),
        outcome => outcome.map(drop),
    })?;
    let Some(given) = given else {
        // Asking which ranks the kernels wait for takes a second at most, ten on simulated devices.
        let done = py.detach(|| stream.synchronize_timeout(left()));
        return done.map_err(|error| waiting::with_total(error.into(), None, limit)).or_raise();
    };
    waiting::wait(py, move || {
        stream.synchronize_or_abort(left(), &given).map_err(|error| waiting::with_total(error, None, limit))
    })
}
