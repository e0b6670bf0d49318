//! Kernels of simulated devices: launches, and blocks that wait for each other.

mod held_up;
mod sources;

use std::time::Duration;

use crate::words;
use mscclpp_gpu::{
    DevicePtr, Error, Gpu, Kernel, KernelArgs, KernelSource, LaunchConfig, Module, OutOfBounds, Platform,
    Stream,
};

const SECONDS: Duration = Duration::from_secs(60);

const SOURCE: KernelSource<'_> = KernelSource::new("kernels.cu", include_str!("../kernels.cu"));

/// The number of blocks of a grid with more blocks than run at once.
const MANY_BLOCKS: u32 = 3 * 1024 + 1;

fn module(gpu: &Gpu) -> Module {
    Module::load(gpu, &SOURCE).unwrap()
}

fn launch(kernel: &Kernel, stream: &Stream, config: LaunchConfig, args: &KernelArgs) -> Result<(), Error> {
    // SAFETY: the tests give each kernel its arguments and keep the memory until the stream is synchronised.
    unsafe { kernel.launch(stream, config, args) }
}

/// The parts of the device API that a GPU's warp does in one instruction rely on this.
#[test]
fn threads_go_on_behind_a_barrier_in_their_order_whoever_came_last() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, kernel) = (gpu.stream().unwrap(), module(&gpu).kernel("order_behind_barrier").unwrap());
    let (counter, order) = (gpu.allocate(16).unwrap(), gpu.allocate(8 * 32).unwrap());
    for of_block in [0, 1] {
        counter.fill(0, 16, 0).unwrap();
        let args = KernelArgs::new().with(counter.ptr()).with(order.ptr());
        let args = args.with(counter.ptr().add(8)).with(of_block);
        launch(&kernel, &stream, LaunchConfig::linear(1, 32), &args).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(words(&order), (0..32).collect::<Vec<_>>());
    }
}

#[test]
fn every_thread_of_the_grid_runs_once() {
    let gpu = Platform::Sim.gpu(0).unwrap();
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
    let gpu = Platform::Sim.gpu(0).unwrap();
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
    let gpu = Platform::Sim.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let module = module(&gpu);
    set_first(&module, 1);
    let kernel = module.kernel("count_in_symbol").unwrap();
    launch(&kernel, &stream, LaunchConfig::linear(MANY_BLOCKS, 1), &KernelArgs::new()).unwrap();
    stream.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(counters(&gpu, &module, &stream), [0, u64::from(MANY_BLOCKS)]);
}

/// Sets the number that `count_in_symbol` adds.
fn set_first(module: &Module, value: u32) {
    module.set_symbol("first", &[value]).unwrap();
}

fn counters(gpu: &Gpu, module: &Module, stream: &Stream) -> Vec<u64> {
    let (counter, size) = module.symbol("counter").unwrap();
    assert_eq!(size, 16);
    let copy = gpu.allocate(size).unwrap();
    // SAFETY: the variable has `size` bytes and lives as long as `module`.
    unsafe { stream.copy(copy.ptr(), counter, size).unwrap() };
    stream.synchronize().unwrap();
    words(&copy)
}

#[test]
fn each_load_and_each_device_has_variables_of_its_own() {
    let gpus = [0, 0, 1].map(|id| Platform::Sim.gpu(id).unwrap());
    let loaded: Vec<_> = gpus.iter().map(|gpu| (module(gpu), gpu.stream().unwrap())).collect();
    for (step, (module, _)) in loaded.iter().enumerate() {
        set_first(module, step as u32 + 1);
    }
    for (module, stream) in &loaded {
        let kernel = module.kernel("count_in_symbol").unwrap();
        launch(&kernel, stream, LaunchConfig::linear(10, 1), &KernelArgs::new()).unwrap();
        stream.synchronize_timeout(SECONDS).unwrap();
    }
    for (step, (gpu, (module, stream))) in gpus.iter().zip(&loaded).enumerate() {
        assert_eq!(counters(gpu, module, stream), [0, 10 * (step as u64 + 1)], "load {step}");
    }
}

#[test]
fn what_is_loaded_once_has_the_same_variables_until_its_text_differs() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let text = r#"__device__ unsigned int first;"#;
    let once = |text: &str| Module::load_once(&gpu, &KernelSource::new("once.cu", text)).unwrap();
    let place = |module: &Module| module.symbol("first").unwrap().0;
    assert_eq!(place(&once(text)), place(&once(text)));
    assert_ne!(place(&once(text)), place(&once(&format!("{text} // another"))));
    let other = Platform::Sim.gpu(1).unwrap();
    let there = Module::load_once(&other, &KernelSource::new("once.cu", text)).unwrap();
    assert_ne!(place(&once(text)), place(&there));
}

#[test]
fn symbols_hold_no_more_than_they_are() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let result = module(&gpu).set_symbol("first", &[1u32, 2]);
    assert!(matches!(result, Err(Error::OutOfBounds(OutOfBounds { size: 4, .. }))), "{result:?}");
    let result = module(&gpu).set_symbol("firsst", &[1u32]);
    assert!(matches!(result, Err(Error::NoSuchSymbol { .. })), "{result:?}");
}

#[test]
fn cooperative_launches_fit_or_are_refused() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, arrived) = (gpu.stream().unwrap(), gpu.allocate(8).unwrap());
    let kernel = module(&gpu).kernel("barrier").unwrap();
    let fit = kernel.max_resident_blocks(1, 0).unwrap() as u32;
    let args = KernelArgs::new().with(arrived.ptr());
    let launch = |blocks| {
        // SAFETY: its argument, which outlives the launch.
        unsafe { kernel.launch_cooperative(&stream, LaunchConfig::linear(blocks, 1), &args) }
    };
    let Err(Error::InvalidArgument(message)) = launch(fit + 1) else { panic!("it was launched") };
    assert!(message.contains(&format!("{} blocks", fit + 1)), "{message}");
    launch(64).unwrap();
    stream.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&arrived), [64]);
}

#[test]
fn threads_wait_for_each_other_within_block_and_warp() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let kernel = module(&gpu).kernel("wait_within_block").unwrap();
    for other in [1, 31, 32, 1023] {
        let word = gpu.allocate(8).unwrap();
        let args = KernelArgs::new().with(word.ptr()).with(other);
        launch(&kernel, &stream, LaunchConfig::linear(1, 1024), &args).unwrap();
        stream.synchronize_timeout(SECONDS).unwrap();
        assert_eq!(words(&word), [2], "thread {other}");
    }
}

#[test]
fn warps_vote_shuffle_and_count() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let kernel = module(&gpu).kernel("warps").unwrap();
    let results = gpu.allocate(8 * 64).unwrap();
    launch(&kernel, &stream, LaunchConfig::linear(1, 64), &KernelArgs::new().with(results.ptr())).unwrap();
    stream.synchronize_timeout(SECONDS).unwrap();
    assert_eq!(words(&results), [1; 64]);
}

#[test]
fn threads_that_can_never_meet_fail_the_kernel() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let kernel = module(&gpu).kernel("never_meet").unwrap();
    // Two threads of one warp wait for each other at different barriers.
    launch(&kernel, &stream, LaunchConfig::linear(1, 2), &KernelArgs::new()).unwrap();
    let message = failure(stream.synchronize_timeout(SECONDS), "never_meet");
    assert!(message.contains("1 wait at a barrier of the block"), "{message}");
    assert!(message.contains("1 at one of their warp"), "{message}");
}

#[test]
fn an_access_outside_of_all_memory_fails_the_kernel_with_its_place() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let touch = |address: DevicePtr| {
        let stream = gpu.stream().unwrap();
        let kernel = module(&gpu).kernel("touch").unwrap();
        let args = KernelArgs::new().with(address).with(3u32);
        launch(&kernel, &stream, LaunchConfig::linear(2, 8), &args).unwrap();
        stream.synchronize_timeout(SECONDS)
    };
    let buffer = gpu.allocate(4096).unwrap();
    touch(buffer.ptr().add(4088)).unwrap();
    let pinned = gpu.allocate_pinned(64).unwrap();
    touch(pinned.ptr()).unwrap();

    let message = failure(touch(DevicePtr::NULL), "touch");
    assert!(message.contains("thread [3, 0, 0]: writing 8 bytes at 0x0, which is not memory"), "{message}");
    let message = failure(touch(buffer.ptr().add(4)), "touch");
    assert!(message.contains("no multiple of 8"), "{message}");
    let own = Box::new(0u64);
    let message = failure(touch(DevicePtr::from_ptr(&raw const *own)), "touch");
    assert!(message.contains("which is not memory of a device"), "{message}");
}

/// Returns the message of a kernel that failed.
fn failure(result: Result<(), Error>, name: &str) -> String {
    match result {
        Err(Error::KernelFailed { kernel, message }) => {
            assert_eq!(kernel, name);
            message
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn seven_devices_signal_each_other_in_a_ring() {
    const RANKS: usize = 7;
    const ROUNDS: u64 = 200;
    // Other tests count the memory of the devices from 4 on, and wait for all streams of device 3.
    let gpus: Vec<_> = (0..RANKS).map(|rank| Platform::Sim.gpu(rank % 3).unwrap()).collect();
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
    let gpu = Platform::Sim.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let sums = gpu.allocate(8 * 16).unwrap();
    let kernel = module(&gpu).kernel("shared_sum").unwrap();
    let config = |shared_bytes| LaunchConfig { shared_bytes, ..LaunchConfig::linear(16, 100) };
    launch(&kernel, &stream, config(400), &KernelArgs::new().with(sums.ptr())).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(words(&sums), [4950; 16]);
}

#[test]
fn launches_that_can_never_run_are_refused() {
    let gpu = Platform::Sim.gpu(0).unwrap();
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
        // SAFETY: the same as in `launch`.
        let result = unsafe { kernel.launch_cooperative(&stream, config, &KernelArgs::new()) };
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "cooperative {config:?}: {result:?}");
    }
    // SAFETY: the code is not loaded.
    let code = unsafe { Module::load_binary(&gpu, "mine.cubin", b"\x7fELF") };
    assert!(matches!(&code, Err(Error::InvalidArgument(why)) if why.contains("mine.cubin")), "{code:?}");
    launch(&kernel, &stream, fine, &KernelArgs::new()).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_block_that_fails_ends_those_that_wait_for_it() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let stream = gpu.stream().unwrap();
    let arrived = gpu.allocate(8).unwrap();
    let kernel = module(&gpu).kernel("barrier_without_last_block").unwrap();
    launch(&kernel, &stream, LaunchConfig::linear(8, 1), &KernelArgs::new().with(arrived.ptr())).unwrap();
    // The kernel fails sooner than the other blocks would give up.
    let message = failure(stream.synchronize_timeout(SECONDS), "barrier_without_last_block");
    assert!(message.starts_with("block [7, 0, 0]") && message.contains("not me"), "{message}");
}

#[test]
fn arguments_of_other_sizes_than_the_parameters_are_refused() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let (stream, module) = (gpu.stream().unwrap(), module(&gpu));
    let word = gpu.allocate(8).unwrap();
    let args = KernelArgs::new;
    for (name, args, expected) in [
        (
            "fails",
            args().with(1u64),
            "argument 0 (block: u64) has 8 bytes, and its parameter 4; its parameters have [4] bytes, the arguments [8]",
        ),
        ("fails", args(), "argument 0 (block) is missing; its parameters have [4] bytes, the arguments []"),
        (
            "gate",
            args().with(&word).with_bytes(&[1, 2]),
            "argument 1 (value: bytes) has 2 bytes, and its parameter 8; its parameters have [8, 8] bytes, the arguments \
             [8, 2]",
        ),
        (
            "gate",
            args().with(&word).with(1u64).with(&std::sync::Arc::new(word.clone())),
            "argument 2 (&Arc<DeviceBuffer>) has no parameter; its parameters have [8, 8] bytes, the arguments [8, 8, 8]",
        ),
    ] {
        let result = launch(&module.kernel(name).unwrap(), &stream, LaunchConfig::linear(1, 1), &args);
        let Err(Error::InvalidArgument(message)) = result else { panic!("{result:?}") };
        assert_eq!(message, format!("launch of {name}: {expected}"));
    }
}

#[test]
fn names_that_do_not_exist_are_errors_that_list_those_that_do() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let loaded = module(&gpu);
    let error = loaded.kernel("gatte").expect_err("there is none");
    assert!(error.to_string().contains("declared extern \"C\""), "{error}");
    let Error::NoSuchSymbol { kind: "kernel", name, available } = error else { panic!() };
    assert_eq!(name, "gatte");
    assert!(available.contains("gate") && available.contains("ring"), "{available}");
    let Err(Error::NoSuchSymbol { kind: "symbol", available, .. }) = loaded.symbol("gate") else { panic!() };
    assert!(available.contains("first") && available.contains("counter"), "{available}");
    assert_ne!(loaded.symbol("first").unwrap().0, loaded.symbol("counter").unwrap().0);
}
