//! The receiving end of a data connection: checks every frame and puts its bytes in place.
//!
//! # Invariants
//! 1. Nothing is written before the seal, the sequence number and the range of a frame are checked.
//! 2. One thread carries out the frames in order. Everything for a device goes through one stream of that device, in
//!    order. Before an update becomes visible anywhere, every copy on another stream is complete ([`placer`]).
//! 3. A region is touched only while it is claimed, and only if it was found registered after the claim
//!    ([`crate::claims`]).
//! 4. The memory of this end is fixed: a buffer, and the staging chunks. No length that a peer sends leads to an
//!    allocation.

mod placer;
mod receiver;
mod wire;

#[cfg(any(fuzzing, test))]
pub(crate) mod played;
#[cfg(test)]
mod tests;

pub(crate) use placer::Placer;
pub(crate) use receiver::{End, Receiver};
pub(crate) use wire::SocketWire;
