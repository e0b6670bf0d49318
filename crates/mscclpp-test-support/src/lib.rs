//! The functions that tests of several crates share: random data with a seed that is printed, processes that play
//! other ranks, ports that are reserved, and waits that end.
//!
//! This crate depends on no crate of this workspace, so that unit tests of each can use it. Functions panic when a
//! test should fail.
#![deny(unsafe_code)]

pub mod child;
mod fork;
mod hex;
mod lines;
mod port;
mod random;
mod wait;

pub use self::{
    child::Child,
    fork::in_fork,
    hex::{hex, unhex},
    lines::Lines,
    port::{listen, reserve_port},
    random::Random,
    wait::{LIMIT, start_waiting, until, watched, within},
};
