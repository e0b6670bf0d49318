use std::fmt;

use crate::Transport;

/// The kind of device that an endpoint is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceType {
    /// The device's kind was not given.
    #[default]
    Unknown,
    /// Host memory and host threads.
    Cpu,
    /// A GPU, or a simulated device.
    Gpu,
}

/// A device of an endpoint.
///
/// ```
/// # use mscclpp_core::Device;
/// assert_eq!(Device::gpu(1).to_string(), "GPU 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Device {
    /// The kind of device.
    pub kind: DeviceType,
    /// The device's number in this process; `None` means the current one. Meaningless for a CPU.
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

/// The device that an endpoint is on, and how the endpoint reaches its peers.
///
/// Fields may be added, so a configuration is made by [`EndpointConfig::new`], or from a [`Transport`] for the
/// current GPU, and changed by the methods that set fields.
///
/// ```
/// # use mscclpp_core::{Device, EndpointConfig, IbConfig, Transport};
/// let config = EndpointConfig::new(Transport::ETHERNET, Device::gpu(0)).max_write_queue_size(64);
/// assert_eq!(config.max_write_queue_size, Some(64));
/// let config = EndpointConfig::new(Transport::IB0, Device::gpu(0)).ib(IbConfig::new().gid_index(3));
/// assert_eq!((config.ib.gid_index, config.ib.port), (Some(3), None)); // the first active port
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// The transport over which the endpoint reaches its peer.
    pub transport: Transport,
    /// The device that the endpoint is on.
    pub device: Device,
    /// The number of operations that may wait in each queue, 1 or more; `None` for the transport's own limit. When a queue is
    /// full, callers wait; that is no failure. Queues of CUDA IPC hold 768 operations at most.
    pub max_write_queue_size: Option<u32>,
    /// Whether the tokens of the endpoint's semaphores are in pinned host memory, even if kernels of its device wait
    /// for them. This serves connections over which peers write to host memory: nothing then passes through the
    /// device on its way. Used by Ethernet only.
    pub tokens_on_host: bool,
    /// Parameters for InfiniBand, used by `IB0` to `IB7` only.
    pub ib: IbConfig,
}

/// Makes a method for each field, which sets the field.
macro_rules! setters {
    ($of:ident: $($field:ident: $value:ty => $stored:expr),* $(,)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($of), "::", stringify!($field), "`].")]
            #[must_use]
            pub fn $field(mut self, $field: $value) -> Self {
                self.$field = $stored;
                self
            }
        )*
    };
}

impl EndpointConfig {
    /// Makes a configuration with everything else at its default.
    #[must_use]
    pub fn new(transport: Transport, device: Device) -> Self {
        Self { transport, device, max_write_queue_size: None, tokens_on_host: false, ib: IbConfig::default() }
    }

    setters! { EndpointConfig:
        max_write_queue_size: u32 => Some(max_write_queue_size),
        tokens_on_host: bool => tokens_on_host,
        ib: IbConfig => ib,
    }
}

impl From<Transport> for EndpointConfig {
    /// Makes a configuration for the current GPU.
    fn from(transport: Transport) -> Self {
        Self::new(transport, Device::CURRENT_GPU)
    }
}

/// How signals travel over InfiniBand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IbMode {
    /// The mode that the environment or the device chooses.
    #[default]
    Default,
    /// RDMA atomics on the peer's token, if that is possible at both ends.
    Host,
    /// Writes with immediate data, in both directions, whatever the other end says. For devices without atomics.
    HostNoAtomic,
}

/// Parameters of an InfiniBand endpoint. Plain data: this crate does not know the transport.
///
/// Fields may be added, so parameters are made by [`IbConfig::new`] and the methods that set fields. Where a field is
/// an `Option`, `None` leaves the choice to the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IbConfig {
    /// Index of the device; `None` for the one that the transport names.
    pub device_index: Option<u32>,
    /// Port of the device, counted from 1; `None` for the first that is active.
    pub port: Option<u32>,
    /// Index in the port's GID table; `None` to have one chosen.
    pub gid_index: Option<u32>,
    /// Entries of the completion queue.
    pub max_cq_size: u32,
    /// Completions taken at once.
    pub max_cq_poll_num: u32,
    /// Work requests that the send queue holds.
    pub max_send_wr: u32,
    /// Work requests that the receive queue holds.
    pub max_recv_wr: u32,
    /// Work requests posted at once.
    pub max_wr_per_send: u32,
    /// How signals travel.
    pub mode: IbMode,
    /// The traffic class of the endpoint's packets (on RoCE the DSCP, times 4).
    pub traffic_class: Option<u8>,
    /// The service level of the endpoint's packets, 0 to 15.
    pub service_level: Option<u8>,
    /// The index in the port's table of partition keys.
    pub pkey_index: Option<u16>,
    /// The exponent of the time to wait for an acknowledgement, which is 4.096 microseconds times 2 to this power; 0
    /// for ever, at most 31.
    pub timeout: Option<u8>,
    /// How often a packet that is not acknowledged is sent again, 0 to 7.
    pub retry_count: Option<u8>,
    /// How often a packet is sent again for which the peer has posted no receive yet, 0 to 6; 7 for no limit.
    pub rnr_retry: Option<u8>,
}

impl Default for IbConfig {
    fn default() -> Self {
        Self {
            device_index: None,
            port: None,
            gid_index: None,
            max_cq_size: 1024,
            max_cq_poll_num: 256,
            max_send_wr: 8192,
            max_recv_wr: 16,
            max_wr_per_send: 64,
            mode: IbMode::Default,
            traffic_class: None,
            service_level: None,
            pkey_index: None,
            timeout: None,
            retry_count: None,
            rnr_retry: None,
        }
    }
}

impl IbConfig {
    /// Makes parameters with everything at its default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! { IbConfig:
        device_index: u32 => Some(device_index),
        port: u32 => Some(port),
        gid_index: u32 => Some(gid_index),
        max_cq_size: u32 => max_cq_size,
        max_cq_poll_num: u32 => max_cq_poll_num,
        max_send_wr: u32 => max_send_wr,
        max_recv_wr: u32 => max_recv_wr,
        max_wr_per_send: u32 => max_wr_per_send,
        mode: IbMode => mode,
        traffic_class: u8 => Some(traffic_class),
        service_level: u8 => Some(service_level),
        pkey_index: u16 => Some(pkey_index),
        timeout: u8 => Some(timeout),
        retry_count: u8 => Some(retry_count),
        rnr_retry: u8 => Some(rnr_retry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_indices_are_chosen_unless_given() {
        let chosen = IbConfig::new();
        assert_eq!((chosen.device_index, chosen.port, chosen.gid_index), (None, None, None));
        let given = IbConfig::new().device_index(1).port(2).gid_index(3);
        assert_eq!((given.device_index, given.port, given.gid_index), (Some(1), Some(2), Some(3)));
        assert_eq!(EndpointConfig::from(Transport::IB0).ib, chosen);
    }
}
