use std::{num::NonZero, thread::available_parallelism, time::Duration};

use mscclpp_net::interface::Family;
use parking_lot::Mutex;

use crate::Ethernet;

/// What can be chosen.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Bytes of a chunk of staging, and how many there are for each connection and direction.
    pub(crate) chunk: u64,
    pub(crate) chunks: usize,
    pub(crate) checksums: bool,
    /// For how long threads look for work before they sleep.
    pub(crate) busy: Duration,
    pub(crate) interface: Option<String>,
    pub(crate) family: Option<Family>,
    /// For tests alone: updates become visible before the data that they follow.
    pub(crate) broken_order: bool,
}

/// On machines with fewer cores than this, a thread that looks for work keeps others from theirs.
const MANY_CORES: usize = 8;

impl Default for Settings {
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, NonZero::get);
        Self {
            chunk: 1 << 20,
            chunks: 4,
            checksums: false,
            busy: if cores >= MANY_CORES { Duration::from_micros(100) } else { Duration::ZERO },
            interface: None,
            family: None,
            broken_order: false,
        }
    }
}

/// Sets up an [`Ethernet`] provider.
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
    settings: Settings,
}

impl EthernetBuilder {
    /// How device memory travels: through `chunks` pieces of pinned host memory (2 to 64) of `bytes` each (4 KiB to
    /// 64 MiB; values outside are brought in). Each queue has that much at either end once a device's memory is
    /// used, so that one piece is copied while another travels. 4 of 1 MiB by default.
    pub fn staging(mut self, bytes: u64, chunks: usize) -> Self {
        self.settings.chunk = bytes.clamp(4 << 10, 64 << 20);
        self.settings.chunks = chunks.clamp(2, 64);
        self
    }

    /// Whether what this side sends carries a checksum (CRC-32) of the data beside the keyed check that every header
    /// has. Costs a pass over the data at both ends. Off by default: TCP has a checksum of its own, which is weak.
    pub fn checksums(mut self, on: bool) -> Self {
        self.settings.checksums = on;
        self
    }

    /// For how long the threads that send and receive look for more work before they sleep. Waking one up costs some
    /// microseconds; looking costs a core meanwhile. 100 us by default, none on machines with less than 8 cores.
    pub fn busy_poll(mut self, duration: Duration) -> Self {
        self.settings.busy = duration;
        self
    }

    /// Offers peers the addresses of this network interface alone. Goes before `MSCCLPP_SOCKET_IFNAME`.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.settings.interface = Some(name.into());
        self
    }

    /// Offers peers addresses of this family alone. Goes before `MSCCLPP_SOCKET_FAMILY`.
    pub fn family(mut self, family: Family) -> Self {
        self.settings.family = Some(family);
        self
    }

    /// Breaks promise 1 of [`mscclpp_core::provider`] on purpose, so that a test can show that it would see that.
    #[doc(hidden)]
    pub fn with_broken_order(mut self) -> Self {
        self.settings.broken_order = true;
        self
    }

    /// The provider. Nothing is opened yet.
    #[must_use]
    pub fn build(self) -> Ethernet {
        Ethernet { settings: self.settings, hub: Mutex::default() }
    }
}
