//! Where an endpoint is, and how it reaches its peers: devices and configurations.

use mscclpp::{
    Device, DeviceType, EndpointConfig, Transport,
    channels::{IbConfig, IbMode},
};
use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::{enums::enumeration, error, transport::PyTransport};

enumeration! {
    /// What kind of device an endpoint is on.
    PyDeviceType as "DeviceType" {
        Unknown = 0,
        CPU = 1,
        GPU = 2,
    }
}

enumeration! {
    /// How signals travel over InfiniBand.
    PyIbMode as "IbMode" {
        Default = 0,
        Host = 1,
        HostNoAtomic = 2,
    }
}

/// A device of an endpoint. An id of -1 means the current one.
#[pyclass(name = "Device", module = "mscclpp._mscclpp", from_py_object, get_all, eq)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyDevice {
    /// What kind of device it is.
    r#type: PyDeviceType,
    /// Its number, counted from 0; -1 is the current one.
    #[pyo3(set)]
    id: i64,
}

#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (r#type = KindArgument(Ok(PyDeviceType::Unknown)), id = -1))]
    // A `r#type` of Rust would stand in the error about a wrong one.
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

/// The type of a device as an argument, or what is wrong with it.
struct KindArgument(PyResult<PyDeviceType>);

impl<'a, 'py> FromPyObject<'a, 'py> for KindArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(object.extract().map_err(|_| unexpected("argument 'type': expected a DeviceType", object))))
    }
}

impl PyDevice {
    fn device(self) -> PyResult<Device> {
        let kind = match self.r#type {
            PyDeviceType::Unknown => DeviceType::Unknown,
            PyDeviceType::CPU => DeviceType::Cpu,
            PyDeviceType::GPU => DeviceType::Gpu,
        };
        let id = match self.id {
            -1 => None,
            id => Some(usize::try_from(id).map_err(|_| {
                error::misuse(format!(
                    "a device has the id {id}; ids count from 0, and -1 is the current one"
                ))
            })?),
        };
        Ok(Device { kind, id })
    }
}

impl From<Device> for PyDevice {
    fn from(device: Device) -> Self {
        let r#type = match device.kind {
            DeviceType::Cpu => PyDeviceType::CPU,
            DeviceType::Gpu => PyDeviceType::GPU,
            DeviceType::Unknown => PyDeviceType::Unknown,
        };
        Self { r#type, id: optional(device.id) }
    }
}

/// What is accepted where a device is due: one, or its type.
pub(crate) struct DeviceArgument(PyDevice);

impl<'a, 'py> FromPyObject<'a, 'py> for DeviceArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(device) = object.extract::<PyDevice>() {
            return Ok(Self(device));
        }
        match object.extract::<PyDeviceType>() {
            Ok(r#type) => Ok(Self(PyDevice { r#type, id: -1 })),
            Err(_) => Err(unexpected("expected a Device or a DeviceType", object)),
        }
    }
}

/// Parameters of an InfiniBand endpoint. Where -1 is the default, the choice is left to the transport.
#[pyclass(name = "EndpointConfigIb", module = "mscclpp._mscclpp", from_py_object, get_all, set_all)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PyEndpointConfigIb {
    /// The adapter among those there are, instead of the transport's number.
    device_index: i64,
    /// The port of the adapter.
    port: i64,
    /// The entry of the port's table of GIDs.
    gid_index: i64,
    /// How many completions the completion queue holds.
    max_cq_size: i64,
    /// How many completions are taken at once.
    max_cq_poll_num: i64,
    /// How many work requests the send queue holds.
    max_send_wr: i64,
    /// How many work requests the receive queue holds.
    max_recv_wr: i64,
    /// How many work requests are posted at once.
    max_wr_per_send: i64,
    /// How signals travel.
    mode: PyIbMode,
    /// The traffic class of packets, 0 to 255.
    traffic_class: i64,
    /// The service level of packets.
    service_level: i64,
    /// The entry of the port's table of partition keys.
    pkey_index: i64,
    /// The time-out of an acknowledgement, as the exponent that InfiniBand has for it.
    timeout: i64,
    /// How often a packet is sent again that was not acknowledged, 0 to 7.
    retry_count: i64,
    /// How often a packet is sent again for which the peer was not ready, 0 to 7.
    rnr_retry: i64,
}

#[pymethods]
impl PyEndpointConfigIb {
    #[new]
    #[pyo3(signature = (
        device_index = -1, port = -1, gid_index = -1, max_cq_size = 1024, max_cq_poll_num = 256, max_send_wr = 8192,
        max_recv_wr = 16, max_wr_per_send = 64, mode = PyIbMode::Default, *, traffic_class = -1, service_level = -1,
        pkey_index = -1, timeout = -1, retry_count = -1, rnr_retry = -1,
    ))]
    #[allow(clippy::too_many_arguments, reason = "those of the public API")]
    fn new(
        device_index: i64,
        port: i64,
        gid_index: i64,
        max_cq_size: i64,
        max_cq_poll_num: i64,
        max_send_wr: i64,
        max_recv_wr: i64,
        max_wr_per_send: i64,
        mode: PyIbMode,
        traffic_class: i64,
        service_level: i64,
        pkey_index: i64,
        timeout: i64,
        retry_count: i64,
        rnr_retry: i64,
    ) -> Self {
        Self {
            device_index,
            port,
            gid_index,
            max_cq_size,
            max_cq_poll_num,
            max_send_wr,
            max_recv_wr,
            max_wr_per_send,
            mode,
            traffic_class,
            service_level,
            pkey_index,
            timeout,
            retry_count,
            rnr_retry,
        }
    }

    fn __repr__(&self) -> String {
        let fields = format!("{self:?}").replace(": ", "=").replace(" }", ")");
        fields.replacen("PyEndpointConfigIb { ", "EndpointConfigIb(", 1)
    }
}

impl Default for PyEndpointConfigIb {
    fn default() -> Self {
        Self::of(&IbConfig::new())
    }
}

impl PyEndpointConfigIb {
    fn config(self) -> PyResult<IbConfig> {
        let mut config = IbConfig::new()
            .max_cq_size(number("ib.max_cq_size", self.max_cq_size)?)
            .max_cq_poll_num(number("ib.max_cq_poll_num", self.max_cq_poll_num)?)
            .max_send_wr(number("ib.max_send_wr", self.max_send_wr)?)
            .max_recv_wr(number("ib.max_recv_wr", self.max_recv_wr)?)
            .max_wr_per_send(number("ib.max_wr_per_send", self.max_wr_per_send)?)
            .mode(match self.mode {
                PyIbMode::Default => IbMode::Default,
                PyIbMode::Host => IbMode::Host,
                PyIbMode::HostNoAtomic => IbMode::HostNoAtomic,
            });
        config.device_index = chosen("ib.device_index", self.device_index)?;
        config.port = chosen("ib.port", self.port)?;
        config.gid_index = chosen("ib.gid_index", self.gid_index)?;
        config.traffic_class = chosen("ib.traffic_class", self.traffic_class)?;
        config.service_level = chosen("ib.service_level", self.service_level)?;
        config.pkey_index = chosen("ib.pkey_index", self.pkey_index)?;
        config.timeout = chosen("ib.timeout", self.timeout)?;
        config.retry_count = chosen("ib.retry_count", self.retry_count)?;
        config.rnr_retry = chosen("ib.rnr_retry", self.rnr_retry)?;
        Ok(config)
    }

    fn of(config: &IbConfig) -> Self {
        Self {
            device_index: optional(config.device_index),
            port: optional(config.port),
            gid_index: optional(config.gid_index),
            max_cq_size: config.max_cq_size.into(),
            max_cq_poll_num: config.max_cq_poll_num.into(),
            max_send_wr: config.max_send_wr.into(),
            max_recv_wr: config.max_recv_wr.into(),
            max_wr_per_send: config.max_wr_per_send.into(),
            mode: match config.mode {
                IbMode::Default => PyIbMode::Default,
                IbMode::Host => PyIbMode::Host,
                IbMode::HostNoAtomic => PyIbMode::HostNoAtomic,
            },
            traffic_class: optional(config.traffic_class),
            service_level: optional(config.service_level),
            pkey_index: optional(config.pkey_index),
            timeout: optional(config.timeout),
            retry_count: optional(config.retry_count),
            rnr_retry: optional(config.rnr_retry),
        }
    }
}

/// Where an endpoint is, and how it reaches its peers.
#[pyclass(name = "EndpointConfig", module = "mscclpp._mscclpp", get_all)]
pub(crate) struct PyEndpointConfig {
    /// By which means it reaches its peers.
    #[pyo3(set)]
    transport: PyTransport,
    // Objects, so that `config.device.id = 1` and `config.ib.port = 1` change this.
    /// Where it is: a `Device`, or a `DeviceType` for the current one.
    device: Py<PyDevice>,
    /// How many writes its queue takes before it is full; -1 leaves that to the transport.
    #[pyo3(set)]
    max_write_queue_size: i64,
    /// Parameters for InfiniBand.
    #[pyo3(set)]
    ib: Py<PyEndpointConfigIb>,
}

/// The fields of `ib` under their older names.
macro_rules! flat_fields {
    ($($getter:ident, $setter:ident, $field:ident: $type:ty;)*) => {
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

            $(
                #[doc = concat!("`ib.", stringify!($field), "` under an older name.")]
                #[getter]
                fn $getter(&self, py: Python<'_>) -> $type {
                    self.ib.borrow(py).$field
                }

                #[setter]
                fn $setter(&self, py: Python<'_>, value: $type) {
                    self.ib.borrow_mut(py).$field = value;
                }
            )*
        }
    };
}

flat_fields! {
    ib_device_index, set_ib_device_index, device_index: i64;
    ib_port, set_ib_port, port: i64;
    ib_gid_index, set_ib_gid_index, gid_index: i64;
    ib_max_cq_size, set_ib_max_cq_size, max_cq_size: i64;
    ib_max_cq_poll_num, set_ib_max_cq_poll_num, max_cq_poll_num: i64;
    ib_max_send_wr, set_ib_max_send_wr, max_send_wr: i64;
    ib_max_recv_wr, set_ib_max_recv_wr, max_recv_wr: i64;
    ib_max_wr_per_send, set_ib_max_wr_per_send, max_wr_per_send: i64;
    ib_mode, set_ib_mode, mode: PyIbMode;
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

/// What is accepted where a configuration is due: one, or a transport, which means one on the current GPU.
pub(crate) struct ConfigArgument(pub(crate) EndpointConfig);

impl<'a, 'py> FromPyObject<'a, 'py> for ConfigArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(transport) = object.extract::<PyTransport>() {
            return Ok(Self(EndpointConfig::from(transport.transport()?)));
        }
        let Ok(given) = object.cast::<PyEndpointConfig>() else {
            return Err(unexpected("expected an EndpointConfig or a Transport", object));
        };
        let given = given.borrow();
        let transport: Transport = given.transport.transport()?;
        let mut config = EndpointConfig::new(transport, given.device.borrow(object.py()).device()?);
        config.ib = given.ib.borrow(object.py()).config()?;
        config.max_write_queue_size = chosen("max_write_queue_size", given.max_write_queue_size)?;
        Ok(Self(config))
    }
}

/// Where -1 stands for none.
pub(crate) fn optional<T: TryInto<i64>>(value: Option<T>) -> i64 {
    value.and_then(|value| value.try_into().ok()).unwrap_or(-1)
}

/// A value that -1 leaves to the library.
fn chosen<T: TryFrom<i64>>(what: &str, value: i64) -> PyResult<Option<T>> {
    if value == -1 { Ok(None) } else { number(what, value).map(Some) }
}

fn number<T: TryFrom<i64>>(what: &str, value: i64) -> PyResult<T> {
    T::try_from(value).map_err(|_| {
        let most = u64::MAX >> (64 - 8 * size_of::<T>());
        error::misuse(format!("{what} is {value}, which is no number from 0 to {most}"))
    })
}

fn unexpected(expected: &str, object: Borrowed<'_, '_, PyAny>) -> PyErr {
    match object.get_type().name() {
        Ok(name) => PyTypeError::new_err(format!("{expected}, got {name}")),
        Err(error) => error,
    }
}
