use std::fmt;

use crate::Transport;

/// What kind of device an endpoint is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceType {
    /// Not said.
    #[default]
    Unknown,
    /// Host memory and host threads.
    Cpu,
    /// A GPU, or a simulated device of the Host platform.
    Gpu,
}

/// A device of an endpoint.
///
/// ```
/// use mscclpp_core::Device;
/// assert_eq!(Device::gpu(1).to_string(), "GPU 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Device {
    /// What kind it is.
    pub kind: DeviceType,
    /// Its number in this process; `None` means the current one. Meaningless for a CPU.
    pub id: Option<usize>,
}

impl Device {
    /// The CPU.
    pub const CPU: Self = Self { kind: DeviceType::Cpu, id: None };
    /// The current GPU of the calling thread.
    pub const CURRENT_GPU: Self = Self { kind: DeviceType::Gpu, id: None };

    /// GPU number `id` of this process.
    #[must_use]
    pub const fn gpu(id: usize) -> Self {
        Self { kind: DeviceType::Gpu, id: Some(id) }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.id) {
            (DeviceType::Unknown, _) => f.write_str("no device"),
            (DeviceType::Cpu, _) => f.write_str("CPU"),
            (DeviceType::Gpu, None) => f.write_str("the current GPU"),
            (DeviceType::Gpu, Some(id)) => write!(f, "GPU {id}"),
        }
    }
}

/// What an endpoint shall be.
///
/// ```
/// use mscclpp_core::{Device, EndpointConfig, Transport};
/// let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0));
/// assert_eq!(config.max_write_queue_size, -1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointConfig {
    /// How it reaches its peer.
    pub transport: Transport,
    /// Where it is.
    pub device: Device,
    /// How many writes may wait to be sent, for a transport that keeps them in a queue of its own, as Ethernet does; -1
    /// for its own limit. CUDA IPC hands each write to the driver at once, and takes no notice of this.
    pub max_write_queue_size: i32,
    /// For `IB0` to `IB7` alone.
    pub ib: IbConfig,
}

impl EndpointConfig {
    /// An endpoint with everything else at its default.
    #[must_use]
    pub fn new(transport: Transport, device: Device) -> Self {
        Self { transport, device, max_write_queue_size: -1, ib: IbConfig::default() }
    }
}

impl From<Transport> for EndpointConfig {
    /// On the current GPU.
    fn from(transport: Transport) -> Self {
        Self::new(transport, Device::CURRENT_GPU)
    }
}

/// How signals travel over InfiniBand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IbMode {
    /// What the environment or the device says.
    #[default]
    Default,
    /// RDMA atomics on the peer's token.
    Host,
    /// Writes with immediate data, for devices without atomics.
    HostNoAtomic,
}

/// Parameters of an InfiniBand endpoint. Plain data: this crate does not know the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IbConfig {
    /// Index of the device, -1 for the one that the transport names.
    pub device_index: i32,
    /// Port of the device, counted from 1.
    pub port: i32,
    /// Index in the port's GID table, -1 to choose.
    pub gid_index: i32,
    /// Entries of the completion queue.
    pub max_cq_size: i32,
    /// Completions taken at once.
    pub max_cq_poll_num: i32,
    /// Work requests that the send queue holds.
    pub max_send_wr: i32,
    /// Work requests that the receive queue holds.
    pub max_recv_wr: i32,
    /// Work requests posted at once.
    pub max_wr_per_send: i32,
    /// How signals travel.
    pub mode: IbMode,
}

impl Default for IbConfig {
    fn default() -> Self {
        Self {
            device_index: -1,
            port: 1,
            gid_index: -1,
            max_cq_size: 1024,
            max_cq_poll_num: 256,
            max_send_wr: 8192,
            max_recv_wr: 16,
            max_wr_per_send: 64,
            mode: IbMode::Default,
        }
    }
}
