//! The device API of mscclpp as text: its CUDA C++ headers, and the kernels that the library and the examples launch.
//!
//! Everything is embedded, so that neither a CUDA toolkit nor this repository is needed where a program runs. To compile
//! a kernel of your own, hand a [`KernelSource`] to `mscclpp_gpu::Module::load`, or use [`HEADERS`] with NVRTC:
//!
//! ```
//! let (names, texts): (Vec<&str>, Vec<&str>) = mscclpp_kernels::HEADERS.iter().copied().unzip();
//! assert!(names.contains(&"mscclpp/memory_channel_device.hpp"));
//! // nvrtcCreateProgram(&program, source, "mine.cu", names.len(), texts, names)
//! # assert_eq!(names.len(), texts.len());
//! ```
//!
//! The PTX is for compute_80 and later, some of it also for compute_90, and in version 8.4 of its language, which drivers
//! from 550 on accept. It is made from `cuda/kernels` by `cargo xtask build-kernels`, and embedded as zlib streams, which
//! `mscclpp_gpu` unpacks: `mscclpp_gpu::ptx_of` gives the text, and `cargo xtask ptx KERNEL` prints it.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod source;

pub use source::{KernelSource, Ptx};

/// A number of the headers, kernels and PTX that this build embeds, made from their bytes when it was compiled. Ranks whose
/// numbers differ may lay out shared memory differently, and do not work together.
pub const FINGERPRINT: u64 = number(env!("MSCCLPP_KERNELS_FINGERPRINT"));

/// The number that the build script has written.
const fn number(text: &str) -> u64 {
    match u64::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("the build script writes a number"),
    }
}

/// The headers of the device API: the name of each as it is included, such as `mscclpp/device.hpp`, and its text. They
/// include only one another, except `mscclpp/gpu_data_types.hpp`, which includes the vendor's headers of number types.
pub const HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/include.rs"));

/// The headers of the C library, as far as kernels need them, for compilers that run without files: NVRTC and hiprtc have
/// none. They include one another and `mscclpp/device.hpp`. `mscclpp_gpu::Module::load` passes them to the compiler
/// together with [`HEADERS`].
pub const C_HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/c_headers.rs"));

/// The headers for kernels on simulated devices, besides [`HEADERS`]: those for all that a CUDA compiler knows without an
/// include, and the headers of CUDA that kernels include.
pub const SIM_HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sim.rs"));

/// A kernel of this repository with its PTX; `newer` if there is also PTX for compute_90, `only newer` if there is no other.
macro_rules! kernel {
    ($name:literal) => {
        kernel!($name, [80 "compute_80"])
    };
    ($name:literal, only newer) => {
        kernel!($name, [90 "compute_90"])
    };
    ($name:literal, newer) => {
        kernel!($name, [80 "compute_80", 90 "compute_90"])
    };
    ($name:literal, [$($capability:literal $architecture:literal),+]) => {
        KernelSource::new(concat!($name, ".cu"), include_str!(concat!("../kernels/", $name, ".cu"))).with_compressed_ptx(
            &[$(($capability, include_bytes!(concat!("../ptx/", $name, ".", $architecture, ".ptx.zlib")))),+],
        )
    };
}

/// The kernels of the example all_reduce_rms_norm: `all_reduce_rms_norm_f16` and `all_reduce_rms_norm_bf16`, and variants
/// whose names also end in `_fp8` or `_fp8_of_rows`.
///
/// All take the residual and the weights in device memory, and epsilon; those with `_fp8` then take a unit; and all take
/// a `CollectiveHandle` and a `CollectiveRows` by value. `Collectives::all_reduce_rows` launches them.
pub const ALL_REDUCE_RMS_NORM: KernelSource<'static> = kernel!("all_reduce_rms_norm", newer);

/// The kernels of the tutorial on memory channels: `bidir_put`, `bidir_get` and `bidir_put_packets`.
///
/// All take a `MemoryChannelDeviceHandle` by value.
pub const BIDIR_MEMORY_CHANNEL: KernelSource<'static> = kernel!("bidir_memory_channel");

/// The kernel of the tutorial on port channels: `bidir_put_with_signal`, which takes a `PortChannelDeviceHandle` by value.
pub const BIDIR_PORT_CHANNEL: KernelSource<'static> = kernel!("bidir_port_channel", newer);

/// The kernels of collectives. They take a `CollectiveHandle` and a `CollectiveCall` by value. Instead of the second,
/// `move_messages` takes a `CollectiveSends`, `move_many_messages` a `CollectiveManySends`, `exchange_direct_move` and those of
/// `all_reduce_direct` a `CollectiveDirectCall`, those of `reduce_group` a `CollectiveGroup`, and those of `moves`,
/// `reduces` and `all_reduces` a `CollectiveMoves`.
pub const COLLECTIVES: KernelSource<'static> = kernel!("collectives", newer);

/// The kernel `exchange_bulk_move`, which moves by bulk copies, by blocks of at least 64 threads with 196,864 bytes of dynamic
/// shared memory. It takes a `CollectiveHandle` and a `CollectiveDirectCall` by value, and needs compute capability 9.0.
pub const COLLECTIVES_BY_BULK: KernelSource<'static> = kernel!("collectives_by_bulk", only newer);

/// The kernels of collectives between two ranks by few blocks: `exchange_lanes_move`, `_any`, and `_sum` and `_avg` of `_f16`,
/// `_bf16` and `_f32`. Blocks have 1024 threads and 197,120 bytes of dynamic shared memory. Each takes a `CollectiveHandle` and a
/// `CollectiveCall` by value, and needs compute capability 9.0.
pub const COLLECTIVES_BY_LANES: KernelSource<'static> = kernel!("collectives_by_lanes", only newer);

/// The kernels of collectives between ranks on several nodes: `move_across` and `reduce_across_any`, `_f16_sum`,
/// `_bf16_sum` and `_f32_sum`. Each takes a `CollectiveAcross` by value.
pub const COLLECTIVES_OF_NODES: KernelSource<'static> = kernel!("collectives_of_nodes");

/// The kernels of [`COLLECTIVES`] that two ranks need, made smaller for two.
pub const COLLECTIVES_OF_TWO: KernelSource<'static> = kernel!("collectives_of_two", newer);

/// The kernel of the example custom_proxy: `broadcast_and_gather`, which takes a `FifoDeviceHandle` by value and
/// `Host2DeviceSemaphoreDeviceHandle`s in device memory.
pub const CUSTOM_PROXY: KernelSource<'static> = kernel!("custom_proxy");

/// The kernels of expert parallel layers that are the same for all types of numbers: `mscclpp::ep::dispatch`, and those of some
/// dispatches alone, `dispatch_rank`, `dispatch_by_row` and `dispatch_token_by_row`, which take an `EpHandle`, an `EpDispatch`
/// and `EpHalves` by value; `ep_release`, `ep_lose` and `ep_count_choices`. A module has those of `mscclpp::ep` by their mangled
/// names without parameters: `_ZN7mscclpp2ep8dispatchE`.
pub const EXPERTS: KernelSource<'static> = kernel!("experts", newer);

/// The dispatches of few tokens, which are taken like those of [`EXPERTS`]: `mscclpp::ep::dispatch_by_packets`, and those of some
/// dispatches alone, `dispatch_rank_by_packets`, `dispatch_expert_by_packets` and `dispatch_token_by_packets`.
pub const EXPERTS_BY_PACKETS: KernelSource<'static> = kernel!("experts_by_packets", newer);

/// The combines of numbers of type bf16: `mscclpp::ep::combine_bf16`, and those of some combines alone, `combine_bf16_rows`, and
/// with `_by_packets` behind their names the same of few tokens, and `combine_bf16_sums_by_packets`. They take an `EpHandle`, an
/// `EpCombine` and `EpHalves` by value.
pub const EXPERTS_BF16: KernelSource<'static> = kernel!("experts_bf16", newer);

/// Those of [`EXPERTS_BF16`] for numbers of type f16.
pub const EXPERTS_F16: KernelSource<'static> = kernel!("experts_f16", newer);

/// Those of [`EXPERTS_BF16`] for numbers of type f32.
pub const EXPERTS_F32: KernelSource<'static> = kernel!("experts_f32", newer);

/// The kernel of the example mesh_port_channels: `mesh_all_gather`, which finds up to 64 `PortChannelDeviceHandle`s, one
/// for each rank, in the module's variable `channels`.
pub const MESH_PORT_CHANNELS: KernelSource<'static> = kernel!("mesh_port_channels", newer);

/// The kernels of the first tutorial, `ping_pong_spin` and `ping_pong_plain`: two sides that signal each other in turns,
/// of which one spins for a while in each round.
///
/// Both take a pointer to a `BaseMemoryChannelDeviceHandle` in device memory.
pub const PING_PONG: KernelSource<'static> = kernel!("ping_pong");

/// The kernels of signals back and forth: `signal_ping_pong`, and `relaxed_ping_pong` with the signals and waits that
/// order no memory, by which the library times semaphores; and `bare_ping_pong` and `bare_relaxed_ping_pong`, with the
/// same instructions except those that make a wait safe.
///
/// All take a `BaseMemoryChannelDeviceHandle` by value; one thread of each side does the work.
pub const SIGNAL_PING_PONG: KernelSource<'static> = kernel!("signal_ping_pong");

/// The kernels of signals on streams: `send_signal`, which takes the addresses of two counters, and `wait_signals`, a block of
/// which takes up to 32 `SignalWait`s by value, one for each thread.
pub const SIGNALS: KernelSource<'static> = kernel!("signals");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_include_only_each_other() {
        for (name, text) in HEADERS {
            // The vendor's headers, whose types kernels use.
            let vendors = |line: &str| *name == "mscclpp/gpu_data_types.hpp" && line.contains('<');
            let lines = text.lines().filter(|line| line.trim_start().starts_with("#include"));
            for line in lines.filter(|line| !vendors(line)) {
                let included = line.split('"').nth(1);
                assert!(
                    HEADERS.iter().any(|(other, _)| Some(*other) == included),
                    "{name} includes something else: {line}"
                );
            }
        }
    }
}
