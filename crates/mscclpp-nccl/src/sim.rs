//! Streams, events and graphs of simulated devices, for C code, in place of the CUDA runtime's. NCCL has none of these functions.
//!
//! On simulated devices a `cudaStream_t` is a handle from [`mscclppSimStreamCreate`], or NULL for the device's default stream.
//! The device memory that `ncclMemAlloc` gives is memory of the process, which C code reads and writes like any other.

use std::{collections::HashMap, ffi::c_int, sync::LazyLock};

use mscclpp::{Event, Gpu, Platform, Stream, gpu::Graph};
use parking_lot::Mutex;

use crate::{
    abi::{Code, Handle},
    answers::function,
    failure::Failure,
    pointers::{self, OutPointer},
};

static STREAMS: LazyLock<Mutex<HashMap<usize, Stream>>> = LazyLock::new(Mutex::default);
static EVENTS: LazyLock<Mutex<HashMap<usize, Event>>> = LazyLock::new(Mutex::default);
static GRAPHS: LazyLock<Mutex<HashMap<usize, Graph>>> = LazyLock::new(Mutex::default);

/// The largest of the handles that mean the default stream: NULL, and CUDA's special handles 1 and 2.
const LAST_DEFAULT: usize = 2;

/// The stream that a handle names.
pub(crate) fn stream_of(gpu: &Gpu, handle: Handle) -> Result<Stream, Failure> {
    if handle.addr() <= LAST_DEFAULT {
        return Ok(gpu.default_stream()?);
    }
    let stream = STREAMS.lock().get(&handle.addr()).cloned();
    stream.ok_or_else(|| {
        Failure::argument(format!(
            "`stream` is {handle:p}: streams of simulated devices come from mscclppSimStreamCreate"
        ))
    })
}

fn on_current(handle: Handle) -> Result<Stream, Failure> {
    stream_of(&Platform::Sim.current_gpu()?, handle)
}

/// The event that a handle names.
pub(crate) fn event_of(handle: Handle) -> Result<Event, Failure> {
    let event = EVENTS.lock().get(&handle.addr()).cloned();
    event.ok_or_else(|| {
        Failure::argument(format!(
            "the event is {handle:p}: events of simulated devices come from mscclppSimEventCreate"
        ))
    })
}

fn graph_of(handle: Handle) -> Result<Graph, Failure> {
    let graph = GRAPHS.lock().get(&handle.addr()).cloned();
    graph.ok_or_else(|| {
        Failure::argument(format!("`graph` is {handle:p}, which mscclppSimStreamEndCapture did not give"))
    })
}

fn number(device: c_int) -> Result<usize, Failure> {
    usize::try_from(device).map_err(|_| Failure::argument(format!("`device` is {device}")))
}

/// Keeps what was made in a table, and gives the caller its handle.
fn add<T>(table: &Mutex<HashMap<usize, T>>, made: T, place: OutPointer<Handle>) -> Result<(), Failure> {
    let handle = pointers::next_handle();
    table.lock().insert(handle.addr(), made);
    place.set(handle);
    Ok(())
}

/// Drops what a table has under a handle, after the table is unlocked.
fn remove<T>(table: &Mutex<HashMap<usize, T>>, handle: Handle, name: &str) -> Result<(), Failure> {
    let gone = table.lock().remove(&handle.addr());
    gone.map(drop).ok_or_else(|| Failure::argument(format!("`{name}` is {handle:p}, which is none")))
}

function! {
    /// Sets the calling thread's simulated device, as `cudaSetDevice` does with a GPU: communicators and memory that the thread
    /// makes are on it.
    fn mscclppSimSetDevice(device: c_int) {
        Platform::Sim.gpu(number(device)?)?.make_current()
    }

    /// Makes a stream on the thread's simulated device.
    fn mscclppSimStreamCreate(stream: *mut Handle) {
        let place = OutPointer::at(stream, "stream")?;
        add(&STREAMS, Platform::Sim.current_gpu()?.stream()?, place)
    }

    /// Destroys a stream. The work that was put into it is still carried out.
    fn mscclppSimStreamDestroy(stream: Handle) {
        remove(&STREAMS, stream, "stream")
    }

    /// Waits until the work of a stream is complete. NULL is the default stream of the thread's device. Returns the failure of
    /// that work, if it failed, such as a wait that was aborted.
    fn mscclppSimStreamSynchronize(stream: Handle) {
        on_current(stream)?.synchronize()
    }

    /// Returns `ncclSuccess` if the work of a stream is complete, else `ncclInProgress`.
    fn mscclppSimStreamQuery(stream: Handle) {
        Ok::<_, Failure>(if on_current(stream)?.query()? { Code::SUCCESS } else { Code::IN_PROGRESS })
    }

    /// Makes a stream wait for the point that was last recorded in an event.
    fn mscclppSimStreamWaitEvent(stream: Handle, event: Handle) {
        on_current(stream)?.wait_event(&event_of(event)?)
    }

    /// Makes an event.
    fn mscclppSimEventCreate(event: *mut Handle) {
        let place = OutPointer::at(event, "event")?;
        add(&EVENTS, Platform::Sim.current_gpu()?.event(false)?, place)
    }

    /// Destroys an event.
    fn mscclppSimEventDestroy(event: Handle) {
        remove(&EVENTS, event, "event")
    }

    /// Returns `ncclSuccess` if the point that was last recorded in an event is reached, or none was, else `ncclInProgress`.
    fn mscclppSimEventQuery(event: Handle) {
        Ok::<_, Failure>(if event_of(event)?.query()? { Code::SUCCESS } else { Code::IN_PROGRESS })
    }

    /// Begins to capture the work that is put into a stream.
    fn mscclppSimStreamBeginCapture(stream: Handle) {
        on_current(stream)?.begin_capture()
    }

    /// Ends the capture, and makes a graph of it, which lives until [`mscclppSimGraphDestroy`].
    fn mscclppSimStreamEndCapture(stream: Handle, graph: *mut Handle) {
        let place = OutPointer::at(graph, "graph")?;
        add(&GRAPHS, on_current(stream)?.end_capture()?, place)
    }

    /// Puts a graph into a stream. Memory and communicators that the captured calls use must live until the graph is complete.
    fn mscclppSimGraphLaunch(graph: Handle, stream: Handle) {
        graph_of(graph)?.launch(&on_current(stream)?)
    }

    /// Destroys a graph.
    fn mscclppSimGraphDestroy(graph: Handle) {
        remove(&GRAPHS, graph, "graph")
    }
}
