//! Each module has the tests of the source module with its name.

mod address;
mod env;
mod event_loop;
mod frame;
mod handshake;
mod header;
mod interface;
mod search;
mod socket;
mod wire;
