//! Kernels of the Host platform: launches, blocks that wait for each other, failures, and streams held up by a kernel.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use mscclpp_gpu::{
    DeviceBuffer, DevicePtr, Error, Gpu, Kernel, KernelArgs, LaunchConfig, Module, ModuleSource, Platform,
    Stream,
    host::{Backoff, HostBlock, HostKernel, HostSymbol, MAX_RESIDENT_BLOCKS},
};

const SECONDS: Duration = Duration::from_secs(20);

const KERNELS: &[HostKernel] = &[
    HostKernel { name: "record_indices", run: record_indices },
    HostKernel { name: "barrier", run: barrier },
    HostKernel { name: "barrier_without_last_block", run: barrier_without_last_block },
    HostKernel { name: "gate", run: gate },
    HostKernel { name: "ring", run: ring },
    HostKernel { name: "shared_sum", run: shared_sum },
    HostKernel { name: "count_in_symbol", run: count_in_symbol },
    HostKernel { name: "panics", run: panics },
    HostKernel { name: "reads_a_missing_argument", run: reads_a_missing_argument },
];
const SYMBOLS: &[HostSymbol] =
    &[HostSymbol { name: "first", size: 4 }, HostSymbol { name: "counter", size: 16 }];

unsafe fn word<'a>(ptr: DevicePtr) -> &'a AtomicU64 {
    // SAFETY: the callers' launches promise live, aligned words, which are only accessed with atomics.
    unsafe { AtomicU64::from_ptr(ptr.as_mut_ptr()) }
}

/// Waits until the word is `value`; a minute is the bound.
unsafe fn wait_for(ptr: DevicePtr, value: u64) {
    let (start, mut backoff) = (Instant::now(), Backoff::new());
    // SAFETY: passed on.
    while unsafe { word(ptr) }.load(Ordering::Acquire) != value {
        assert!(start.elapsed() < Duration::from_secs(60), "{ptr:?} never became {value}");
        backoff.wait();
    }
}

/// `(words)`: thread t of the grid, in linear order, stores what it is at word t.
unsafe fn record_indices(block: &HostBlock<'_>) {
    // SAFETY: the argument of every launch below.
    let words: DevicePtr = unsafe { block.arg(0) };
    let ([gx, gy, _], [bx, by, bz]) = (block.grid_dim(), block.block_idx());
    let block_number = u64::from((bz * gy + by) * gx + bx);
    for thread in block.threads() {
        let [tx, ty, tz] = block.thread_idx(thread);
        let number = block_number * u64::from(block.threads().end) + u64::from(thread);
        let value = [bz, by, bx, tz, ty, tx].iter().fold(0, |value, i| value * 100 + u64::from(*i));
        // SAFETY: there is a word for every thread of the grid.
        unsafe { word(words.add(8 * number)) }.store(value, Ordering::Relaxed);
    }
}

/// `(arrived)`: every block waits for all others.
unsafe fn barrier(block: &HostBlock<'_>) {
    // SAFETY: the argument of every launch below.
    unsafe {
        let arrived: DevicePtr = block.arg(0);
        word(arrived).fetch_add(1, Ordering::AcqRel);
        wait_for(arrived, u64::from(block.grid_dim()[0]));
    }
}

/// `(arrived)`: as `barrier`, but the last block does not come.
unsafe fn barrier_without_last_block(block: &HostBlock<'_>) {
    assert!(block.block_idx()[0] + 1 != block.grid_dim()[0], "not me");
    // SAFETY: the same argument.
    unsafe { barrier(block) }
}

/// `(word, value)`: waits until the word has the value.
unsafe fn gate(block: &HostBlock<'_>) {
    // SAFETY: the arguments of every launch below.
    unsafe { wait_for(block.arg(0), block.arg(1)) }
}

/// `(own, next, rank, ranks, rounds)`: a token goes round; rank 0 starts it.
unsafe fn ring(block: &HostBlock<'_>) {
    // SAFETY: the arguments of every launch below.
    unsafe {
        let (own, next): (DevicePtr, DevicePtr) = (block.arg(0), block.arg(1));
        let (rank, rounds): (u64, u64) = (block.arg(2), block.arg(3));
        for round in 1..=rounds {
            if rank != 0 {
                wait_for(own, round);
            }
            word(next).store(round, Ordering::Release);
            if rank == 0 {
                wait_for(own, round);
            }
        }
    }
}

/// `(sums)`: adds the thread numbers up by way of shared memory.
unsafe fn shared_sum(block: &HostBlock<'_>) {
    // SAFETY: the argument of every launch below; any bits are a u32.
    unsafe {
        let sums: DevicePtr = block.arg(0);
        let numbers = block.shared::<u32>(block.threads().len());
        assert!(numbers.iter().all(|n| n.get() == 0));
        for thread in block.threads() {
            numbers[thread as usize].set(thread);
        }
        // __syncthreads()
        let sum = block.shared::<u32>(numbers.len()).iter().map(|n| u64::from(n.get())).sum();
        word(sums.add(8 * u64::from(block.block_idx()[0]))).store(sum, Ordering::Relaxed);
    }
}

unsafe fn count_in_symbol(block: &HostBlock<'_>) {
    // SAFETY: the variable is the module's and has 16 bytes.
    unsafe { word(block.symbol("counter").add(8)) }.fetch_add(1, Ordering::Relaxed);
}

/// `(block)`: that block panics.
unsafe fn panics(block: &HostBlock<'_>) {
    // SAFETY: the argument of every launch below.
    let victim: u32 = unsafe { block.arg(0) };
    assert!(block.block_idx()[0] != victim, "block {victim} was told to");
}

unsafe fn reads_a_missing_argument(block: &HostBlock<'_>) {
    // SAFETY: there is none, which is found out.
    let _: u64 = unsafe { block.arg(3) };
}

fn module(gpu: &Gpu) -> Module {
    Module::load(gpu, &ModuleSource { ptx: "", host_kernels: KERNELS, host_symbols: SYMBOLS }).unwrap()
}

fn launch(kernel: &Kernel, stream: &Stream, config: LaunchConfig, args: &KernelArgs) -> Result<(), Error> {
    // SAFETY: the tests give each kernel its arguments and keep the memory until the stream is synchronised.
    unsafe { kernel.launch(stream, config, args) }
}

/// A kernel that holds `stream` up until the gate is opened.
fn close_gate(gpu: &Gpu, stream: &Stream) -> Gate {
    let word = gpu.allocate(8).unwrap();
    let args = KernelArgs::new().with(word.ptr()).with(1u64);
    launch(&module(gpu).kernel("gate").unwrap(), stream, LaunchConfig::linear(1, 1), &args).unwrap();
    Gate(word)
}

struct Gate(DeviceBuffer);

impl Gate {
    fn open(&self) {
        self.0.write(0, &1u64.to_ne_bytes()).unwrap();
    }
}

fn words(buffer: &DeviceBuffer) -> Vec<u64> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.read(0, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

#[test]
fn every_thread_of_the_grid_runs_once() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let buffer = gpu.allocate(8 * 2 * 3 * 4 * 5 * 2 * 3).unwrap();
    let config = LaunchConfig { grid: [2, 3, 4], block: [5, 2, 3], shared_bytes: 0 };
    let kernel = module(&gpu).kernel("record_indices").unwrap();
    launch(&kernel, &stream, config, &KernelArgs::new().with(buffer.ptr())).unwrap();
    stream.synchronize().unwrap();
    let mut expected = Vec::new();
    for (bz, by, bx) in (0..4).flat_map(|z| (0..3).flat_map(move |y| (0..2).map(move |x| (z, y, x)))) {
        for (tz, ty, tx) in (0..3).flat_map(|z| (0..2).flat_map(move |y| (0..5).map(move |x| (z, y, x)))) {
            expected.push([bz, by, bx, tz, ty, tx].iter().fold(0u64, |value, i| value * 100 + i));
        }
    }
    assert_eq!(words(&buffer), expected);
}

#[test]
fn blocks_can_wait_for_each_other() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let kernel = module(&gpu).kernel("barrier").unwrap();
    for blocks in [1, 2, 64] {
        let arrived = gpu.allocate(8).unwrap();
        launch(&kernel, &stream, LaunchConfig::linear(blocks, 32), &KernelArgs::new().with(arrived.ptr()))
            .unwrap();
        stream.synchronize_timeout(SECONDS).unwrap();
        assert_eq!(words(&arrived), [u64::from(blocks)]);
    }
}

#[test]
fn grids_larger_than_the_device_run_in_turns() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let module = module(&gpu);
    let blocks = MAX_RESIDENT_BLOCKS as u32 * 3 + 1;
    let kernel = module.kernel("count_in_symbol").unwrap();
    launch(&kernel, &stream, LaunchConfig::linear(blocks, 1), &KernelArgs::new()).unwrap();
    stream.synchronize_timeout(SECONDS).unwrap();
    let (counter, size) = module.symbol("counter").unwrap();
    assert_eq!(size, 16);
    let copy = gpu.allocate(size).unwrap();
    // SAFETY: the variable has `size` bytes and lives as long as `module`.
    unsafe { stream.copy(copy.ptr(), counter, size).unwrap() };
    stream.synchronize().unwrap();
    assert_eq!(words(&copy), [0, u64::from(blocks)]);
}

#[test]
fn seven_devices_signal_each_other_in_a_ring() {
    const RANKS: usize = 7;
    const ROUNDS: u64 = 200;
    let gpus: Vec<_> = (0..RANKS).map(|id| Platform::Host.gpu(id).unwrap()).collect();
    let tokens: Vec<_> = gpus.iter().map(|gpu| gpu.allocate(8).unwrap()).collect();
    let streams: Vec<_> = gpus.iter().map(|gpu| gpu.stream().unwrap()).collect();
    for rank in 0..RANKS {
        let args = KernelArgs::new()
            .with(tokens[rank].ptr())
            .with(tokens[(rank + 1) % RANKS].ptr())
            .with(rank as u64)
            .with(ROUNDS);
        let kernel = module(&gpus[rank]).kernel("ring").unwrap();
        launch(&kernel, &streams[rank], LaunchConfig::linear(1, 1), &args).unwrap();
    }
    for (stream, token) in streams.iter().zip(&tokens) {
        stream.synchronize_timeout(SECONDS).unwrap();
        assert_eq!(words(token), [ROUNDS]);
    }
}

#[test]
fn shared_memory_is_the_blocks_own() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let sums = gpu.allocate(8 * 16).unwrap();
    let kernel = module(&gpu).kernel("shared_sum").unwrap();
    let config = |shared_bytes| LaunchConfig { shared_bytes, ..LaunchConfig::linear(16, 100) };
    launch(&kernel, &stream, config(400), &KernelArgs::new().with(sums.ptr())).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(words(&sums), [4950; 16]);

    launch(&kernel, &stream, config(399), &KernelArgs::new().with(sums.ptr())).unwrap();
    let Err(Error::KernelFailed { message, .. }) = stream.synchronize() else {
        panic!("one byte is missing")
    };
    assert!(message.contains("399 bytes of shared memory"), "{message}");
}

#[test]
fn launches_that_can_never_run_are_refused() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let kernel = module(&gpu).kernel("count_in_symbol").unwrap();
    let fine = LaunchConfig::linear(1, 1);
    for config in [
        LaunchConfig { grid: [0, 1, 1], ..fine },
        LaunchConfig { grid: [1, 1, 0], ..fine },
        LaunchConfig { grid: [u32::MAX, 1, 1], ..fine },
        LaunchConfig { block: [1, 0, 1], ..fine },
        LaunchConfig { block: [1025, 1, 1], ..fine },
        LaunchConfig { block: [64, 32, 1], ..fine },
        LaunchConfig { block: [u32::MAX, u32::MAX, u32::MAX], ..fine },
        LaunchConfig { shared_bytes: u32::MAX, ..fine },
    ] {
        let result = launch(&kernel, &stream, config, &KernelArgs::new());
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{config:?}: {result:?}");
    }
    let other = Platform::Host.gpu(1).unwrap().stream().unwrap();
    let result = launch(&kernel, &other, fine, &KernelArgs::new());
    assert!(
        matches!(&result, Err(Error::InvalidArgument(why)) if why.contains("host device 1")),
        "{result:?}"
    );
    launch(&kernel, &stream, fine, &KernelArgs::new()).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_kernel_that_panics_fails_its_stream_and_what_waits_for_it() {
    let gpu = Platform::Host.gpu(2).unwrap();
    let (stream, waiting, bystander) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let event = gpu.event(true).unwrap();
    let word = gpu.allocate(8).unwrap();
    let kernel = module(&gpu).kernel("panics").unwrap();
    let gate = close_gate(&gpu, &stream);
    launch(&kernel, &stream, LaunchConfig::linear(4, 1), &KernelArgs::new().with(2u32)).unwrap();
    // SAFETY: `word` outlives the work.
    unsafe { stream.write_u64(word.ptr(), 1).unwrap() };
    stream.record(&event).unwrap();
    waiting.wait_event(&event).unwrap();
    gate.open();

    let failed = |result: Result<(), Error>| match result {
        Err(Error::KernelFailed { kernel, message }) => {
            assert_eq!(kernel, "panics");
            assert_eq!(message, "block [2, 0, 0] panicked: block 2 was told to");
        }
        other => panic!("{other:?}"),
    };
    failed(stream.synchronize_timeout(SECONDS));
    failed(stream.synchronize());
    failed(stream.query().map(drop));
    failed(launch(&kernel, &stream, LaunchConfig::linear(1, 1), &KernelArgs::new().with(9u32)));
    failed(stream.begin_capture());
    failed(event.query().map(drop));
    failed(waiting.synchronize_timeout(SECONDS));
    failed(gpu.synchronize());
    assert_eq!(words(&word), [0], "work behind the failure was done");

    launch(&kernel, &bystander, LaunchConfig::linear(4, 1), &KernelArgs::new().with(9u32)).unwrap();
    bystander.synchronize().unwrap();
    drop((stream, waiting));
    gpu.synchronize().unwrap();
}

#[test]
fn a_block_that_panics_ends_those_that_wait_for_it() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let arrived = gpu.allocate(8).unwrap();
    let kernel = module(&gpu).kernel("barrier_without_last_block").unwrap();
    launch(&kernel, &stream, LaunchConfig::linear(8, 1), &KernelArgs::new().with(arrived.ptr())).unwrap();
    // Sooner than the others would give up.
    let Err(Error::KernelFailed { message, .. }) = stream.synchronize_timeout(SECONDS) else {
        panic!("no failure")
    };
    assert_eq!(message, "block [7, 0, 0] panicked: not me");
}

#[test]
fn wrong_arguments_fail_the_launch_and_not_the_process() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let run = |name: &str, args: &KernelArgs| {
        let stream = gpu.stream().unwrap();
        launch(&module(&gpu).kernel(name).unwrap(), &stream, LaunchConfig::linear(1, 1), args).unwrap();
        match stream.synchronize() {
            Err(Error::KernelFailed { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    };
    let message = run("reads_a_missing_argument", &KernelArgs::new().with(1u64));
    assert!(message.contains("argument 3 of 1"), "{message}");
    let message = run("panics", &KernelArgs::new().with(1u64));
    assert!(message.contains("argument 0 has 8 bytes, 4 were read"), "{message}");
}

#[test]
fn names_that_do_not_exist_are_errors_that_list_those_that_do() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let loaded = module(&gpu);
    let Err(Error::NoSuchSymbol { kind: "kernel", name, available }) = loaded.kernel("gatte") else {
        panic!()
    };
    assert_eq!(name, "gatte");
    assert!(available.contains("gate") && available.contains("ring"), "{available}");
    let Err(Error::NoSuchSymbol { kind: "symbol", available, .. }) = loaded.symbol("gate") else { panic!() };
    assert_eq!(available, "first, counter");
    assert_ne!(loaded.symbol("first").unwrap().0, loaded.symbol("counter").unwrap().0);

    let twice = [KERNELS[0], KERNELS[0]];
    let empty = [HostSymbol { name: "nothing", size: 0 }];
    let huge = [HostSymbol { name: "huge", size: u64::MAX }];
    for (host_kernels, host_symbols) in [(&twice[..], &[][..]), (&[], &empty), (&[], &huge)] {
        let result = Module::load(&gpu, &ModuleSource { ptx: "", host_kernels, host_symbols });
        assert!(matches!(result, Err(Error::Compile { .. })), "{result:?}");
    }
}

#[test]
fn a_wait_that_timed_out_can_be_repeated() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let event = gpu.event(true).unwrap();
    let gate = close_gate(&gpu, &stream);
    stream.record(&event).unwrap();
    let short = Duration::from_millis(20);
    for _ in 0..2 {
        let Err(Error::Timeout { after, .. }) = stream.synchronize_timeout(short) else {
            panic!("the gate is shut")
        };
        assert_eq!(after, short);
        assert!(matches!(event.synchronize_timeout(short), Err(Error::Timeout { .. })));
    }
    assert!(!stream.query().unwrap());
    assert!(!event.query().unwrap());
    assert!(matches!(event.elapsed_ms(&event), Err(Error::InvalidArgument(_))));
    gate.open();
    stream.synchronize_timeout(SECONDS).unwrap();
    assert!(event.query().unwrap());
}

#[test]
fn an_event_holds_other_streams_up_until_it_is_reached() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let (held, waiting) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let event = gpu.event(false).unwrap();
    let word = gpu.allocate(8).unwrap();
    let gate = close_gate(&gpu, &held);
    held.record(&event).unwrap();
    waiting.wait_event(&event).unwrap();
    // The mark that was there when it was asked counts, not a later one.
    waiting.record(&event).unwrap();
    // SAFETY: `word` outlives the work.
    unsafe { waiting.write_u64(word.ptr(), 1).unwrap() };
    assert!(matches!(waiting.synchronize_timeout(Duration::from_millis(50)), Err(Error::Timeout { .. })));
    assert_eq!(words(&word), [0]);
    gate.open();
    waiting.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&word), [1]);
}

#[test]
fn a_dropped_stream_does_its_work_without_holding_the_drop_up() {
    let gpu = Platform::Host.gpu(0).unwrap();
    let word = gpu.allocate(8).unwrap();
    let stream = gpu.stream().unwrap();
    let event = gpu.event(false).unwrap();
    let gate = close_gate(&gpu, &stream);
    // SAFETY: `word` outlives the work.
    unsafe { stream.write_u64(word.ptr(), 7).unwrap() };
    stream.record(&event).unwrap();
    // Were it to wait for the work, it would wait for the gate for ever.
    drop(stream);
    assert_eq!(words(&word), [0]);
    gate.open();
    event.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&word), [7]);
}

#[test]
fn a_captured_launch_keeps_its_module_and_arguments() {
    // The only test here that uses this device: it counts what is allocated on it.
    let gpu = Platform::Host.gpu(7).unwrap();
    let stream = gpu.stream().unwrap();
    let free = gpu.memory_info().unwrap().free;
    let sums = gpu.allocate(8).unwrap();
    stream.begin_capture().unwrap();
    {
        let config = LaunchConfig { shared_bytes: 64, ..LaunchConfig::linear(1, 10) };
        let args = KernelArgs::new().with(sums.ptr());
        launch(&module(&gpu).kernel("shared_sum").unwrap(), &stream, config, &args).unwrap();
    }
    let graph = stream.end_capture().unwrap();
    for _ in 0..100 {
        sums.fill(0, 8, 0).unwrap();
        // SAFETY: `sums` outlives the launch.
        unsafe { graph.launch(&stream).unwrap() };
        stream.synchronize().unwrap();
        assert_eq!(words(&sums), [45]);
    }
    drop((graph, sums));
    assert_eq!(gpu.memory_info().unwrap().free, free, "the module's variables are still allocated");
}
