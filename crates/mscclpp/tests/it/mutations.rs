//! The mistakes in kernels that tests on simulated devices find. Copies of three shipped kernels, each with a small
//! change, must fail the check that the kernels themselves pass.

use std::{thread, time::Instant};

use mscclpp::{Kernel, Stream, kernels, prelude::*, proxy::MemoryId};

use crate::support::{LIMIT, random::Random, semaphore_pair};

const SWAP_WORDS: KernelSource<'static> =
    KernelSource::new("swap_words.cu", include_str!("../../examples/swap_words.cu"));

/// Runs a source on simulated devices. The error says what was wrong.
type Check = fn(&KernelSource<'_>) -> Result<(), String>;

/// Checks that a kernel passes `check`, and that a copy does not, in which the second text of `change` stands for the first.
/// `seen_as` is a part of the error.
fn finds(check: Check, source: &KernelSource<'_>, change: [&str; 2], seen_as: &str) {
    check(source).expect("the kernel as it is");
    let (text, [from, to]) = (source.cuda(), change);
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {}", source.name());
    let changed = text.replace(from, to);
    let said = check(&KernelSource::new(source.name(), &changed)).expect_err("the change is noticed");
    assert!(said.contains(seen_as), "{said}");
}

#[test]
fn a_barrier_is_missing() {
    let change = ["  __syncthreads();\n  if (signalled)", "  if (signalled)"];
    finds(words_are_swapped, &SWAP_WORDS, change, "words");
}

#[test]
fn a_comparison_is_too_weak() {
    let change = ["peer >= ranks", "peer > ranks"];
    finds(all_have_all_slices, &kernels::MESH_PORT_CHANNELS, change, "kernel mesh_all_gather failed");
}

#[test]
fn two_offsets_are_swapped() {
    let change = ["ch.put(rank * bytes, bytes,", "ch.put(bytes, rank * bytes,"];
    finds(halves_are_put, &kernels::BIDIR_MEMORY_CHANNEL, change, "bytes of rank");
}

/// Loads a kernel of the source on each device.
fn load(gpus: &[Gpu], source: &KernelSource<'_>, kernel: &str) -> Result<Vec<Kernel>, String> {
    let load = |gpu| Module::load(gpu, source).and_then(|module| module.kernel(kernel));
    gpus.iter().map(load).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Waits for kernels that wait for each other. If one fails or takes too long, `abort` ends the others.
fn finish(streams: &[Stream], abort: impl Fn()) -> Result<(), String> {
    let ended = streams.iter().map(|stream| stream.synchronize_timeout(LIMIT));
    let failed = ended.filter_map(Result::err).next();
    if let Some(error) = failed {
        abort();
        // The failed ones return their errors again here.
        streams.iter().for_each(|stream| drop(stream.synchronize_timeout(LIMIT)));
        return Err(error.to_string());
    }
    Ok(())
}

/// Waits until a word of device memory is not 0.
fn await_word(buffer: &DeviceBuffer, offset: u64) -> Result<(), String> {
    let (deadline, mut word) = (Instant::now() + LIMIT, [0; 8]);
    loop {
        buffer.read(offset, &mut word).expect("reading");
        if word != [0; 8] {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("nothing was written to offset {offset}"));
        }
        thread::yield_now();
    }
}

fn words_of(buffer: &DeviceBuffer) -> Vec<u64> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.read(0, &mut bytes).expect("reading");
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Checks that two kernels write words to each other, and double those that came.
fn words_are_swapped(source: &KernelSource<'_>) -> Result<(), String> {
    const THREADS: u32 = 64;
    let context = Context::on(Platform::Sim);
    let channels =
        semaphore_pair(&context, [0, 1]).expect("semaphores").map(|one| BaseMemoryChannel::new(&one));
    let channels = channels.map(|channel| channel.expect("a channel"));
    let gpus = [0, 1].map(|id| context.gpu(id).expect("a device"));
    let buffers = gpus.each_ref().map(|gpu| gpu.allocate(8 * u64::from(THREADS)).expect("memory"));
    buffers.iter().for_each(|buffer| buffer.fill(0, buffer.len(), 0).expect("memory"));
    let failed = gpus.each_ref().map(|gpu| gpu.allocate(4).expect("memory"));
    let streams = gpus.each_ref().map(|gpu| gpu.stream().expect("a stream"));
    let values = [1000, 2000u64];
    let kernels = load(&gpus, source, "swap_words")?;
    let mut begun = Ok(());
    for n in [0, 1] {
        let memory = context.register_buffer(&buffers[1 - n], Transport::CUDA_IPC).expect("registered");
        let connection = channels[n].semaphore().connection();
        let theirs = connection.peer_ptr(&memory).expect("an address").expect("mapped memory");
        let args = KernelArgs::new()
            .with(channels[n].device_handle())
            .with(buffers[n].ptr())
            .with(theirs)
            .with(values[n])
            .with(failed[n].ptr());
        // SAFETY: these are its arguments, which are kept until `finish`.
        unsafe { kernels[n].launch(&streams[n], LaunchConfig::linear(1, THREADS), &args) }.expect("a launch");
        if n == 0 {
            // All threads of the first kernel have come as far as they get without the second.
            begun = await_word(&buffers[1], 8 * u64::from(THREADS - 1));
        }
    }
    finish(&streams, || channels.iter().for_each(|channel| channel.semaphore().abort("the check ends")))?;
    begun?;
    for n in [0, 1] {
        let expected: Vec<_> = (0..u64::from(THREADS)).map(|i| 2 * (values[1 - n] + i)).collect();
        let words = words_of(&buffers[n]);
        if words != expected {
            return Err(format!("device {n} has the words {words:?}"));
        }
    }
    Ok(())
}

/// Checks that both sides put their half into the other's memory.
fn halves_are_put(source: &KernelSource<'_>) -> Result<(), String> {
    const BYTES: u64 = 10_000;
    let context = Context::on(Platform::Sim);
    let semaphores = semaphore_pair(&context, [0, 1]).expect("semaphores");
    let gpus = [0, 1].map(|id| context.gpu(id).expect("a device"));
    let buffers = gpus.each_ref().map(|gpu| gpu.allocate(2 * BYTES).expect("memory"));
    let memories = buffers
        .each_ref()
        .map(|buffer| context.register_buffer(buffer, Transport::CUDA_IPC).expect("registered"));
    let failed = gpus.each_ref().map(|gpu| gpu.allocate(4).expect("memory"));
    let streams = gpus.each_ref().map(|gpu| gpu.stream().expect("a stream"));
    let mut random = Random::new();
    let halves = [random.bytes(BYTES as usize), random.bytes(BYTES as usize)];
    let mut channels = Vec::new();
    for n in [0, 1] {
        buffers[n].write(n as u64 * BYTES, &halves[n]).expect("memory");
        let channel = MemoryChannel::new(&semaphores[n], &memories[1 - n], &memories[n], None);
        channels.push(channel.expect("a channel"));
    }
    let kernels = load(&gpus, source, "bidir_put")?;
    for n in [0, 1] {
        let args = KernelArgs::new()
            .with(channels[n].device_handle())
            .with(BYTES)
            .with(n as u32)
            .with(failed[n].ptr());
        // SAFETY: these are its arguments, which are kept until `finish`.
        unsafe { kernels[n].launch(&streams[n], LaunchConfig::linear(2, 64), &args) }.expect("a launch");
    }
    finish(&streams, || semaphores.iter().for_each(|semaphore| semaphore.abort("the check ends")))?;
    for n in [0, 1] {
        let mut half = vec![0; BYTES as usize];
        buffers[n].read((1 - n as u64) * BYTES, &mut half).expect("memory");
        if half != halves[1 - n] {
            return Err(format!("the bytes of rank {} are not at rank {n}", 1 - n));
        }
    }
    Ok(())
}

/// Checks that each of three ranks gives its slice to the others through port channels.
fn all_have_all_slices(source: &KernelSource<'_>) -> Result<(), String> {
    const RANKS: usize = 3;
    const BYTES: u64 = 5000;
    let all = || 0..RANKS;
    let context = Context::on(Platform::Sim);
    let gpus: Vec<_> = all().map(|id| context.gpu(id).expect("a device")).collect();
    let buffers: Vec<_> =
        gpus.iter().map(|gpu| gpu.allocate(RANKS as u64 * BYTES).expect("memory")).collect();
    let failed: Vec<_> = gpus.iter().map(|gpu| gpu.allocate(4).expect("memory")).collect();
    let streams: Vec<_> = gpus.iter().map(|gpu| gpu.stream().expect("a stream")).collect();
    let services: Vec<_> = gpus.iter().map(|gpu| ProxyService::new(gpu).expect("a service")).collect();
    for buffer in &buffers {
        let memory = context.register_buffer(buffer, Transport::CUDA_IPC).expect("registered");
        // A rank's memory gets the same number in all services.
        for service in &services {
            service.add_memory(&memory).expect("a number");
        }
    }
    let memory = |rank: usize| MemoryId::from_raw(rank as u32);
    let mut channels: Vec<Vec<_>> = all().map(|_| Vec::new()).collect();
    for (a, b) in all().flat_map(|a| (a + 1..RANKS).map(move |b| (a, b))) {
        let semaphores = semaphore_pair(&context, [a, b]).expect("semaphores");
        for ((from, to), semaphore) in [(a, b), (b, a)].into_iter().zip(&semaphores) {
            let id = services[from].add_semaphore(semaphore).expect("a number");
            let channel = services[from].port_channel(id, memory(to), memory(from)).expect("a channel");
            channels[from].push(channel);
        }
    }
    let mut random = Random::new();
    let slices: Vec<_> = all().map(|_| random.bytes(BYTES as usize)).collect();
    for rank in all() {
        buffers[rank].write(rank as u64 * BYTES, &slices[rank]).expect("memory");
        services[rank].start_proxy(true).expect("a proxy");
    }
    let mut kernels = Vec::new();
    for rank in all() {
        let module = Module::load(&gpus[rank], source).map_err(|error| error.to_string())?;
        let mut handles: Vec<_> = channels[rank].iter().map(PortChannel::device_handle).collect();
        // The handles are in the order of the ranks. The kernel does not use its own rank's handle, so any will do there.
        handles.insert(rank, handles[0]);
        module.set_symbol("channels", &handles).map_err(|error| error.to_string())?;
        kernels.push(module.kernel("mesh_all_gather").map_err(|error| error.to_string())?);
    }
    for rank in all() {
        let args =
            KernelArgs::new().with(rank as u32).with(RANKS as u32).with(BYTES).with(failed[rank].ptr());
        // SAFETY: these are its arguments, which are kept until `finish`.
        unsafe { kernels[rank].launch(&streams[rank], LaunchConfig::linear(1, 64), &args) }
            .expect("a launch");
    }
    finish(&streams, || services.iter().for_each(|service| service.abort("the check ends")))?;
    for (rank, buffer) in buffers.iter().enumerate() {
        let mut gathered = vec![0; RANKS * BYTES as usize];
        buffer.read(0, &mut gathered).expect("memory");
        if gathered != slices.concat() {
            return Err(format!("rank {rank} does not have all slices"));
        }
    }
    services.iter().for_each(|service| service.stop_proxy().expect("a stop"));
    Ok(())
}
