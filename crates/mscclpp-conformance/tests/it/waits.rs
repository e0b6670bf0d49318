//! A long wait of the host logs what it waits for. The peer here takes nothing until that is logged.

use std::time::Duration;

use consumer_own_transport::knobs::{Reach, TestPost};
use mscclpp_core::{Context, Device, EndpointConfig, Error};
use mscclpp_gpu::Platform;
use mscclpp_test_support::Lines;

pub(crate) fn a_long_flush_names_the_peer_the_transport_and_its_limit() {
    let post = TestPost::open(Reach::Nothing).expect("a hub");
    let builder = Context::builder().provider(post.clone()).platform(Platform::Sim);
    let context = builder.log_waits_after(Duration::from_millis(5)).build();
    assert_eq!(context.waits_are_logged_after(), Duration::from_millis(5));
    let endpoint = |gpu| context.create_endpoint(EndpointConfig::new(TestPost::TRANSPORT, Device::gpu(gpu)));
    let (ours, theirs) = (endpoint(0).unwrap(), endpoint(1).unwrap());
    let connection = context.connect(&ours, &theirs).unwrap();
    connection.set_label("rank 3");
    let memory = |device| {
        let buffer = context.gpu(device).unwrap().allocate(64).unwrap();
        context.register_buffer(&buffer, TestPost::TRANSPORT).unwrap()
    };
    let (here, there) = (memory(0), memory(1));

    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    post.hold(true);
    connection.write(&there, 0, &here, 0, 64).unwrap();
    let limit = Duration::from_secs(2);
    let outcome = tracing::subscriber::with_default(subscriber, || connection.flush(limit));
    post.hold(false);
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    let text = lines.text();
    let line = "WARN mscclpp::wait: waiting for rank 3: flush, over Post, which gives up after 2s";
    assert!(text.contains(line), "{text}");
    connection.flush(Duration::from_secs(30)).unwrap();
}
