//! Tests that operations of a queue that is dropped are carried out, or that the connection fails.

use std::{
    thread,
    time::{Duration, Instant},
};

use consumer_own_transport::Post;
use mscclpp::{Context, Device, EndpointConfig, Platform, RegisteredMemory};

const LEN: u64 = 128 << 10;

#[test]
fn a_last_write_to_a_withdrawn_region_is_not_lost_in_silence() {
    for _ in 0..20 {
        let context = || {
            let post = Post::open().expect("a hub");
            Context::builder().provider(post).platform(Platform::Sim).build()
        };
        let [a, b] = [context(), context()];
        let config = |device| EndpointConfig::new(Post::TRANSPORT, Device::gpu(device));
        let [ours, theirs] = [a.create_endpoint(config(0)).unwrap(), b.create_endpoint(config(1)).unwrap()];
        let connection = a.connect(&ours, &theirs).unwrap();
        let memory = |context: &Context, device| {
            let buffer = context.gpu(device).unwrap().allocate(LEN).unwrap();
            context.register_buffer(&buffer, Post::TRANSPORT).unwrap()
        };
        let (source, kept, withdrawn) = (memory(&a, 0), memory(&b, 1), memory(&b, 1));
        let mut queue = connection.open_queue().unwrap();
        let [kept_route, withdrawn_route] = [&kept, &withdrawn].map(|target| {
            let at_peer = RegisteredMemory::deserialize(&target.serialize().unwrap()).unwrap();
            queue.route(&at_peer, &source).unwrap()
        });
        drop(withdrawn);
        // The second write has been sent when the peer begins to carry it out.
        queue.write(kept_route, 0, 0, LEN).unwrap();
        queue.write(withdrawn_route, 0, 0, 64).unwrap();
        drop(queue);
        let began = Instant::now();
        while connection.check().is_ok() {
            assert!(began.elapsed() < Duration::from_secs(50), "nobody was told");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
