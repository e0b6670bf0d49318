//! Safe GPU devices, buffers, streams, events, graphs and kernels, and memory that processes share.
//!
//! One API serves three platforms. [`Platform::Cuda`] and [`Platform::Hip`] (features `cuda` and `hip`) load their
//! driver at run time, and building them needs nothing of CUDA or ROCm. [`Platform::Sim`] simulates devices on the CPU
//! and is always there. Code above this crate does not know on which platform it runs: a kernel is written once, in
//! CUDA C++ ([`KernelSource`]), and each platform compiles it. The HIP platform has not been run on an AMD GPU yet.
//!
//! ```
//! use mscclpp_gpu::Platform;
//!
//! let gpu = Platform::Sim.gpu(0)?;
//! let buffer = gpu.allocate(1024)?;
//! buffer.write(0, &[7; 1024])?;
//! let mut back = [0u8; 4];
//! buffer.read(100, &mut back)?;
//! assert_eq!(back, [7; 4]);
//! # Ok::<(), mscclpp_gpu::Error>(())
//! ```
//!
//! # Features
//! | feature | what it brings |
//! | --- | --- |
//! | `cuda-12040` or `cuda-13000` | the CUDA platform, with the driver's symbols as of that version: at most one in a build |
//! | `cuda` | the same, without a version; for libraries, whose programs choose it |
//! | `hip` | the HIP platform |
//!
//! None is on by default. Without them devices are simulated.
//!
//! # Environment
//! This crate reads `MSCCLPP_PLATFORM`, `MSCCLPP_SIM_DEVICES`, `MSCCLPP_SIM_PEER_ACCESS`, `MSCCLPP_SIM_RACES`,
//! `MSCCLPP_SIM_SCHEDULE`, `MSCCLPP_CACHE_DIR`, `MSCCLPP_CXX`, `MSCCLPP_NVRTC_SO` and `MSCCLPP_PROGRAMMATIC_LAUNCHES`. The book's
//! page "Environment variables" (`docs/src/environment.md`) says what they mean. A malformed value is
//! [`Error::Environment`]; an empty one counts as unset.

/// The program in the package's README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod abort;
pub mod access;
mod args;
mod argument;
mod array;
mod backend;
mod buffer;
mod cache;
#[cfg(feature = "cuda")]
mod cuda;
mod deadline;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod driver;
mod env;
mod error;
mod event;
mod failed;
pub mod fork;
mod gpu;
mod graph;
#[cfg(feature = "hip")]
mod hip;
mod kernel;
mod launch;
mod memory;
pub mod numa;
#[cfg(feature = "cuda")]
pub mod nvrtc;
mod object;
mod param;
mod parameter_names;
mod platform;
mod probe;
mod properties;
mod ptx;
mod retired;
mod sim;
mod stream;
pub mod testing;
mod tokens;
mod waits;

pub use abort::Abort;
pub use args::KernelArgs;
pub use argument::KernelArgument;
pub use buffer::{DeviceBuffer, ImportedMemory, PinnedBuffer, PinnedWord};
pub use cache::{cached_ptx, kernel_cache, store_ptx};
pub use error::{Error, OutOfBounds, Result};
pub use event::Event;
pub use gpu::Gpu;
pub use graph::Graph;
pub use kernel::{Kernel, Module};
pub use launch::{KernelParameter, LaunchConfig};
pub use memory::{DeviceAllocation, DevicePtr, DmaBuf, ExportHandle, MemoryExport};
pub use mscclpp_derive::KernelParam;
pub use mscclpp_kernels::KernelSource;
/// Parts of this crate's errors.
pub use mscclpp_os::{SystemFailure, env::BadVariable};
pub use object::{KernelObject, KernelWait, Owner};
pub use param::KernelParam;
pub use platform::Platform;
pub use probe::Probe;
pub use properties::{ExportKinds, GpuDirect, GpuProperties, MemoryInfo, PeerAccess, WritesOrdering};
pub use ptx::ptx_of;
pub use retired::RetiredBuffers;
pub use sim::{sim_compiler, store_for_sim};
pub use stream::Stream;
