//! Kernels as they are written for the C++ original: each name of the device API, with the same vectors on GPUs and on
//! simulated devices. `ported.cu` checks most of it and says in which line it found something else.

use crate::support::{
    LIMIT,
    checked::{Checked, has_bulk, word},
    kernels::{C_HEADERS, PORTED},
    on_each_pair, platform,
    random::Random,
    semaphore_pair, turn,
};
use mscclpp::{
    prelude::*,
    proxy::{Fifo, TriggerKind},
};

fn kernels_on(gpu: &Gpu) -> Checked {
    Checked::new(gpu, "ported.cu", &PORTED)
}

/// Runs a kernel of one block that gets only zeroed memory and the place where it reports what is wrong.
fn check(kernels: &Checked, kernel: &str, memory: &DeviceBuffer, threads: u32) {
    memory.fill(0, memory.len(), 0).expect("memory");
    let args = KernelArgs::new().with(memory.ptr()).with(kernels.said.ptr());
    kernels.start(kernel, LaunchConfig::linear(1, threads), &args);
    kernels.finish(kernel);
}

#[test]
fn words_packets_and_copies_in_memory_of_every_kind() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let kernels = kernels_on(&gpu);
    let memory = gpu.allocate(4096).unwrap();
    for threads in [32, 96, 1024] {
        check(&kernels, "ported_atomics", &memory, threads);
        check(&kernels, "ported_packets", &memory, threads);
        check(&kernels, "ported_copies", &memory, threads);
    }
    let args = KernelArgs::new().with(kernels.said.ptr());
    kernels.start("ported_macros", LaunchConfig::linear(1, 1), &args);
    kernels.finish("ported_macros");
}

#[test]
fn the_c_librarys_headers_are_there() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let (module, stream) = (Module::load(&gpu, &C_HEADERS).unwrap(), gpu.stream().unwrap());
    let right = gpu.allocate(4).unwrap();
    right.fill(0, 4, 0).unwrap();
    let args = KernelArgs::new().with(right.ptr());
    for (kernel, args) in [("uses_c_headers", &args), ("asserts_nothing", &KernelArgs::new())] {
        // SAFETY: these are the kernels' arguments, which live until they have ended.
        unsafe { module.kernel(kernel).unwrap().launch(&stream, LaunchConfig::linear(1, 1), args).unwrap() };
        stream.synchronize_timeout(LIMIT).expect(kernel);
    }
    assert_eq!(word(&right, 0), 1);
}

/// Each header alone declares all that kernels use of it.
#[test]
fn headers_bring_what_kernels_use_of_them() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let uses = [
        ("copy", "copyToPackets(p, p + 8, 16, 0, 1, 3); copyFromPackets(p, p + 8, 16, 0, 1, 3);"),
        ("memory_channel", "SmChannelDeviceHandle a; SimpleSmChannelDeviceHandle b; (void)a; (void)b;"),
        ("sm_channel", "DeviceHandle<SmChannel> a; (void)a;"),
        ("atomic", "atomicStore((char*)p, 'x', memoryOrderRelaxed);"),
    ];
    for (header, body) in uses {
        let text = format!(
            "#include <mscclpp/{header}_device.hpp>\nusing namespace mscclpp;\n\
             extern \"C\" __global__ void use(uint64_t* p) {{ {body} }}\n"
        );
        Module::load(&gpu, &KernelSource::new(header, &text))
            .unwrap_or_else(|error| panic!("{header}: {error}"));
    }
}

#[test]
fn what_cannot_be_done_atomically_does_not_compile_and_says_why() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let refused = [
        ("short* p", "atomicFetchAdd(p, 1, memoryOrderRelaxed);", "no hardware adds this type atomically"),
        ("bool* p", "atomicFetchAdd(p, true, memoryOrderRelaxed);", "no hardware adds this type atomically"),
        ("int4* p", "atomicLoad(p, memoryOrderRelaxed);", "words of 1, 2, 4 or 8 bytes"),
    ];
    for (parameter, body, why) in refused {
        let text = format!(
            "#include <mscclpp/atomic_device.hpp>\nusing namespace mscclpp;\n\
             extern \"C\" __global__ void use({parameter}) {{ {body} }}\n"
        );
        let error = Module::load(&gpu, &KernelSource::new("refused.cu", &text)).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(why)), "{parameter}: {error:?}");
    }
}

#[test]
fn barriers_and_semaphores_in_memory_of_every_kind() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let kernels = kernels_on(&gpu);
    let memory = gpu.allocate(256).unwrap();
    for (blocks, threads) in [(1, 2), (2, 64), (4, 32)] {
        memory.fill(0, 256, 0).unwrap();
        let args = KernelArgs::new().with(memory.ptr()).with(memory.ptr().add(128)).with(20i32);
        let args = args.with(kernels.said.ptr());
        kernels.start("ported_concurrency", LaunchConfig::linear(blocks, threads), &args);
        kernels.finish("ported_concurrency");
    }
}

#[test]
fn bulk_copies_and_their_barriers() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    if !has_bulk(&gpu) {
        println!("{gpu} has no bulk copies: they need compute capability 9.0");
        return;
    }
    let memory = gpu.allocate(65536).unwrap();
    for threads in [32, 64] {
        check(&kernels_on(&gpu), "ported_bulk", &memory, threads);
    }
}

/// Makes a memory channel between two devices, of 4096 bytes or more on each side.
fn memory_channel(
    context: &Context,
    devices: [usize; 2],
    bytes: u64,
) -> (MemoryChannel, [DeviceBuffer; 2], [Semaphore; 2]) {
    let semaphores = semaphore_pair(context, devices).expect("semaphores");
    let buffers = devices.map(|id| context.gpu(id).unwrap().allocate(bytes).expect("memory"));
    let [mine, theirs] =
        [0, 1].map(|i: usize| context.register_buffer(&buffers[i], Transport::CUDA_IPC).unwrap());
    let channel = MemoryChannel::new(&semaphores[0], &theirs, &mine, None).expect("a channel");
    (channel, buffers, semaphores)
}

#[test]
fn memory_channels_put_get_and_move_packets() {
    on_each_pair(|context, devices| {
        let gpu = context.gpu(devices[0]).unwrap();
        let kernels = kernels_on(&gpu);
        let (channel, buffers, _semaphores) = memory_channel(context, devices, 4096);
        let packets = gpu.allocate(4096).unwrap();
        for threads in [32, 160] {
            for buffer in [&buffers[0], &buffers[1], &packets] {
                buffer.fill(0, 4096, 0).unwrap();
            }
            let args = KernelArgs::new().with(channel.device_handle()).with(packets.ptr());
            let args = args.with(kernels.said.ptr());
            kernels.start("ported_memory_channel", LaunchConfig::linear(1, threads), &args);
            kernels.finish("ported_memory_channel");
        }
    });
}

#[test]
fn memory_channels_put_and_get_by_bulk_copies() {
    const BYTES: u64 = 64 << 10;
    const GUARD: u64 = 64;
    on_each_pair(|context, devices| {
        let gpu = context.gpu(devices[0]).unwrap();
        if !has_bulk(&gpu) {
            return;
        }
        let kernels = kernels_on(&gpu);
        let (channel, [mine, theirs], _semaphores) = memory_channel(context, devices, 3 * BYTES);
        let mut random = Random::new();
        let sizes = [0, 1, 15, 16, 17, 31, 32, 48, 1023, 1024, 1040, 4095, 4096, 4097, 8192, 30000];
        for size in sizes.into_iter().chain((0..20).map(|_| random.of(0..=40000)).collect::<Vec<_>>()) {
            let mut offset = || GUARD + random.of(0..=BYTES - 2 * GUARD - size);
            let (target, origin, back) = (offset(), offset(), BYTES + offset());
            // Most offsets are such that bulk copies can be used.
            let target = if size % 5 == 1 { target } else { target / 16 * 16 + origin % 16 };
            let back = if size % 7 == 1 { back } else { back / 16 * 16 + target % 16 };
            let data = random.bytes(size as usize);
            mine.fill(0, mine.len(), 0x11).unwrap();
            theirs.fill(0, theirs.len(), 0x22).unwrap();
            mine.write(origin, &data).unwrap();
            let args = KernelArgs::new().with(channel.device_handle()).with(target).with(origin);
            let config = LaunchConfig { shared_bytes: 5120, ..LaunchConfig::linear(1, 32) };
            kernels.start("ported_bulk_channel", config, &args.with(back).with(size));
            kernels.finish("ported_bulk_channel");
            for (buffer, at, around) in [(&theirs, target, 0x22), (&mine, back, 0x11)] {
                let mut got = vec![0; (size + 2 * GUARD) as usize];
                buffer.read(at - GUARD, &mut got).unwrap();
                let mut expected = vec![around; got.len()];
                expected[GUARD as usize..][..data.len()].copy_from_slice(&data);
                assert!(got == expected, "{size} bytes from {origin} to {target} and {back}");
            }
        }
    });
}

#[test]
fn port_channels_put_in_every_form() {
    const BYTES: u64 = 65536;
    on_each_pair(|context, devices| {
        let semaphores = semaphore_pair(context, devices).unwrap();
        let gpus = devices.map(|id| context.gpu(id).unwrap());
        let mut random = Random::new();
        let buffers = gpus.each_ref().map(|gpu| {
            let [source, arrivals] = [gpu.allocate(BYTES).unwrap(), gpu.allocate(BYTES).unwrap()];
            let data = random.bytes(BYTES as usize);
            source.write(0, &data).unwrap();
            arrivals.fill(0, BYTES, 0x5a).unwrap();
            (source, arrivals, data)
        });
        let register = |buffer| context.register_buffer(buffer, Transport::CUDA_IPC).unwrap();
        let sides: Vec<_> = (0..2)
            .map(|i| {
                let service = ProxyService::new(&gpus[i]).unwrap();
                let id = service.add_semaphore(&semaphores[i]).unwrap();
                // The services assign other numbers than 0 and 1.
                service.add_memory(&register(&buffers[i].1)).unwrap();
                let dst = service.add_memory(&register(&buffers[1 - i].1)).unwrap();
                let src = service.add_memory(&register(&buffers[i].0)).unwrap();
                let channel = service.port_channel(id, dst, src).unwrap();
                service.start_proxy(true).unwrap();
                (service, channel, kernels_on(&gpus[i]))
            })
            .collect();
        for (_, channel, kernels) in &sides {
            let args = KernelArgs::new().with(channel.device_handle()).with(kernels.said.ptr());
            let args = args.with(kernels.said.ptr().add(4));
            kernels.start("ported_port_channel", LaunchConfig::linear(1, 1), &args);
        }
        for (service, _, kernels) in &sides {
            kernels.finish("ported_port_channel");
            service.health().expect("a service in good health");
            assert_eq!(word(&kernels.said, 4), 15);
        }
        // The place in the source of the bytes of each put: (target, origin, bytes).
        let targets = [
            0, 128, 256, 320, 384, 512, 640, 704, 768, 896, 960, 1088, 1152, 1280, 1344, 1472, 1536, 1664,
            1728, 1856,
        ];
        let origins = [
            64, 128, 192, 320, 448, 512, 576, 704, 832, 896, 1024, 1088, 1216, 1280, 1408, 1472, 1600, 1664,
            1792, 1920,
        ];
        let large = [(4096, 8192, 4096), (8203, 12299, 5000), (16384, 20480, 40000)];
        let small = targets.into_iter().zip(origins).map(|(target, origin)| (target, origin, 64));
        let puts = small.chain(large);
        for i in 0..2 {
            let mut expected = vec![0x5a; BYTES as usize];
            for (target, origin, bytes) in puts.clone() {
                expected[target..target + bytes].copy_from_slice(&buffers[1 - i].2[origin..origin + bytes]);
            }
            let mut got = vec![0; BYTES as usize];
            buffers[i].1.read(0, &mut got).unwrap();
            assert_eq!(got.iter().zip(&expected).position(|(a, b)| a != b), None, "the first wrong byte");
        }
    });
}

#[test]
fn triggers_are_made_of_fields() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let kernels = kernels_on(&gpu);
    let mut fifo = Fifo::new(&gpu, 64).unwrap();
    let args = KernelArgs::new().with(fifo.device_handle()).with(kernels.said.ptr());
    kernels.start("ported_fifo", LaunchConfig::linear(1, 1), &args);
    let deadline = std::time::Instant::now() + LIMIT;
    let mut take = || loop {
        if let Some(trigger) = fifo.poll() {
            fifo.pop();
            return trigger;
        }
        assert!(std::time::Instant::now() < deadline, "no trigger came");
        std::thread::yield_now();
    };
    let (first, second) = (take(), take());
    kernels.finish("ported_fifo");
    assert_eq!((first.dst_memory().raw(), first.dst_offset()), (5, 0x1111_1111));
    assert_eq!((first.src_memory().raw(), first.src_offset()), (6, 0x2222_2222));
    assert_eq!(
        (first.size(), first.semaphore().raw(), first.kind()),
        (0x3333_3333, 7, TriggerKind::DATA | TriggerKind::FLAG)
    );
    assert_eq!((second.fst, second.kind(), second.semaphore().raw()), (17, TriggerKind::SYNC, 0x3ff));
}
