//! One suite for all transports: what every [`mscclpp_core::provider::TransportProvider`] promises, checked.
//!
//! A provider's test is a program of its own (`harness = false`), which implements [`Setup`] and calls [`run`]. That makes one
//! trial of each case that applies. The suite needs no privilege, and no hardware beyond what the provider needs. Both ends
//! are in the process that runs it, each with a context of its own, but for the cases with a second process.
//!
//! ```no_run
//! use std::process::ExitCode;
//! use mscclpp_conformance::{Devices, Setup, run};
//!
//! /// The main function of such a test. `setup` makes one with these devices.
//! fn test<S: Setup + Clone + Send + 'static>(setup: impl Fn(Devices) -> S) -> ExitCode {
//!     run(Devices::all().into_iter().map(|devices| (devices.to_string(), setup(devices))), [])
//! }
//! ```

/// Functions under their names, behind that of their module.
macro_rules! cases {
    ($module:literal: $($case:ident),+ $(,)?) => {
        &[$((concat!($module, "::", stringify!($case)), $case)),+]
    };
}

mod channels;
mod elsewhere;
mod endpoints;
mod host_signals;
mod hostile;
mod kernels;
mod lifetimes;
mod memories;
mod pair;
mod process;
mod queues;
mod semaphores;
mod signals;
mod transfers;
mod trials;

pub use kernels::semaphore_waits;
pub use trials::{Devices, run};

use mscclpp_core::{ContextBuilder, Transport};

/// What the suite needs to know of a provider.
pub trait Setup: Sync {
    /// A new context to be, with the provider under test. Called once for each end.
    fn builder(&self) -> ContextBuilder;

    /// The transport under test.
    fn transport(&self) -> Transport;

    /// The GPUs of the two ends. They may be the same one, which tests less.
    fn devices(&self) -> Devices;

    /// Whether device code reaches a peer's memory: what [`mscclpp_core::provider::RemoteRegion::ptr`] must say.
    fn maps_peer_memory(&self) -> bool;

    /// Whether writes may come from memory that is registered for no transport: whether
    /// [`mscclpp_core::provider::TransportProvider::local_source`] says that.
    fn writes_from_local_memory(&self) -> bool {
        false
    }

    /// What endpoints are given as [`mscclpp_core::EndpointConfig::tokens_on_host`].
    fn tokens_on_host(&self) -> bool {
        false
    }

    /// Whether of two writes to the same bytes the later one stays, with no update or flush between them.
    fn orders_writes(&self) -> bool {
        true
    }

    /// Whether it connects processes. Then there are cases whose other end is a second process of the test program.
    fn connects_processes(&self) -> bool {
        true
    }

    /// Whether the transport connects processes of different hosts. If not, trying to must be an error.
    fn reaches_other_hosts(&self) -> bool {
        false
    }

    /// What this machine lacks for it, as in `an InfiniBand device`. If there is something, its trials are ignored.
    fn lacks(&self) -> Option<&'static str> {
        None
    }
}

/// A case of the suite. It panics with what was wrong.
pub(crate) type Case = fn(&dyn Setup);

/// Cases with their names.
pub(crate) type Cases = &'static [(&'static str, Case)];
