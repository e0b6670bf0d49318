//! Two ranks in one process, on simulated devices, over a transport from outside.

use std::{sync::Arc, thread, time::Duration};

use consumer_own_transport::Post;
use mscclpp::{Error, prelude::*};

const LIMIT: Duration = Duration::from_secs(30);

/// A kernel that signals the peer and waits for its signal.
const MEET: KernelSource<'static> = KernelSource::new(
    "meet.cu",
    r#"
#include "mscclpp/port_channel_device.hpp"
#include <assert.h>

extern "C" __global__ void meet(mscclpp::BasePortChannelDeviceHandle channel) {
  channel.signal();
  const bool met = channel.wait();
  assert(met && "the peer gave up");
}
"#,
);

fn main() -> Result<(), Error> {
    let ranks: Vec<_> =
        LocalBootstrap::group(2).into_iter().map(|b| thread::spawn(move || rank(b))).collect();
    for rank in ranks {
        rank.join().expect("a rank panicked")?;
    }
    println!("two ranks on simulated devices have written to and signalled each other");
    Ok(())
}

fn rank(bootstrap: LocalBootstrap) -> Result<(), Error> {
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let context = Context::builder().provider(Post::open()?).platform(Platform::Sim).build();
    let comm = Communicator::with_context(Arc::new(bootstrap), context);
    let gpu = comm.context().gpu(rank)?;

    let buffer = gpu.allocate(16)?;
    let own = comm.register_buffer(&buffer, Post::TRANSPORT)?;
    let connection = comm.connect(EndpointConfig::new(Post::TRANSPORT, Device::gpu(rank)), peer, 0)?;
    comm.send_memory(&own, peer, 0)?;
    let theirs = comm.recv_memory(peer, 0)?;
    let connection = connection.wait()?;
    let service = ProxyService::new(&gpu)?;
    let channel = service.base_port_channel(service.build_and_add_semaphore(&comm, &connection)?)?;
    service.start_proxy(true)?;

    // The host writes a word through the connection.
    buffer.write(8, &[rank as u8 + 1; 8])?;
    connection.write(&theirs.wait()?, 0, &own, 8, 8)?;
    connection.flush(LIMIT)?;

    // A kernel signals.
    let module = Module::load(&gpu, &MEET)?;
    let stream = gpu.stream()?;
    let arguments = KernelArgs::new().with(channel.device_handle());
    // SAFETY: this is the kernel's argument, and the channel is kept until the stream is done.
    unsafe { module.kernel("meet")?.launch(&stream, LaunchConfig::linear(1, 1), &arguments)? };
    stream.synchronize_timeout(LIMIT)?;

    let mut word = [0; 8];
    buffer.read(0, &mut word)?;
    assert_eq!(word, [peer as u8 + 1; 8]);
    comm.bootstrap().barrier()?;
    Ok(service.stop_proxy()?)
}
