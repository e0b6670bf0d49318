//! One suite for all transports: it checks the promises of every [`mscclpp_core::provider::TransportProvider`].
//!
//! A provider's test is a program of its own (`harness = false`), which implements [`Setup`] and calls [`run`]. That
//! makes one trial for each case that applies. The suite needs no privilege, and no hardware beyond what the provider
//! needs. Both ends are in the process that runs it, each with a context of its own, except in the cases with a
//! second process.
//!
//! ```no_run
//! use std::process::ExitCode;
//! use mscclpp_conformance::{Devices, Setup, run};
//!
//! /// The main function of such a test. `setup` makes a setup with these devices.
//! fn test<S: Setup + Clone + Send + 'static>(setup: impl Fn(Devices) -> S) -> ExitCode {
//!     run(Devices::all().into_iter().map(|devices| (devices.to_string(), setup(devices))), [])
//! }
//! ```

/// Lists functions with their names, each behind the name of its module.
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
#[doc(hidden)]
pub mod hosts;
mod kernels;
mod lifetimes;
mod memories;
#[doc(hidden)]
pub mod pair;
mod process;
mod queues;
#[doc(hidden)]
pub mod semaphores;
mod signals;
mod transfers;
mod trials;

pub use kernels::semaphore_waits;
pub use trials::{Devices, run};

use mscclpp_core::{ContextBuilder, Transport};

/// The properties of a provider that the suite needs to know.
pub trait Setup: Sync {
    /// Begins a new context with the provider under test. Called once for each end.
    fn builder(&self) -> ContextBuilder;

    /// The transport under test.
    fn transport(&self) -> Transport;

    /// The GPUs of the two ends. They may be the same one, which tests less.
    fn devices(&self) -> Devices;

    /// Whether device code reaches a peer's memory, so that [`mscclpp_core::provider::RemoteRegion::ptr`] must return
    /// an address; if not, it must return none.
    fn maps_peer_memory(&self) -> bool {
        false
    }

    /// Whether writes may come from memory that is registered for no transport, so that
    /// [`mscclpp_core::provider::TransportProvider::local_source`] must return a source.
    fn writes_from_local_memory(&self) -> bool {
        false
    }

    /// The value of [`mscclpp_core::EndpointConfig::tokens_on_host`] for the suite's endpoints.
    fn tokens_on_host(&self) -> bool {
        false
    }

    /// Whether the later of two writes to the same bytes stays, with no update or flush between them.
    fn orders_writes(&self) -> bool {
        true
    }

    /// Whether the transport connects processes. If so, there are cases whose other end is a second process of the
    /// test program.
    fn connects_processes(&self) -> bool {
        true
    }

    /// Whether the transport connects processes of different nodes. If not, an attempt must be an error.
    fn reaches_other_hosts(&self) -> bool {
        false
    }

    /// A part that this machine lacks for the setup, such as `an InfiniBand device`. If there is one, the setup's
    /// trials are ignored.
    fn lacks(&self) -> Option<&'static str> {
        None
    }
}

/// A case of the suite. It panics with a description of the fault.
pub(crate) type Case = fn(&dyn Setup);

/// Cases with their names.
pub(crate) type Cases = &'static [(&'static str, Case)];
