//! The kernels of the tests. Each call launches a kernel of one thread on a stream of its own, so that calls may wait
//! for each other.

#![allow(dead_code, reason = "each test program uses a part of this")]

use mscclpp_gpu::{Abort, DeviceBuffer, Gpu, Kernel, KernelArgs, KernelSource, LaunchConfig, Module, Stream};
use mscclpp_proxy::{FifoHandle, FifoPosition, MemoryId, PortChannel, PortChannelHandle, ProxyTrigger};
use mscclpp_test_support::LIMIT;

const CALLS: KernelSource<'static> = KernelSource::new("calls.cu", include_str!("calls.cu"));

/// The kernels of a device.
#[derive(Clone)]
pub(crate) struct Kernels {
    gpu: Gpu,
    module: Module,
}

/// A call that has begun.
pub(crate) struct Call {
    stream: Stream,
    result: DeviceBuffer,
}

impl Call {
    /// Waits for the kernel to end.
    pub(crate) fn until_ended(&self) {
        self.stream.synchronize_timeout(LIMIT).expect("a call that ends in time");
    }

    /// Waits for the call to end, and returns the result of the kernel's function.
    pub(crate) fn end(self) -> u64 {
        self.until_ended();
        let mut word = [0; 8];
        self.result.read(0, &mut word).expect("a result");
        u64::from_ne_bytes(word)
    }

    /// Waits for the call to end as a program does.
    pub(crate) fn end_or_abort<A: Abort + ?Sized>(self, what: &A) -> Result<(), A::Error> {
        self.stream.synchronize_or_abort(LIMIT, what)
    }
}

impl Kernels {
    pub(crate) fn load(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), module: Module::load(gpu, &CALLS).expect("kernels") }
    }

    pub(crate) fn kernel(&self, name: &str) -> Kernel {
        self.module.kernel(name).expect("a kernel of calls.cu")
    }

    /// Starts the call of that name; its result is the kernel's last argument. Memory that the other arguments point
    /// to must live until it ends.
    fn start(&self, name: &str, args: KernelArgs) -> Call {
        let call = Call {
            stream: self.gpu.stream().expect("a stream"),
            result: self.gpu.allocate(8).expect("memory"),
        };
        let args = args.with(call.result.ptr());
        // SAFETY: these are the kernel's arguments, and callers keep the memory that they point to.
        unsafe { self.kernel(name).launch(&call.stream, LaunchConfig::linear(1, 1), &args) }
            .expect("a launch");
        call
    }

    fn call(&self, name: &str, args: KernelArgs) -> u64 {
        self.start(name, args).end()
    }

    pub(crate) fn start_push(&self, fifo: FifoHandle, trigger: ProxyTrigger, max_spins: i64) -> Call {
        let args = KernelArgs::new().with(fifo).with(trigger.fst).with(trigger.snd).with(max_spins);
        self.start("fifo_push", args)
    }

    pub(crate) fn push(&self, fifo: FifoHandle, trigger: ProxyTrigger, max_spins: i64) -> FifoPosition {
        FifoPosition::from_raw(self.start_push(fifo, trigger, max_spins).end())
    }

    pub(crate) fn sync(&self, fifo: FifoHandle, position: FifoPosition, max_spins: i64) -> bool {
        self.call("fifo_sync", KernelArgs::new().with(fifo).with(position).with(max_spins)) != 0
    }

    pub(crate) fn is_taken(&self, fifo: FifoHandle, position: FifoPosition) -> bool {
        self.call("fifo_poll", KernelArgs::new().with(fifo).with(position)) != 0
    }
}

/// The calls of one thread of a kernel on a channel.
#[derive(Clone, Copy)]
pub(crate) struct Thread<'a> {
    kernels: &'a Kernels,
    handle: PortChannelHandle,
}

impl<'a> Thread<'a> {
    /// Makes the calls for `channel`, whose parts must outlive them.
    pub(crate) fn of(kernels: &'a Kernels, channel: &PortChannel) -> Self {
        Self { kernels, handle: channel.device_handle() }
    }

    fn args(&self) -> KernelArgs {
        KernelArgs::new().with(self.handle)
    }

    fn does(&self, call: &str, args: KernelArgs) -> bool {
        self.kernels.call(call, args) != 0
    }

    pub(crate) fn put(&self, dst: u64, src: u64, size: u64) -> bool {
        self.does("port_put", self.args().with(dst).with(src).with(size))
    }

    pub(crate) fn start_put(&self, dst: u64, src: u64, size: u64) -> Call {
        self.kernels.start("port_put", self.args().with(dst).with(src).with(size))
    }

    pub(crate) fn start_put_with_signal(&self, dst: u64, src: u64, size: u64) -> Call {
        self.kernels.start("port_put_with_signal", self.args().with(dst).with(src).with(size))
    }

    pub(crate) fn start_wait(&self) -> Call {
        self.kernels.start("port_wait", self.args())
    }

    /// Does `puts` puts without a wait, in one kernel. Returns the number of puts done.
    pub(crate) fn put_many(&self, puts: u64, piece: u64, places: u64) -> u64 {
        self.kernels.call("port_put_many", self.args().with(puts).with(piece).with(places))
    }

    /// Puts between any two memories of the service.
    pub(crate) fn put_between(&self, dst: MemoryId, src: MemoryId, size: u64) -> bool {
        self.does("port_put_between", self.args().with(dst).with(src).with(size))
    }

    pub(crate) fn signal(&self) -> bool {
        self.does("port_signal", self.args())
    }

    pub(crate) fn put_with_signal(&self, dst: u64, src: u64, size: u64) -> bool {
        self.does("port_put_with_signal", self.args().with(dst).with(src).with(size))
    }

    pub(crate) fn put_with_signal_and_flush(&self, dst: u64, src: u64, size: u64) -> bool {
        self.does("port_put_with_signal_and_flush", self.args().with(dst).with(src).with(size))
    }

    pub(crate) fn flush(&self) -> bool {
        self.does("port_flush", self.args())
    }

    pub(crate) fn wait(&self) -> bool {
        self.does("port_wait", self.args())
    }

    pub(crate) fn poll(&self) -> bool {
        self.does("port_poll", self.args())
    }

    pub(crate) fn push(&self, trigger: ProxyTrigger, max_spins: i64) -> FifoPosition {
        self.kernels.push(self.handle.base.fifo, trigger, max_spins)
    }
}
