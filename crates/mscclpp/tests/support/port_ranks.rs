//! Port channels between the ranks of a job, and single calls of kernels on them.

use mscclpp::{Stream, prelude::*};

use super::{LIMIT, connect_all, device_of, kernels::PORT_CHANNEL, port_ends::Call};

/// Runs calls, one after the other.
pub(crate) struct Caller {
    kernel: mscclpp::Kernel,
    stream: Stream,
    result: DeviceBuffer,
}

impl Caller {
    pub(crate) fn new(gpu: &Gpu) -> Self {
        Self {
            kernel: Module::load(gpu, &PORT_CHANNEL)
                .expect("a module")
                .kernel("port_call")
                .expect("port_call"),
            stream: gpu.stream().expect("a stream"),
            result: gpu.allocate(4).expect("memory"),
        }
    }

    /// Starts a call. Some calls ignore the offsets and bytes.
    pub(crate) fn start(&self, channel: &PortChannel, call: Call, [dst, src, bytes]: [u64; 3]) {
        self.result.fill(0, 4, 0).expect("a result");
        let args = KernelArgs::new()
            .with(channel.device_handle())
            .with(call as i32)
            .with(dst)
            .with(src)
            .with(bytes)
            .with(-1i64)
            .with(self.result.ptr());
        // SAFETY: these are its arguments; tests keep the channel until `outcome`.
        unsafe { self.kernel.launch(&self.stream, LaunchConfig::linear(1, 1), &args).expect("a launch") };
    }

    /// Waits for the call that was started, and returns whether it was done.
    pub(crate) fn outcome(&self) -> bool {
        self.stream.synchronize_timeout(LIMIT).expect("a kernel that ends in time");
        let mut result = [0; 4];
        self.result.read(0, &mut result).expect("a result");
        match u32::from_ne_bytes(result) {
            1 => true,
            2 => false,
            other => panic!("the kernel said {other}"),
        }
    }

    /// Starts a call, waits for it, and returns whether it was done.
    pub(crate) fn call(&self, channel: &PortChannel, call: Call, range: [u64; 3]) -> bool {
        self.start(channel, call, range);
        self.outcome()
    }
}

/// A rank's service, with a channel to each other rank.
pub(crate) struct Ports {
    pub(crate) service: ProxyService,
    /// The channel to each rank; none for the rank itself.
    pub(crate) channels: Vec<Option<PortChannel>>,
    /// The memory that this rank's kernels put from, and its peers' put to.
    pub(crate) buffer: DeviceBuffer,
    pub(crate) gpu: Gpu,
}

impl Ports {
    /// Opens channels over buffers of `len` bytes; the service is not started yet.
    pub(crate) fn open(comm: &Communicator, len: u64) -> mscclpp::Result<Self> {
        let (rank, n) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
        let gpu = comm.context().gpu(device_of(rank))?;
        let service = ProxyService::new(&gpu)?;
        let buffer = gpu.allocate(len)?;
        let own = comm.register_buffer(&buffer, Transport::CUDA_IPC)?;
        let others = || (0..n).filter(|peer| *peer != rank);
        let semaphores = connect_all(comm)?;
        others().try_for_each(|peer| comm.send_memory(&own, peer, 1))?;
        let src = service.add_memory(&own)?;
        let mut channels: Vec<_> = (0..n).map(|_| None).collect();
        for peer in others() {
            let dst = service.add_memory(&comm.recv_memory(peer, 1)?.wait()?)?;
            let id = service.add_semaphore(&semaphores[peer])?;
            channels[peer] = Some(service.port_channel(id, dst, src)?);
        }
        Ok(Self { service, channels, buffer, gpu })
    }

    pub(crate) fn to(&self, peer: usize) -> &PortChannel {
        self.channels[peer].as_ref().expect("a channel to another rank")
    }
}
