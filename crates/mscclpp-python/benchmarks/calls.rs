//! The time of calls that Python programs make often, measured from Rust. `overhead.py` compares its times with them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp::{
    Communicator, Context, ContextExt, Device, EndpointConfig, LocalBootstrap, Platform, Result, Transport,
    proxy::Fifo,
};

/// The number of calls in one run. The best of several runs counts, because other programs disturb some of them.
const CALLS: u32 = 1000;
const RUNS: u32 = 30;

fn main() -> Result<()> {
    let platform = Platform::detect_or_sim()?;
    let gpu = platform.gpu(0)?;
    let mut fifo = Fifo::new(&gpu, 512)?;
    report("fifo_poll", || {
        std::hint::black_box(fifo.poll());
        Ok(())
    })?;

    let bootstrap = LocalBootstrap::group(1).remove(0);
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(0));
    let connection = comm.connect(config, 0, 0)?.wait()?;
    let buffers = [gpu.allocate(64)?, gpu.allocate(64)?];
    let inbox = comm.register_buffer(&buffers[0], Transport::CUDA_IPC)?;
    let outbox = comm.register_buffer(&buffers[1], Transport::CUDA_IPC)?;
    let flushed = || connection.flush(Duration::from_secs(30));
    flushed()?;
    let mut done = 0;
    report("connection_write", || {
        connection.write(&inbox, 0, &outbox, 0, 8)?;
        done += 1;
        if done % CALLS == 0 { Ok(flushed()?) } else { Ok(()) }
    })
}

fn report(name: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        best = best.min(start.elapsed() / CALLS);
    }
    println!("{name} {}", best.as_nanos());
    Ok(())
}
