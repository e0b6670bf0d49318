//! What most programs use: `use mscclpp::prelude::*;`.

pub use crate::{
    BaseMemoryChannel, Bootstrap, Communicator, Connection, Context, ContextBuilderExt, ContextExt, Device,
    DeviceBuffer, DevicePtr, Endpoint, EndpointConfig, FromConnection, Gpu, KernelArgs, KernelSource,
    LaunchConfig, LocalBootstrap, MemoryChannel, MemoryChannelExt, Module, Pending, Platform, PortChannel,
    ProxyService, ProxyServiceExt, RegisteredMemory, Semaphore, SemaphoreStub, TcpBootstrap, Transport,
    TransportFlags, UniqueId,
};
