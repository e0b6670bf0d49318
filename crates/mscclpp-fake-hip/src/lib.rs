//! A fake of the HIP runtime and of hiprtc, for tests: a shared library with the entry points that the HIP platform
//! of `mscclpp-gpu` loads, over simulated devices. So the platform's code runs without an AMD GPU: memory, streams,
//! events, graphs, memory of other processes, and kernels, which a C++ compiler compiles.
//!
//! It is no simulation of an AMD GPU, and does not show how HIP itself behaves. It is strict where it can be:
//! - memory is filled with a pattern, as memory of `hipMalloc` may hold anything;
//! - handles are looked up, and unknown ones refused;
//! - `hipFree` waits until the device is idle;
//! - a process cannot open its own memory.
//!
//! A test can make any call fail, and ask which objects exist: see the functions whose names begin with `fakeHip`.
#![allow(non_snake_case, reason = "the names are HIP's")]

mod control;
mod devices;
mod entry;
mod memory;
mod modules;
mod rtc;
mod streams;
mod table;
mod user_objects;
