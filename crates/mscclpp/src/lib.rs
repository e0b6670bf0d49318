//! GPU communication from inside kernels: processes find each other, connect their devices, and the devices' kernels
//! signal each other and move data without the host.
//!
//! This crate re-exports the crates below it. It adds the [`Communicator`], which makes the exchanges between ranks, and
//! one [`Error`] over all layers. The crates below can be used without it.
//!
//! The names that most programs use are here and in the [`prelude`]. All others are in the module of their topic:
//! [`mod@bootstrap`], [`memory`], [`channels`], [`proxy`], [`gpu`], [`engine`], [`provider`] and [`errors`].
//!
//! # The book
//! This is the reference. The tutorials and guides are in the folder `docs/src` of the repository, as Markdown, and
//! `mdbook serve docs` shows them as a book:
//!
//! | page | about |
//! | --- | --- |
//! | `which-front-end.md` | collectives or channels, Rust or Python: begin here |
//! | `tutorials/06-collectives.md` | `all_reduce` and its like, by the crate `mscclpp-collectives` |
//! | `collectives-wrong.md` | what to do when a collective hangs or computes wrong numbers |
//! | `first-program.md` | a whole program with channels |
//! | `tutorials/01-basic-concepts.md` | [`Context`], [`Endpoint`], [`Connection`], [`Semaphore`], [`BaseMemoryChannel`] |
//! | `tutorials/02-bootstrap-and-communicator.md` | [`TcpBootstrap`], [`UniqueId`], [`Communicator`], [`Pending`] |
//! | `tutorials/03-memory-channel.md` | [`RegisteredMemory`], [`MemoryChannel`]: put, get, packets |
//! | `tutorials/04-port-channel.md` | [`ProxyService`], [`PortChannel`], [`proxy::Proxy`] |
//! | `tutorials/05-ring.md` | a ring of ranks, and the one mistake to avoid: waiting too early. [`Communicator::mesh`] |
//! | `starting-ranks.md` | [`Rendezvous`]: mpirun, torchrun, srun, Kubernetes |
//! | `your-own-kernels.md`, `launching-kernels.md` | [`KernelSource`], [`Module`], [`KernelArgs`] |
//! | `device-calls.md`, `device-helpers.md` | all calls that kernels can make |
//! | `memory-ordering.md` | what each call promises about memory |
//! | `testing-on-sim.md` | [`Platform::Sim`]: kernels without a GPU |
//! | `which-channel.md` | which transport and channel for what, with figures |
//! | `coming-from-nccl.md`, `coming-from-nvshmem.md`, `coming-from-cpp.md` | what is called how in other libraries |
//! | `ethernet.md`, `infiniband.md`, `hip.md` | the transports, and AMD GPUs |
//! | `writing-a-transport.md` | [`provider::TransportProvider`] |
//! | `environment.md`, `versions.md` | all environment variables, and which versions may mix |
//! | `security.md` | what strangers can do with a key and without |
//! | `troubleshooting.md`, `connecting-fails.md`, `hangs.md` | error messages, and what to do |
//! | `glossary.md` | the words of the book and of this reference |
//!
//! ```
//! use std::sync::Arc;
//! use mscclpp::prelude::*;
//! # #[cfg(feature = "cuda-ipc")]
//! # fn main() -> Result<(), mscclpp::Error> {
//! // Two ranks in one process, on one simulated device; usually each is a process, with a `TcpBootstrap`.
//! let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| {
//!     std::thread::spawn(move || -> Result<(), mscclpp::Error> {
//!         let peer = 1 - bootstrap.rank();
//!         let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
//!         let connection = comm.connect(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0)), peer, 0)?.wait()?;
//!         let semaphore = comm.build_semaphore(&connection)?.wait()?;
//!         let channel = BaseMemoryChannel::new(&semaphore)?; // its device_handle() goes to kernels
//!         comm.bootstrap().barrier()?;
//!         Ok(())
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     rank.join().expect("a rank panicked")?;
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "cuda-ipc"))]
//! # fn main() {}
//! ```
//!
//! # Features
// ANCHOR: features
//! | feature | default | what it brings |
//! | --- | --- | --- |
//! | `cuda-ipc` | yes | the CUDA IPC transport and the CUDA platform |
//! | `ethernet` | yes | the Ethernet transport: CPUs and GPUs of one node or many, over TCP |
//! | `ib` | yes | the InfiniBand transport: RDMA adapters, InfiniBand or RoCE, where libibverbs finds some |
//! | `cuda-12040` | yes | cudarc with the symbols of CUDA 12.4; newer drivers work too |
//! | `cuda-13000` | no | the same of CUDA 13, if another crate of the build uses it; turn the default features off then |
//! | `hip` | no | the platform for AMD GPUs. No such GPU has run it yet |
//!
//! Without `cuda-ipc` the build has no code of the CUDA driver in it, and devices are simulated. `cuda-12040` and `cuda-13000`
//! choose a version of [cudarc](https://crates.io/crates/cudarc) and exclude each other. If another crate of the build uses
//! cudarc 0.19, all must choose the same:
//!
//! ```toml
//! cudarc = { version = "0.19", default-features = false, features = ["cuda-13000", "driver", "dynamic-loading", "std"] }
//! mscclpp = { path = "...", default-features = false, features = ["cuda-ipc", "cuda-13000"] }
//! ```
//!
//! Building and starting a program need no CUDA; the driver is loaded when a CUDA device is first used.
// ANCHOR_END: features
//!
//! # When a rank dies
//! Every blocking call fails with an error that names that rank. Every kernel that waits on a semaphore of a
//! [`Communicator`] goes on: its wait returns false, and [`Semaphore::check`] says why.
#![deny(unsafe_code)]

mod abort;
mod communicator;
mod context;
pub mod engine;
mod error;
mod fastest;
mod from_connection;
mod local_end;
pub mod log;
mod members;
mod mesh;
mod pending;
mod pending_mesh;
mod port;
pub mod prelude;
mod receive_queue;
mod settling;
mod variables;
mod version;

// The names of a first program. Everything else is in the module of its topic.
pub use bootstrap::{Bootstrap, LocalBootstrap, Rendezvous, TcpBootstrap, UniqueId};
pub use channels::{
    BaseMemoryChannel, BaseMemoryChannelHandle, Connection, Endpoint, EndpointConfig, MemoryChannel,
    MemoryChannelHandle, Semaphore, SemaphoreStub, Transport, TransportFlags,
};
pub use communicator::Communicator;
pub use context::{ContextBuilderExt, ContextExt};
pub use error::{Error, ErrorKind, Result};
pub use from_connection::{FromConnection, MemoryChannelExt};
pub use gpu::{
    DeviceBuffer, DevicePtr, Event, Gpu, Kernel, KernelArgs, KernelSource, LaunchConfig, Module, Platform,
    Stream,
};
pub use local_end::LocalEnd;
pub use memory::RegisteredMemory;
pub use mesh::{Mesh, MeshBuilder, MeshLink};
pub use mscclpp_core::{Context, ContextBuilder, Device, DeviceType, Report};
#[cfg(feature = "cuda-ipc")]
pub use mscclpp_cuda_ipc::CudaIpc;
#[cfg(feature = "ethernet")]
pub use mscclpp_ethernet::{Ethernet, EthernetBuilder};
#[cfg(feature = "ib")]
pub use mscclpp_ib::{InfiniBand, InfiniBandBuilder};
pub use pending::Pending;
pub use pending_mesh::PendingMesh;
pub use port::ProxyServiceExt;
pub use proxy::{BasePortChannel, BasePortChannelHandle, PortChannel, PortChannelHandle, ProxyService};
pub use version::{Version, version};

/// The program in the package's README compiles.
#[cfg(all(doctest, feature = "cuda-ipc"))]
#[doc = include_str!("../README.md")]
struct PackageReadme;

/// How processes find each other: ranks, launchers, addresses, messages.
pub mod bootstrap {
    pub use mscclpp_bootstrap::{
        Attempt, Bootstrap, Env, FailureHook, Family, Forming, Job, LauncherStore, LocalBootstrap,
        MeetingPlace, Party, Rendezvous, TcpBootstrap, TcpBootstrapBuilder, UniqueId,
    };
}

/// Endpoints, connections, the semaphores over them, and the channels over these.
pub mod channels {
    pub use mscclpp_core::{
        BaseMemoryChannel, BaseMemoryChannelHandle, Connection, DeviceToDeviceSemaphore,
        DeviceToDeviceSemaphoreHandle, Endpoint, EndpointConfig, HostToDeviceSemaphore,
        HostToDeviceSemaphoreHandle, HostToHostSemaphore, IbConfig, IbMode, LL8Packet, LL16Packet,
        LL128Packet, MemoryChannel, MemoryChannelHandle, Packet, Semaphore, SemaphoreStub, SendQueue,
        Signaller, SignallerId, Transport, TransportFlags, WeakConnection,
    };
    pub use mscclpp_proxy::{BasePortChannel, BasePortChannelHandle, PortChannel, PortChannelHandle};
}

/// Memory that peers can reach, and the buffers that it is registered from.
pub mod memory {
    pub use mscclpp_core::{MemoryRegion, RegisteredMemory, Route};
    pub use mscclpp_gpu::{
        DeviceBuffer, DevicePtr, DmaBuf, ExportHandle, ExportKinds, ImportedMemory, MemoryExport,
        PinnedBuffer, PinnedWord,
    };
}

/// Port channels, the service behind them, and the types to build other services from.
pub mod proxy {
    pub use mscclpp_proxy::{
        BasePortChannel, BasePortChannelHandle, BaseProxyService, ConnectionStats, Fifo, FifoHandle,
        FifoPosition, FifoShared, IdlePolicy, MAX_MEMORIES, MAX_SEMAPHORES, MemoryId, PendingFlush,
        PortChannel, PortChannelHandle, Progress, Proxy, ProxyBuilder, ProxyHandler, ProxyHandlerResult,
        ProxyService, ProxyServiceBuilder, ProxyTrigger, SemaphoreId, ServiceStats, TrafficStats,
        TriggerKind,
    };

    pub use crate::ProxyServiceExt;
}

/// Devices, streams, kernels and graphs, on GPUs and on simulated devices.
pub mod gpu {
    #[cfg(all(feature = "cuda-ipc", any(feature = "cuda-12040", feature = "cuda-13000")))]
    pub use mscclpp_gpu::nvrtc;
    pub use mscclpp_gpu::{
        Abort, DeviceAllocation, DeviceBuffer, DevicePtr, DmaBuf, Event, ExportHandle, ExportKinds, Gpu,
        GpuDirect, GpuProperties, Graph, ImportedMemory, Kernel, KernelArgs, KernelArgument, KernelObject,
        KernelParam, KernelParameter, KernelSource, KernelWait, LaunchConfig, MemoryExport, MemoryInfo,
        Module, Owner, PeerAccess, PinnedBuffer, PinnedWord, Platform, Probe, RetiredBuffers, Stream,
        WritesOrdering, cached_ptx, fork, kernel_cache, numa, ptx_of, store_ptx,
    };
}

/// The data races that simulated devices found in kernels, for tests.
pub mod testing {
    pub use mscclpp_gpu::testing::{Race, RaceAccess, races};
}

/// The errors of the layers below, which [`Error`] wraps.
pub mod errors {
    pub use mscclpp_bootstrap::Error as BootstrapError;
    pub use mscclpp_core::{BadVariable, Error as CoreError, OutOfBounds, SystemFailure, TransportError};
    pub use mscclpp_gpu::Error as GpuError;
    pub use mscclpp_proxy::Error as ProxyError;

    pub use crate::{Error, ErrorKind, Report, Result};
}

/// The traits that a transport of your own implements, and the types that they use; see [`ContextBuilder::provider`]. The
/// book's page "Writing a transport" (`docs/src/writing-a-transport.md`) has the whole contract.
pub mod provider {
    pub use mscclpp_core::provider::{
        Ends, Foreign, Link, LocalEndpoint, Memories, Operation, OwnTokens, Queue, Registration,
        RemoteRegion, RouteId, Routes, TokenMemory, TransportProvider,
    };
    pub use mscclpp_core::{EndpointInfo, LinkMonitor, MemoryRegion, ProcessId, RegionInfo, host_id};
}

/// The device API's headers, and the kernels that the examples launch.
pub mod kernels {
    pub use mscclpp_kernels::{
        ALL_REDUCE_RMS_NORM, BIDIR_MEMORY_CHANNEL, BIDIR_PORT_CHANNEL, C_HEADERS, CUSTOM_PROXY, HEADERS,
        MESH_PORT_CHANNELS, PING_PONG, SIGNAL_PING_PONG,
    };
}
