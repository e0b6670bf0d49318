//! The properties of simulated adapters.

use std::{net::Ipv4Addr, time::Duration};

use mscclpp_verbs_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_MTU_1024, IBV_MTU_4096, ibv_gid_type,
    ibv_mtu,
};

/// A world of adapters that reach each other.
#[derive(Debug, Clone)]
pub struct Config {
    /// The seed of everything random.
    pub seed: u64,
    /// The side that carries out what is posted.
    pub execution: Execution,
    /// How long a queue pair tries to reach its peer before it gives up. It stands for the transport timer,
    /// `timeout`, times `retry_cnt`; those are checked but would take minutes. With [`Execution::OnPoll`], a thousand
    /// steps count instead.
    pub patience: Duration,
    /// The devices, by number.
    pub devices: Vec<DeviceConfig>,
}

impl Config {
    /// Makes a world of this many devices, each like [`DeviceConfig::new`], that reorder nothing.
    pub fn new(devices: u8) -> Self {
        Self {
            seed: 0,
            execution: Execution::Thread,
            patience: Duration::from_millis(300),
            devices: (0..devices).map(DeviceConfig::new).collect(),
        }
    }

    /// Changes all devices by `change`.
    pub fn with(mut self, change: impl Fn(&mut DeviceConfig)) -> Self {
        self.devices.iter_mut().for_each(change);
        self
    }

    /// Makes the outcome follow from the seed.
    pub fn reproducible(mut self, seed: u64) -> Self {
        self.seed = seed;
        self.execution = Execution::OnPoll;
        self
    }
}

/// The side that carries out what is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// A thread carries it out, as soon as it can.
    Thread,
    /// The caller carries it out: each poll of a completion queue makes some steps, and [`crate::Fake::step`] makes
    /// one. The outcome then follows from the seed and the order of the calls.
    OnPoll,
}

/// A device. Fields without a comment are those of `ibv_device_attr`.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "they are named as in the verbs library")]
pub struct DeviceConfig {
    pub name: String,
    pub ports: Vec<PortConfig>,
    pub atomics: bool,
    pub max_qp_wr: u32,
    pub max_cqe: u32,
    pub max_sge: u32,
    /// The most inline data that a queue pair may ask for.
    pub max_inline: u32,
    pub max_rd_atomic: u8,
    pub reordering: Reordering,
    /// Whether the context is not part of a `verbs_context`, as with old providers.
    pub old_provider: bool,
}

impl DeviceConfig {
    /// Makes the device `fakeN` with one port of RoCE at 10.0.0.N+1, with atomics and without reordering.
    pub fn new(number: u8) -> Self {
        Self {
            name: format!("fake{number}"),
            ports: vec![PortConfig::ethernet(number)],
            atomics: true,
            max_qp_wr: 1024,
            max_cqe: 65_536,
            max_sge: 4,
            max_inline: 220,
            max_rd_atomic: 16,
            reordering: Reordering::default(),
            old_provider: false,
        }
    }
}

/// A port of a device. Fields without a comment are those of `ibv_port_attr`.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "they are named as in the verbs library")]
pub struct PortConfig {
    pub active: bool,
    /// Whether the port is Ethernet; otherwise it is InfiniBand.
    pub ethernet: bool,
    pub lid: u16,
    pub mtu: ibv_mtu,
    pub gids: Vec<GidConfig>,
    pub pkeys: Vec<u16>,
}

/// An entry of a port's table of GIDs.
#[derive(Debug, Clone, Copy)]
pub struct GidConfig {
    /// The GID.
    pub raw: [u8; 16],
    /// The type of the GID.
    pub kind: ibv_gid_type,
    /// The interface behind the GID.
    pub interface: u32,
}

impl PortConfig {
    /// Makes a port with a link-local and an IPv4-mapped GID, each for RoCE v1 and v2, as Linux makes them. The
    /// interface is number 1, the loopback of every network namespace.
    pub fn ethernet(number: u8) -> Self {
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[15] = number + 1;
        let mapped = Ipv4Addr::new(10, 0, 0, number + 1).to_ipv6_mapped().octets();
        let gids = [link_local, mapped].into_iter().flat_map(|raw| {
            [IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2].map(|kind| GidConfig { raw, kind, interface: 1 })
        });
        Self {
            active: true,
            ethernet: true,
            lid: 0,
            mtu: IBV_MTU_1024,
            gids: gids.collect(),
            pkeys: vec![0xffff],
        }
    }

    /// Makes a port of InfiniBand with one GID.
    pub fn infiniband(number: u8) -> Self {
        let mut raw = [0; 16];
        raw[..2].copy_from_slice(&[0xfe, 0x80]);
        raw[8] = number + 1;
        let gids = vec![GidConfig { raw, kind: IBV_GID_TYPE_IB, interface: 0 }];
        let lid = u16::from(number) + 1;
        Self { active: true, ethernet: false, lid, mtu: IBV_MTU_4096, gids, pkeys: vec![0xffff] }
    }
}

/// The order in which data that arrives at a device becomes visible in its node's memory. The documentation of
/// [`super`] says what each setting stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reordering {
    /// Writes and atomics into memory that is registered with relaxed ordering overtake what came before them.
    pub relaxed: bool,
    /// Completions of receives overtake writes that came before them: the writes go to a GPU, the completions to the
    /// host.
    pub completions: bool,
    /// Writes are acknowledged when they have arrived, although they are not visible yet.
    pub early_acknowledgement: bool,
    /// All memory is treated as if it were registered with relaxed ordering. No adapter may do this.
    pub nothing_strict: bool,
}

impl Reordering {
    /// The reordering that adapters may do if completion queues and regions are in host memory.
    pub const HOST_MEMORY: Self =
        Self { relaxed: true, completions: false, early_acknowledgement: false, nothing_strict: false };
    /// The reordering that adapters may do if regions are in the memory of a GPU.
    pub const GPU_MEMORY: Self = Self { completions: true, ..Self::HOST_MEMORY };

    /// Acknowledges writes before they are visible, and keeps the other settings.
    pub const fn acknowledged_early(self) -> Self {
        Self { early_acknowledgement: true, ..self }
    }

    pub(crate) fn delays(self) -> bool {
        self != Self::default()
    }
}
