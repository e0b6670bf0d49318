//! The device API of mscclpp as text: its CUDA C++ headers, and the PTX of the kernels that the examples, tests and
//! benchmarks launch.
//!
//! Everything is embedded, so that neither a CUDA toolkit nor this repository is needed where a program runs. To compile
//! a kernel of one's own with NVRTC, hand it [`HEADERS`] as the in-memory headers of the program:
//!
//! ```
//! let (names, texts): (Vec<&str>, Vec<&str>) = mscclpp_kernels::HEADERS.iter().copied().unzip();
//! assert!(names.contains(&"mscclpp/memory_channel_device.hpp"));
//! // nvrtcCreateProgram(&program, source, "mine.cu", names.len(), texts, names)
//! # assert_eq!(names.len(), texts.len());
//! ```
//!
//! The PTX is for compute_80 and later, and in version 8.4 of its language, which drivers from 550 on accept. It is made
//! from `cuda/kernels` by `cargo xtask build-kernels`.

#![no_std]
#![forbid(unsafe_code)]

/// The headers of the device API: each one's name as it is included, such as `mscclpp/device.hpp`, and its text. They
/// include only one another.
pub const HEADERS: &[(&str, &str)] = &[
    ("mscclpp/access_device.hpp", include_str!("../include/mscclpp/access_device.hpp")),
    ("mscclpp/atomic_device.hpp", include_str!("../include/mscclpp/atomic_device.hpp")),
    ("mscclpp/concurrency_device.hpp", include_str!("../include/mscclpp/concurrency_device.hpp")),
    ("mscclpp/copy_device.hpp", include_str!("../include/mscclpp/copy_device.hpp")),
    ("mscclpp/device.hpp", include_str!("../include/mscclpp/device.hpp")),
    ("mscclpp/fifo_device.hpp", include_str!("../include/mscclpp/fifo_device.hpp")),
    ("mscclpp/group_device.hpp", include_str!("../include/mscclpp/group_device.hpp")),
    ("mscclpp/memory_channel_device.hpp", include_str!("../include/mscclpp/memory_channel_device.hpp")),
    ("mscclpp/packet_copy_device.hpp", include_str!("../include/mscclpp/packet_copy_device.hpp")),
    ("mscclpp/packet_device.hpp", include_str!("../include/mscclpp/packet_device.hpp")),
    ("mscclpp/poll_device.hpp", include_str!("../include/mscclpp/poll_device.hpp")),
    ("mscclpp/port_channel_device.hpp", include_str!("../include/mscclpp/port_channel_device.hpp")),
    ("mscclpp/proxy_channel_device.hpp", include_str!("../include/mscclpp/proxy_channel_device.hpp")),
    ("mscclpp/semaphore_device.hpp", include_str!("../include/mscclpp/semaphore_device.hpp")),
    ("mscclpp/sm_channel_device.hpp", include_str!("../include/mscclpp/sm_channel_device.hpp")),
    ("mscclpp/thread_copy_device.hpp", include_str!("../include/mscclpp/thread_copy_device.hpp")),
];

/// The kernels of the tutorial on memory channels: `bidir_put`, `bidir_get` and `bidir_put_packets`.
///
/// All take a `MemoryChannelDeviceHandle` by value.
pub const BIDIR_MEMORY_CHANNEL: &str = include_str!("../ptx/bidir_memory_channel.compute_80.ptx");

/// The kernel of the tutorial on port channels: `bidir_put_with_signal`, which takes a `PortChannelDeviceHandle` by value.
pub const BIDIR_PORT_CHANNEL: &str = include_str!("../ptx/bidir_port_channel.compute_80.ptx");

/// Tests of what the blocks of a grid wait for each other with: `grid_barrier`, `grid_arrive`, `semaphore_set` and
/// `semaphore_turns`.
pub const CONCURRENCY: &str = include_str!("../ptx/concurrency.compute_80.ptx");

/// The kernel of the example custom_proxy: `broadcast_and_gather`, which takes a `FifoDeviceHandle` by value and
/// `Host2DeviceSemaphoreDeviceHandle`s in device memory.
pub const CUSTOM_PROXY: &str = include_str!("../ptx/custom_proxy.compute_80.ptx");

/// Tests of a FIFO: `fifo_push_numbered` and `fifo_push_after_data`.
///
/// Both take a `FifoDeviceHandle` by value.
pub const FIFO: &str = include_str!("../ptx/fifo.compute_80.ptx");

/// The benchmark of memory channels, a round to a launch: `memory_put`, `memory_get`, and `memory_put_ll8`,
/// `memory_put_ll16` and `memory_put_ll128` with packets; and each with `_own` behind its name, which has a channel for
/// each block.
///
/// All take a `MemoryChannelDeviceHandle` and the round's description by value, those with `_own` an array of channels too.
pub const MEMORY_BENCH: &str = include_str!("../ptx/memory_bench.compute_80.ptx");

/// Tests of a memory channel's copies: `channel_put`, `channel_get`, `channel_write_read`, `copy_sweep` and `put_round`.
///
/// All take a `MemoryChannelDeviceHandle` by value.
pub const MEMORY_CHANNEL: &str = include_str!("../ptx/memory_channel.compute_80.ptx");

/// The kernel of the example mesh_port_channels: `mesh_all_gather`, which finds up to 64 `PortChannelDeviceHandle`s, one
/// for each rank, in the module's variable `channels`.
pub const MESH_PORT_CHANNELS: &str = include_str!("../ptx/mesh_port_channels.compute_80.ptx");

/// The benchmark of packets: `ll8_ping_pong` and `ll16_ping_pong`, in which two sides send each other a message in turns.
///
/// Both take a `MemoryChannelDeviceHandle` by value and run as one block.
pub const PACKET_PING_PONG: &str = include_str!("../ptx/packet_ping_pong.compute_80.ptx");

/// Tests of packets: `packets_put`, `packets_unpack`, `packet_unpack_one` and `packet_rounds`.
///
/// All take a `MemoryChannelDeviceHandle` by value.
pub const PACKETS: &str = include_str!("../ptx/packets.compute_80.ptx");

/// The kernels of the first tutorial, `ping_pong_spin` and `ping_pong_plain`: two sides that signal each other in turns,
/// of which one spins for a while in each round.
///
/// Both take a pointer to a `BaseMemoryChannelDeviceHandle` in device memory.
pub const PING_PONG: &str = include_str!("../ptx/ping_pong.compute_80.ptx");

/// The benchmarks of port channels, `port_put`, `port_ping_pong` and `port_packet_ping_pong`, which take a
/// `PortChannelDeviceHandle` by value; and of FIFOs, `fifo_push` and `fifo_push_and_sync`, which take a `FifoDeviceHandle`.
pub const PORT_BENCH: &str = include_str!("../ptx/port_bench.compute_80.ptx");

/// Tests of port channels: `port_call`, `port_turns_send` and `port_turns_check`, which take a `PortChannelDeviceHandle`
/// by value, and `port_flush_overwrite`, which takes an array of them in device memory.
pub const PORT_CHANNEL: &str = include_str!("../ptx/port_channel.compute_80.ptx");

/// Small kernels for tests of semaphores: `wait_once`, `poll_once`, `signal_n` and `contended`.
///
/// All take a `BaseMemoryChannelDeviceHandle` by value.
pub const SEMAPHORE: &str = include_str!("../ptx/semaphore.compute_80.ptx");

/// Whether a signal carries the data written before it: `signal_data_write` on one side, `signal_data_check` on the
/// other.
///
/// Both take a `BaseMemoryChannelDeviceHandle` by value and run as one block.
pub const SIGNAL_DATA: &str = include_str!("../ptx/signal_data.compute_80.ptx");

/// The benchmark of signals: `signal_ping_pong`, and `relaxed_ping_pong` with the pair that orders execution only; and
/// `bare_ping_pong` and `bare_relaxed_ping_pong`, the same instructions without what makes a wait safe.
///
/// Both take a `BaseMemoryChannelDeviceHandle` by value; one thread of each side does the work.
pub const SIGNAL_PING_PONG: &str = include_str!("../ptx/signal_ping_pong.compute_80.ptx");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_include_only_each_other() {
        for (name, text) in HEADERS {
            for line in text.lines().filter(|line| line.trim_start().starts_with("#include")) {
                let included = line.split('"').nth(1);
                assert!(
                    HEADERS.iter().any(|(other, _)| Some(*other) == included),
                    "{name} includes something else: {line}"
                );
            }
        }
    }

    #[test]
    fn every_kernel_is_an_entry_of_its_module() {
        let modules: [(&str, &[&str]); 16] = [
            (BIDIR_MEMORY_CHANNEL, &["bidir_put", "bidir_get", "bidir_put_packets"]),
            (BIDIR_PORT_CHANNEL, &["bidir_put_with_signal"]),
            (CONCURRENCY, &["grid_barrier", "grid_arrive", "semaphore_set", "semaphore_turns"]),
            (CUSTOM_PROXY, &["broadcast_and_gather"]),
            (FIFO, &["fifo_push_numbered", "fifo_push_after_data"]),
            (
                MEMORY_BENCH,
                &[
                    "memory_put",
                    "memory_put_own",
                    "memory_get",
                    "memory_get_own",
                    "memory_put_ll8",
                    "memory_put_ll8_own",
                    "memory_put_ll16",
                    "memory_put_ll16_own",
                    "memory_put_ll128",
                    "memory_put_ll128_own",
                ],
            ),
            (
                MEMORY_CHANNEL,
                &["channel_put", "channel_get", "channel_write_read", "copy_sweep", "put_round"],
            ),
            (MESH_PORT_CHANNELS, &["mesh_all_gather"]),
            (PACKET_PING_PONG, &["ll8_ping_pong", "ll16_ping_pong"]),
            (PACKETS, &["packets_put", "packets_unpack", "packet_unpack_one", "packet_rounds"]),
            (PING_PONG, &["ping_pong_spin", "ping_pong_plain"]),
            (
                PORT_BENCH,
                &["port_put", "port_ping_pong", "port_packet_ping_pong", "fifo_push", "fifo_push_and_sync"],
            ),
            (PORT_CHANNEL, &["port_call", "port_turns_send", "port_turns_check", "port_flush_overwrite"]),
            (SEMAPHORE, &["wait_once", "poll_once", "signal_n", "contended"]),
            (SIGNAL_DATA, &["signal_data_write", "signal_data_check"]),
            (
                SIGNAL_PING_PONG,
                &["signal_ping_pong", "relaxed_ping_pong", "bare_ping_pong", "bare_relaxed_ping_pong"],
            ),
        ];
        for (ptx, entries) in modules {
            for entry in entries {
                let found = ptx.lines().any(|line| {
                    line.split_once(".entry ").is_some_and(|(_, rest)| rest.trim_end_matches('(') == *entry)
                });
                assert!(found, "no entry {entry}");
            }
        }
    }
}
