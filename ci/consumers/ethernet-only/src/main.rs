//! Two ranks in one process, on CPUs: one writes into the other's memory over TCP and signals.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use mscclpp::{Error, channels::HostToHostSemaphore, prelude::*};

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Error> {
    let ranks: Vec<_> =
        LocalBootstrap::group(2).into_iter().map(|b| thread::spawn(move || rank(b))).collect();
    for rank in ranks {
        rank.join().expect("a rank panicked")?;
    }
    println!("two ranks on CPUs have written to and signalled each other over TCP");
    Ok(())
}

fn rank(bootstrap: LocalBootstrap) -> Result<(), Error> {
    let (rank, peer) = (bootstrap.rank() as u64, 1 - bootstrap.rank());
    let words: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(rank + 1), AtomicU64::new(0)]);
    let comm = Communicator::new(Arc::new(bootstrap));
    let connection = comm.connect(EndpointConfig::new(Transport::ETHERNET, Device::CPU), peer, 0)?.wait()?;
    let semaphore = HostToHostSemaphore::new(&comm.build_semaphore(&connection)?.wait()?)?;
    // SAFETY: `words` is kept until both ranks are done, and only accessed with atomics.
    let own =
        unsafe { comm.register_memory(DevicePtr::from_ptr(&raw const *words), 16, Transport::ETHERNET)? };
    comm.send_memory(&own, peer, 0)?;
    let theirs = comm.recv_memory(peer, 0)?.wait()?;

    connection.write(&theirs, 8, &own, 0, 8)?;
    semaphore.signal()?;
    semaphore.wait(-1)?;
    assert_eq!(words[1].load(Ordering::Relaxed), peer as u64 + 1);
    connection.flush(LIMIT)?;
    comm.bootstrap().barrier()?;
    Ok(())
}
