//! What all parts of this repository that talk to other processes have in common.
//!
//! - [`interface`]: the addresses of this machine, and which of them to offer to others;
//! - [`host`]: whether two processes are on one host;
//! - [`socket`]: TCP sockets that do not block and that notice when the other host is gone;
//! - [`dial`]: finding the address at which a peer answers, among several;
//! - [`key`]: proofs that both ends of a connection have the same key;
//! - [`wire`]: reading bytes from outside, with bounds;
//! - [`event_loop`]: one thread that waits for sockets and for commands from other threads;
//! - [`links`]: knowing peers by a key, and noticing when they leave or die;
//! - [`waiting`]: saying what a long wait is for, and counting what would be said too often;
//! - [`env`](mod@env), [`random()`], [`SystemError`], [`Report`]: environment variables, random bytes, failed system calls,
//!   errors with their causes.
//!
//! It knows nothing of GPUs, ranks or transports. Nothing in it starts a thread or keeps state, except
//! [`links::Links`]. It serves the other crates of the repository; its API changes with theirs.
#![forbid(unsafe_code)]

pub mod dial;
pub mod env;
mod error;
pub mod event_loop;
pub mod host;
pub mod interface;
pub mod key;
pub mod links;
mod random;
pub mod socket;
pub mod waiting;
pub mod wire;

pub use error::{Report, SystemCall, SystemError};
pub use random::random;
