//! The protocol between ranks, without sockets and clocks: it turns bytes into bytes, and takes time and random bytes
//! as arguments. `tcp` moves the bytes.

pub mod frame;
pub mod handshake;
pub mod hello;
pub mod message;
pub mod notice;
pub mod outbox;
pub mod table;
pub mod tree;
