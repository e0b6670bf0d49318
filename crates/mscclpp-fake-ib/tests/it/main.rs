//! Tests of the simulated adapters: they refuse what real ones refuse, and reorder only what real ones may reorder.

mod calls;
mod errors;
mod order;
mod queues;
mod rig;
