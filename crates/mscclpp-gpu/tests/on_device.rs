//! Tests that need a GPU: the context that a thread had, kernels that need much memory, and what a driver refuses.

mod needs;

use std::{process::ExitCode, ptr, sync::atomic::Ordering, thread, time::Duration};

use libtest_mimic::Arguments;
use mscclpp_gpu::{DevicePtr, Error, KernelArgs, KernelSource, LaunchConfig, Module, Platform};
use mscclpp_gpu_sys::cuda::{CUcontext, CuResult, Driver};
use mscclpp_test_support::until;

fn main() -> ExitCode {
    let trials = needs::cuda_trials![
        1: a_thread_without_a_context_keeps_the_first_it_needed,
        2: the_current_context_of_the_thread_comes_back,
        2: a_device_fills_memory_of_another,
        1: a_kernel_with_much_shared_memory_of_its_own_puts_through_a_port_channel,
        1: a_kernel_with_much_local_memory_starts_while_another_waits_for_it,
        1: a_launch_records_an_event_when_its_kernel_has_begun,
        1: a_kernel_that_waits_for_earlier_launches_begins_while_they_run,
        1: kernels_that_may_begin_early_see_what_those_before_them_wrote,
        1: what_the_driver_refuses_is_an_error_that_names_it,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn current() -> CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is valid for the write.
    let result = unsafe { (Driver::load().unwrap().common.get_current.1)(&raw mut context) };
    assert_eq!(result, CuResult::SUCCESS);
    context
}

fn a_thread_without_a_context_keeps_the_first_it_needed() {
    let gpu = Platform::Cuda.gpu(0).unwrap();
    gpu.make_current().unwrap();
    // A pointer may not go to another thread, but its address may.
    let primary = current().addr();
    thread::spawn(move || {
        assert!(current().is_null(), "a new thread has a context");
        gpu.allocate(8).unwrap();
        assert_eq!(current().addr(), primary);
    })
    .join()
    .unwrap();
}

fn the_current_context_of_the_thread_comes_back() {
    let (gpu, other) = (Platform::Cuda.gpu(0).unwrap(), Platform::Cuda.gpu(1).unwrap());
    gpu.make_current().unwrap();
    let before = current();
    let buffer = other.allocate(8).unwrap();
    assert_eq!(current(), before, "after an allocation");
    buffer.write(0, &[1; 8]).unwrap();
    let stream = other.stream().unwrap();
    // SAFETY: the buffer outlives the work, which is waited for.
    unsafe { stream.write_u64(buffer.ptr(), 7).unwrap() };
    stream.synchronize().unwrap();
    assert_eq!(current(), before, "after work on a stream");
    drop((stream, buffer));
    assert_eq!(current(), before, "after dropping it all");
    // The context also decides which device is used where none is named.
    assert_eq!(Platform::Cuda.current_gpu().unwrap().id(), 0);
    other.make_current().unwrap();
    assert_eq!(Platform::Cuda.current_gpu().unwrap().id(), 1);
}

fn a_device_fills_memory_of_another() {
    let (gpu, other) = (Platform::Cuda.gpu(0).unwrap(), Platform::Cuda.gpu(1).unwrap());
    if !other.peer_access(&gpu).unwrap().reachable {
        println!("NOT TESTED: {other} does not reach the memory of {gpu}");
        return;
    }
    let (buffer, stream) = (gpu.allocate(4096).unwrap(), other.stream().unwrap());
    buffer.let_all_access().unwrap();
    // SAFETY: the buffer outlives the work, which is waited for.
    unsafe { stream.fill(buffer.ptr(), 4096, 7).unwrap() };
    stream.synchronize().unwrap();
    let mut bytes = [0; 4096];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
}

/// The kernel would have 64 KiB of static shared memory with the 24 KiB for bulk puts, which compute capability 9.0 has.
/// The limit is 48 KiB.
fn a_kernel_with_much_shared_memory_of_its_own_puts_through_a_port_channel() {
    let source = KernelSource::new(
        "much_shared.cu",
        r#"
        #include <mscclpp/port_channel_device.hpp>
        extern "C" __global__ void reversed(int* out, mscclpp::PortChannelDeviceHandle* channel) {
          __shared__ int own[10 * 1024];
          for (int i = threadIdx.x; i < 10 * 1024; i += blockDim.x) own[i] = 10 * 1024 - i;
          __syncthreads();
          for (int i = threadIdx.x; i < 10 * 1024; i += blockDim.x) out[i] = own[10 * 1024 - 1 - i];
          if (channel != nullptr) channel->put(0, 0, 4096);
        }
        "#,
    );
    let gpu = Platform::Cuda.gpu(0).unwrap();
    // The second load finds the result of the first in the cache.
    for _ in 0..2 {
        let kernel = Module::load(&gpu, &source).unwrap().kernel("reversed").unwrap();
        assert!(kernel.max_resident_blocks(256, 0).unwrap() > 0);
        let (out, stream) = (gpu.allocate(40 << 10).unwrap(), gpu.stream().unwrap());
        let args = KernelArgs::new().with(&out).with(DevicePtr::NULL);
        // SAFETY: the arguments are those of the kernel, which uses no channel.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 256), &args).unwrap() };
        stream.synchronize_timeout(Duration::from_secs(60)).unwrap();
        let mut bytes = vec![0; 40 << 10];
        out.read(0, &mut bytes).unwrap();
        let numbers: Vec<i32> = bytes.as_chunks().0.iter().map(|n| i32::from_ne_bytes(*n)).collect();
        assert_eq!(numbers, (1..=10 * 1024).collect::<Vec<i32>>());
    }
}

/// At first a context has 1024 bytes of local memory for each thread.
fn a_kernel_with_much_local_memory_starts_while_another_waits_for_it() {
    let source = KernelSource::new(
        "much_local.cu",
        r#"
        typedef unsigned long long Word;
        // The kernel gives up after some seconds.
        extern "C" __global__ void waits(volatile Word* word, Word* found) {
          const long long until = clock64() + (10ll << 30);
          while (*word == 0 && clock64() < until) {}
          *found = *word;
        }
        extern "C" __global__ void says(volatile Word* word, unsigned int step) {
          unsigned int all[750];
          for (unsigned int i = 0; i < 750; ++i) all[i * step % 750] = i + 1;
          *word = all[*word];
        }
        "#,
    );
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let module = Module::load(&gpu, &source).unwrap();
    let (words, waiting, other) = (gpu.allocate(16).unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    words.fill(0, 16, 0).unwrap();
    let found = words.ptr().add(8);
    let launch = |name: &str, stream, args: &KernelArgs| {
        // SAFETY: the arguments are those of the kernels, and the memory outlives the streams' work.
        unsafe { module.kernel(name).unwrap().launch(stream, LaunchConfig::linear(1, 1), args).unwrap() };
    };
    launch("waits", &waiting, &KernelArgs::new().with(words.ptr()).with(found));
    launch("says", &other, &KernelArgs::new().with(words.ptr()).with(1u32));
    for stream in [&waiting, &other] {
        stream.synchronize_timeout(Duration::from_secs(60)).unwrap();
    }
    let mut bytes = [0; 16];
    words.read(0, &mut bytes).unwrap();
    assert_eq!(bytes.as_chunks().0.iter().map(|n| u64::from_ne_bytes(*n)).collect::<Vec<_>>(), [1, 1]);
}

fn a_launch_records_an_event_when_its_kernel_has_begun() {
    let source = KernelSource::new(
        "gate.cu",
        r#"
        // The kernel gives up after some seconds.
        extern "C" __global__ void gate(volatile unsigned long long* word) {
          const long long until = clock64() + (20ll << 30);
          while (*word == 0 && clock64() < until) {}
        }
        "#,
    );
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let gate = Module::load(&gpu, &source).unwrap().kernel("gate").unwrap();
    let (words, stream, event) =
        (gpu.allocate_pinned(16).unwrap(), gpu.stream().unwrap(), gpu.event(false).unwrap());
    let args = |i: u64| KernelArgs::new().with(words.ptr().add(8 * i)).keeping(words.clone());
    let open = |i: u64| words.word(8 * i).unwrap().store(1, Ordering::Release);
    let one = LaunchConfig::linear(1, 1);
    // SAFETY: the argument is that of the kernel, and the launches keep the words.
    unsafe {
        gate.launch(&stream, one, &args(0)).unwrap();
        gate.launch_recording(&stream, one, &args(1), &event).unwrap();
    }
    assert!(!event.query().unwrap(), "the first kernel holds the second up");
    open(0);
    event.synchronize_timeout(Duration::from_secs(5)).unwrap();
    assert!(!stream.query().unwrap(), "the second kernel runs");
    open(1);
    stream.synchronize_timeout(Duration::from_secs(60)).unwrap();
}

/// A launch that records an event is an exception: the event says that what is in front of the launch is complete.
fn a_kernel_that_waits_for_earlier_launches_begins_while_they_run() {
    let source = KernelSource::new(
        "begins.cu",
        r#"
        #include <mscclpp/group_device.hpp>
        // The launch behind it may begin at once. The kernel gives up after some seconds.
        extern "C" __global__ void begins(volatile unsigned long long* begun, volatile unsigned long long* open) {
        #if __CUDA_ARCH__ >= 900
          asm volatile("griddepcontrol.launch_dependents;");
        #endif
          *begun = 1;
          __threadfence_system();
          mscclpp::waitForEarlierLaunches();
          const long long until = clock64() + (20ll << 30);
          while (*open == 0 && clock64() < until) {}
        }
        "#,
    );
    let gpu = Platform::Cuda.gpu(0).unwrap();
    if gpu.properties().compute_capability < Some((9, 0)) {
        println!("NOT TESTED: kernels of {gpu} do not begin before the launch in front is complete");
        return;
    }
    let kernel = Module::load(&gpu, &source).unwrap().kernel("begins").unwrap();
    let (words, stream, event) =
        (gpu.allocate_pinned(48).unwrap(), gpu.stream().unwrap(), gpu.event(false).unwrap());
    let word = |at: u64| words.word(8 * at).unwrap();
    let args = |launch: u64| {
        let first = words.ptr().add(16 * launch);
        KernelArgs::new().with(first).with(first.add(8)).keeping(words.clone())
    };
    let begins = |launch: u64| until("the launch begins", || word(2 * launch).load(Ordering::Acquire) == 1);
    let open = |launch: u64| word(2 * launch + 1).store(1, Ordering::Release);
    let one = LaunchConfig::linear(1, 1);
    // SAFETY: the arguments are those of the kernel, and the launches keep the words.
    unsafe {
        kernel.launch(&stream, one, &args(0)).unwrap();
        kernel.launch(&stream, one, &args(1)).unwrap();
        kernel.launch_recording(&stream, one, &args(2), &event).unwrap();
    }
    begins(1);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(word(4).load(Ordering::Acquire), 0, "a launch that records an event begins early");
    assert!(!event.query().unwrap(), "the launches in front of the event run");
    open(0);
    open(1);
    event.synchronize_timeout(Duration::from_secs(60)).unwrap();
    begins(2);
    open(2);
    stream.synchronize_timeout(Duration::from_secs(60)).unwrap();
}

/// Each step reads what the one before it wrote, on one stream, on two that wait for each other, and in a graph of both.
fn kernels_that_may_begin_early_see_what_those_before_them_wrote() {
    let source = KernelSource::new(
        "steps.cu",
        r#"
        #include <mscclpp/group_device.hpp>
        typedef unsigned long long Word;
        __device__ void step(const volatile Word* from, volatile Word* to) {
          const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
          const Word before = from[i];
          const long long until = clock64() + 5000;
          while (clock64() < until) {}
          to[(i + 1) % n] = before * 3 + 1;
        }
        // The launch behind it may begin at once.
        extern "C" __global__ void early(const Word* from, Word* to) {
        #if __CUDA_ARCH__ >= 900
          asm volatile("griddepcontrol.launch_dependents;");
        #endif
          mscclpp::waitForEarlierLaunches();
          step(from, to);
        }
        extern "C" __global__ void usual(const Word* from, Word* to) { step(from, to); }
        "#,
    );
    const BLOCKS: u32 = 8;
    const WORDS: usize = BLOCKS as usize * 64;
    const STEPS: usize = 200;
    const GRAPHS: usize = 10;
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let module = Module::load(&gpu, &source).unwrap();
    let kernels = ["early", "early", "usual"].map(|name| module.kernel(name).unwrap());
    let words = [(); 2].map(|()| gpu.allocate(8 * WORDS as u64).unwrap());
    let streams = [(); 2].map(|()| gpu.stream().unwrap());
    let put = || {
        let mut before = &streams[0];
        for i in 0..STEPS {
            // The last step is on the first stream again.
            let stream = &streams[usize::from(i % 5 == 3)];
            if stream.raw() != before.raw() {
                let event = gpu.event(false).unwrap();
                before.record(&event).unwrap();
                stream.wait_event(&event).unwrap();
            }
            before = stream;
            let args = KernelArgs::new().with(&words[i % 2]).with(&words[1 - i % 2]);
            // SAFETY: these are the kernel's arguments.
            unsafe { kernels[i % 3].launch(stream, LaunchConfig::linear(BLOCKS, 64), &args).unwrap() };
        }
    };
    words[0].write_params(0, &(0..WORDS as u64).collect::<Vec<_>>()).unwrap();
    put();
    streams[0].begin_capture().unwrap();
    put();
    let graph = streams[0].end_capture().unwrap();
    for _ in 0..GRAPHS {
        // SAFETY: the graph keeps the words.
        unsafe { graph.launch(&streams[0]).unwrap() };
    }
    streams[0].synchronize_timeout(Duration::from_secs(60)).unwrap();
    let steps = STEPS * (1 + GRAPHS);
    let mut found = [0u64; WORDS];
    words[0].read_params(0, &mut found).unwrap();
    for i in 0..WORDS {
        let expected = (0..steps).fold(i as u64, |word, _| word.wrapping_mul(3).wrapping_add(1));
        assert_eq!(found[(i + steps) % WORDS], expected, "word {i}");
    }
}

fn what_the_driver_refuses_is_an_error_that_names_it() {
    const PTX: &str = ".version 7.0\n.target sm_80\n.address_size 64\n\
                       .visible .const .align 4 .b8 step[4];\n.visible .entry add_step() { ret; }\n";
    let gpu = Platform::Cuda.gpu(0).unwrap();
    let load = |ptx| Module::load(&gpu, &KernelSource::new("add_step.cu", "").with_ptx(&[(80, ptx)]));
    let module = load(PTX).unwrap();
    let available = |error| match error {
        Error::NoSuchSymbol { available, .. } => available,
        other => panic!("{other}"),
    };
    assert!(available(module.kernel("nothing").unwrap_err()).contains("add_step"));
    assert!(available(module.symbol("nothing").unwrap_err()).contains("step"));
    let broken = load(".version 7.0\n.target sm_80\n.nonsense\n");
    assert!(matches!(broken, Err(Error::Compile { .. })), "{broken:?}");

    let on_host = gpu.allocate_pinned(8).unwrap();
    assert!(gpu.platform().owner_of(on_host.ptr()).unwrap().is_none(), "pinned memory has an owner");
    // SAFETY: the range is live; that it cannot be exported is what is tried.
    let export = unsafe { gpu.export(on_host.ptr(), 8) };
    assert!(matches!(export, Err(Error::NotExportable { .. })), "{export:?}");
    gpu.default_stream().unwrap().begin_capture().expect_err("a capture of the default stream");
}
