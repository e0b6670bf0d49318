//! Simulated jobs of any size in one thread, with a simulated network and time. For tests and for counting; not part
//! of the API.
//!
//! A seed determines everything: how many ranks there are, what they do, how slow the network is, and what goes
//! wrong. The ranks are the state machines of `job`, as over sockets. `judge` checks the properties that must hold.

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
