use std::{num::NonZero, thread::available_parallelism, time::Duration};

use mscclpp_net::interface::Family;

/// The settings of a provider.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Bytes of a chunk of staging, and how many there are for each connection and direction.
    pub(crate) chunk: u64,
    pub(crate) chunks: usize,
    /// If the program says; else the environment does.
    pub(crate) checksums: Option<bool>,
    /// How long threads look for work before they sleep.
    pub(crate) busy: Duration,
    pub(crate) interface: Option<String>,
    pub(crate) family: Option<Family>,
}

/// On machines with fewer cores than this, a thread that looks for work takes time from threads that have some.
const MANY_CORES: usize = 8;

impl Default for Settings {
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, NonZero::get);
        Self {
            chunk: 1 << 20,
            chunks: 4,
            checksums: None,
            busy: if cores >= MANY_CORES { Duration::from_micros(100) } else { Duration::ZERO },
            interface: None,
            family: None,
        }
    }
}

/// Sets up an [`Ethernet`](crate::Ethernet) provider.
///
/// ```
/// use std::time::Duration;
/// # use mscclpp_core::Context;
/// # use mscclpp_ethernet::Ethernet;
///
/// let ethernet = Ethernet::builder().staging(2 << 20, 8).checksums(true).busy_poll(Duration::ZERO).build();
/// let context = Context::builder().provider(ethernet).build();
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct EthernetBuilder {
    pub(crate) settings: Settings,
}

impl EthernetBuilder {
    /// Sets how device memory travels: through `chunks` pieces of pinned host memory (2 to 64) of `bytes` each (4 KiB
    /// to 64 MiB). Values outside these limits are moved to the nearest limit. Each queue has that much at each end
    /// once memory of a device is used, so that one piece is copied while another travels. 4 pieces of 1 MiB by
    /// default.
    pub fn staging(mut self, bytes: u64, chunks: usize) -> Self {
        self.settings.chunk = bytes.clamp(4 << 10, 64 << 20);
        self.settings.chunks = chunks.clamp(2, 64);
        self
    }

    /// Whether data that this side sends carries a checksum (CRC-32), beside the keyed check that every header has. It
    /// costs a pass over the data at both ends. Takes precedence over `MSCCLPP_ETHERNET_CHECKSUMS`. Off by default: TCP has a
    /// checksum of its own, which is weak. Without this, a bit that changes where that misses it, as in the memory of a
    /// switch, arrives as data.
    pub fn checksums(mut self, on: bool) -> Self {
        self.settings.checksums = Some(on);
        self
    }

    /// How long the threads that send and receive look for more work before they sleep. Waking one costs some
    /// microseconds; looking keeps a core busy. 100 us by default, and none on machines with fewer than 8 cores.
    pub fn busy_poll(mut self, duration: Duration) -> Self {
        self.settings.busy = duration;
        self
    }

    /// Offers peers only the addresses of this network interface. Takes precedence over `MSCCLPP_SOCKET_IFNAME`.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.settings.interface = Some(name.into());
        self
    }

    /// Offers peers only addresses of this family. Takes precedence over `MSCCLPP_SOCKET_FAMILY`.
    pub fn family(mut self, family: Family) -> Self {
        self.settings.family = Some(family);
        self
    }
}
