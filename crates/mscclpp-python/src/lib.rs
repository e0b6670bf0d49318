//! The extension module `mscclpp._mscclpp`: the classes of the Python API over the crate `mscclpp`.
//!
//! The module has no logic of its own. A few files hold what all classes need: `owned` closes objects and keeps them
//! out of forked children, `waiting` lets other threads run and Ctrl-C end waits, `error` turns errors into
//! exceptions.
//!
//! The module needs no interpreter lock (`gil_used = false`). All that threads share is `Sync`: values of the
//! library, behind a mutex where they need one. The few classes whose attributes can be set are borrowed by one call
//! at a time, and a second call raises. No mutex is held while Python code runs. A buffer's view is held while a call
//! uses it, so the memory does not move. If a program changes bytes while a call copies them, the result is
//! undefined, as with every library that takes buffers.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod abort;
mod arguments;
mod base_service;
mod bootstrap;
mod buffer;
mod channel;
mod choices;
mod collectives;
mod communicator;
mod config;
mod connection;
mod constructor;
mod data_types;
mod device;
mod dlpack;
mod enums;
mod env;
mod error;
mod experts;
mod fifo;
mod handle;
mod ib_config;
mod kernel;
mod known;
mod log;
mod macros;
mod memory;
mod memory_channel;
mod owned;
mod point;
mod port_channel;
mod protocols;
mod proxy;
mod races;
mod raw;
mod rendezvous;
mod requests;
mod retired;
mod routed;
mod rows;
mod semaphore;
mod semaphore_kinds;
mod simulated;
mod tensors;
mod transport;
mod uint;
mod unique_id;
mod waiting;

use pyo3::{prelude::*, types::PyDict};

/// The names and versions of this library and of the package.
#[pyfunction]
#[pyo3(signature = () -> "dict[str, str]")]
fn version(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let version = PyDict::new(py);
    version.set_item("version", env!("CARGO_PKG_VERSION"))?;
    version.set_item("git_commit", option_env!("MSCCLPP_GIT_COMMIT").unwrap_or("unknown"))?;
    Ok(version)
}

/// The host name up to `delim`, and at most `maxlen` characters of it.
#[pyfunction]
fn get_host_name(maxlen: usize, delim: char) -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    name.split(delim).next().unwrap_or_default().chars().take(maxlen).collect()
}

/// The classes of the extension module. Each has a second name, with `Cpp` in front.
#[pymodule(name = "_mscclpp", gil_used = false)]
mod extension {
    use pyo3::{prelude::*, types::PyType};

    #[rustfmt::skip]
    #[pymodule_export]
    use crate::{
        get_host_name, version,
        abort::synchronize,
        base_service::PyBaseProxyService,
        bootstrap::{PyBootstrap, PyTcpBootstrap},
        buffer::{PyGranularity, PyRawGpuBuffer},
        choices::PyChoiceCounter,
        collectives::{PyCollectives, PyPublished, PyRegistered},
        communicator::{ConnectionFuture, MemoryFuture, PyCommunicator, SemaphoreFuture},
        config::{PyDevice, PyDeviceType, PyEndpointConfig},
        connection::{PyConnection, PyContext, PyEndpoint},
        data_types::data_types,
        device::{device_count, set_device},
        dlpack::look,
        env::{PyEnv, settings},
        error::ErrorCode,
        experts::PyExperts,
        fifo::{PyFifo, PyProxyTrigger},
        handle::{
            BaseMemoryHandle, BasePortHandle, DeviceToDeviceHandle, FifoDeviceHandle, HostToDeviceHandle, MemoryHandle,
            PortHandle,
        },
        ib_config::{PyEndpointConfigIb, PyIbMode},
        kernel::{PyKernel, bind_to_node, cached_ptx, current_gpu, device_of, numa_node},
        log::{end_queue, next_line, start, to_queue},
        memory::PyRegisteredMemory,
        memory_channel::{PyBaseMemoryChannel, PyMemoryChannel},
        point::PyPoint,
        port_channel::{PyBasePortChannel, PyPortChannel, PyProxyService},
        proxy::{PyProxy, PyProxyHandlerResult, end_all},
        races::{PyRace, PyRaceAccess, races},
        rendezvous::{PyRendezvous, log_meeting},
        requests::PyRequests,
        routed::{PyHostCounts, PyReceive, PyRouted},
        semaphore::{PySemaphore, PySemaphoreStub},
        semaphore_kinds::{PyDeviceToDevice, PyHostToDevice, PyHostToHost},
        tensors::look_at_tensor,
        transport::{PyTransport, PyTransportFlags},
        unique_id::PyUniqueId,
    };

    /// Adds the second names, and the classes that the Python layer defines.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        for item in module.dict().items() {
            let (name, class): (String, Bound<'_, PyAny>) = item.extract()?;
            if !class.is_instance_of::<PyType>() {
                continue;
            }
            if let Ok(handle) = module.getattr(format!("{name}DeviceHandle")) {
                class.setattr("DeviceHandle", handle)?;
            }
            if !name.starts_with('_') {
                module.setattr(format!("Cpp{name}"), class)?;
            }
        }
        let exceptions = py.import(crate::error::MODULE)?;
        for name in crate::error::EXCEPTIONS {
            module.setattr(name, exceptions.getattr(name)?)?;
        }
        // Without `__all__`, since that would list names that begin with an underscore, too.
        module.delattr("__all__")
    }
}
