//! FIFOs and port channels under kernels: the same vectors on GPUs and on simulated devices, with fewer rounds there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::support::{
    LIMIT,
    kernels::{FIFO, Side, word_of},
    on_each_pair, on_gpus, platform,
    port_ends::{Call, PortEnd, Turns},
    random::Random,
    turn,
};
use mscclpp::{
    errors::ProxyError,
    prelude::*,
    proxy::{Fifo, MemoryId, Proxy, ProxyHandlerResult, ProxyTrigger, SemaphoreId},
};

/// A number of polls that takes longer than a test, but ends.
const LONG: i64 = 1 << 24;

/// The word of 63 bits that belongs to a trigger's first word, as in the kernels.
fn mixed(x: u64) -> u64 {
    word_of(x, 0, 0) >> 1
}

/// Launches a kernel of `fifo.cu`, which gets the FIFO, these arguments and `failed`. Gives each of `count` triggers to
/// `each` before taking it from the FIFO.
fn push_and_take(
    fifo: &mut Fifo,
    kernel: &str,
    shape: LaunchConfig,
    args: impl FnOnce(KernelArgs) -> KernelArgs,
    count: u64,
    mut each: impl FnMut(ProxyTrigger),
) {
    let gpu = platform().gpu(0).unwrap();
    let kernel = Module::load(&gpu, &FIFO).unwrap().kernel(kernel).unwrap();
    let (stream, failed) = (gpu.stream().unwrap(), gpu.allocate(4).unwrap());
    failed.fill(0, 4, 0).unwrap();
    let args = args(KernelArgs::new().with(fifo.device_handle())).with(failed.ptr());
    // SAFETY: the kernel's arguments, which are kept until the stream is done.
    unsafe { kernel.launch(&stream, shape, &args).unwrap() };
    let mut taken = 0;
    // The count at which the FIFO was found empty last, and the time since then.
    let mut idle = (taken, Instant::now());
    while taken < count {
        match fifo.poll() {
            Some(trigger) => {
                each(trigger);
                fifo.pop();
                taken += 1;
            }
            None if idle.0 != taken => idle = (taken, Instant::now()),
            None if idle.1.elapsed() > LIMIT => {
                fifo.abort();
                let _ = stream.synchronize_timeout(LIMIT);
                panic!("{taken} of {count} triggers came");
            }
            None => std::thread::yield_now(),
        }
    }
    stream.synchronize_timeout(LIMIT).unwrap();
    assert_eq!(fifo.poll(), None, "no more than were pushed");
    let mut word = [0; 4];
    failed.read(0, &mut word).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 0, "what a thread said, plus 1");
}

/// Checks that every thread's triggers come once, whole, and in order.
fn check_numbered(size: u64, shape: LaunchConfig, per_thread: u32, sync_every: u32) {
    let mut fifo = Fifo::new(&platform().gpu(0).unwrap(), size).unwrap();
    let threads = shape.grid[0] * shape.block[0];
    let mut next = vec![0; threads as usize];
    let start = Instant::now();
    let (mut torn, mut disordered) = (0u64, 0u64);
    push_and_take(
        &mut fifo,
        "fifo_push_numbered",
        shape,
        |args| args.with(per_thread).with(sync_every).with(-1i64),
        u64::from(threads) * u64::from(per_thread),
        |trigger| {
            torn += u64::from(trigger.snd != mixed(trigger.fst));
            match next.get_mut((trigger.fst >> 32) as usize) {
                Some(next) if *next == trigger.fst as u32 => *next += 1,
                _ => disordered += 1,
            }
        },
    );
    assert_eq!((torn, disordered), (0, 0), "torn and disordered triggers of a FIFO of {size}");
    assert!(next.iter().all(|pushed| *pushed == per_thread));
    println!("{threads} threads, FIFO of {size}: {} triggers in {:?}", per_thread * threads, start.elapsed());
}

/// Small FIFOs get fewer triggers: on GPUs, threads that wait for room read over the bus, and slow each other down.
#[test]
fn triggers_of_many_threads_come_once_whole_and_in_order() {
    let _turn = turn();
    let (shapes, per_place, most) = match on_gpus() {
        true => ([LaunchConfig::linear(1, 512), LaunchConfig::linear(16, 32)], 4096, 1_000_000),
        false => ([LaunchConfig::linear(1, 8), LaunchConfig::linear(4, 2)], 2000, 4000),
    };
    for size in [2, 64, 512, 4096] {
        for shape in shapes {
            let total = (per_place * size).min(most);
            let per_thread = total as u32 / (shape.grid[0] * shape.block[0]);
            check_numbered(size, shape, per_thread, 0);
            check_numbered(size, shape, (per_thread / 16).max(16), 8);
        }
    }
}

const TEN_MILLION: u32 = 10_000_000;

#[test]
fn ten_million_triggers_of_512_threads() {
    let _turn = turn();
    match on_gpus() {
        true => check_numbered(512, LaunchConfig::linear(1, 512), TEN_MILLION.div_ceil(512), 0),
        false => check_numbered(512, LaunchConfig::linear(2, 256), 40, 0),
    }
}

#[test]
#[ignore = "for GPUs: minutes there, hours on simulated devices"]
fn ten_million_triggers_of_512_threads_at_every_size() {
    let _turn = turn();
    for log2 in 1..=12 {
        check_numbered(1 << log2, LaunchConfig::linear(1, 512), TEN_MILLION.div_ceil(512), 0);
    }
}

#[test]
fn a_trigger_carries_what_was_written_before_it() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let mut fifo = Fifo::new(&gpu, 16).unwrap();
    let data = gpu.allocate_pinned(64).unwrap();
    let rounds = if on_gpus() { 200_000u32 } else { 10_000 };
    let mut late = 0u64;
    push_and_take(
        &mut fifo,
        "fifo_push_after_data",
        LaunchConfig::linear(1, 1),
        |args| args.with(data.ptr()).with(rounds),
        rounds.into(),
        |trigger| {
            let seen = data.word(0).unwrap().load(Ordering::Relaxed);
            late += u64::from(seen < trigger.fst);
        },
    );
    assert_eq!(late, 0, "triggers before their data");
}

/// Kernels that gave up leave a hole in the FIFO, which the proxy reaches when it has handled the triggers before it.
#[test]
fn kernels_that_give_up_pushing_are_reported() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    let proxy = Proxy::builder(&gpu)
        .fifo_size(4)
        .build(move |_: ProxyTrigger| {
            count.fetch_add(1, Ordering::Relaxed);
            ProxyHandlerResult::Continue
        })
        .unwrap();
    let kernel = Module::load(&gpu, &FIFO).unwrap().kernel("fifo_push_numbered").unwrap();
    let (stream, failed) = (gpu.stream().unwrap(), gpu.allocate(4).unwrap());
    failed.fill(0, 4, 0).unwrap();
    let (per_thread, sync_every, max_spin) = (1u32, 0u32, 100i64);
    let args = KernelArgs::new().with(proxy.fifo().device_handle());
    let args = args.with(per_thread).with(sync_every).with(max_spin).with(failed.ptr());
    // SAFETY: the kernel's arguments, which are kept until the stream is done.
    unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 32), &args).unwrap() };
    stream.synchronize_timeout(LIMIT).unwrap();
    let mut word = [0; 4];
    failed.read(0, &mut word).unwrap();
    assert_ne!(u32::from_ne_bytes(word), 0, "threads that gave up");
    proxy.start(true).unwrap();
    let error = proxy.stop().expect_err("a hole");
    assert!(matches!(error, ProxyError::Poisoned { position } if position.raw() == 4), "{error}");
    assert_eq!(handled.load(Ordering::Relaxed), 4, "what was pushed before the hole");
}

/// Checks rounds of small and large puts and signals, which the threads make in turns.
fn check_turns(context: &Context, devices: [usize; 2], turns: Turns, direct_put_max: u32, threads: u32) {
    let bytes = 8 * u64::from(turns.pieces) * turns.large_words;
    let [here, there] = PortEnd::pair(context, devices, 1, [bytes; 2], direct_put_max);
    there.start_checking(turns, threads);
    here.start_sending(turns, false, threads);
    here.finish();
    assert_eq!(there.mismatches(), 0, "words that came after their signal, of {turns:?}");
    here.service.stop_proxy().unwrap();
    there.service.stop_proxy().unwrap();
}

#[test]
fn no_signal_comes_before_its_data_in_any_mixture_of_sizes() {
    on_each_pair(|context, devices| {
        // Devices behind the fake of HIP are simulated, too.
        let is_real = platform() == Platform::Cuda;
        let (rounds, large_words) = if is_real { (1000, 1 << 16) } else { (20, 1 << 12) };
        let turns = Turns { seed: Random::new().word(), rounds, pieces: 16, small_words: 256, large_words };
        for direct_put_max in [ProxyService::DEFAULT_DIRECT_PUT_MAX, 0] {
            check_turns(context, devices, turns, direct_put_max, if on_gpus() { 1024 } else { 32 });
        }
    });
}

/// Proves that the test above notices signals that do not wait for their turn.
#[test]
fn signals_that_do_not_wait_for_their_turn_are_noticed() {
    on_each_pair(|context, devices| {
        let turns =
            Turns { seed: Random::new().word(), rounds: 1, pieces: 16, small_words: 256, large_words: 4096 };
        let bytes = 8 * u64::from(turns.pieces) * turns.large_words;
        let [here, there] = PortEnd::pair(context, devices, 1, [bytes; 2], 0);
        if here.channels[0].device_handle().direct_token.is_null() {
            assert!(on_gpus(), "kernels of simulated devices reach each other's memory");
            return println!("kernels here cannot signal by themselves");
        }
        there.arrivals.fill(0, bytes, 0xff).unwrap();
        // No put is carried out before the peer has compared.
        here.service.stop_proxy().unwrap();
        there.start_checking(turns, 32);
        here.start_sending(turns, true, 32);
        here.finish();
        assert_ne!(there.mismatches(), 0, "words behind their signal, of {turns:?}");
        here.service.start_proxy(true).unwrap();

        // With the proxy running, the number of mismatches depends on the machine.
        let turns = Turns { rounds: if on_gpus() { 1000 } else { 20 }, ..turns };
        there.start_checking(turns, 32);
        here.start_sending(turns, true, 32);
        here.finish();
        println!("words behind their signal in {} rounds: {}", turns.rounds, there.mismatches());
    });
}

/// Puts sizes from 8 B to 64 MiB.
#[test]
#[ignore = "for GPUs: minutes there, hours on simulated devices"]
fn a_hundred_thousand_rounds_of_all_sizes() {
    on_each_pair(|context, devices| {
        for (rounds, large_words) in [(100_000, 1 << 12), (2_000, 8 << 20)] {
            let turns =
                Turns { seed: Random::new().word(), rounds, pieces: 8, small_words: 256, large_words };
            check_turns(context, devices, turns, ProxyService::DEFAULT_DIRECT_PUT_MAX, 1024);
        }
    });
}

#[test]
fn sources_may_be_overwritten_after_a_flush() {
    on_each_pair(|context, devices| {
        let (shape, rounds) =
            if on_gpus() { (LaunchConfig::linear(4, 128), 20) } else { (LaunchConfig::linear(2, 4), 6) };
        let threads = u64::from(shape.grid[0] * shape.block[0]);
        // The first size is so small that threads put it themselves, the second is not.
        for (channels, words) in [(1, 8), (1, 1024), (4, 8), (4, 1024)] {
            let source = 8 * threads * u64::from(words);
            let [here, there] = PortEnd::pair(
                context,
                devices,
                channels,
                [source, source * u64::from(rounds)],
                ProxyService::DEFAULT_DIRECT_PUT_MAX,
            );
            let seed = Random::new().word();
            here.start_flush_and_overwrite(seed, rounds, words, shape);
            here.finish();
            let wrong = there.overwritten(seed, threads * u64::from(words));
            assert_eq!(wrong, 0, "words of sources that were overwritten, {channels} channels");
        }
    });
}

/// Both ends capture and replay, while kernels and proxies of another pair are at work.
#[test]
fn works_in_captures_and_replays() {
    on_each_pair(|context, devices| {
        let (replays, threads) = if on_gpus() { (1000, 256) } else { (20, 16) };
        // All replays move the same data, so the data of each round differs from that of the round before, the last one
        // included.
        let turns =
            Turns { seed: Random::new().word(), rounds: 3, pieces: 4, small_words: 256, large_words: 1024 };
        let meanwhile = Turns { rounds: 3 * replays, ..turns };
        let bytes = 8 * u64::from(turns.pieces) * turns.large_words;
        for direct_put_max in [ProxyService::DEFAULT_DIRECT_PUT_MAX, 0] {
            let [[here, there], [from, to]] =
                [0, 1].map(|_| PortEnd::pair(context, devices, 1, [bytes; 2], direct_put_max));
            to.start_checking(meanwhile, threads);
            from.start_sending(meanwhile, false, threads);
            let sending = here.capture(|| here.start_sending(turns, false, threads));
            let checking = there.capture(|| there.start_checking(turns, threads));
            for _ in 0..replays {
                there.replay(&checking);
                here.replay(&sending);
            }
            for (from, to) in [(&here, &there), (&from, &to)] {
                from.finish();
                assert_eq!(to.mismatches(), 0, "words that came after their signal, of {turns:?}");
                let sent = from.service.stats().total;
                let signals = u64::from(replays * turns.rounds * turns.pieces);
                assert_eq!(sent.flags + sent.direct_signals, signals, "signals of all replays");
            }
        }
    });
}

#[test]
fn what_does_not_fit_a_trigger_is_caught_by_the_kernel() {
    on_each_pair(|context, devices| {
        for (offset, bytes) in [(1 << 32, 8), (u64::MAX, 8), (0, 1 << 32)] {
            let [here, there] = PortEnd::pair(context, devices, 1, [4096; 2], 2048);
            assert!(here.call(Call::PutWithSignal, 64, 8, -1));
            assert!(there.call(Call::Wait, 0, 0, -1));
            assert!(!here.call(Call::PutWithSignal, offset, bytes, -1), "{bytes} bytes at {offset}");
            assert!(!here.call(Call::Wait, 0, 0, -1), "the semaphore is aborted");
            here.service.health().expect_err("what the kernel did");
            here.channels[0].semaphore().check().expect_err("what the kernel did");
        }
    });
}

#[test]
fn a_range_outside_its_memory_fails_the_service_and_frees_the_kernel() {
    on_each_pair(|context, devices| {
        for bytes in [4097, 1 << 20] {
            let [here, _there] = PortEnd::pair(context, devices, 1, [4096; 2], 1 << 20);
            assert!(here.call(Call::PutWithSignal, 0, bytes, -1), "it is pushed");
            assert!(!here.call(Call::Flush, 0, 0, -1), "and not carried out");
            let error = here.service.health().expect_err("a put past the end").to_string();
            assert!(error.contains(&bytes.to_string()) && error.contains("data|flag"), "{error}");
        }
    });
}

/// Two port channels and a memory channel share one semaphore: a wait through either port channel takes a signal of any
/// channel, by the proxy or by a kernel.
#[test]
fn port_and_memory_channels_of_one_semaphore_share_its_tokens() {
    const ROUNDS: u64 = 20;
    for direct_put_max in [0, ProxyService::DEFAULT_DIRECT_PUT_MAX] {
        on_each_pair(|context, devices| {
            let mut ends = PortEnd::pair(context, devices, 1, [64; 2], direct_put_max);
            let semaphores = ends.each_ref().map(|end| end.channels[0].semaphore().clone());
            let memory = semaphores.each_ref().map(|semaphore| BaseMemoryChannel::new(semaphore).unwrap());
            let mut by_memory = devices.map(|id| Side::new(&context.gpu(id).unwrap()).unwrap());
            for (end, semaphore) in ends.iter_mut().zip(&semaphores) {
                let id = end.service.add_semaphore(semaphore).unwrap();
                let (dst, src) = (MemoryId::from_raw(0), MemoryId::from_raw(1));
                end.channels.push(end.service.port_channel(id, dst, src).unwrap());
            }
            for (from, to) in [(0, 1), (1, 0)] {
                for round in 0..ROUNDS {
                    // Calls are made over the first channel.
                    ends.iter_mut().for_each(|end| end.channels.swap(0, 1));
                    by_memory[from].signal(&memory[from], 2);
                    by_memory[from].finish();
                    assert!(ends[from].call(Call::PutWithSignal, 0, 64, -1));
                    ends[from].channels.swap(0, 1);
                    assert!(ends[from].call(Call::Signal, 0, 0, -1));
                    for n in 0..4 {
                        ends[to].channels.swap(0, 1);
                        assert!(ends[to].call(Call::Wait, 0, 0, LONG), "round {round}: {n} signals came");
                    }
                    assert!(!ends[to].call(Call::Wait, 0, 0, 10), "round {round}: a signal was taken twice");
                    // The error is returned once.
                    assert!(semaphores[to].check().is_err() && semaphores[to].check().is_ok());
                }
            }
            ends.iter().for_each(|end| end.service.stop_proxy().unwrap());
        });
    }
}

#[test]
fn a_port_channel_puts_from_memory_for_local_use() {
    const LEN: u64 = 4096;
    for direct_put_max in [0, ProxyService::DEFAULT_DIRECT_PUT_MAX] {
        on_each_pair(|context, devices| {
            let mut ends = PortEnd::pair(context, devices, 1, [LEN; 2], direct_put_max);
            let [here, there] = &mut ends;
            let data = Random::new().bytes(LEN as usize);
            here.source.write(0, &data).unwrap();
            let local = context.register_buffer(&here.source, TransportFlags::NONE).unwrap();
            let src = here.service.add_memory(&local).unwrap();
            let (id, dst) = (SemaphoreId::from_raw(0), MemoryId::from_raw(0));
            here.channels[0] = here.service.port_channel(id, dst, src).unwrap();
            assert!(here.call(Call::PutWithSignal, 0, LEN, -1) && there.call(Call::Wait, 0, 0, -1));
            assert!(there.arrived() == data, "what came of {LEN} bytes");
            // A memory without a transport cannot be the destination of a peer's puts.
            let error = here.service.port_channel(id, src, src).unwrap_err().to_string();
            assert!(error.contains("registered for no transport"), "{error}");
            ends.iter().for_each(|end| end.service.stop_proxy().unwrap());
        });
    }
}
