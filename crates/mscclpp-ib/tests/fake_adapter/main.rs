//! Tests of the simulated adapters: they refuse what real ones refuse, and reorder only what real ones may reorder.

#[path = "../fake/mod.rs"]
mod fake;

mod calls;
mod errors;
mod order;
mod queues;
mod rig;
