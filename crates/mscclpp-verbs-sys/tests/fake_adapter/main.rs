//! Tests of the simulated adapters: that they refuse what real ones refuse, and reorder what real ones may and nothing else.

#[path = "../fake/mod.rs"]
mod fake;

mod calls;
mod errors;
mod order;
mod queues;
mod rig;
