//! The peer's process is killed while a kernel waits for it. There is no bootstrap that could report that: endpoints
//! and stubs are sent over a pipe, and the link notices.

use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use mscclpp_core::{
    BaseMemoryChannel, Connection, Context, Device, Endpoint, EndpointConfig, Error, Semaphore,
    SemaphoreStub, Transport,
};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::{
    DeviceBuffer, DevicePtr, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform, Stream,
};
use mscclpp_test_support::{Child, LIMIT, child, hex, unhex};

/// The time within which the survivor must have noticed.
const NOTICE: Duration = Duration::from_secs(50);
const KERNELS: KernelSource<'static> =
    KernelSource::new("semaphore.cu", include_str!("../../../../cuda/kernels/semaphore.cu"));

/// The role of the peer's process.
pub(crate) const PEER: &str = "killed_peer";

pub(crate) fn trials() -> Vec<Trial> {
    let found = Platform::detect_or_sim().expect("a usable platform");
    let mut platforms = vec![Platform::Sim];
    if found != Platform::Sim {
        platforms.push(found);
    }
    let trials = platforms.into_iter().map(|platform| {
        let name = format!("killed_peer::{platform}::a_killed_peer_ends_the_wait_of_a_kernel");
        Trial::test(name, move || a_killed_peer_ends_the_wait_of_a_kernel(platform))
    });
    trials.collect()
}

fn a_killed_peer_ends_the_wait_of_a_kernel(platform: Platform) -> Result<(), Failed> {
    let mut program = child::this_program();
    program.env("MSCCLPP_PLATFORM", platform.to_string());
    let mut peer = Child::start_by(program, &[PEER]);
    let side = Side::join(platform, 0, |bytes| {
        peer.tell(&hex(bytes));
        unhex(&peer.next_line())
    });
    let signalled = side.gpu.event(false)?;
    side.launch("wait_once", |args| args.with(-1i64).with(side.outcome(0)));
    side.stream.record(&signalled)?;
    side.launch("wait_once", |args| args.with(-1i64).with(side.outcome(1)));
    // The peer signals once: the first wait ends, and the second begins.
    side.in_time("the peer's signal", LIMIT, |limit| signalled.synchronize_timeout(limit));
    assert!(!side.stream.query()?, "the second wait has ended");
    side.connection.check()?;

    let killed = Instant::now();
    peer.kill();
    side.in_time("the end of the wait", NOTICE, |limit| side.stream.synchronize_timeout(limit));
    println!("{platform}: the kernel was free after {:?}", killed.elapsed());
    assert_eq!(side.outcomes(), [SIGNALLED, NOT_SIGNALLED, 0]);
    for result in [side.channel.semaphore().check(), side.connection.check()] {
        assert!(matches!(result, Err(Error::PeerLost { .. })), "{result:?}");
    }

    // The failure is permanent, and the device works as before.
    side.launch("wait_once", |args| args.with(-1i64).with(side.outcome(2)));
    side.in_time("the end of a later wait", NOTICE, |limit| side.stream.synchronize_timeout(limit));
    assert_eq!(side.outcomes(), [SIGNALLED, NOT_SIGNALLED, NOT_SIGNALLED]);
    assert!(matches!(SemaphoreStub::new(&side.connection), Err(Error::PeerLost { .. })));
    Ok(())
}

/// Plays the process that is killed: it signals once, and stays until it is killed.
pub(crate) fn be_the_peer() {
    let platform = Platform::detect_or_sim().expect("a usable platform");
    let side = Side::join(platform, 1, |bytes| {
        child::say(&hex(bytes));
        unhex(&child::hear())
    });
    side.launch("signal_n", |args| args.with(1i32));
    side.stream.synchronize_timeout(LIMIT).expect("a signal");
    child::await_end();
}

/// One end, with kernels that signal and wait.
struct Side {
    gpu: Gpu,
    stream: Stream,
    module: Module,
    results: DeviceBuffer,
    connection: Connection,
    channel: BaseMemoryChannel,
}

impl Side {
    /// Connects with the other process; `swap` sends it bytes and returns the bytes that it sends.
    fn join(platform: Platform, rank: usize, mut swap: impl FnMut(&[u8]) -> Vec<u8>) -> Self {
        let device = rank % platform.device_count().expect("devices");
        let context = Context::builder().provider(CudaIpc::new()).platform(platform).build();
        let gpu = context.gpu(device).expect("a device");
        let module = Module::load(&gpu, &KERNELS).expect("kernels");
        let endpoint = context
            .create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(device)))
            .expect("an endpoint");
        let theirs = swap(&endpoint.serialize().expect("bytes"));
        let connection = context
            .connect(&endpoint, &Endpoint::deserialize(&theirs).expect("an endpoint"))
            .expect("a connection");
        let stub = SemaphoreStub::new(&connection).expect("a stub");
        let theirs = swap(&stub.serialize().expect("bytes"));
        let semaphore = Semaphore::new(&stub, &SemaphoreStub::deserialize(&theirs).expect("a stub"))
            .expect("a semaphore");
        let channel = BaseMemoryChannel::new(&semaphore).expect("a channel");
        let (stream, results) = (gpu.stream().expect("a stream"), gpu.allocate(64).expect("a buffer"));
        Self { gpu, stream, module, results, connection, channel }
    }

    /// Launches one thread of a kernel that takes the channel, and the arguments that `more` adds.
    fn launch(&self, kernel: &str, more: impl FnOnce(KernelArgs) -> KernelArgs) {
        let args = more(KernelArgs::new().with(self.channel.device_handle()));
        let kernel = self.module.kernel(kernel).expect("a kernel");
        // SAFETY: the arguments are those of the kernel; `self` outlives it, as whoever launches waits for the stream.
        unsafe { kernel.launch(&self.stream, LaunchConfig::linear(1, 1), &args).expect("a launch") };
    }

    fn outcome(&self, wait: u64) -> DevicePtr {
        self.results.ptr().add(4 * wait)
    }

    fn outcomes(&self) -> [u32; 3] {
        let mut bytes = [0; 12];
        self.results.read(0, &mut bytes).expect("read");
        [0, 4, 8].map(|at| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i])))
    }

    /// Fails the test if `wait` does not end in time, and ends the kernels first: memory cannot be freed under them.
    fn in_time(&self, what: &str, limit: Duration, wait: impl FnOnce(Duration) -> mscclpp_gpu::Result<()>) {
        if let Err(error) = wait(limit) {
            self.channel.semaphore().abort("the test has failed");
            let ended = self.stream.synchronize_timeout(NOTICE);
            panic!("{what}: {error}; after an abort: {ended:?}, {:?}", self.outcomes());
        }
    }
}

/// The values that the kernel stores as outcomes of waits.
const SIGNALLED: u32 = 1;
const NOT_SIGNALLED: u32 = 2;
