//! `Device` and `EndpointConfig`: the device of an endpoint, and how the endpoint reaches its peers.

use mscclpp::{Device, DeviceType, EndpointConfig, Transport};
use pyo3::{PyTypeInfo, inspect::PyStaticExpr, prelude::*, type_hint_union};

use crate::{
    enums::enumeration,
    error,
    ib_config::PyEndpointConfigIb,
    transport::PyTransport,
    uint::{chosen, optional},
};

enumeration! {
    /// The kind of device that an endpoint is on.
    PyDeviceType as "DeviceType" of DeviceType {
        Unknown = 0 is Unknown,
        CPU = 1 is Cpu,
        GPU = 2 is Gpu,
    }
}

/// A device of an endpoint. An id of -1 means the current one.
#[pyclass(name = "Device", module = "mscclpp._mscclpp", from_py_object, get_all, eq)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyDevice {
    /// The kind of device.
    r#type: PyDeviceType,
    /// The number of the device, counted from 0; -1 is the current one.
    #[pyo3(set)]
    id: i64,
}

#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (r#type = KindArgument(Ok(PyDeviceType::Unknown)), id = -1))]
    // The default constructor of PyO3 would call the argument `r#type` in errors.
    fn new(r#type: KindArgument, id: i64) -> PyResult<Self> {
        Ok(Self { r#type: r#type.0?, id })
    }

    #[setter]
    fn set_type(&mut self, kind: KindArgument) -> PyResult<()> {
        self.r#type = kind.0?;
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("Device(DeviceType.{}, {})", self.r#type.name(), self.id)
    }
}

/// The argument with a device's type, or the error about a wrong one.
struct KindArgument(PyResult<PyDeviceType>);

impl<'a, 'py> FromPyObject<'a, 'py> for KindArgument {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = PyDeviceType::TYPE_HINT;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(
            object
                .extract()
                .map_err(|_| error::unexpected("argument 'type': expected a DeviceType, got", &object)),
        ))
    }
}

impl PyDevice {
    fn device(self) -> PyResult<Device> {
        let id = match self.id {
            -1 => None,
            id => Some(usize::try_from(id).map_err(|_| {
                error::misuse(format!(
                    "a device has the id {id}; ids count from 0, and -1 is the current one"
                ))
            })?),
        };
        Ok(Device { kind: self.r#type.into(), id })
    }
}

impl From<Device> for PyDevice {
    fn from(device: Device) -> Self {
        Self { r#type: device.kind.into(), id: optional(device.id) }
    }
}

/// An argument for a device: a `Device` or a `DeviceType`.
pub(crate) struct DeviceArgument(PyDevice);

impl<'a, 'py> FromPyObject<'a, 'py> for DeviceArgument {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = type_hint_union!(PyDevice::TYPE_HINT, PyDeviceType::TYPE_HINT);

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(device) = object.extract::<PyDevice>() {
            return Ok(Self(device));
        }
        match object.extract::<PyDeviceType>() {
            Ok(r#type) => Ok(Self(PyDevice { r#type, id: -1 })),
            Err(_) => Err(error::unexpected("expected a Device or a DeviceType, got", &object)),
        }
    }
}

/// The transport and the device of an endpoint, and parameters of its transport.
#[pyclass(name = "EndpointConfig", module = "mscclpp._mscclpp", get_all)]
pub(crate) struct PyEndpointConfig {
    /// The transport that reaches the peers.
    #[pyo3(set)]
    transport: PyTransport,
    // These are Python objects, so that `config.device.id = 1` and `config.ib.port = 1` change this configuration.
    /// The device of the endpoint: a `Device`, or a `DeviceType` for the current one.
    device: Py<PyDevice>,
    /// The largest number of writes in the queue; -1 leaves it to the transport.
    #[pyo3(set)]
    max_write_queue_size: i64,
    /// Parameters for InfiniBand.
    #[pyo3(set)]
    ib: Py<PyEndpointConfigIb>,
}

#[pymethods]
impl PyEndpointConfig {
    #[new]
    #[pyo3(signature = (
        transport = PyTransport::Unknown, device = DeviceArgument(PyDevice { r#type: PyDeviceType::GPU, id: -1 }),
        max_write_queue_size = -1, ib = None,
    ))]
    fn new(
        py: Python<'_>,
        transport: PyTransport,
        device: DeviceArgument,
        max_write_queue_size: i64,
        ib: Option<PyEndpointConfigIb>,
    ) -> PyResult<Self> {
        let ib = Py::new(py, ib.unwrap_or_default())?;
        Ok(Self { transport, device: Py::new(py, device.0)?, max_write_queue_size, ib })
    }

    #[setter]
    fn set_device(&mut self, py: Python<'_>, device: DeviceArgument) -> PyResult<()> {
        self.device = Py::new(py, device.0)?;
        Ok(())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let device = self.device.borrow(py).__repr__();
        format!("EndpointConfig(Transport.{}, {device})", self.transport.name())
    }
}

impl PyEndpointConfig {
    pub(crate) fn of(py: Python<'_>, config: &EndpointConfig) -> PyResult<Self> {
        Ok(Self {
            transport: config.transport.into(),
            device: Py::new(py, PyDevice::from(config.device))?,
            max_write_queue_size: optional(config.max_write_queue_size),
            ib: Py::new(py, PyEndpointConfigIb::of(&config.ib))?,
        })
    }
}

/// An argument for a configuration: an `EndpointConfig`, or a transport, which means an endpoint on the current GPU.
pub(crate) struct ConfigArgument(pub(crate) EndpointConfig);

impl<'a, 'py> FromPyObject<'a, 'py> for ConfigArgument {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = type_hint_union!(PyEndpointConfig::TYPE_HINT, PyTransport::TYPE_HINT);

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(transport) = object.extract::<PyTransport>() {
            return Ok(Self(EndpointConfig::from(transport.transport()?)));
        }
        let Ok(given) = object.cast::<PyEndpointConfig>() else {
            return Err(error::unexpected("expected an EndpointConfig or a Transport, got", &object));
        };
        let (py, given) = (object.py(), given.try_borrow()?);
        let transport: Transport = given.transport.transport()?;
        let mut config = EndpointConfig::new(transport, given.device.try_borrow(py)?.device()?);
        config.ib = given.ib.try_borrow(py)?.config()?;
        config.max_write_queue_size = chosen("max_write_queue_size", given.max_write_queue_size)?;
        Ok(Self(config))
    }
}
