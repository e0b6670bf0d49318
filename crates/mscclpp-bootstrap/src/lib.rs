//! The bootstrap: how the processes of a job find each other and exchange bytes over TCP.
//!
//! [`TcpBootstrap`] connects processes, and [`LocalBootstrap`] threads of one process. Both implement the trait
//! [`Bootstrap`]. [`Rendezvous`] reads the variables of a launcher; the book's page "Starting ranks"
//! (`docs/src/starting-ranks.md`) has the commands. Of the repository's other crates it needs `mscclpp-net` and
//! `mscclpp-os`, which know nothing of GPUs.
//!
//! # How a job forms
//! 1. Every rank connects to rank 0, which it knows by a [`UniqueId`] or an address. Both sides prove that they know the
//!    job's key.
//! 2. Rank 0 collects the addresses at which all ranks listen. When all have come, it tells each rank where its parent in a
//!    binary tree of all ranks listens.
//! 3. Each rank connects to its parent, which sends it the list of all addresses. Then the connections to rank 0 that are
//!    not part of the tree are closed.
//!
//! Collectives and news of failures run along the tree. Messages between two ranks run over a connection that is opened when
//! it is first needed.
//!
//! If a rank dies while the job forms, all others get an error that names it, as soon as rank 0 sees its connection end. If
//! it dies before it has proved who it is, nobody knows it, and the timeout of initialisation names it as missing. A rank
//! that does not reach rank 0 names rank 0 as missing, whether that rank died or never came.
//!
//! # How the code is laid out
//! `protocol` defines the messages between ranks: frames, the handshake, message assembly and order, flow control,
//! the table of ranks. `job` is one rank as a state machine without sockets, threads and clocks: events go in,
//! actions come out. `tcp` drives it: one thread per rank owns all its sockets. `collective` is written over plain
//! messages and serves both kinds of bootstrap. Callers wait in `inbox`.
//!
//! # Threat model
//! If the job has a key, a stranger who does not know it and connects to a rank cannot join the job, nor stop it from forming,
//! nor make it fail. An unproven connection costs a rank a few kilobytes for a few seconds, and their number is limited.
//!
//! A stranger may also answer at an address that a rank tries. An answer without a proof, a refusal included, is only
//! a reason to try again. Silence costs five seconds, then the rank tries the next address. If there is only one
//! address, the rank waits as long as the stranger keeps the connection open. For the same reason, a rank with a wrong key
//! learns of it only when its time is up.
//!
//! The handshake proves who opened a connection. The bytes after it are neither encrypted nor signed. So it does not
//! keep out someone who can change traffic between the nodes, or who relays a handshake between two ranks. Members
//! trust each other not to lie. They do not trust each other to send well-formed bytes.
#![forbid(unsafe_code)]

mod address;
mod bootstrap;
mod digest;
mod env;
mod error;
mod host;
mod launch;
mod local;
mod member;
mod tcp;
mod unique_id;

// Simulated jobs (`mscclpp-bootstrap-simulation`) and fuzz targets are made of these. They are not part of the API, and may
// change at any time.
#[doc(hidden)]
pub mod collective;
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod inbox;
#[doc(hidden)]
pub mod job;
#[doc(hidden)]
pub mod protocol;

pub use bootstrap::{Bootstrap, FailureHook};
pub use env::Env;
pub use error::{Error, Party, Result};
pub use launch::{LauncherStore, Rendezvous};
pub use local::LocalBootstrap;
pub use mscclpp_net::{dial::Attempt, interface::Family};
pub use tcp::{Forming, Job, MeetingPlace, TcpBootstrap, TcpBootstrapBuilder};
pub use unique_id::UniqueId;

/// The target of this crate's log lines.
const LOG: &str = "mscclpp::bootstrap";

/// Runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
