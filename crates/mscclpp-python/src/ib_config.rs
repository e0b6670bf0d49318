//! `EndpointConfigIb`.

use mscclpp::channels::{IbConfig, IbMode};
use pyo3::prelude::*;

use crate::{
    enums::enumeration,
    uint::{chosen, number, optional},
};

enumeration! {
    /// How signals travel over InfiniBand.
    PyIbMode as "IbMode" of IbMode {
        Default = 0 is Default,
        Host = 1 is Host,
        HostNoAtomic = 2 is HostNoAtomic,
    }
}

/// Conversion between a field of [`IbConfig`] and its form in Python.
trait Field<Python>: Sized {
    fn of(what: &str, value: Python) -> PyResult<Self>;
    fn show(self) -> Python;
}

impl Field<i64> for u32 {
    fn of(what: &str, value: i64) -> PyResult<Self> {
        number(what, value)
    }

    fn show(self) -> i64 {
        self.into()
    }
}

impl<T: TryFrom<i64> + TryInto<i64>> Field<i64> for Option<T> {
    fn of(what: &str, value: i64) -> PyResult<Self> {
        chosen(what, value)
    }

    fn show(self) -> i64 {
        optional(self)
    }
}

impl Field<PyIbMode> for IbMode {
    fn of(_what: &str, value: PyIbMode) -> PyResult<Self> {
        Ok(value.into())
    }

    fn show(self) -> PyIbMode {
        self.into()
    }
}

/// Declares the class: the fields that may be given by position, and those that are given by name.
macro_rules! config {
    (
        places { $($(#[$place_doc:meta])* $place:ident: $place_type:ty = [$($place_default:tt)+];)* }
        names { $($(#[$name_doc:meta])* $name:ident: $name_type:ty = [$($name_default:tt)+];)* }
    ) => {
        /// Parameters of an InfiniBand endpoint. Where the default is -1, the transport chooses.
        #[pyclass(name = "EndpointConfigIb", module = "mscclpp._mscclpp", from_py_object, get_all, set_all)]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct PyEndpointConfigIb {
            $($(#[$place_doc])* $place: $place_type,)*
            $($(#[$name_doc])* $name: $name_type,)*
        }

        #[pymethods]
        impl PyEndpointConfigIb {
            #[new]
            #[pyo3(signature = ($($place = $($place_default)+,)* *, $($name = $($name_default)+,)*))]
            #[allow(clippy::too_many_arguments, reason = "those of the public API")]
            fn new($($place: $place_type,)* $($name: $name_type,)*) -> Self {
                Self { $($place,)* $($name,)* }
            }

            fn __repr__(&self) -> String {
                let fields = format!("{self:?}").replace(": ", "=").replace(" }", ")");
                fields.replacen("PyEndpointConfigIb { ", "EndpointConfigIb(", 1)
            }
        }

        impl PyEndpointConfigIb {
            pub(crate) fn config(self) -> PyResult<IbConfig> {
                let mut config = IbConfig::new();
                $(config.$place = Field::of(concat!("ib.", stringify!($place)), self.$place)?;)*
                $(config.$name = Field::of(concat!("ib.", stringify!($name)), self.$name)?;)*
                Ok(config)
            }

            pub(crate) fn of(config: &IbConfig) -> Self {
                Self { $($place: config.$place.show(),)* $($name: config.$name.show(),)* }
            }
        }
    };
}

config! {
    places {
        /// The number of the adapter, which is used instead of the transport's number.
        device_index: i64 = [-1];
        /// The port of the adapter.
        port: i64 = [-1];
        /// The entry of the port's table of GIDs.
        gid_index: i64 = [-1];
        /// How many completions the completion queue holds.
        max_cq_size: i64 = [1024];
        /// How many completions are polled at once.
        max_cq_poll_num: i64 = [256];
        /// How many work requests the send queue holds.
        max_send_wr: i64 = [8192];
        /// How many work requests the receive queue holds.
        max_recv_wr: i64 = [16];
        /// How many work requests are posted at once.
        max_wr_per_send: i64 = [64];
        /// How signals are sent.
        mode: PyIbMode = [PyIbMode::Default];
    }
    names {
        /// The traffic class of packets, 0 to 255.
        traffic_class: i64 = [-1];
        /// The service level of packets.
        service_level: i64 = [-1];
        /// The entry of the port's table of partition keys.
        pkey_index: i64 = [-1];
        /// The timeout of an acknowledgement, as the exponent that InfiniBand uses.
        timeout: i64 = [-1];
        /// How often a packet that was not acknowledged is sent again, 0 to 7.
        retry_count: i64 = [-1];
        /// How often a packet is sent again when the peer was not ready for it, 0 to 7.
        rnr_retry: i64 = [-1];
    }
}

impl Default for PyEndpointConfigIb {
    fn default() -> Self {
        Self::of(&IbConfig::new())
    }
}
