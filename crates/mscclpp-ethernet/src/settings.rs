use std::{num::NonZero, thread::available_parallelism, time::Duration};

use mscclpp_net::interface::Family;

/// The settings of a provider.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The size of a chunk of staging in bytes, and the number of chunks for each connection and direction.
    pub(crate) chunk: u64,
    pub(crate) chunks: usize,
    /// The program's choice; without one, the environment decides.
    pub(crate) checksums: Option<bool>,
    /// The time for which threads poll for work before they sleep.
    pub(crate) busy: Duration,
    pub(crate) interface: Option<String>,
    pub(crate) family: Option<Family>,
    /// The time that a suspected link is given to end for a reason of its own.
    pub(crate) grace: Duration,
}

/// The number of cores below which polling is off, because it would take time from threads that have work.
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
            grace: Duration::from_secs(1),
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
    /// Sets how device memory travels: through `chunks` chunks of pinned host memory (2 to 64) of `bytes` each (4 KiB
    /// to 64 MiB). Values outside these limits are moved to the nearest limit. Each queue has that much at each end
    /// once memory of a device is used, so that one chunk is copied while another travels, and 64 chunks of 4 KiB for
    /// small data. The default is 4 chunks of 1 MiB.
    pub fn staging(mut self, bytes: u64, chunks: usize) -> Self {
        self.settings.chunk = bytes.clamp(4 << 10, 64 << 20);
        self.settings.chunks = chunks.clamp(2, 64);
        self
    }

    /// Sets whether data that this side sends carries a checksum (CRC-32), beside the keyed seal of every header. It costs a
    /// pass over the data at both ends, and takes precedence over `MSCCLPP_ETHERNET_CHECKSUMS`. Off by default. Without it,
    /// data is protected by TCP's own weak checksum alone: a bit that changes where that does not look, as in the memory of
    /// a switch, arrives as data.
    pub fn checksums(mut self, on: bool) -> Self {
        self.settings.checksums = Some(on);
        self
    }

    /// Sets how long the threads that send and receive poll for more work before they sleep. Waking a thread costs some
    /// microseconds; polling keeps a core busy. 100 microseconds by default, and none on nodes with fewer than 8 cores.
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

    /// Sets how long a link whose connection broke is given to end for a reason of its own. Tests set it.
    #[doc(hidden)]
    pub fn grace(mut self, time: Duration) -> Self {
        self.settings.grace = time;
        self
    }
}
