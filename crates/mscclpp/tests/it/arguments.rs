//! The meaning of each argument of the device API, on GPUs and on simulated devices: `arguments.cu` makes every call with
//! numbers that all differ, so that it finds two arguments that changed places, or one with the wrong unit.

use crate::support::{
    checked::{Checked, has_bulk},
    kernels::ARGUMENTS,
    on_each_pair, platform, semaphore_pair, turn,
};
use mscclpp::{prelude::*, proxy::Fifo};

const BYTES: u64 = 16384;

/// A device's kernels, and memory whose first 4096 bytes are the kernels' `byteAt` and whose others are zeros.
struct Kernels {
    checked: Checked,
    memory: DeviceBuffer,
}

impl Kernels {
    fn new(gpu: &Gpu) -> Self {
        let checked = Checked::new(gpu, "arguments.cu", &ARGUMENTS);
        Self { checked, memory: gpu.allocate(BYTES).expect("memory") }
    }

    /// Starts a kernel of one block, which gets these arguments, then the memory, and the place where it reports what is
    /// wrong.
    fn start(&self, kernel: &str, threads: u32, args: KernelArgs) {
        let bytes: Vec<u8> = (0..4096u64).map(|i| (i * 37 + i / 256 * 5 + 11) as u8).collect();
        self.memory.fill(0, BYTES, 0).expect("memory");
        self.memory.write(0, &bytes).expect("memory");
        let shape = LaunchConfig { shared_bytes: 1024, ..LaunchConfig::linear(1, threads) };
        self.checked.start(kernel, shape, &args.with(self.memory.ptr()).with(self.checked.said.ptr()));
    }

    fn check(&self, kernel: &str, threads: u32, args: KernelArgs) {
        self.start(kernel, threads, args);
        self.checked.finish(kernel);
    }
}

#[test]
fn copies_packets_atomics_and_bulk_copies() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let kernels = Kernels::new(&gpu);
    kernels.check("copies_and_packets", 64, KernelArgs::new());
    kernels.check("atomics", 1, KernelArgs::new());
    if has_bulk(&gpu) {
        kernels.check("bulk_copies", 64, KernelArgs::new());
    }
}

#[test]
fn memory_channels() {
    on_each_pair(|context, devices| {
        let gpu = context.gpu(devices[0]).unwrap();
        let [semaphore, _peers] = semaphore_pair(context, devices).expect("semaphores");
        let kernels = Kernels::new(&gpu);
        let memory = context.register_buffer(&kernels.memory, Transport::CUDA_IPC).expect("registered");
        let channel = MemoryChannel::new(&semaphore, &memory, &memory, None).expect("a channel");
        kernels.check("memory_channels", 64, KernelArgs::new().with(channel.device_handle()));
        if has_bulk(&gpu) {
            kernels.check("bulk_channels", 32, KernelArgs::new().with(channel.device_handle()));
        }
    });
}

#[test]
fn triggers_of_port_channels() {
    let _turn = turn();
    let gpu = platform().gpu(0).unwrap();
    let kernels = Checked::new(&gpu, "arguments.cu", &ARGUMENTS);
    let mut fifo = Fifo::new(&gpu, 32).unwrap();
    let words = gpu.allocate(256).unwrap();
    words.fill(0, 256, 0).unwrap();
    let args = KernelArgs::new().with(fifo.device_handle()).with(words.ptr()).with(kernels.said.ptr());
    // The FIFO has room for all that it pushes.
    kernels.start("port_channels", LaunchConfig::linear(1, 1), &args);
    kernels.finish("port_channels");
    // The type (data 1, signal 2, flush 4), both ids and offsets, the size, and the semaphore.
    let by_id = |kind, dst, src, size| (kind, (5, dst), (6, src), size, 9);
    let by_channel = |kind, dst, src, size| (kind, (3, dst), (4, src), size, 9);
    let nothing = |kind| (kind, (0, 0), (0, 0), 0, 9);
    let expected = [
        by_id(1, 1001, 2002, 303),
        by_id(1, 1004, 1004, 305),
        nothing(2),
        by_id(3, 1006, 2007, 308),
        by_id(3, 1009, 1009, 310),
        by_id(7, 1011, 2012, 313),
        by_id(7, 1014, 1014, 315),
        nothing(4),
        by_channel(1, 1016, 2017, 318),
        by_channel(1, 1019, 1019, 320),
        by_channel(3, 1021, 2022, 323),
        by_channel(3, 1024, 1024, 325),
        by_channel(7, 1026, 2027, 328),
        by_channel(7, 1029, 1029, 330),
        by_id(1, 1031, 2032, 333),
        by_id(1, 1034, 1034, 335),
        by_id(3, 1036, 2037, 338),
        by_id(3, 1039, 1039, 340),
        by_id(7, 1041, 2042, 343),
        by_id(7, 1044, 1044, 345),
        (4, (11, 1046), (12, 2047), 348, 13),
    ];
    for (position, expected) in expected.into_iter().enumerate() {
        let trigger = fifo.poll().unwrap_or_else(|| panic!("no trigger at position {position}"));
        // The words themselves: size and source offset; destination offset, ids, type, semaphore and the lap's bit.
        let bits = |word: u64, from: u32, count: u32| word >> from & ((1 << count) - 1);
        let found = (
            bits(trigger.snd, 50, 3),
            (bits(trigger.snd, 41, 9), bits(trigger.snd, 0, 32)),
            (bits(trigger.snd, 32, 9), bits(trigger.fst, 32, 32)),
            bits(trigger.fst, 0, 32),
            bits(trigger.snd, 53, 10),
        );
        assert_eq!(found, expected, "the trigger at position {position}");
        fifo.pop();
    }
    assert!(fifo.poll().is_none());
}
