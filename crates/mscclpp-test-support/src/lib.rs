//! The functions that tests of several crates share: random data with a seed that is printed, processes that play
//! other ranks, ports that are reserved, waits that end, network namespaces that play nodes, and layouts that a C++ compiler
//! confirms.
//!
//! This crate depends on no crate of this workspace, so that unit tests of each can use it. Functions panic when a
//! test should fail.
#![deny(unsafe_code)]

pub mod child;
pub mod f8;
mod fork;
mod held;
mod hex;
pub mod job;
mod lateness;
pub mod layout;
mod lines;
#[cfg(feature = "loom")]
pub mod loom;
pub mod namespaces;
mod needs;
mod noting;
mod port;
mod random;
mod relay;
mod threads;
mod turn;
mod wait;

pub use self::{
    child::Child,
    fork::in_fork,
    held::held,
    hex::{hex, unhex},
    lateness::Lateness,
    lines::Lines,
    needs::{of_modules, trial_if, trial_that_needs},
    noting::Noting,
    port::{listen, reserve_port},
    random::Random,
    relay::relay,
    threads::in_threads,
    turn::Turn,
    wait::{LIMIT, start_waiting, until, watched, within},
};
