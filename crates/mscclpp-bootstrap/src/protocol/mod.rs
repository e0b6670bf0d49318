//! The protocol between ranks, without sockets and clocks: bytes go in and come out, time and
//! random bytes come from outside. `tcp` moves the bytes.

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod hello;
pub(crate) mod message;
pub(crate) mod notice;
pub(crate) mod outbox;
pub(crate) mod table;
pub(crate) mod tree;
