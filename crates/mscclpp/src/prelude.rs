//! The names that most programs use: `use mscclpp::prelude::*;`.

#[doc(no_inline)]
pub use crate::gpu::{Abort, KernelParam};
#[doc(no_inline)]
pub use crate::{
    BaseMemoryChannel, BaseMemoryChannelHandle, BasePortChannel, BasePortChannelHandle, Bootstrap,
    Communicator, Connection, Context, ContextBuilderExt, ContextExt, Device, DeviceBuffer, DevicePtr,
    Endpoint, EndpointConfig, Event, FromConnection, Gpu, Kernel, KernelArgs, KernelSource, LaunchConfig,
    LocalBootstrap, MemoryChannel, MemoryChannelExt, MemoryChannelHandle, Mesh, Module, Pending, Platform,
    PortChannel, PortChannelHandle, ProxyService, ProxyServiceExt, RegisteredMemory, Rendezvous, Semaphore,
    SemaphoreStub, Stream, TcpBootstrap, Transport, TransportFlags, UniqueId,
};
