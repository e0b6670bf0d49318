//! Races with accesses of the host and of streams, accesses past the end of memory, and the list of all races.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::{
    DeviceBuffer, DevicePtr, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform, Stream, testing,
};
use mscclpp_test_support::trials;

use super::mutants::message;

const LIMIT: Duration = Duration::from_secs(120);

const SOURCE: &str = "extern \"C\" __global__ void fill(int* data, int count, int value) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = value;
}
extern \"C\" __global__ void copy(int* data, int first, int from) { data[first] = data[from]; }
";

/// A kernel that waits for a token, and reads the data that the token announces.
const READS: &str = "#include <mscclpp/semaphore_device.hpp>
extern \"C\" __global__ void read(uint64_t* token, const int* data, int* result) {
  mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle semaphore = {token, token + 1, nullptr, nullptr, nullptr};
  semaphore.wait();
  *result = *data;
}
";

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        streams_are_in_no_order_without_an_event,
        copies_are_ordered_by_their_stream_alone,
        a_graph_is_in_the_order_of_its_stream,
        a_copy_comes_before_its_token,
        the_host_knows_what_came_before_a_word,
        the_host_writes_under_a_kernel,
        a_plain_access_past_the_end_is_found,
        freed_memory_leaves_nothing_behind,
        a_kernel_that_uses_freed_memory_fails,
        each_pair_of_lines_is_listed_once,
        ranks_are_named,
    ]
}

fn fill(gpu: &Gpu, source: &str, stream: &Stream, memory: &DeviceBuffer, count: i32, value: i32) {
    let kernel = Module::load(gpu, &KernelSource::new(source, SOURCE)).unwrap().kernel("fill").unwrap();
    let args = KernelArgs::new().with(memory.ptr()).with(count).with(value);
    // SAFETY: the kernel's arguments; callers keep the memory until the work is complete.
    unsafe { kernel.launch(stream, LaunchConfig::linear(1, 64), &args).unwrap() };
}

fn gpu() -> (Gpu, DeviceBuffer, [Stream; 2]) {
    let gpu = Platform::Sim.gpu(2).unwrap();
    let streams = [(); 2].map(|()| gpu.stream().unwrap());
    (gpu.clone(), gpu.allocate(1000).unwrap(), streams)
}

/// Waits for the streams, and returns the messages of those that have failed.
fn messages(streams: &[Stream]) -> Vec<String> {
    streams.iter().filter_map(|stream| message(stream.synchronize_timeout(LIMIT))).collect()
}

/// The race is found whatever the timing was.
fn streams_are_in_no_order_without_an_event() -> Result<(), Failed> {
    let (gpu, memory, [first, second]) = gpu();
    fill(&gpu, "with_event.cu", &first, &memory, 250, 1);
    let event = gpu.event(false).unwrap();
    first.record(&event).unwrap();
    second.wait_event(&event).unwrap();
    fill(&gpu, "with_event.cu", &second, &memory, 250, 2);
    assert_eq!(message(second.synchronize_timeout(LIMIT)), None);

    fill(&gpu, "without_event.cu", &first, &memory, 250, 3);
    fill(&gpu, "without_event.cu", &second, &memory, 250, 4);
    let said = messages(&[first, second]);
    let is_named = |said: &String| said.contains("without_event.cu:2") && said.contains("two streams");
    assert!(said.iter().any(is_named), "{said:?}");
    Ok(())
}

fn copies_are_ordered_by_their_stream_alone() -> Result<(), Failed> {
    let (gpu, memory, [first, second]) = gpu();
    let target = gpu.allocate(1000).unwrap();
    fill(&gpu, "copied.cu", &first, &memory, 250, 1);
    // SAFETY: both live until the work is complete.
    unsafe { first.copy(target.ptr(), memory.ptr(), 1000).unwrap() };
    assert_eq!(message(first.synchronize_timeout(LIMIT)), None);
    fill(&gpu, "copied.cu", &first, &memory, 250, 2);
    // SAFETY: the same as above.
    unsafe { second.copy(target.ptr(), memory.ptr(), 1000).unwrap() };
    let said = messages(&[first, second]);
    let is_named = |said: &String| said.contains("Stream::copy") && said.contains("copied.cu:2");
    assert!(said.iter().any(is_named), "{said:?}");
    Ok(())
}

fn a_graph_is_in_the_order_of_its_stream() -> Result<(), Failed> {
    let (gpu, memory, [stream, _]) = gpu();
    stream.begin_capture().unwrap();
    fill(&gpu, "captured.cu", &stream, &memory, 250, 1);
    fill(&gpu, "captured.cu", &stream, &memory, 200, 2);
    let graph = stream.end_capture().unwrap();
    for _ in 0..2 {
        // SAFETY: the memory lives until the work is complete.
        unsafe { graph.launch(&stream).unwrap() };
    }
    assert_eq!(message(stream.synchronize_timeout(LIMIT)), None);
    Ok(())
}

/// A proxy of a port channel does the same.
fn a_copy_comes_before_its_token() -> Result<(), Failed> {
    for (name, source, is_found) in [
        ("waits.cu", READS.to_owned(), false),
        ("does_not.cu", READS.replace("wait()", "relaxedWait()"), true),
    ] {
        let (gpu, memory, [stream, proxy]) = gpu();
        let target = gpu.allocate(1000).unwrap();
        let kernel = Module::load(&gpu, &KernelSource::new(name, &source)).unwrap().kernel("read").unwrap();
        let token = target.ptr().add(64);
        let args = KernelArgs::new().with(token).with(target.ptr()).with(target.ptr().add(128));
        // SAFETY: the kernel's arguments; all memory lives until the work is complete.
        unsafe {
            kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap();
            proxy.copy(target.ptr(), memory.ptr(), 8).unwrap();
            proxy.write_u64(token, 1).unwrap();
        }
        let said = message(stream.synchronize_timeout(LIMIT)).unwrap_or_default();
        assert_eq!(said.contains("Stream::copy"), is_found, "{said}");
        assert_eq!(said.contains("acquires nothing"), is_found, "{said}");
    }
    Ok(())
}

/// The word may come between any two polls.
fn the_host_knows_what_came_before_a_word() -> Result<(), Failed> {
    let (gpu, memory, [stream, _]) = gpu();
    let target = gpu.allocate(1000).unwrap();
    for round in 1..=5000u64 {
        memory.write(0, &round.to_ne_bytes())?;
        // SAFETY: both live until the work is complete.
        unsafe {
            stream.copy(target.ptr(), memory.ptr(), 8).unwrap();
            stream.write_u64(target.ptr().add(64), round).unwrap();
        }
        let mut word = [0; 8];
        while u64::from_ne_bytes(word) != round {
            target.read(64, &mut word).unwrap();
        }
    }
    Ok(())
}

fn the_host_writes_under_a_kernel() -> Result<(), Failed> {
    let (gpu, memory, [stream, _]) = gpu();
    fill(&gpu, "under.cu", &stream, &memory, 250, 1);
    // Either access comes first.
    let said = [message(memory.write(0, &[2; 4])), message(stream.synchronize_timeout(LIMIT))];
    let is_named = |said: &String| said.contains("DeviceBuffer::write") && said.contains("under.cu:2");
    assert!(said.iter().flatten().any(is_named), "{said:?}");
    Ok(())
}

/// The processor can access the rest of the last page.
fn a_plain_access_past_the_end_is_found() -> Result<(), Failed> {
    let (gpu, memory, [stream, other]) = gpu();
    fill(&gpu, "past.cu", &stream, &memory, 251, 1);
    let said = message(stream.synchronize_timeout(LIMIT)).expect("one number too many");
    assert!(
        said.contains("past.cu:2") && said.contains("offset 1000") && said.contains("1000 bytes"),
        "{said}"
    );
    // Reads are found, too, and accesses that are only half past the end.
    let kernel = Module::load(&gpu, &KernelSource::new("past.cu", SOURCE)).unwrap().kernel("copy").unwrap();
    let args = KernelArgs::new().with(DevicePtr(memory.ptr().0 + 2)).with(0).with(249);
    // SAFETY: the kernel's arguments. It reads beyond the end, which fails it here.
    unsafe { kernel.launch(&other, LaunchConfig::linear(1, 1), &args).unwrap() };
    let said = message(other.synchronize_timeout(LIMIT)).expect("two bytes too many");
    assert!(
        said.contains("reading 4 bytes") && said.contains("past.cu:4") && said.contains("offset 998"),
        "{said}"
    );
    Ok(())
}

fn freed_memory_leaves_nothing_behind() -> Result<(), Failed> {
    for value in 0..20 {
        // The memory is likely at the address of the one before.
        let (gpu, memory, [stream, _]) = gpu();
        fill(&gpu, "freed.cu", &stream, &memory, 250, value);
        assert_eq!(message(stream.synchronize_timeout(LIMIT)), None);
    }
    Ok(())
}

/// The memory is freed before the kernel begins or while it runs.
fn a_kernel_that_uses_freed_memory_fails() -> Result<(), Failed> {
    const WAITS: &str = "extern \"C\" __global__ void wait(volatile int* flag, volatile int* data) {
  while (*flag == 0) {
  }
  *data = 1;
}
";
    let (gpu, memory, [stream, _]) = gpu();
    let flag = gpu.allocate(4).unwrap();
    let kernel = Module::load(&gpu, &KernelSource::new("waits.cu", WAITS)).unwrap().kernel("wait").unwrap();
    let args = KernelArgs::new().with(flag.ptr()).with(memory.ptr());
    for _ in 0..2 {
        // SAFETY: the kernel's arguments. It uses freed memory, which fails it here.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap() };
    }
    drop(memory);
    flag.write(0, &1u32.to_ne_bytes()).unwrap();
    let said = message(stream.synchronize_timeout(LIMIT)).expect("the memory is gone");
    assert!(said.contains("waits.cu:4") && said.contains("freed"), "{said}");
    Ok(())
}

fn each_pair_of_lines_is_listed_once() -> Result<(), Failed> {
    for _ in 0..3 {
        let (gpu, memory, [first, second]) = gpu();
        fill(&gpu, "listed.cu", &first, &memory, 250, 3);
        fill(&gpu, "listed.cu", &second, &memory, 250, 4);
        for stream in [first, second] {
            let _one_of_them_fails = stream.synchronize_timeout(LIMIT);
        }
    }
    let races = testing::races();
    let listed: Vec<_> = races.iter().filter(|race| race.later.place == "listed.cu:2").collect();
    let [race] = listed.as_slice() else { panic!("{listed:?}") };
    let earlier = race.earlier.as_ref().expect("two writes");
    assert_eq!((earlier.what.as_str(), race.later.what.as_str()), ("write", "write"));
    assert!(race.later.who.contains("kernel fill on device 2, block [0, 0, 0], thread ["), "{race}");
    assert!(race.memory.contains("memory of device 2") && race.memory.contains("1000 bytes"), "{race}");
    Ok(())
}

fn ranks_are_named() -> Result<(), Failed> {
    let (gpu, memory, streams) = gpu();
    drop(memory);
    /// Runs `body` on a thread of its own, which is a rank.
    fn by_rank<T: Send>(rank: usize, body: impl FnOnce() -> T + Send) -> T {
        let as_rank = || {
            testing::this_thread_is_rank(rank);
            body()
        };
        std::thread::scope(|scope| scope.spawn(as_rank).join().unwrap())
    }
    let memory = by_rank(5, || gpu.allocate(1000).unwrap());
    for (rank, stream) in [5, 6].into_iter().zip(&streams) {
        by_rank(rank, || fill(&gpu, "ranks.cu", stream, &memory, 250, rank as i32));
    }
    let said = messages(&streams).join("\n");
    for part in [
        "kernel fill of rank 5 on device 2",
        "kernel fill of rank 6 on device 2",
        "memory of rank 5 on device 2",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    Ok(())
}
