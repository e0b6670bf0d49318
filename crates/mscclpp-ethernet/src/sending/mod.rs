//! The sending end: a queue of operations, its socket, and the thread that helps its owner out.
//!
//! # Invariants
//! 1. One thread at a time seals frames and sends them. The owner does while nothing is handed over: while its count of
//!    works given equals [`connection::SendConnection::done`], whose release store by the driver, behind its last use of the socket,
//!    pairs with the owner's acquire load. The driver does otherwise; it learns of works under the backlog's lock.
//! 2. The owner never blocks: it sends what the system takes at once, and hands the rest over as descriptors.
//! 3. A small write is held back by the system until its signal comes, so that both leave in one segment. If none comes,
//!    the driver, which is woken with the write, has it sent.
//! 4. A source is kept from the call until the system has copied its bytes.

mod connection;
mod driver;
mod queue;

pub(crate) use connection::SendConnection;
pub(crate) use queue::open;
