//! How the processes of a job find each other and exchange bytes over TCP.
#![forbid(unsafe_code)]

mod address;
mod bootstrap;
mod collective;
mod env;
mod error;
mod host;
mod inbox;
mod interface;
mod local;
mod member;
mod protocol;
mod unique_id;

pub use bootstrap::{Bootstrap, FailureHook};
pub use env::{Env, Family};
pub use error::{Attempt, Error, Party, Result};
pub use local::LocalBootstrap;
pub use unique_id::UniqueId;

/// The target of this crate's log lines.
const LOG: &str = "mscclpp::bootstrap";
