//! Tests of devices, most of them simulated ones.

mod builtins;
mod current_device;
#[path = "../device/mod.rs"]
mod device;
mod graphs;
mod kept;
mod kernels;
mod memory;
mod overruns;
mod streams;
