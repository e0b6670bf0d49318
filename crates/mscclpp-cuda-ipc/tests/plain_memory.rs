//! Memory that somebody else allocated with `cudaMalloc`, shared between two processes: PyTorch's and CuPy's tensors
//! mostly are that. Such an allocation has a legacy IPC handle, and what is registered is a part of it.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_core::{Context, Device, Endpoint, EndpointConfig, RegisteredMemory, Transport};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::{DevicePtr, Gpu, Platform};
use mscclpp_gpu_sys::cuda::{CUdeviceptr, CuResult, Driver};

const ALLOCATION: usize = 3 << 20;
const OFFSET: u64 = 4096 + 8;
const LEN: u64 = 1_000_003;
const LIMIT: Duration = Duration::from_secs(60);
const PEER: &str = "--as-the-peer";

fn main() -> ExitCode {
    let platform = Platform::detect_or_host().expect("a usable platform");
    if env::args().any(|argument| argument == PEER) {
        share(platform, 1, &mut Line { input: std::io::stdin().lock(), output: std::io::stdout() });
        return ExitCode::SUCCESS;
    }
    let cuda = platform == Platform::Cuda;
    let name = "cuda_malloc_memory_across_processes";
    let name = if cuda { name.to_owned() } else { format!("{name} (needs a CUDA GPU)") };
    let trial = Trial::test(name, move || across_processes(platform)).with_ignored_flag(!cuda);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn across_processes(platform: Platform) -> Result<(), Failed> {
    let process =
        Command::new(env::current_exe()?).arg(PEER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut peer = Peer(process);
    let (input, output) = (peer.0.stdout.take().expect("a pipe"), peer.0.stdin.take().expect("a pipe"));
    share(platform, 0, &mut Line { input: BufReader::new(input), output });
    let status = peer.0.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the other process: {status}").into()) }
}

/// Ends with the test.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // Neither fails for a child that is still there; one that has ended needs no killing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// To the other process. What dies closes its end, so nobody waits for ever.
struct Line<R, W> {
    input: R,
    output: W,
}

impl<R: Read + BufRead, W: Write> Line<R, W> {
    fn swap(&mut self, bytes: &[u8]) -> Vec<u8> {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.output, "{hex}").and_then(|()| self.output.flush()).expect("the other process");
        let mut line = String::new();
        assert_ne!(self.input.read_line(&mut line).expect("a pipe"), 0, "the other process is gone");
        let digits = line.trim().as_bytes().chunks(2);
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
            .collect()
    }
}

/// As `cudaMalloc` makes it.
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
        // SAFETY: made by `allocate`; whoever used it has ended.
        assert_eq!(unsafe { (self.driver.mem_free)(self.base) }, CuResult::SUCCESS);
    }
}

/// Each side writes into the other's part, twice, over mappings that are opened anew.
fn share<R: BufRead, W: Write>(platform: Platform, rank: usize, line: &mut Line<R, W>) {
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
        let theirs = line.swap(&endpoint.serialize().expect("bytes"));
        let connection = context
            .connect(&endpoint, &Endpoint::deserialize(&theirs).expect("an endpoint"))
            .expect("a link");
        // SAFETY: inside the allocation, which outlives every use.
        let own =
            unsafe { context.register_memory(plain.part(), LEN, Transport::CUDA_IPC) }.expect("registered");
        let theirs =
            RegisteredMemory::deserialize(&line.swap(&own.serialize().expect("bytes"))).expect("a memory");
        source.write(0, &pattern(rank, round)).expect("filled");
        let from = context.register_buffer(&source, Transport::CUDA_IPC).expect("registered");
        connection.write(&theirs, 0, &from, 0, LEN).expect("written");
        connection.flush(LIMIT).expect("flushed");
        line.swap(b"flushed");
        // SAFETY: both ranges are of live memory of this device, and nobody writes them now.
        unsafe { stream.copy(staging.ptr(), plain.part(), LEN).expect("copied") };
        stream.synchronize_timeout(LIMIT).expect("copied");
        let mut found = vec![0; LEN as usize];
        staging.read(0, &mut found).expect("read");
        assert!(found == pattern(1 - rank, round), "round {round}: not what the other process wrote");
        drop((theirs, connection));
        line.swap(b"unmapped");
    }
}
