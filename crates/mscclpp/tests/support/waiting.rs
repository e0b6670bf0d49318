//! Kernels that wait, and the objects that they use: one rank, connected with itself.

use std::{any::Any, sync::Arc};

use mscclpp::{
    channels::{DeviceToDeviceSemaphore, HostToDeviceSemaphore},
    memory::PinnedBuffer,
    prelude::*,
    proxy::{Proxy, ProxyHandlerResult, ProxyTrigger},
};

use super::{kernels::LIFETIMES, platform};

const BYTES: u64 = 64 << 10;
/// The result of a kernel whose wait ended without a signal.
pub(crate) const NOT_SIGNALLED: u64 = 2;

/// Makes a job of one rank.
pub(crate) fn alone() -> Communicator {
    Communicator::with_context(Arc::new(LocalBootstrap::group(1).remove(0)), Context::on(platform()))
}

/// Makes a job of one rank, its objects, and a stream for kernels that use them.
pub(crate) fn started() -> (Communicator, Objects, Stream) {
    let comm = alone();
    let objects = Objects::new(&comm).expect("objects");
    let stream = objects.gpu.stream().expect("a stream");
    (comm, objects, stream)
}

/// All kinds of objects that kernels use.
pub(crate) struct Objects {
    pub(crate) gpu: Gpu,
    pub(crate) module: Module,
    pub(crate) semaphore: Semaphore,
    pub(crate) between_devices: DeviceToDeviceSemaphore,
    pub(crate) by_host: HostToDeviceSemaphore,
    pub(crate) base: BaseMemoryChannel,
    pub(crate) channel: MemoryChannel,
    pub(crate) port: PortChannel,
    pub(crate) service: ProxyService,
    pub(crate) proxy: Proxy<fn(ProxyTrigger) -> ProxyHandlerResult>,
    pub(crate) memory: RegisteredMemory,
    pub(crate) pinned: PinnedBuffer,
    /// The handle of `base`, in device memory.
    pub(crate) handle: DeviceBuffer,
    /// One word of result for each kernel.
    pub(crate) ended: DeviceBuffer,
}

/// The kernels, in the order of their words.
pub(crate) const KERNELS: [&str; 8] = [
    "wait_base",
    "wait_memory",
    "wait_semaphore",
    "wait_host_semaphore",
    "wait_port",
    "wait_base_port",
    "wait_fifo",
    "wait_indirectly",
];

fn never(_: ProxyTrigger) -> ProxyHandlerResult {
    ProxyHandlerResult::Stop
}

impl Objects {
    pub(crate) fn new(comm: &Communicator) -> mscclpp::Result<Self> {
        let gpu = comm.context().gpu(0)?;
        let module = Module::load(&gpu, &LIFETIMES)?;
        let endpoint = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0));
        let connection = comm.connect(endpoint, 0, 0)?.wait()?;
        let memory = comm.register_buffer(&gpu.allocate(BYTES)?, Transport::CUDA_IPC)?;
        comm.send_memory(&memory, 0, 0)?;
        let theirs = comm.recv_memory(0, 0)?.wait()?;
        let service = ProxyService::new(&gpu)?;
        let id = service.build_and_add_semaphore(comm, &connection)?;
        let (dst, src) = (service.add_memory(&theirs)?, service.add_memory(&memory)?);
        let port = service.port_channel(id, dst, src)?;
        service.start_proxy(true)?;
        let base = BaseMemoryChannel::from_connection(comm, &connection)?;
        let handle = gpu.allocate(256)?;
        handle.write_params(0, &[base.device_handle()])?;
        Ok(Self {
            semaphore: Semaphore::from_connection(comm, &connection)?,
            between_devices: DeviceToDeviceSemaphore::from_connection(comm, &connection)?,
            by_host: HostToDeviceSemaphore::from_connection(comm, &connection)?,
            base,
            channel: MemoryChannel::from_connection(comm, &connection, &theirs, &memory, None)?,
            port,
            service,
            // The proxy is never started: triggers that kernels push stay in the FIFO.
            proxy: Proxy::new(&gpu, never as fn(_) -> _)?,
            memory,
            pinned: gpu.allocate_pinned(8)?,
            handle,
            ended: gpu.allocate(8 * KERNELS.len() as u64)?,
            module,
            gpu,
        })
    }

    /// Returns the arguments of a kernel of [`KERNELS`], as objects. With a beat, the kernel counts in it, and a wait
    /// that is given up does not end the kernel.
    fn args(&self, kernel: usize, beat: Option<&PinnedBuffer>) -> KernelArgs {
        let args = KernelArgs::new();
        let args = match KERNELS[kernel] {
            "wait_base" => args.with(&self.base),
            "wait_memory" => args.with(&self.channel).with(BYTES / 8),
            "wait_semaphore" => args.with(&self.between_devices),
            "wait_host_semaphore" => args.with(&self.by_host),
            "wait_port" => args.with(&self.port),
            "wait_base_port" => args.with(self.port.base()),
            "wait_fifo" => args.with(self.proxy.fifo()),
            "wait_indirectly" => {
                let args = args.with(&self.handle).with(&self.memory).with(&self.pinned);
                args.keeping_each([&self.base])
            }
            other => panic!("no kernel {other}"),
        };
        let args = match beat {
            Some(beat) => args.with(beat),
            None => args.with(DevicePtr::NULL),
        };
        args.with(self.ended.ptr().add(8 * kernel as u64)).keeping(self.ended.clone())
    }

    /// Starts a kernel of [`KERNELS`].
    pub(crate) fn start(
        &self,
        stream: &Stream,
        kernel: usize,
        shape: LaunchConfig,
        beat: Option<&PinnedBuffer>,
    ) -> mscclpp::Result<()> {
        let args = self.args(kernel, beat);
        let kernel = self.module.kernel(KERNELS[kernel])?;
        // SAFETY: the kernel's arguments, which keep all that they point to.
        unsafe { kernel.launch(stream, shape, &args)? };
        Ok(())
    }

    /// Returns how the wait of a complete kernel ended.
    pub(crate) fn outcome(ended: &DeviceBuffer, kernel: usize) -> u64 {
        let mut word = [0; 8];
        ended.read(8 * kernel as u64, &mut word).expect("a result");
        u64::from_ne_bytes(word)
    }

    /// Takes the objects apart, to be dropped one by one.
    pub(crate) fn into_parts(self) -> Vec<Box<dyn Any>> {
        let Self {
            gpu,
            module,
            semaphore,
            between_devices,
            by_host,
            base,
            channel,
            port,
            service,
            proxy,
            memory,
            pinned,
            handle,
            ended,
        } = self;
        vec![
            Box::new((gpu, semaphore)),
            Box::new(module),
            Box::new((between_devices, by_host)),
            Box::new((base, channel)),
            Box::new(port),
            Box::new(service),
            Box::new(proxy),
            Box::new((memory, pinned, handle, ended)),
        ]
    }
}
