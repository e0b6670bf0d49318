//! What most programs use: `use mscclpp::prelude::*;`.

pub use crate::{
    BaseMemoryChannel, Bootstrap, Communicator, Connection, Context, ContextBuilderExt, ContextExt, Device,
    DeviceBuffer, DevicePtr, Endpoint, EndpointConfig, Gpu, KernelArgs, KernelSource, LaunchConfig,
    LocalBootstrap, MemoryChannel, Mesh, Module, Pending, Platform, PortChannel, ProxyService,
    ProxyServiceExt, RegisteredMemory, Rendezvous, Semaphore, SemaphoreStub, TcpBootstrap, Transport,
    TransportFlags, UniqueId,
};
