//! The services that the crates of this repository need from the operating system, apart from networks and GPUs.
//!
//! - [`host`]: the identity of the node;
//! - [`env`](mod@env): environment variables whose values have a form;
//! - [`waiting`]: how threads wait, and log lines about long waits;
//! - [`keep_from_children`]: sockets that forked children do not keep open;
//! - [`raise_descriptors`]: as many descriptors as the system allows;
//! - [`random()`], [`SystemError`], [`SystemFailure`], [`Report`]: random bytes, failed system calls, errors with their causes.
//!
//! This crate depends on no crate of the repository, and serves the others; its API changes with theirs.
#![deny(unsafe_code)]

mod backoff;
pub mod env;
mod error;
mod fork;
pub mod host;
mod limits;
mod random;
pub mod waiting;

pub use error::{Report, SystemCall, SystemError, SystemFailure};
pub use fork::keep_from_children;
pub use limits::raise_descriptors;
pub use random::random;
