//! A queue whose stream is held up: it takes as many operations as it holds, and nobody waits inside it.

use std::sync::atomic::Ordering;

use libtest_mimic::Trial;
use mscclpp_conformance::pair::received;
use mscclpp_core::{Context, Device, EndpointConfig, RegisteredMemory, Transport};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::{KernelArgs, KernelSource, LaunchConfig, Module, Platform};
use mscclpp_test_support::{Child, child, until};

const HOLD: KernelSource<'static> = KernelSource::new(
    "hold.cu",
    "extern \"C\" __global__ void hold(volatile unsigned long* word) { while (*word == 0) {} }",
);
const WRITES: usize = 1500;

/// The role of the process whose connections copy on the default stream, which the test can hold up.
pub(crate) const ROLE: &str = "full_queue";

pub(crate) fn trial() -> Trial {
    Trial::test("full_queue::a_queue_takes_as_many_operations_as_it_holds", || {
        let mut program = child::this_program();
        program.env("MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM", "1");
        Child::start_by(program, &[ROLE]).expect_success();
        Ok(())
    })
}

pub(crate) fn a_queue_takes_as_many_operations_as_it_holds() {
    for (size, held) in [(Some(1), 1), (Some(4), 4), (None, 768), (Some(5000), 768)] {
        let context = Context::builder().provider(CudaIpc::new()).platform(Platform::Sim).build();
        let ends = [0, 1].map(|n| {
            let mut config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(n));
            config.max_write_queue_size = size;
            context.create_endpoint(config).unwrap()
        });
        let connection = context.connect(&ends[0], &received(&ends[1])).unwrap();
        let gpus = [0, 1].map(|n| context.gpu(n).unwrap());
        let buffers = [0, 1].map(|n| gpus[n].allocate(64).unwrap());
        buffers[0].write(0, &[7; 64]).unwrap();
        let memories = [0, 1].map(|n| context.register_buffer(&buffers[n], Transport::CUDA_IPC).unwrap());
        let theirs = RegisteredMemory::deserialize(&memories[1].serialize().unwrap()).unwrap();
        let mut queue = connection.open_queue().unwrap();
        let route = queue.route(&theirs, &memories[0]).unwrap();

        let word = gpus[0].allocate_pinned(8).unwrap();
        let kernel = Module::load(&gpus[0], &HOLD).unwrap().kernel("hold").unwrap();
        let (stream, args) = (gpus[0].default_stream().unwrap(), KernelArgs::new().with(word.ptr()));
        // SAFETY: the kernel takes one pointer, to a word that lives until the flush at the end, behind the kernel in its stream.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args) }.unwrap();
        for _ in 0..WRITES {
            queue.write(route, 0, 0, 64).unwrap();
        }
        for _ in 0..3 {
            assert_eq!(queue.submit().unwrap(), WRITES - held, "size {size:?}");
        }
        assert_eq!(queue.progress().unwrap(), 0);
        word.word(0).unwrap().store(1, Ordering::Release);
        let ticket = queue.request_flush().unwrap();
        until("the flush", || queue.progress().unwrap() >= ticket);
        let mut bytes = [0; 64];
        buffers[1].read(0, &mut bytes).unwrap();
        assert_eq!((bytes, queue.waiting()), ([7; 64], 0));
    }
}
