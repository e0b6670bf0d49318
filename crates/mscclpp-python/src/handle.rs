//! Device handles: their bytes, which kernels take as arguments, and their fields.

use mscclpp::{
    BaseMemoryChannelHandle, BasePortChannelHandle, MemoryChannelHandle, PortChannelHandle,
    channels::{DeviceToDeviceSemaphoreHandle, HostToDeviceSemaphoreHandle},
    gpu::KernelParam,
    proxy::FifoHandle,
};
use pyo3::{prelude::*, types::PyBytes};

/// Converts a pointer to an address for Python.
fn address<T>(ptr: *const T) -> u64 {
    ptr.addr() as u64
}

/// Declares the Python class of a handle.
macro_rules! handle {
    ($type:ident as $name:literal of $handle:ty { $($(#[$doc:meta])* $field:ident: $result:ty = $value:expr;)* }) => {
        #[doc = concat!("A handle for kernels: `raw` has the bytes of `mscclpp::", $name, "`.")]
        #[pyclass(name = $name, module = "mscclpp._mscclpp", frozen)]
        pub(crate) struct $type(pub(crate) $handle);

        #[pymethods]
        #[allow(non_snake_case, reason = "the public names")]
        impl $type {
            /// The bytes of the handle, as kernels take them.
            #[getter]
            fn raw<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
                PyBytes::new(py, &self.0.to_bytes())
            }

            $(
                $(#[$doc])*
                #[getter]
                fn $field(&self) -> $result {
                    let value: fn(&$handle) -> $result = $value;
                    value(&self.0)
                }
            )*

            fn __repr__(&self) -> String {
                format!("<mscclpp.{} of {} bytes>", $name, size_of::<$handle>())
            }
        }
    };
}

handle! {
    HostToDeviceHandle as "Host2DeviceSemaphoreDeviceHandle" of HostToDeviceSemaphoreHandle {
        /// The address of the token that the peer counts up.
        inbound_token: u64 = |handle| address(handle.inbound_token);
        /// The address of the count that waits compare the token with.
        expected_inbound_token: u64 = |handle| address(handle.expected_inbound_token);
    }
}

handle! {
    DeviceToDeviceHandle as "MemoryDevice2DeviceSemaphoreDeviceHandle" of DeviceToDeviceSemaphoreHandle {
        /// The address of the token that the peer counts up.
        inbound_token: u64 = |handle| address(handle.inbound_token);
        /// The address of the peer's token, which signals increase.
        remote_inbound_token: u64 = |handle| address(handle.remote_inbound_token);
        /// The address of the count that waits compare the token with.
        expected_inbound_token: u64 = |handle| address(handle.expected_inbound_token);
    }
}

handle! {
    BaseMemoryHandle as "BaseMemoryChannelDeviceHandle" of BaseMemoryChannelHandle {
        /// The handle of its semaphore.
        semaphore_: DeviceToDeviceHandle = |handle| DeviceToDeviceHandle(handle.semaphore);
    }
}

handle! {
    MemoryHandle as "MemoryChannelDeviceHandle" of MemoryChannelHandle {
        /// The handle of its semaphore.
        semaphore_: DeviceToDeviceHandle = |handle| DeviceToDeviceHandle(handle.base.semaphore);
        /// The address of the peer's memory.
        dst_: u64 = |handle| address(handle.dst);
        /// The address of this side's memory.
        src_: u64 = |handle| address(handle.src);
        /// The address of this side's packet buffer, or 0.
        packetBuffer_: u64 = |handle| address(handle.packet_buffer);
    }
}

handle! {
    FifoDeviceHandle as "FifoDeviceHandle" of FifoHandle {
        /// The address of the triggers.
        triggers: u64 = |handle| address(handle.triggers);
        /// The address of the count of triggers that were taken.
        tail: u64 = |handle| address(handle.tail);
        /// The address of the count of triggers that were pushed.
        head: u64 = |handle| address(handle.head);
        /// How many triggers it holds.
        size: u64 = |handle| handle.size.into();
    }
}

handle! {
    BasePortHandle as "BasePortChannelDeviceHandle" of BasePortChannelHandle {
        /// The number of its semaphore in the service.
        semaphore_id_: u32 = |handle| handle.semaphore_id.raw();
        /// The handle of its semaphore.
        semaphore_: HostToDeviceHandle = |handle| HostToDeviceHandle(handle.semaphore);
        /// The handle of the FIFO of its service.
        fifo_: FifoDeviceHandle = |handle| FifoDeviceHandle(handle.fifo);
    }
}

handle! {
    PortHandle as "PortChannelDeviceHandle" of PortChannelHandle {
        /// The number of its semaphore in the service.
        semaphore_id_: u32 = |handle| handle.base.semaphore_id.raw();
        /// The handle of its semaphore.
        semaphore_: HostToDeviceHandle = |handle| HostToDeviceHandle(handle.base.semaphore);
        /// The handle of the FIFO of its service.
        fifo_: FifoDeviceHandle = |handle| FifoDeviceHandle(handle.base.fifo);
        /// The number of this side's memory in the service.
        src_: u32 = |handle| handle.src.raw();
        /// The number of the peer's memory in the service.
        dst_: u32 = |handle| handle.dst.raw();
    }
}
