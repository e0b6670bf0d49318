//! Port channels, and the kernels of the tests that use them.

use std::any::Any;

use mscclpp::{
    gpu::{Graph, KernelParam},
    prelude::*,
};

use super::{
    LIMIT,
    kernels::{PORT_CHANNEL, word_of},
    results::Results,
    semaphore_pair,
};

/// The numbers that both sides of `port_turns_send` and `port_turns_check` need.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct Turns {
    pub(crate) seed: u64,
    pub(crate) rounds: u32,
    pub(crate) pieces: u32,
    pub(crate) small_words: u64,
    pub(crate) large_words: u64,
}

/// A call that a kernel makes, by its number in `port_channel.cu`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    Put,
    Signal,
    PutWithSignal,
    PutWithSignalAndFlush,
    Flush,
    Wait,
}

/// One end: a service that runs, channels over a connection each, and kernels of its device.
pub(crate) struct PortEnd {
    // The service is dropped before the channels' memories, so that nothing is under way when these are dropped.
    pub(crate) service: ProxyService,
    pub(crate) channels: Vec<PortChannel>,
    /// The bytes that this end puts.
    pub(crate) source: DeviceBuffer,
    /// The bytes that the peer puts here.
    pub(crate) arrivals: DeviceBuffer,
    gpu: Gpu,
    stream: Stream,
    module: Module,
    results: Results,
    /// The handles of the channels, in device memory.
    handles: DeviceBuffer,
}

/// The offset in `results` of the mismatches; the other results follow.
const MISMATCHES: u64 = 0;
const FAILED: u64 = 64;
const RESULT: u64 = 128;
/// The bytes of a handle.
const HANDLE: usize = size_of::<PortChannelHandle>();

impl PortEnd {
    /// Makes two ends in this process, with so many channels and bytes. Threads put up to `direct_put_max` bytes
    /// themselves, and, unless that is 0, more by bulk copies. On simulated devices the limit of bulk copies is lower, so
    /// that their proxies put, too.
    pub(crate) fn pair(
        context: &Context,
        devices: [usize; 2],
        channels: usize,
        [source, arrivals]: [u64; 2],
        direct_put_max: u32,
    ) -> [Self; 2] {
        println!("devices {devices:?} of {}", context.platform().expect("a platform"));
        let mut ends = devices.map(|id| {
            let gpu = context.gpu(id).expect("a device");
            Self {
                service: ProxyService::builder(&gpu)
                    .direct_put_max(direct_put_max)
                    .bulk_put_max(match (direct_put_max, gpu.platform()) {
                        (0, _) => 0,
                        (_, Platform::Sim) => 16 << 10,
                        _ => ProxyService::DEFAULT_BULK_PUT_MAX,
                    })
                    .build()
                    .expect("a service"),
                channels: Vec::new(),
                source: gpu.allocate(source).expect("memory"),
                arrivals: gpu.allocate(arrivals).expect("memory"),
                stream: gpu.stream().expect("a stream"),
                module: Module::load(&gpu, &PORT_CHANNEL).expect("kernels"),
                handles: gpu.allocate((channels * HANDLE) as u64).expect("memory"),
                results: Results::new(&gpu, 192).expect("memory"),
                gpu,
            }
        });
        let registered = [0, 1].map(|i| {
            let register = |buffer| context.register_buffer(buffer, Transport::CUDA_IPC).expect("a memory");
            [register(&ends[i].source), register(&ends[i].arrivals)]
        });
        let ids = [0, 1].map(|i: usize| {
            let add = |memory| ends[i].service.add_memory(memory).expect("a number");
            [add(&registered[1 - i][1]), add(&registered[i][0])]
        });
        for _ in 0..channels {
            let semaphores = semaphore_pair(context, devices).expect("a pair of semaphores");
            for ((end, semaphore), [dst, src]) in ends.iter_mut().zip(&semaphores).zip(ids) {
                let id = end.service.add_semaphore(semaphore).expect("a number");
                end.channels.push(end.service.port_channel(id, dst, src).expect("a channel"));
            }
        }
        for end in &ends {
            let handles: Vec<_> = end.channels.iter().map(PortChannel::device_handle).collect();
            end.handles.write_params(0, &handles).expect("handles");
            end.service.start_proxy(true).expect("a proxy");
        }
        ends
    }

    fn launch(&self, kernel: &str, shape: LaunchConfig, args: &KernelArgs) {
        let kernel = self.module.kernel(kernel).expect("a kernel of the module");
        // SAFETY: callers give the arguments of the kernel; channels and buffers outlive it, since all callers wait.
        unsafe { kernel.launch(&self.stream, shape, args).expect("a launch") };
    }

    /// Waits for the kernels, none of which may have failed.
    pub(crate) fn finish(&self) {
        self.stream.synchronize_timeout(LIMIT).expect("kernels end in time");
        self.service.health().expect("a service in good health");
        assert_eq!(self.results.word(FAILED), 0, "a call failed in the round before this one");
    }

    /// Waits for the kernels, and returns how many words were wrong.
    pub(crate) fn mismatches(&self) -> u64 {
        self.finish();
        self.results.word(MISMATCHES)
    }

    /// Lets one thread make a call, over the first channel, and returns whether it was done.
    pub(crate) fn call(&self, call: Call, offset: u64, bytes: u64, max_spin: i64) -> bool {
        self.start_call(call, offset, bytes, max_spin);
        self.outcome()
    }

    pub(crate) fn start_call(&self, call: Call, offset: u64, bytes: u64, max_spin: i64) {
        let args = KernelArgs::new().with(self.channels[0].device_handle()).with(call as i32);
        let args = args.with(offset).with(offset).with(bytes).with(max_spin).with(self.results.at(RESULT));
        self.launch("port_call", LaunchConfig::linear(1, 1), &args);
    }

    /// Waits for the calls that were started, and returns whether the last one was done.
    pub(crate) fn outcome(&self) -> bool {
        self.stream.synchronize_timeout(LIMIT).expect("the call ends in time");
        match self.results.word(RESULT) as u32 {
            1 => true,
            2 => false,
            other => panic!("the call left {other}"),
        }
    }

    pub(crate) fn start_sending(&self, turns: Turns, weakened: bool, threads: u32) {
        let args = KernelArgs::new().with(self.channels[0].device_handle()).with(self.source.ptr());
        let args = args.with(turns).with(i32::from(weakened)).with(self.results.at(FAILED));
        self.launch("port_turns_send", LaunchConfig::linear(1, threads), &args);
    }

    pub(crate) fn start_checking(&self, turns: Turns, threads: u32) {
        let args = KernelArgs::new().with(self.channels[0].device_handle()).with(self.arrivals.ptr());
        let args = args.with(turns).with(self.results.at(MISMATCHES)).with(self.results.at(FAILED));
        self.launch("port_turns_check", LaunchConfig::linear(1, threads), &args);
    }

    /// Starts putting, flushing and overwriting by all threads, over all channels.
    pub(crate) fn start_flush_and_overwrite(&self, seed: u64, rounds: u32, words: u32, shape: LaunchConfig) {
        let args = KernelArgs::new().with(self.handles.ptr()).with(self.channels.len() as u32);
        let args =
            args.with(self.source.ptr()).with(seed).with(rounds).with(words).with(self.results.at(FAILED));
        self.launch("port_flush_overwrite", shape, &args);
    }

    /// Returns how many words of the arrivals are not what the peer put before it overwrote its sources.
    pub(crate) fn overwritten(&self, seed: u64, words_per_round: u64) -> usize {
        let arrived = self.arrived();
        let words = arrived.as_chunks().0.iter().zip(0..);
        let is_wrong = |(word, index): &(&[u8; 8], u64)| {
            u64::from_ne_bytes(**word) != word_of(seed, index / words_per_round, *index)
        };
        words.filter(is_wrong).count()
    }

    /// Returns the bytes that the peer has put.
    pub(crate) fn arrived(&self) -> Vec<u8> {
        let mut arrived = vec![0; self.arrivals.len() as usize];
        self.arrivals.read(0, &mut arrived).expect("reading");
        arrived
    }

    /// Captures the launches of `start` as a graph.
    pub(crate) fn capture(&self, start: impl FnOnce()) -> Graph {
        self.stream.begin_capture().expect("a capture");
        start();
        self.stream.end_capture().expect("a graph")
    }

    /// Launches a graph that was captured here.
    pub(crate) fn replay(&self, graph: &Graph) {
        // SAFETY: the kernels of this end, as in `launch`.
        unsafe { graph.launch(&self.stream).expect("a launch") };
    }

    /// Takes the end apart, into parts that can be dropped one by one.
    pub(crate) fn into_parts(self) -> Vec<Box<dyn Any>> {
        let Self { service, channels, source, arrivals, gpu, stream, module, results, handles } = self;
        vec![
            Box::new(channels[0].semaphore().clone()),
            Box::new(channels),
            Box::new(service),
            Box::new((source, arrivals)),
            Box::new((gpu, stream, module, results, handles)),
        ]
    }
}
