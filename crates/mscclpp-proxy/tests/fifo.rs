//! The FIFO in mapped memory, with hundreds of threads.

use std::{
    thread,
    time::{Duration, Instant},
};

use mscclpp_gpu::{
    KernelArgs, LaunchConfig, Module, ModuleSource, Platform,
    host::{HostBlock, HostKernel},
};
use mscclpp_proxy::{Fifo, FifoHandle, ProxyTrigger};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bits of a trigger's words for the number of a thread, above its sequence number.
const SEQUENCE: u32 = 40;

/// `__global__ void push(FifoDeviceHandle fifo, uint64_t each)`: each block pushes its number and a sequence number.
unsafe fn push(block: &HostBlock<'_>) {
    // SAFETY: the arguments of the launch below.
    let (fifo, each): (FifoHandle, u64) = unsafe { (block.arg(0), block.arg(1)) };
    let producer = u64::from(block.block_idx()[0]);
    for n in 0..each {
        let word = producer << SEQUENCE | n;
        // SAFETY: the FIFO of a simulated device, alive until the launch has ended.
        let position = unsafe { fifo.push(ProxyTrigger { fst: word, snd: !word >> 1 }, -1) };
        assert_ne!(position, FifoHandle::FAILED);
        // A few, so that the others go round; hundreds that wait would take turns with the one that pops.
        // SAFETY: as above.
        if producer < 8 && n % 16 == 15 && !unsafe { fifo.sync(position, -1) } {
            panic!("the sync of {position} was given up");
        }
    }
}

/// All of `producers * each` triggers come once, whole, and those of a producer in their order.
fn storm(size: u64, producers: u64, each: u64) {
    let gpu = Platform::Host.gpu(0).unwrap();
    let mut fifo = Fifo::new(&gpu, size).unwrap();
    let kernels = [HostKernel { name: "push", run: push }];
    let module =
        Module::load(&gpu, &ModuleSource { ptx: "", host_kernels: &kernels, host_symbols: &[] }).unwrap();
    let stream = gpu.stream().unwrap();
    let args = KernelArgs::new().with(fifo.device_handle()).with(each);
    let config = LaunchConfig::linear(producers as u32, 1);
    // SAFETY: these are its arguments, and the FIFO lives until the stream is synchronised.
    unsafe { module.kernel("push").unwrap().launch(&stream, config, &args).unwrap() };

    let mut next = vec![0; producers as usize];
    let mut last = Instant::now();
    for taken in 0..producers * each {
        let trigger = loop {
            match fifo.poll() {
                Some(trigger) => break trigger,
                None if last.elapsed() > PATIENCE => panic!("nothing after {taken} triggers, size {size}"),
                None => thread::yield_now(),
            }
        };
        assert_eq!(fifo.tail(), taken);
        assert_eq!(trigger.snd, !trigger.fst >> 1, "a torn trigger, size {size}");
        let (producer, n) = ((trigger.fst >> SEQUENCE) as usize, trigger.fst & ((1 << SEQUENCE) - 1));
        assert_eq!(n, next[producer], "lost, doubled or out of order: producer {producer}, size {size}");
        next[producer] += 1;
        fifo.pop();
        last = Instant::now();
    }
    stream.synchronize_timeout(PATIENCE).unwrap();
    assert_eq!(fifo.poll(), None);
    fifo.check().unwrap();
}

/// A kernel of 512 threads, and laps that many of them share; where the FIFO is small there are fewer, as those that
/// wait for room only take turns.
#[test]
fn nothing_is_lost_doubled_or_torn_among_many_producers() {
    for (size, producers, each) in
        [(2, 8, 200), (16, 32, 100), (512, 512, 20), (1024, 512, 20), (4096, 512, 40)]
    {
        storm(size, producers, each);
    }
}

#[test]
fn a_single_producer_over_thousands_of_laps() {
    for size in [2, 4, 64] {
        storm(size, 1, 2_000);
    }
}
