//! Memory that other code allocated with `cudaMalloc`, shared between two processes. Most tensors of PyTorch and CuPy
//! are such memory. The allocation has a legacy IPC handle, and only a part of it is registered.

use libtest_mimic::{Failed, Trial};
use mscclpp_core::{Context, Device, Endpoint, EndpointConfig, RegisteredMemory, Transport};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::{DevicePtr, Gpu, Platform};
use mscclpp_gpu_sys::cuda::{CUdeviceptr, CuResult, Driver};
use mscclpp_test_support::{Child, LIMIT, child, hex, unhex};

const ALLOCATION: usize = 3 << 20;
const OFFSET: u64 = 4096 + 8;
const LEN: u64 = 1_000_003;

/// The role of the peer's process.
pub(crate) const PEER: &str = "plain_memory";

pub(crate) fn be_the_peer() {
    share(Platform::detect_or_sim().expect("a usable platform"), 1, &mut |bytes| {
        child::say(&hex(bytes));
        unhex(&child::hear())
    });
}

pub(crate) fn trial() -> Trial {
    let platform = Platform::detect_or_sim().expect("a usable platform");
    let cuda = platform == Platform::Cuda;
    let name = "plain_memory::cuda_malloc_memory_across_processes";
    let name = if cuda { name.to_owned() } else { format!("{name} (needs a CUDA GPU)") };
    Trial::test(name, move || across_processes(platform)).with_ignored_flag(!cuda)
}

fn across_processes(platform: Platform) -> Result<(), Failed> {
    let mut peer = Child::start(&[PEER]);
    share(platform, 0, &mut |bytes| {
        peer.tell(&hex(bytes));
        unhex(&peer.next_line())
    });
    peer.expect_success();
    Ok(())
}

/// An allocation of `cudaMalloc`.
struct Plain {
    driver: &'static Driver,
    base: CUdeviceptr,
}

impl Plain {
    fn allocate(gpu: &Gpu) -> Self {
        gpu.make_current().expect("the primary context");
        let driver = Driver::load().expect("a driver");
        let mut base = 0;
        // SAFETY: `base` is valid for the write, and a context is current.
        assert_eq!(unsafe { (driver.mem_alloc)(&raw mut base, ALLOCATION) }, CuResult::SUCCESS);
        Self { driver, base }
    }

    fn part(&self) -> DevicePtr {
        DevicePtr(self.base + OFFSET)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate`; all users of the memory have ended.
        assert_eq!(unsafe { (self.driver.mem_free)(self.base) }, CuResult::SUCCESS);
    }
}

/// Lets each side write into the other's part, twice, over mappings that are opened anew. `swap` sends the other
/// process bytes and returns the bytes that it sends.
fn share(platform: Platform, rank: usize, swap: &mut dyn FnMut(&[u8]) -> Vec<u8>) {
    let device = rank % platform.device_count().expect("devices");
    let context = Context::builder().provider(CudaIpc::new()).platform(platform).build();
    let gpu = context.gpu(device).expect("a device");
    let stream = gpu.stream().expect("a stream");
    let (source, staging) = (gpu.allocate(LEN).expect("a buffer"), gpu.allocate(LEN).expect("a buffer"));
    let plain = Plain::allocate(&gpu);
    let pattern = |rank: usize, round: u8| -> Vec<u8> {
        (0..LEN).map(|i| (i * 7 + i / 251) as u8 ^ (rank as u8 * 100 + round)).collect()
    };
    for round in 0..2 {
        let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(device));
        let endpoint = context.create_endpoint(config).expect("an endpoint");
        let theirs = swap(&endpoint.serialize().expect("bytes"));
        let connection = context
            .connect(&endpoint, &Endpoint::deserialize(&theirs).expect("an endpoint"))
            .expect("a link");
        // SAFETY: inside the allocation, which outlives every use.
        let own =
            unsafe { context.register_memory(plain.part(), LEN, Transport::CUDA_IPC) }.expect("registered");
        let theirs =
            RegisteredMemory::deserialize(&swap(&own.serialize().expect("bytes"))).expect("a memory");
        source.write(0, &pattern(rank, round)).expect("filled");
        let from = context.register_buffer(&source, Transport::CUDA_IPC).expect("registered");
        connection.write(&theirs, 0, &from, 0, LEN).expect("written");
        connection.flush(LIMIT).expect("flushed");
        swap(b"flushed");
        // SAFETY: both ranges are of live memory of this device, and nobody writes them now.
        unsafe { stream.copy(staging.ptr(), plain.part(), LEN).expect("copied") };
        stream.synchronize_timeout(LIMIT).expect("copied");
        let mut found = vec![0; LEN as usize];
        staging.read(0, &mut found).expect("read");
        assert!(found == pattern(1 - rank, round), "round {round}: not what the other process wrote");
        drop((theirs, connection));
        swap(b"unmapped");
    }
}
