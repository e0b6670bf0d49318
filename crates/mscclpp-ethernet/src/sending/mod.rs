//! The sending end: a queue of operations, its socket, and the thread that sends for its owner.
//!
//! # Invariants
//! 1. One thread at a time seals frames and sends them. It is the owner while all works handed over are done: while
//!    their number equals [`connection::SendConnection::done`]. The driver stores `done` with release after its last
//!    use of the socket; the owner loads it with acquire. At other times it is the driver, which takes works under the
//!    backlog's lock.
//! 2. The owner never blocks: it sends what the system takes at once, and hands the rest over as descriptors.
//! 3. The system holds a small write back until its signal comes, so that both leave in one segment. If none comes, the
//!    driver, which is woken with the write, makes the system send it.
//! 4. A source is kept alive from the call until the system has copied its bytes.

mod connection;
mod driver;
mod queue;

pub(crate) use queue::open;
