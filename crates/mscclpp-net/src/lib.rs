//! What all parts of this repository that talk to other processes have in common.
//!
//! - [`interface`]: the addresses of this machine, and which of them to offer to others;
//! - [`socket`]: TCP sockets that do not block and that notice when the other host is gone;
//! - [`dial`]: finding the address at which a peer answers, among several;
//! - [`handshake`]: how both ends of a connection prove that they have the same [`key`], in [frames](frame);
//! - [`wire`]: reading bytes from outside, with bounds;
//! - [`event_loop`]: one thread that waits for sockets and for commands from other threads;
//! - [`links`]: knowing peers by a key, and noticing when they leave or die;
//! - [`env`](mod@env): the environment variables about the network.
//!
//! It knows nothing of GPUs, ranks or transports. Nothing in it starts a thread or keeps state, except
//! [`links::Links`]. It serves the other crates of the repository; its API changes with theirs.
#![forbid(unsafe_code)]

pub mod dial;
pub mod env;
pub mod event_loop;
pub mod frame;
pub mod handshake;
pub mod interface;
pub mod key;
pub mod links;
pub mod socket;
pub mod wire;

/// What its users need of the crate below, too.
pub use mscclpp_os::{Report, SystemCall, SystemError, debug_as_report, random};
