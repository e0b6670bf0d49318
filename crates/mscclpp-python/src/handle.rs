//! Device handles: their bytes, which go to kernels, and their fields.

use mscclpp::{
    BaseMemoryChannelHandle, BasePortChannelHandle, MemoryChannelHandle, PortChannelHandle,
    channels::{DeviceToDeviceSemaphoreHandle, HostToDeviceSemaphoreHandle},
    gpu::KernelParam,
    proxy::FifoHandle,
};
use pyo3::{prelude::*, types::PyBytes};

/// An address as Python sees it.
fn address<T>(ptr: *const T) -> u64 {
    ptr.addr() as u64
}

/// Declares the Python class of a handle.
macro_rules! handle {
    ($type:ident as $name:literal of $handle:ty { $($field:ident: $result:ty = $value:expr;)* }) => {
        #[doc = concat!("What kernels get: `raw` has the bytes of `mscclpp::", $name, "`.")]
        #[pyclass(name = $name, module = "mscclpp._mscclpp", frozen)]
        pub(crate) struct $type(pub(crate) $handle);

        #[pymethods]
        #[allow(non_snake_case, reason = "the public names")]
        impl $type {
            #[getter]
            fn raw<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
                PyBytes::new(py, &self.0.to_bytes())
            }

            $(
                #[getter]
                fn $field(&self) -> $result {
                    let value: fn(&$handle) -> $result = $value;
                    value(&self.0)
                }
            )*
        }
    };
}

handle! {
    HostToDeviceHandle as "Host2DeviceSemaphoreDeviceHandle" of HostToDeviceSemaphoreHandle {
        inbound_token: u64 = |handle| address(handle.inbound_token);
        expected_inbound_token: u64 = |handle| address(handle.expected_inbound_token);
    }
}

handle! {
    DeviceToDeviceHandle as "MemoryDevice2DeviceSemaphoreDeviceHandle" of DeviceToDeviceSemaphoreHandle {
        inbound_token: u64 = |handle| address(handle.inbound_token);
        remote_inbound_token: u64 = |handle| address(handle.remote_inbound_token);
        expected_inbound_token: u64 = |handle| address(handle.expected_inbound_token);
    }
}

handle! {
    BaseMemoryHandle as "BaseMemoryChannelDeviceHandle" of BaseMemoryChannelHandle {
        semaphore_: DeviceToDeviceHandle = |handle| DeviceToDeviceHandle(handle.semaphore);
    }
}

handle! {
    MemoryHandle as "MemoryChannelDeviceHandle" of MemoryChannelHandle {
        semaphore_: DeviceToDeviceHandle = |handle| DeviceToDeviceHandle(handle.base.semaphore);
        dst_: u64 = |handle| address(handle.dst);
        src_: u64 = |handle| address(handle.src);
        packetBuffer_: u64 = |handle| address(handle.packet_buffer);
    }
}

handle! {
    FifoDeviceHandle as "FifoDeviceHandle" of FifoHandle {
        triggers: u64 = |handle| address(handle.triggers);
        tail: u64 = |handle| address(handle.tail);
        head: u64 = |handle| address(handle.head);
        size: u64 = |handle| handle.size.into();
    }
}

handle! {
    BasePortHandle as "BasePortChannelDeviceHandle" of BasePortChannelHandle {
        semaphore_id_: u32 = |handle| handle.semaphore_id.raw();
        semaphore_: HostToDeviceHandle = |handle| HostToDeviceHandle(handle.semaphore);
        fifo_: FifoDeviceHandle = |handle| FifoDeviceHandle(handle.fifo);
    }
}

handle! {
    PortHandle as "PortChannelDeviceHandle" of PortChannelHandle {
        semaphore_id_: u32 = |handle| handle.base.semaphore_id.raw();
        semaphore_: HostToDeviceHandle = |handle| HostToDeviceHandle(handle.base.semaphore);
        fifo_: FifoDeviceHandle = |handle| FifoDeviceHandle(handle.base.fifo);
        src_: u32 = |handle| handle.src.raw();
        dst_: u32 = |handle| handle.dst.raw();
    }
}
