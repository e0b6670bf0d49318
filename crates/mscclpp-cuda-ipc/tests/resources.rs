//! Threads and descriptors end when the objects that need them are dropped. This test is alone in its process,
//! because it counts them.

use std::{
    thread,
    time::{Duration, Instant},
};

use mscclpp_conformance::{pair::received, semaphores::build};
use mscclpp_core::{Context, Device, EndpointConfig, RegisteredMemory, Transport};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::Platform;
use mscclpp_test_support::held;

const LIMIT: Duration = Duration::from_secs(30);

/// Makes two services and everything that they serve, and also connections that fail.
fn round() {
    let [here, there] =
        [(); 2].map(|()| Context::builder().provider(CudaIpc::new()).platform(Platform::Sim).build());
    let open = |context: &Context, gpu| {
        context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu))).unwrap()
    };
    let (near, far) = (open(&here, 0), open(&there, 1));
    let connections =
        [here.connect(&near, &received(&far)).unwrap(), there.connect(&far, &received(&near)).unwrap()];
    let _semaphores = build(&connections[0], &connections[1]);

    let share = |context: &Context, gpu| {
        let buffer = context.gpu(gpu).unwrap().allocate(4096).unwrap();
        context.register_buffer(&buffer, Transport::CUDA_IPC).unwrap()
    };
    let (source, target) = (share(&here, 0), share(&there, 1));
    let target = RegisteredMemory::deserialize(&target.serialize().unwrap()).unwrap();
    connections[0].write(&target, 0, &source, 0, 4096).unwrap();
    connections[0].flush(LIMIT).unwrap();

    let gone = received(&open(&there, 2));
    assert!(here.connect(&near, &gone).is_err(), "connected with an endpoint that is gone");
}

/// Waits until the counts are `before` again: a thread that has ended is listed a moment longer.
fn settled(before: [usize; 3]) -> [usize; 3] {
    let start = Instant::now();
    loop {
        let now = held();
        if now == before || start.elapsed() > LIMIT {
            return now;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn threads_and_descriptors_end_with_what_needs_them() {
    let before = held();
    round();
    assert_eq!(settled(before), before, "after one round");
    for _ in 0..300 {
        round();
    }
    assert_eq!(settled(before), before, "after 300 more");
}
