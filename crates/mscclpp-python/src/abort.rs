//! Waiting for kernels, and giving up what they wait through when their time runs out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp::{
    Error, Stream,
    errors::GpuError,
    gpu::{Abort, KernelWait},
};
use pyo3::prelude::*;

use crate::{
    communicator::PyCommunicator,
    device::{current, platform},
    error::{self, OrRaise},
    macros::first_of,
    memory_channel::{PyBaseMemoryChannel, PyMemoryChannel},
    port_channel::{PyBasePortChannel, PyPortChannel, PyProxyService},
    retired,
    semaphore::PySemaphore,
    semaphore_kinds::{PyDeviceToDevice, PyHostToDevice},
    waiting,
};

/// An object that kernels wait through, with the facade's type of errors. It is aborted for a reason of its own, because the
/// given one names the time of the last attempt instead of the whole time.
struct Waited<T> {
    object: Arc<T>,
    reason: Arc<str>,
}

impl<T: Abort> Abort for Waited<T>
where
    Error: From<T::Error>,
{
    type Error = Error;

    fn abort(&self, _reason: &str) {
        self.object.abort(&self.reason);
    }

    fn check(&self) -> Result<(), Error> {
        Ok(self.object.check()?)
    }

    fn settle(&self, deadline: Instant) -> bool {
        self.object.settle(deadline)
    }

    fn peers(&self) -> Vec<String> {
        self.object.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.object.waits()
    }
}

type AnyWaited = Box<dyn Abort<Error = Error> + Send + Sync>;

fn waited<T: Abort + Send + Sync + 'static>(object: Arc<T>, reason: &Arc<str>) -> AnyWaited
where
    Error: From<T::Error>,
{
    Box::new(Waited { object, reason: reason.clone() })
}

fn given(object: &Bound<'_, PyAny>, reason: &Arc<str>) -> PyResult<AnyWaited> {
    if let Ok(it) = object.cast::<PyProxyService>() {
        return Ok(waited(it.get().service(object.py())?, reason));
    }
    first_of!(object, it => waited(Arc::new(it.waited()?), reason); PyCommunicator, PyMemoryChannel, PyBaseMemoryChannel,
        PyPortChannel, PyBasePortChannel, PySemaphore, PyHostToDevice, PyDeviceToDevice);
    Err(error::unexpected(
        "argument 'abort': expected what kernels wait through, a channel, a semaphore of kernels, a ProxyService or a \
         Communicator, or a list of these, got",
        object,
    ))
}

fn all_of(object: &Bound<'_, PyAny>, reason: &Arc<str>) -> PyResult<Vec<AnyWaited>> {
    match object.extract::<Vec<Bound<'_, PyAny>>>() {
        Ok(list) => list.iter().map(|each| given(each, reason)).collect(),
        Err(_) => Ok(vec![given(object, reason)?]),
    }
}

/// Waits until everything that was launched on the default stream of a GPU, by default the current one, is complete. If
/// it is not complete in time, the objects in `abort` are aborted, which ends kernels that wait through them.
#[pyfunction(name = "_synchronize")]
#[pyo3(signature = (timeout_sec, abort: "object", device = None))]
pub(crate) fn synchronize(
    py: Python<'_>,
    timeout_sec: f64,
    abort: Option<&Bound<'_, PyAny>>,
    device: Option<usize>,
) -> PyResult<()> {
    let limit = waiting::seconds(timeout_sec)?;
    let gpu = match device {
        Some(device) => platform(py)?.gpu(device).or_raise()?,
        None => current(py)?,
    };
    let reason = || format!("work on {gpu} did not finish within {limit:?}").into();
    let abort = abort.map(|object| all_of(object, &reason())).transpose()?;
    let stream = gpu.default_stream().or_raise()?;
    let done = wait_for(py, stream, limit, abort);
    py.detach(retired::sweep);
    done
}

fn wait_for(py: Python<'_>, stream: Stream, limit: Duration, abort: Option<Vec<AnyWaited>>) -> PyResult<()> {
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
    let Some(abort) = abort else {
        // Asking which ranks the kernels wait for takes a second at most, ten on simulated devices.
        let done = py.detach(|| stream.synchronize_timeout(left()));
        return done.map_err(|error| waiting::with_total(error.into(), None, limit)).or_raise();
    };
    waiting::wait(py, move || {
        let all: Vec<&(dyn Abort<Error = Error> + Send + Sync)> = abort.iter().map(|each| &**each).collect();
        stream.synchronize_or_abort(left(), &all).map_err(|error| waiting::with_total(error, None, limit))
    })
}
