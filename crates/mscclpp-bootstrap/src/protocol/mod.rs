//! The protocol between ranks, without sockets and clocks: it turns bytes into bytes, and takes time and random bytes
//! as arguments. `tcp` moves the bytes.

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod hello;
pub(crate) mod message;
pub(crate) mod notice;
pub(crate) mod outbox;
pub(crate) mod table;
pub(crate) mod tree;
