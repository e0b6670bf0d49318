//! One suite for all transports: what every [`crate::provider::TransportProvider`] promises, checked.
//!
//! A provider's test implements [`Setup`] and runs [`trials()`], which makes one trial of each of [`cases`],
//! [`kernel_cases`], [`process_cases`] and [`mapped_memory_cases`], as far as they apply. A case panics with what was
//! wrong. The suite itself needs no privilege and no
//! hardware beyond what the provider needs; both ends are in the process that runs it, each with a context of its own, but
//! for [`process_cases`].
//!
//! ```no_run
//! use mscclpp_core::conformance::{self, Devices, Setup};
//!
//! /// The main function of a test with `harness = false`. `setup` makes one with these devices.
//! fn test<S: Setup + Clone + Send + 'static>(setup: impl Fn(Devices) -> S) {
//!     let on = |devices: Devices| conformance::trials_on(devices, &devices.to_string(), &setup(devices));
//!     conformance::run(Devices::all().into_iter().flat_map(on).collect())
//! }
//! ```

mod channels;
mod elsewhere;
mod endpoints;
mod host_signals;
mod hostile;
mod kernels;
mod lifetimes;
mod memories;
mod pair;
pub mod process;
mod queues;
mod semaphores;
mod signals;
mod transfers;
mod trials;

pub use kernels::semaphore_waits;
pub use trials::{Devices, run, trials, trials_on};

use std::process::Command;

use crate::{ContextBuilder, Device, Transport};

/// What the suite needs to know of a provider.
pub trait Setup: Sync {
    /// A new context to be, with the provider under test and the platform chosen. Called once for each end.
    fn builder(&self) -> ContextBuilder;

    /// The transport under test.
    fn transport(&self) -> Transport;

    /// The GPUs of the two ends. They may be the same one, which tests less.
    fn devices(&self) -> [Device; 2];

    /// Whether device code reaches a peer's memory: what [`crate::provider::RemoteRegion::ptr`] must say.
    fn maps_peer_memory(&self) -> bool;

    /// Whether writes may come from memory that is registered for no transport: whether
    /// [`crate::provider::TransportProvider::local_source`] says that.
    fn writes_from_local_memory(&self) -> bool {
        false
    }

    /// Whether of two writes to the same bytes the later one stays, with no update or flush between them.
    fn orders_writes(&self) -> bool {
        true
    }

    /// How to start this very program so that it calls [`process::serve`] with the same setup; none for a transport that
    /// stays within a process, for which there are no [`process_cases`].
    fn second_process(&self) -> Option<Command> {
        None
    }

    /// Whether the transport connects processes of different hosts. If not, trying to must be an error.
    fn reaches_other_hosts(&self) -> bool {
        false
    }
}

/// A case of the suite.
pub type Case = fn(&dyn Setup);

/// The cases that run on every platform, with their names.
#[must_use]
pub fn cases() -> Vec<(&'static str, Case)> {
    [
        endpoints::CASES,
        memories::CASES,
        transfers::CASES,
        queues::CASES,
        semaphores::CASES,
        channels::CASES,
        lifetimes::CASES,
        hostile::CASES,
    ]
    .concat()
}

/// The cases whose other end is a process of its own, which [`Setup::second_process`] starts.
#[must_use]
pub fn process_cases() -> Vec<(&'static str, Case)> {
    process::CASES.to_vec()
}

/// The cases that launch kernels. They need a C++ compiler on [`mscclpp_gpu::Platform::Host`], and NVRTC on CUDA. On GPUs,
/// run them one at a time: a driver may wait for all kernels of the process before it frees memory.
#[must_use]
pub fn kernel_cases() -> Vec<(&'static str, Case)> {
    host_signals::CASES.to_vec()
}

/// More of them, for a transport that [maps peers' memory](Setup::maps_peer_memory).
#[must_use]
pub fn mapped_memory_cases() -> Vec<(&'static str, Case)> {
    [signals::CASES, channels::KERNEL_CASES].concat()
}
