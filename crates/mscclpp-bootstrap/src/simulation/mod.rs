//! Jobs of any size in one thread, over a network and in a time that are played. For tests and for counting; not part of the API.
//!
//! A seed stands for everything: how many ranks there are, what they do, how slow the network is, and what goes wrong. The
//! ranks are the machines of `job`, as over sockets. What must hold is in `judge`.

mod calculated;
mod cost;
mod dice;
mod faults;
mod judge;
mod program;
mod scenario;
mod stranger;
mod wires;
mod world;

pub use cost::{Cost, Costs, Traffic, cost};
pub use judge::{Played, play};
pub use scenario::Kind;
