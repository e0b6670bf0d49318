//! The extension module `mscclpp._mscclpp`: the classes of the Python API over the crate `mscclpp`.
//!
//! It has no logic of its own. What every class has in common is in few places: `owned` closes objects and keeps them out of
//! forked children, `waiting` lets other threads run and Ctrl-C end waits, `error` turns errors into exceptions.
//!
//! It needs no interpreter lock (`gil_used = false`). What threads share is `Sync`: values of the library, behind a mutex
//! where they are not so by themselves; the few classes whose attributes can be set are borrowed by one call at a time, and
//! a second one raises. No mutex is held while Python code runs. Bytes that a program changes while a call copies them are
//! the program's affair, as with every library that takes buffers.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod abort;
mod arguments;
mod base_service;
mod bootstrap;
mod buffer;
mod communicator;
mod config;
mod connection;
mod constructor;
mod device;
mod dlpack;
mod enums;
mod env;
mod error;
mod fifo;
mod handle;
mod kernel;
mod log;
mod memory;
mod memory_channel;
mod older;
mod owned;
mod port_channel;
mod proxy;
mod raw;
mod rendezvous;
mod retired;
mod semaphore;
mod transport;
mod uint;
mod unique_id;
mod waiting;

use pyo3::{PyTypeInfo, prelude::*, types::PyDict};

/// What this library and the package are called, and which version they are.
#[pyfunction]
fn version(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let version = PyDict::new(py);
    version.set_item("version", env!("CARGO_PKG_VERSION"))?;
    version.set_item("git_commit", option_env!("MSCCLPP_GIT_COMMIT").unwrap_or("unknown"))?;
    Ok(version)
}

/// The host's name up to `delim`, and at most `maxlen` characters of it.
#[pyfunction]
fn get_host_name(maxlen: usize, delim: char) -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    name.split(delim).next().unwrap_or_default().chars().take(maxlen).collect()
}

/// Adds a class under its name, and under that with `Cpp` in front.
fn add<T: PyTypeInfo>(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let class = T::type_object(module.py());
    let name = class.name()?.to_string();
    module.add(&*name, &class)?;
    module.add(&*format!("Cpp{name}"), class)
}

/// Makes a handle's class reachable as `DeviceHandle` of the class that gives it.
fn nest<T: PyTypeInfo, Handle: PyTypeInfo>(py: Python<'_>) -> PyResult<()> {
    T::type_object(py).setattr("DeviceHandle", Handle::type_object(py))
}

#[pymodule(name = "_mscclpp", gil_used = false)]
fn extension(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    add::<error::ErrorCode>(module)?;
    add::<transport::PyTransport>(module)?;
    add::<transport::PyTransportFlags>(module)?;
    add::<config::PyDeviceType>(module)?;
    add::<config::PyDevice>(module)?;
    add::<config::PyIbMode>(module)?;
    add::<config::PyEndpointConfigIb>(module)?;
    add::<config::PyEndpointConfig>(module)?;
    add::<unique_id::PyUniqueId>(module)?;
    add::<bootstrap::PyBootstrap>(module)?;
    add::<bootstrap::PyTcpBootstrap>(module)?;
    add::<rendezvous::PyRendezvous>(module)?;
    add::<connection::PyContext>(module)?;
    add::<connection::PyEndpoint>(module)?;
    add::<connection::PyConnection>(module)?;
    add::<memory::PyRegisteredMemory>(module)?;
    add::<communicator::PyCommunicator>(module)?;
    add::<communicator::MemoryFuture>(module)?;
    add::<communicator::ConnectionFuture>(module)?;
    add::<communicator::SemaphoreFuture>(module)?;
    add::<semaphore::PySemaphoreStub>(module)?;
    add::<semaphore::PySemaphore>(module)?;
    add::<semaphore::PyHostToDevice>(module)?;
    add::<semaphore::PyHostToHost>(module)?;
    add::<semaphore::PyDeviceToDevice>(module)?;
    add::<memory_channel::PyBaseMemoryChannel>(module)?;
    add::<memory_channel::PyMemoryChannel>(module)?;
    add::<fifo::PyProxyTrigger>(module)?;
    add::<fifo::PyFifo>(module)?;
    add::<proxy::PyProxyHandlerResult>(module)?;
    add::<proxy::PyProxy>(module)?;
    add::<base_service::PyBaseProxyService>(module)?;
    add::<port_channel::PyProxyService>(module)?;
    add::<port_channel::PyBasePortChannel>(module)?;
    add::<port_channel::PyPortChannel>(module)?;
    add::<buffer::PyGranularity>(module)?;
    add::<buffer::PyRawGpuBuffer>(module)?;
    add::<env::PyEnv>(module)?;
    add::<handle::HostToDeviceHandle>(module)?;
    add::<handle::DeviceToDeviceHandle>(module)?;
    add::<handle::BaseMemoryHandle>(module)?;
    add::<handle::MemoryHandle>(module)?;
    add::<handle::FifoDeviceHandle>(module)?;
    add::<handle::BasePortHandle>(module)?;
    add::<handle::PortHandle>(module)?;
    module.add_class::<kernel::PyKernel>()?;

    nest::<semaphore::PyHostToDevice, handle::HostToDeviceHandle>(py)?;
    nest::<semaphore::PyDeviceToDevice, handle::DeviceToDeviceHandle>(py)?;
    nest::<memory_channel::PyBaseMemoryChannel, handle::BaseMemoryHandle>(py)?;
    nest::<memory_channel::PyMemoryChannel, handle::MemoryHandle>(py)?;
    nest::<port_channel::PyBasePortChannel, handle::BasePortHandle>(py)?;
    nest::<port_channel::PyPortChannel, handle::PortHandle>(py)?;

    let exceptions = py.import(error::MODULE)?;
    for name in error::EXCEPTIONS {
        module.add(name, exceptions.getattr(name)?)?;
    }
    for function in [
        wrap_pyfunction!(version, module)?,
        wrap_pyfunction!(get_host_name, module)?,
        wrap_pyfunction!(log::start, module)?,
        wrap_pyfunction!(log::to_queue, module)?,
        wrap_pyfunction!(log::next_line, module)?,
        wrap_pyfunction!(log::end_queue, module)?,
        wrap_pyfunction!(env::settings, module)?,
        wrap_pyfunction!(proxy::end_all, module)?,
        wrap_pyfunction!(rendezvous::log_meeting, module)?,
        wrap_pyfunction!(abort::synchronize, module)?,
        wrap_pyfunction!(device::device_count, module)?,
        wrap_pyfunction!(device::set_device, module)?,
        wrap_pyfunction!(kernel::cached_ptx, module)?,
        wrap_pyfunction!(kernel::current_gpu, module)?,
        wrap_pyfunction!(kernel::numa_node, module)?,
        wrap_pyfunction!(kernel::device_of, module)?,
    ] {
        module.add_function(function)?;
    }
    // It would name what begins with an underscore, too.
    module.delattr("__all__")
}
