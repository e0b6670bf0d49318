//! Host twins of the benchmarks' kernels.
//!
//! # Safety
//! Each has the preconditions of its kernel: the launch's arguments are those of the kernel, the channels are live, and
//! the addresses are of device memory as large as the kernel needs.

mod memory_bench;
mod packet_ping_pong;
mod port_bench;
mod signal_ping_pong;

pub(crate) use memory_bench::MEMORY_BENCH;
pub(crate) use packet_ping_pong::PACKET_PING_PONG;
pub(crate) use port_bench::PORT_BENCH;
pub(crate) use signal_ping_pong::SIGNAL_PING_PONG;
