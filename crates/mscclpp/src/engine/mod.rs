//! The parts of which engines are built: libraries such as `mscclpp-collectives`, whose calls are launches that all ranks of a
//! group make, and that need no barrier between calls.
//!
//! | part | what it gives |
//! | --- | --- |
//! | [`Group`] | ranks that meet, tell each other words, and agree on settings; errors name the rank that differs |
//! | [`Scratch`] | memory at each rank that kernels of all ranks write to; it ends the waits of kernels |
//! | [`DeviceRoom`] | how many blocks a launch may have, so that calls of several engines on a device never wait for each other |
//! | [`CallOrder`] | one order of the calls on all streams, also while they are captured |
//!
//! Calls are counted in device memory, since the host has no part in the replay of a graph: a word for each block that a
//! call may have, in a buffer of the engine, zero at first. A block reads its word when it begins, and writes the next
//! number when it ends. That number, the epoch, is alike on all ranks. It is the flag of packets, and its parity chooses one
//! of two halves of the scratch. The note `docs/design/engines.md` has the rules by which a half may be written again,
//! and all steps in order.
//!
//! ```
//! use std::time::Duration;
//! use mscclpp::{engine::{CallOrder, DeviceRoom, Group, Scratch}, gpu::KernelParam, prelude::*};
//! # use mscclpp::{DevicePtr, Error, Kernel, KernelArgs, LaunchConfig};
//!
//! const THREADS: u32 = 256;
//!
//! struct Engine {
//!     scratch: Scratch,
//!     epochs: DeviceBuffer,
//!     handle: Handle,
//!     blocks: u32,
//!     order: CallOrder,
//!     kernel: Kernel,
//!     _room: DeviceRoom,
//! }
//!
//! /// The first parameter of the kernel.
//! #[derive(Clone, Copy, KernelParam)]
//! #[repr(C)]
//! struct Handle { scratch: [DevicePtr; 8], status: [DevicePtr; 8], epochs: DevicePtr, rank: u32, ranks: u32 }
//!
//! /// All ranks make this call. `kernel` is loaded already: loading may wait for kernels that run.
//! fn connect(comm: &Communicator, gpu: &Gpu, kernel: Kernel, capacity: u64) -> Result<Engine, Error> {
//!     let group = Group::meet(comm, "experts", 1, None, 77)?; // version 1, tag 77
//!     group.agree(&[("capacity", capacity)])?;
//!     let room = DeviceRoom::new(&group, gpu, 2)?;
//!     let blocks = room.blocks(&group, &kernel, THREADS, 0)?;
//!     let scratch = Scratch::connect(&group, gpu, capacity)?;
//!     let epochs = gpu.allocate(8 * u64::from(blocks))?;
//!     let mut handle = Handle {
//!         scratch: [DevicePtr::NULL; 8],
//!         status: [DevicePtr::NULL; 8],
//!         epochs: epochs.ptr(),
//!         rank: group.rank() as u32,
//!         ranks: group.ranks().len() as u32,
//!     };
//!     handle.scratch[..group.ranks().len()].copy_from_slice(scratch.at());
//!     handle.status[..group.ranks().len()].copy_from_slice(scratch.statuses());
//!     Ok(Engine { scratch, epochs, handle, blocks, order: CallOrder::default(), kernel, _room: room })
//! }
//!
//! impl Engine {
//!     fn call(&self, out: &DeviceBuffer, stream: &Stream) -> Result<(), Error> {
//!         let args = KernelArgs::new().with_owner(self.scratch.owner().clone()).keeping_each([&self.epochs]);
//!         let (args, config) = (args.with(self.handle).with(out), LaunchConfig::linear(self.blocks, THREADS));
//!         // SAFETY: these are the kernel's parameters.
//!         self.order.put(stream, || unsafe { self.kernel.launch(stream, config, &args) }.map_err(Error::from))
//!     }
//!
//!     fn synchronize(&self, stream: &Stream) -> Result<(), Error> {
//!         stream.synchronize_or_abort(Duration::from_secs(60), &self.scratch)
//!     }
//! }
//! ```

mod agreement;
mod error;
mod group;
mod order;
mod room;
mod scratch;

pub use group::Group;
pub use order::{CallOrder, LastCall};
pub use room::DeviceRoom;
pub use scratch::Scratch;
