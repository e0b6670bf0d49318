//! Tests within one process. Those that start themselves again, or fork, or list their own trials, are programs of
//! their own, and so is the one that runs the examples, which `cargo test --test it` does not build.

mod kernels_on_sim;

#[cfg(feature = "cuda-ipc")]
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "cuda-ipc")]
mod arguments;
#[cfg(feature = "cuda-ipc")]
mod blocks;
#[cfg(feature = "cuda-ipc")]
mod communicator;
#[cfg(feature = "cuda-ipc")]
mod engine;
#[cfg(feature = "cuda-ipc")]
mod errors;
#[cfg(feature = "cuda-ipc")]
mod kernels;
#[cfg(feature = "cuda-ipc")]
mod lifetimes;
#[cfg(feature = "cuda-ipc")]
mod memory_channels;
#[cfg(feature = "cuda-ipc")]
mod mesh;
#[cfg(feature = "cuda-ipc")]
mod mutations;
#[cfg(all(feature = "cuda-ipc", feature = "ethernet"))]
mod one_thread;
#[cfg(feature = "cuda-ipc")]
mod packets;
#[cfg(feature = "cuda-ipc")]
mod port_kernels;
#[cfg(feature = "cuda-ipc")]
mod port_lifetimes;
#[cfg(feature = "cuda-ipc")]
mod ported;
#[cfg(feature = "cuda-ipc")]
mod ring;
#[cfg(all(feature = "cuda-ipc", feature = "ethernet"))]
mod setting_up;
