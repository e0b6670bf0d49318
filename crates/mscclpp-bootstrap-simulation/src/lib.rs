//! Simulated jobs of any size in one thread, with a simulated network and time, for tests.
//!
//! A seed determines everything: how many ranks there are, what they do, how slow the network is, and what goes
//! wrong. The ranks are the state machines of `mscclpp_bootstrap::job`, as over sockets. `judge` checks the properties that must
//! hold.
#![forbid(unsafe_code)]

#[cfg(test)]
mod cost;
mod dice;
mod fault;
mod faults;
mod generations;
mod judge;
mod program;
mod scenario;
mod starting;
mod stranger;
mod visits;
mod wire;
mod wires;
mod world;

pub use judge::{Played, play};
pub use scenario::Kind;
