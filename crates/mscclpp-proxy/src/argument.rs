//! Port channels and FIFOs as kernel arguments: a launch keeps them alive until it is complete.
//!
//! A channel keeps alive what its handle points to, but not the [`ProxyService`](crate::ProxyService). If the service
//! is dropped, the pushes and flushes of kernels that still run end.

use mscclpp_core::kernel_argument_by_handle;

use crate::{
    BasePortChannel, BasePortChannelHandle, Fifo, FifoHandle, FifoShared, PortChannel, PortChannelHandle,
};

kernel_argument_by_handle! {
    BasePortChannel => BasePortChannelHandle, |this: &Self| BasePortChannel::owner(this);
    PortChannel => PortChannelHandle, |this: &Self| PortChannel::owner(this);
    FifoShared => FifoHandle, |this: &Self| FifoShared::owner(this);
    Fifo => FifoHandle, |this: &Self| FifoShared::owner(this);
}
