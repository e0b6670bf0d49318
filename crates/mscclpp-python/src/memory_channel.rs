//! `BaseMemoryChannel` and `MemoryChannel`.

use mscclpp::{BaseMemoryChannel, DevicePtr, MemoryChannel, RegisteredMemory, Semaphore};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyTuple},
};

use crate::{
    channel::channel,
    constructor::{Arguments, Constructor},
    error::OrRaise,
    handle::{BaseMemoryHandle, MemoryHandle},
    memory::PyRegisteredMemory,
    semaphore,
    semaphore_kinds::device_to_device,
    waiting,
};

channel! {
    /// A channel through which kernels signal a peer and wait for it.
    PyBaseMemoryChannel as "BaseMemoryChannel" of BaseMemoryChannel: BaseMemoryHandle, "make one of a semaphore",
    |channel| semaphore::peer(channel.semaphore())
}

#[pymethods]
impl PyBaseMemoryChannel {
    /// Makes a channel over a semaphore, or over a communicator and a connection: then both sides build a semaphore
    /// first.
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let constructor = Constructor { name: "BaseMemoryChannel", other: Some(device_to_device), rest: &[] };
        let Some(arguments) = Arguments::parse(&constructor, args, kwargs)? else {
            return Ok(Self::empty());
        };
        BaseMemoryChannel::new(arguments.semaphore(py)?.semaphore()).or_raise().map(Self::of)
    }
}

channel! {
    /// A channel through which kernels read and write a peer's memory, signal, and wait.
    PyMemoryChannel as "MemoryChannel" of MemoryChannel: MemoryHandle, "make one of a semaphore", |channel| {
        let (peer, src, dst) = (semaphore::peer(channel.semaphore()), channel.src().size(), channel.dst().size());
        format!("{peer}, from {src} to {dst} bytes")
    }
}

#[pymethods]
impl PyMemoryChannel {
    /// Makes a channel over a semaphore, or over a communicator and a connection: then both sides build a semaphore
    /// first. It copies between the peer's memory `dst` and this side's `src`. `packet_buffer` is this side's packet
    /// buffer, as an address or a registered memory.
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let rest = &["dst", "src", "packet_buffer"];
        let constructor = Constructor { name: "MemoryChannel", other: Some(device_to_device), rest };
        let Some(arguments) = Arguments::parse(&constructor, args, kwargs)? else {
            return Ok(Self::empty());
        };
        let place = |place: usize| arguments.rest.get(place).and_then(Option::as_ref);
        let (dst, src) = (memory(place(0), "dst")?, memory(place(1), "src")?);
        let semaphore = arguments.semaphore(py)?.semaphore().clone();
        let packets = place(2).map(|given| packet_memory(&semaphore, given)).transpose()?.flatten();
        let make = move || MemoryChannel::new(&semaphore, &dst, &src, packets.as_ref());
        waiting::wait(py, make).map(Self::of)
    }
}

fn memory(given: Option<&Bound<'_, PyAny>>, name: &str) -> PyResult<RegisteredMemory> {
    match given.map(|given| given.cast::<PyRegisteredMemory>()) {
        Some(Ok(memory)) => memory.get().memory(),
        _ => Err(PyTypeError::new_err(format!(
            "argument '{name}': expected a RegisteredMemory; MemoryChannel is made of a semaphore, dst and src, and perhaps \
             packet_buffer"
        ))),
    }
}

/// The memory at an address that a program gives as its packet buffer, if it is not 0.
fn packet_memory(semaphore: &Semaphore, given: &Bound<'_, PyAny>) -> PyResult<Option<RegisteredMemory>> {
    /// A channel takes only the address from the memory, so its size is that of one packet.
    const LEN: u64 = 16;
    if let Ok(memory) = given.cast::<PyRegisteredMemory>() {
        return memory.get().memory().map(Some);
    }
    let address: u64 = given.extract().map_err(|_| {
        PyTypeError::new_err("argument 'packet_buffer': expected an address (int) or a RegisteredMemory")
    })?;
    if address == 0 {
        return Ok(None);
    }
    let connection = semaphore.connection();
    // SAFETY: the program says that its packet buffer lives as long as it uses the channel. No Rust reference covers
    // it, as it is not this library's.
    let memory =
        unsafe { connection.context().register_memory(DevicePtr(address), LEN, connection.transport()) };
    memory.map(Some).or_raise()
}
