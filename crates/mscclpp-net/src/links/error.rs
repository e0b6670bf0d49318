use std::{net::SocketAddr, time::Duration};

use crate::{
    SystemError,
    dial::Attempt,
    env::BadVariable,
    interface::{NONE_UP, NoSuchInterface},
    wire::Malformed,
};

/// The reasons why links or endpoints cannot be set up.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// No interface with that name has a usable address.
    #[error(transparent)]
    NoSuchInterface(#[from] NoSuchInterface),
    /// This node has no address to which a peer could connect.
    #[error("{NONE_UP}")]
    NoAddress,
    /// An environment variable has a malformed value.
    #[error(transparent)]
    Environment(#[from] BadVariable),
    /// A peer sent bytes as the address of its endpoint that are no address.
    #[error("the address of an endpoint is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// The peer speaks another version of the protocol.
    #[error(
        "the peer speaks version {theirs} of the {protocol} protocol, this side version {ours}; use one version of the library everywhere"
    )]
    Version {
        /// The protocol's title, for messages.
        protocol: &'static str,
        /// The peer's version.
        theirs: u32,
        /// This side's version.
        ours: u32,
    },
    /// No process listens at any of the peer's addresses any more.
    #[error("the peer's process has ended, or has dropped its endpoints: nobody listens at {}", join(.addresses, ", "))]
    Gone {
        /// The addresses at which the peer listened.
        addresses: Vec<SocketAddr>,
    },
    /// The peer's process still runs, but its endpoint is closed.
    #[error("the peer at {address} has closed its endpoint")]
    Closed {
        /// The address at which the peer listens.
        address: SocketAddr,
    },
    /// No address of the peer led to it.
    #[error("the peer could not be reached at any of its addresses within {after:?}: {}", join(.attempts, "; "))]
    Unreachable {
        /// The time for which the addresses were tried.
        after: Duration,
        /// Each address, and how the attempt failed.
        attempts: Vec<Attempt>,
    },
}

fn join(items: &[impl ToString], separator: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

crate::debug_as_report!(Error);
