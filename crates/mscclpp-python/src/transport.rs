//! `Transport` and `TransportFlags`, and the arguments for them.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "of PyO3: what it makes of names that a macro has is taken for code of here"
)]

use mscclpp::{Transport, TransportFlags};
use pyo3::{PyTypeInfo, inspect::PyStaticExpr, prelude::*, type_hint_union};

use crate::{enums::enumeration, error};

enumeration! {
    /// A way for two endpoints to reach each other.
    PyTransport as "Transport" {
        Unknown = 0,
        CudaIpc = 1,
        IB0 = 2,
        IB1 = 3,
        IB2 = 4,
        IB3 = 5,
        IB4 = 6,
        IB5 = 7,
        IB6 = 8,
        IB7 = 9,
        Ethernet = 10,
        NumTransports = 11,
    }
}

/// The transports, with their members in the Python API.
const TRANSPORTS: [(PyTransport, Transport); 11] = [
    (PyTransport::Unknown, Transport::UNKNOWN),
    (PyTransport::CudaIpc, Transport::CUDA_IPC),
    (PyTransport::IB0, Transport::IB0),
    (PyTransport::IB1, Transport::IB1),
    (PyTransport::IB2, Transport::IB2),
    (PyTransport::IB3, Transport::IB3),
    (PyTransport::IB4, Transport::IB4),
    (PyTransport::IB5, Transport::IB5),
    (PyTransport::IB6, Transport::IB6),
    (PyTransport::IB7, Transport::IB7),
    (PyTransport::Ethernet, Transport::ETHERNET),
];

impl PyTransport {
    /// # Errors
    /// An error for `NumTransports`, which is a count and not a transport.
    pub(crate) fn transport(self) -> PyResult<Transport> {
        let found = TRANSPORTS.iter().find(|(name, _)| *name == self);
        found.map(|(_, transport)| *transport).ok_or_else(|| {
            error::misuse("Transport.NumTransports is how many transports there are, and none of them")
        })
    }

    fn flags(self) -> PyResult<TransportFlags> {
        self.transport().map(TransportFlags::from)
    }
}

impl From<Transport> for PyTransport {
    fn from(transport: Transport) -> Self {
        let found = TRANSPORTS.iter().find(|(_, known)| *known == transport);
        found.map_or(Self::Unknown, |(name, _)| *name)
    }
}

/// A set of transports.
#[pyclass(name = "TransportFlags", module = "mscclpp._mscclpp", from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyTransportFlags(pub(crate) TransportFlags);

#[pymethods]
impl PyTransportFlags {
    #[new]
    #[pyo3(signature = (transport = Flags(TransportFlags::NONE)))]
    fn new(transport: Flags) -> Self {
        Self(transport.0)
    }

    /// Whether a transport is in the set.
    fn has(&self, transport: PyTransport) -> PyResult<bool> {
        Ok(self.0.has(transport.transport()?))
    }

    /// Whether the set is empty.
    fn none(&self) -> bool {
        self.0.none()
    }

    /// Whether something is in the set.
    fn any(&self) -> bool {
        self.0.any()
    }

    /// Whether every transport is in the set.
    fn all(&self) -> bool {
        self.0.all()
    }

    /// How many transports are in the set.
    fn count(&self) -> u32 {
        self.0.count()
    }

    fn __invert__(&self) -> Self {
        Self(!self.0)
    }

    fn __eq__(&self, other: Flags) -> bool {
        self.0 == other.0
    }

    fn __repr__(&self) -> String {
        format!("TransportFlags({})", self.0)
    }
}

/// Gives sets and transports an operator. Each of the two operands may be a set or a transport.
macro_rules! operator {
    ($operator:tt $plain:ident $reflected:ident $in_place:ident) => {
        #[pymethods]
        impl PyTransportFlags {
            fn $plain(&self, other: Flags) -> Self {
                Self(self.0 $operator other.0)
            }

            fn $reflected(&self, other: Flags) -> Self {
                Self(other.0 $operator self.0)
            }

            fn $in_place(&mut self, other: Flags) {
                *self = self.$plain(other);
            }
        }

        #[pymethods]
        impl PyTransport {
            fn $plain(&self, other: Flags) -> PyResult<PyTransportFlags> {
                Ok(PyTransportFlags(self.flags()? $operator other.0))
            }
        }
    };
}

operator!(| __or__ __ror__ __ior__);
operator!(& __and__ __rand__ __iand__);
operator!(^ __xor__ __rxor__ __ixor__);

#[pymethods]
impl PyTransport {
    fn __invert__(&self) -> PyResult<PyTransportFlags> {
        Ok(PyTransportFlags(!self.flags()?))
    }
}

/// An argument for flags: `TransportFlags`, or one transport.
#[derive(Clone, Copy)]
pub(crate) struct Flags(pub(crate) TransportFlags);

impl<'a, 'py> FromPyObject<'a, 'py> for Flags {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = type_hint_union!(PyTransportFlags::TYPE_HINT, PyTransport::TYPE_HINT);

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(flags) = object.extract::<PyTransportFlags>() {
            return Ok(Self(flags.0));
        }
        match object.extract::<PyTransport>() {
            Ok(transport) => transport.flags().map(Self),
            Err(_) => Err(error::unexpected("expected TransportFlags or a Transport, got", &object)),
        }
    }
}
