//! Tests within one process. Those that start themselves again, the conformance suite, and the one that counts
//! allocations are programs of their own.

mod cuts;
mod devices;
mod many;
mod order;
#[path = "../support/mod.rs"]
mod support;
