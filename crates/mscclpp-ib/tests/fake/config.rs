//! The properties of simulated adapters.

use std::{net::Ipv4Addr, time::Duration};

use mscclpp_verbs_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_MTU_1024, IBV_MTU_4096, ibv_gid_type,
    ibv_mtu,
};

/// A world of adapters that reach each other.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The seed of everything random.
    pub(crate) seed: u64,
    /// The side that carries out what is posted.
    pub(crate) execution: Execution,
    /// How long a queue pair tries to reach its peer before it gives up. It stands for the transport timer,
    /// `timeout`, times `retry_cnt`; those are checked but would take minutes. With [`Execution::OnPoll`], a thousand
    /// steps count instead.
    pub(crate) patience: Duration,
    pub(crate) devices: Vec<DeviceConfig>,
}

impl Config {
    /// Makes a world of this many devices, each like [`DeviceConfig::new`], that reorder nothing.
    pub(crate) fn new(devices: u8) -> Self {
        Self {
            seed: 0,
            execution: Execution::Thread,
            patience: Duration::from_millis(300),
            devices: (0..devices).map(DeviceConfig::new).collect(),
        }
    }

    /// Changes all devices by `change`.
    pub(crate) fn with(mut self, change: impl Fn(&mut DeviceConfig)) -> Self {
        self.devices.iter_mut().for_each(change);
        self
    }

    pub(crate) fn reproducible(mut self, seed: u64) -> Self {
        self.seed = seed;
        self.execution = Execution::OnPoll;
        self
    }
}

/// The side that carries out what is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Execution {
    /// A thread carries it out, as soon as it can.
    Thread,
    /// The caller carries it out: each poll of a completion queue makes some steps, and [`super::Fake::step`] makes
    /// one. The outcome then follows from the seed and the order of the calls.
    OnPoll,
}

#[derive(Debug, Clone)]
pub(crate) struct DeviceConfig {
    pub(crate) name: String,
    pub(crate) ports: Vec<PortConfig>,
    pub(crate) atomics: bool,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_sge: u32,
    /// The most inline data that a queue pair may ask for.
    pub(crate) max_inline: u32,
    pub(crate) max_rd_atomic: u8,
    pub(crate) reordering: Reordering,
    /// Whether the context is not part of a `verbs_context`, as with old providers.
    pub(crate) old_provider: bool,
}

impl DeviceConfig {
    /// Makes the device `fakeN` with one port of RoCE at 10.0.0.N+1, with atomics and without reordering.
    pub(crate) fn new(number: u8) -> Self {
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

#[derive(Debug, Clone)]
pub(crate) struct PortConfig {
    pub(crate) active: bool,
    /// Whether the port is Ethernet; otherwise it is InfiniBand.
    pub(crate) ethernet: bool,
    pub(crate) lid: u16,
    pub(crate) mtu: ibv_mtu,
    pub(crate) gids: Vec<GidConfig>,
    pub(crate) pkeys: Vec<u16>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct GidConfig {
    pub(crate) raw: [u8; 16],
    pub(crate) kind: ibv_gid_type,
    /// The interface behind the GID.
    pub(crate) interface: u32,
}

impl PortConfig {
    /// Makes a port with a link-local and an IPv4-mapped GID, each for RoCE v1 and v2, as Linux makes them. The
    /// interface is number 1, the loopback of every network namespace.
    pub(crate) fn ethernet(number: u8) -> Self {
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

    pub(crate) fn infiniband(number: u8) -> Self {
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
pub(crate) struct Reordering {
    /// Writes and atomics into memory that is registered with relaxed ordering overtake what came before them.
    pub(crate) relaxed: bool,
    /// Completions of receives overtake writes that came before them: the writes go to a GPU, the completions to the
    /// host.
    pub(crate) completions: bool,
    /// Writes are acknowledged when they have arrived, although they are not visible yet.
    pub(crate) early_acknowledgement: bool,
    /// All memory is treated as if it were registered with relaxed ordering. No adapter may do this.
    pub(crate) nothing_strict: bool,
}

impl Reordering {
    /// The reordering that adapters may do if completion queues and regions are in host memory.
    pub(crate) const HOST_MEMORY: Self =
        Self { relaxed: true, completions: false, early_acknowledgement: false, nothing_strict: false };
    /// The reordering that adapters may do if regions are in the memory of a GPU.
    pub(crate) const GPU_MEMORY: Self = Self { completions: true, ..Self::HOST_MEMORY };

    /// Acknowledges writes before they are visible, and keeps the other settings.
    pub(crate) const fn acknowledged_early(self) -> Self {
        Self { early_acknowledgement: true, ..self }
    }

    pub(super) fn delays(self) -> bool {
        self != Self::default()
    }
}
