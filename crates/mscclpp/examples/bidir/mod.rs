//! The part that the two examples with data in both directions share: the memory, its contents, and the measurement.
//!
//! Each side has a buffer of two halves. Its own data is in the half of its rank; the peer's data arrives in the other.

use std::{error::Error, sync::Arc, time::Duration};

use mscclpp::{Event, Stream, errors::GpuError, prelude::*};

use crate::ranks::Rank;

/// How many ranks there are.
pub(crate) const N_RANKS: usize = 2;
/// The time after which a rank gives up and aborts.
const LIMIT: Duration = Duration::from_secs(60);

/// One side of the exchange: a rank with its device and memory.
pub(crate) struct Side {
    pub(crate) gpu: Gpu,
    rank: usize,
    /// The sizes that are tried, and the number of rounds that are timed of each.
    pub(crate) sizes: [(u64, u32); 3],
    pub(crate) stream: Stream,
    start: Event,
    end: Event,
    /// Device memory, for both halves of the largest size.
    pub(crate) buffer: DeviceBuffer,
    /// Device memory: not 0 if a call of a kernel failed.
    pub(crate) failed: DeviceBuffer,
    pub(crate) communicator: Communicator,
}

/// Returns the sizes and rounds. Both ranks call it.
///
/// There are fewer rounds on simulated devices, and where both ranks are on one GPU, which runs the kernels of two
/// processes in turn, some milliseconds each, so that every round waits for several turns.
fn sizes(bootstrap: &dyn Bootstrap, gpu: &Gpu) -> mscclpp::Result<[(u64, u32); 3]> {
    let gpus = bootstrap.all_gather(&gpu.properties().uuid)?;
    let share = if gpus[0] == gpus[1] { 20 } else { 1 };
    Ok(match gpu.platform() {
        Platform::Sim => [(1 << 10, 20), (64 << 10, 10), (1 << 20, 5)],
        _ => [(1 << 10, 1000 / share), (1 << 20, 1000 / share), (128 << 20, 100 / share)],
    })
}

impl Side {
    /// Joins the job as the rank `this`. Both ranks call it.
    pub(crate) fn join(this: &Rank) -> mscclpp::Result<Self> {
        let bootstrap = Arc::new(this.bootstrap(N_RANKS)?);
        let communicator = Communicator::with_context(bootstrap, Context::on(this.platform));
        let gpu = communicator.context().gpu(this.gpu)?;

        println!("GPU {}: Preparing for tests ...", this.gpu);
        let sizes = sizes(&**communicator.bootstrap(), &gpu)?;
        let largest = sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
        Ok(Self {
            rank: this.rank,
            sizes,
            stream: gpu.stream()?,
            start: gpu.event(true)?,
            end: gpu.event(true)?,
            buffer: gpu.allocate(2 * largest)?,
            failed: gpu.allocate(4)?,
            communicator,
            gpu,
        })
    }

    pub(crate) fn barrier(&self) -> mscclpp::Result<()> {
        Ok(self.communicator.bootstrap().barrier()?)
    }

    /// Connects the devices of both sides, and makes a semaphore over the connection.
    pub(crate) fn semaphore(&self, transport: Transport) -> mscclpp::Result<Semaphore> {
        let config = EndpointConfig::new(transport, Device::gpu(self.gpu.id()));
        let connection = self.communicator.connect(config, 1 - self.rank, 0)?.wait()?;
        self.communicator.build_semaphore(&connection)?.wait()
    }

    // ANCHOR: measure
    /// Runs `rounds` rounds of `launch` as one graph, twice, each time with fresh data, and checks that the data has
    /// arrived; the second run is timed. Both sides call it.
    pub(crate) fn measure(
        &self,
        name: &str,
        (bytes, rounds): (u64, u32),
        semaphore: &Semaphore,
        launch: impl Fn() -> Result<(), GpuError>,
    ) -> Result<(), Box<dyn Error>> {
        self.stream.begin_capture()?;
        let launched = (0..rounds).try_for_each(|_| launch());
        let graph = self.stream.end_capture()?;
        launched?;

        let mut ms_per_round = 0.0;
        for run in 0..2 {
            self.buffer.write(self.rank as u64 * bytes, &words(self.rank, run, bytes))?;
            self.buffer.fill((1 - self.rank) as u64 * bytes, bytes, 0xff)?;
            self.failed.fill(0, 4, 0)?;
            self.stream.record(&self.start)?;
            // SAFETY: the caller keeps what the kernels use, and `finish` waits for the kernels.
            unsafe { graph.launch(&self.stream)? };
            self.stream.record(&self.end)?;
            self.finish(semaphore)?;
            ms_per_round = self.end.elapsed_ms(&self.start)? / rounds as f32;
            self.verify(name, run, bytes)?;
            // The peer may still be reading what the next run overwrites.
            self.barrier()?;
        }
        if self.rank == 0 {
            let gpu = self.gpu.id();
            let bandwidth = bytes as f32 / ms_per_round / 1e6;
            println!(
                "GPU {gpu}: [{name}] bytes {bytes}, elapsed {ms_per_round} ms/iter, BW {bandwidth} GB/s"
            );
        }
        Ok(())
    }
    // ANCHOR_END: measure

    fn finish(&self, semaphore: &Semaphore) -> Result<(), Box<dyn Error>> {
        // When the time is up this ends the kernels' waits, so that the device stays usable. If a wait failed, the error
        // says why.
        self.stream.synchronize_or_abort(LIMIT, semaphore)?;
        let mut failed = [0; 4];
        self.failed.read(0, &mut failed)?;
        match failed {
            [0, 0, 0, 0] => Ok(()),
            _ => Err("a call of a kernel failed".into()),
        }
    }

    fn verify(&self, name: &str, run: u64, bytes: u64) -> Result<(), Box<dyn Error>> {
        let peer = 1 - self.rank;
        let expected = words(peer, run, bytes);
        let mut arrived = vec![0; bytes as usize];
        self.buffer.read(peer as u64 * bytes, &mut arrived)?;
        match arrived.iter().zip(&expected).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => {
                Err(format!("{name}: of {bytes} bytes from rank {peer}, the one at {at} is wrong").into())
            }
        }
    }
}

/// The data of a rank in a run (splitmix64). The data of different ranks or runs have no word in common.
fn words(rank: usize, run: u64, bytes: u64) -> Vec<u8> {
    let seed = (rank as u64) << 60 | run << 56 | bytes;
    let word = |i: u64| {
        let x = seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    (0..bytes / 8).flat_map(|i| word(i).to_ne_bytes()).collect()
}
