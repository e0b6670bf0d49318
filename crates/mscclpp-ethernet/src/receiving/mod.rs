//! The receiving end of a connection that carries operations: checks every frame and puts its bytes where they belong.
//!
//! # Invariants
//! 1. Nothing is written before the seal, the sequence number and the range of a frame are checked.
//! 2. Frames are carried out in order by one thread. What goes to a device goes through one stream of that device, in
//!    order; before an update becomes visible anywhere, every copy on another stream is complete ([`placer`]).
//! 3. A region is touched only while it is claimed, and found registered after it was ([`crate::claims`]).
//! 4. Memory of this end is fixed: a buffer, and the chunks of the staging. No length that a peer sends allocates.

mod placer;
mod receiver;
mod wire;

#[cfg(any(fuzzing, test))]
pub(crate) mod played;
#[cfg(test)]
mod tests;

pub(crate) use placer::{Order, Placer};
pub(crate) use receiver::{End, Receiver};
pub(crate) use wire::SocketWire;
