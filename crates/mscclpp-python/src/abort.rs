//! Waiting for kernels, and giving up what they wait through when their time runs out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp::{
    BaseMemoryChannel, BasePortChannel, Communicator, Error, Gpu, MemoryChannel, PortChannel, ProxyService,
    Semaphore, Stream, errors::GpuError, gpu::Abort,
};
use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::{
    communicator::PyCommunicator,
    device::current,
    error::OrRaise,
    memory_channel::{PyBaseMemoryChannel, PyMemoryChannel},
    port_channel::{PyBasePortChannel, PyPortChannel, PyProxyService},
    retired,
    semaphore::{PyDeviceToDevice, PyHostToDevice, PySemaphore},
    waiting,
};

/// Something that kernels wait through.
enum Waited {
    Semaphore(Semaphore),
    BaseMemoryChannel(BaseMemoryChannel),
    MemoryChannel(MemoryChannel),
    BasePortChannel(BasePortChannel),
    PortChannel(PortChannel),
    Service(Arc<ProxyService>),
    Communicator(Communicator),
}

/// Does `$work` with what is in any of them.
macro_rules! each {
    ($waited:expr, $it:ident => $work:expr) => {
        match $waited {
            Waited::Semaphore($it) => $work,
            Waited::BaseMemoryChannel($it) => $work,
            Waited::MemoryChannel($it) => $work,
            Waited::BasePortChannel($it) => $work,
            Waited::PortChannel($it) => $work,
            Waited::Service(service) => {
                let $it: &ProxyService = service;
                $work
            }
            Waited::Communicator($it) => $work,
        }
    };
}

impl Waited {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(it) = object.cast::<PyCommunicator>() {
            return Ok(Self::Communicator(it.get().communicator()?.clone()));
        }
        if let Ok(it) = object.cast::<PyProxyService>() {
            return Ok(Self::Service(it.get().service(object.py())?));
        }
        if let Ok(it) = object.cast::<PyMemoryChannel>() {
            return Ok(Self::MemoryChannel(it.get().channel()?.clone()));
        }
        if let Ok(it) = object.cast::<PyBaseMemoryChannel>() {
            return Ok(Self::BaseMemoryChannel(it.get().channel()?.clone()));
        }
        if let Ok(it) = object.cast::<PyPortChannel>() {
            return Ok(Self::PortChannel(it.get().channel()?.clone()));
        }
        if let Ok(it) = object.cast::<PyBasePortChannel>() {
            return Ok(Self::BasePortChannel(it.get().channel()?.clone()));
        }
        if let Ok(it) = object.cast::<PySemaphore>() {
            return Ok(Self::Semaphore(it.get().shared()?.semaphore().clone()));
        }
        if let Ok(it) = object.cast::<PyHostToDevice>() {
            return Ok(Self::Semaphore(it.get().shared()?.semaphore().clone()));
        }
        if let Ok(it) = object.cast::<PyDeviceToDevice>() {
            return Ok(Self::Semaphore(it.get().semaphore()?.clone()));
        }
        Err(PyTypeError::new_err(format!(
            "argument 'abort': expected what kernels wait through, a channel, a semaphore of kernels, a ProxyService or a \
             Communicator, or a list of these, got {}",
            object.get_type().name()?
        )))
    }
}

/// All that kernels wait through, and how long they were given.
struct Given {
    waited: Vec<Waited>,
    gpu: Gpu,
    limit: Duration,
}

impl Given {
    fn of(object: &Bound<'_, PyAny>, gpu: Gpu, limit: Duration) -> PyResult<Self> {
        let waited = match object.extract::<Vec<Bound<'_, PyAny>>>() {
            Ok(list) => list.iter().map(Waited::of).collect::<PyResult<_>>()?,
            Err(_) => vec![Waited::of(object)?],
        };
        Ok(Self { waited, gpu, limit })
    }
}

impl Abort for Given {
    type Error = Error;

    /// The time that it names is that of the last attempt, and not of all.
    fn abort(&self, _reason: &str) {
        let Self { gpu, limit, .. } = self;
        let reason = format!("work on {gpu} did not finish within {limit:?}");
        for waited in &self.waited {
            each!(waited, it => Abort::abort(it, &reason));
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.waited.iter().try_for_each(|waited| each!(waited, it => Abort::check(it).map_err(Error::from)))
    }

    fn peers(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for peer in self.waited.iter().flat_map(|waited| each!(waited, it => Abort::peers(it))) {
            if !all.contains(&peer) {
                all.push(peer);
            }
        }
        all
    }
}

/// Waits until everything that was launched on the default stream of the current GPU is complete. With `abort`, kernels
/// that do not end in time are ended by aborting that.
#[pyfunction(name = "_synchronize")]
#[pyo3(signature = (timeout_sec, abort))]
pub(crate) fn synchronize(
    py: Python<'_>,
    timeout_sec: f64,
    abort: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let limit = waiting::seconds(timeout_sec)?;
    let gpu = current(py)?;
    let stream = gpu.default_stream().or_raise()?;
    let done = match abort {
        None => waiting::repeat(py, Some(limit), |left| stream.synchronize_timeout(left)),
        Some(what) => or_abort(py, &stream, Given::of(what, gpu, limit)?),
    };
    py.detach(retired::sweep);
    done
}

fn or_abort(py: Python<'_>, stream: &Stream, given: Given) -> PyResult<()> {
    let (start, limit) = (Instant::now(), given.limit);
    // Ctrl-C ends this part, and aborts nothing.
    waiting::repeat(py, None, |left| {
        match stream.synchronize_timeout(left.min(limit.saturating_sub(start.elapsed()))) {
            Err(GpuError::Timeout { .. }) if start.elapsed() >= limit => Ok(()),
            outcome => outcome,
        }
    })?;
    let stream = stream.clone();
    waiting::wait(py, move || {
        stream.synchronize_or_abort(Duration::ZERO, &given).map_err(|error| waiting::with_total(error, limit))
    })
}
