//! The kernels of the benchmarks, in `cuda/kernels`; symbolic links in this crate's folder `kernels` add them to its package.
//! The kernel of `signal-pingpong` is the library's own.

use mscclpp::KernelSource;

macro_rules! kernel {
    ($name:literal) => {
        KernelSource::new($name, include_str!(concat!("../kernels/", $name)))
    };
}

pub(crate) const MEMORY_BENCH: KernelSource<'static> = kernel!("memory_bench.cu");
pub(crate) const PACKET_PING_PONG: KernelSource<'static> = kernel!("packet_ping_pong.cu");
pub(crate) const PORT_BENCH: KernelSource<'static> = kernel!("port_bench.cu");
pub(crate) const RMS_NORM_BENCH: KernelSource<'static> = kernel!("rms_norm_bench.cu");
