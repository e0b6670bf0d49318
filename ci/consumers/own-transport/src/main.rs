//! Two processes that write to each other's simulated devices, over the transport of this crate.

use std::{error::Error, process::Command, sync::Arc, time::Duration};

use consumer_own_transport::Post;
use mscclpp::prelude::*;

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    // The second process gets the id of the job as its argument.
    if let Some(id) = std::env::args().nth(1) {
        return rank(1, &id.parse()?);
    }
    let id = TcpBootstrap::create_unique_id()?;
    let mut second = Command::new(std::env::current_exe()?).arg(id.to_hex()).spawn()?;
    rank(0, &id)?;
    match second.wait()?.success() {
        true => Ok(()),
        false => Err("the second process failed".into()),
    }
}

fn rank(rank: usize, id: &UniqueId) -> Result<(), Box<dyn Error>> {
    let bootstrap = TcpBootstrap::new(rank, 2, id, LIMIT)?;
    let peer = 1 - rank;
    let context = Context::builder().provider(Post::open()?).platform(Platform::Sim).build();
    let comm = Communicator::with_context(Arc::new(bootstrap), context);
    let gpu = comm.context().gpu(rank)?;

    let (outbox, inbox) = (gpu.allocate(1 << 20)?, gpu.allocate(1 << 20)?);
    outbox.fill(0, 1 << 20, rank as u8 + 1)?;
    let source = comm.register_buffer(&outbox, Post::TRANSPORT)?;
    let target = comm.register_buffer(&inbox, Post::TRANSPORT)?;
    let config = EndpointConfig::new(Post::TRANSPORT, Device::gpu(rank));
    let mesh = comm.mesh(config).memory(&target).connect()?;
    let link = &mesh.links()[0];

    link.connection.write(&link.memories[0], 0, &source, 0, 1 << 20)?;
    link.connection.flush(LIMIT)?;
    comm.bootstrap().barrier()?;

    let mut received = vec![0; 1 << 20];
    inbox.read(0, &mut received)?;
    assert!(received.iter().all(|byte| *byte == peer as u8 + 1), "not the bytes of rank {peer}");
    println!("rank {rank}: the bytes of rank {peer} have arrived by post");
    Ok(comm.bootstrap().barrier()?)
}
