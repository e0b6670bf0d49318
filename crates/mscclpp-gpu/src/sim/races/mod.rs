//! The race detector for kernels of the simulated platform (`MSCCLPP_SIM_RACES=1`).
//!
//! Kernels are compiled with the compiler's own instrumentation (`-fsanitize=thread`), which calls a function for every
//! access. The detector keeps the events that every thread knows to have happened before (`clock`, `thread`), and the last
//! accesses to every byte (`shadow`, `record`). Two accesses to a byte race if one of them writes, they are not atomic for each
//! other, and neither is known to the other's thread. Threads learn of events by PTX's memory model and not by the CPU's: from
//! a release and an acquire of a word (`words`), each with its scope; fences; barriers of blocks and warps; the order of
//! streams and of the host (`order`); and the rules that order bulk copies (`bulk`). See docs/design/races.md.
//!
//! # Invariants
//! 1. An event that the detector cannot see counts as order: it never reports a race because it did not understand something.
//! 2. No lock of a page is held when a coroutine is suspended, a kernel fails, or a report is made.
//! 3. Without the variable nothing of this runs, except tests of `Option`s and of [`is_on`].

mod atomics;
mod block;
mod bulk;
mod calls;
mod clock;
mod found;
mod freed;
mod launches;
mod memory;
mod order;
mod packets;
mod ranks;
mod record;
mod report;
mod shadow;
mod sites;
mod stores;
mod switch;
mod thread;
mod words;

pub(super) use block::Block as RacesOfBlock;
pub(super) use calls::CALLS;
pub(super) use freed::retire;
pub(super) use launches::Launch as LaunchInOrder;
pub(crate) use order::transport_publishes;
pub(super) use order::{Order, Point, host_reads, host_writes};
pub(super) use ranks::allocates;
pub use ranks::this_thread_is_rank;
pub use report::{Race, RaceAccess, races};
pub(super) use shadow::forget;
pub(super) use sites::add_library;
pub(crate) use switch::is_on;
pub(super) use switch::say_what_is_not_seen;
