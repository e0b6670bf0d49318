//! Memory on both sides between which data goes, the channels over it, and the measuring of what moves it.

use std::borrow::Cow;

use clap::Args;
use mscclpp::{Graph, Stream, errors::GpuError, prelude::*};

use crate::{
    Result,
    data::{Destination, GUARD},
    pair::Pair,
    progress::Progress,
    stopwatch::Stopwatch,
};

/// Of every workload that moves data.
#[derive(Args)]
pub(crate) struct Measuring {
    /// Rounds for one time [default: 1000, fewer of large messages; 20 on simulated devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iters: Option<u32>,
    /// How often all rounds are run before the times that count.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// How many times are taken.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// The device numbers of the two ranks [default: the first two, or twice the only one].
    #[arg(long, num_args = 2, value_names = ["GPU", "GPU"])]
    devices: Option<Vec<usize>>,
    /// Make a byte wrong before data is compared: the check must notice.
    #[arg(long, hide = true)]
    spoil: bool,
}

/// By default a time takes under a second: at 100 GB/s on a GPU, and a thousandth of that on a simulated one.
const BYTES_OF_A_TIME: u64 = 64 << 30;

impl Measuring {
    pub(crate) fn join(&self, peer: bool) -> Result<Pair> {
        let devices = self.devices.as_deref().and_then(|ids| <[usize; 2]>::try_from(ids).ok());
        Pair::join(devices, peer)
    }

    /// Of messages of that size.
    pub(crate) fn rounds(&self, platform: Platform, bytes: u64) -> u32 {
        let (most, budget) = match platform {
            Platform::Host => (20, BYTES_OF_A_TIME / 1000),
            _ => (1000, BYTES_OF_A_TIME),
        };
        // At most `most`, which fits.
        self.rounds_or((budget / bytes).clamp(1, most) as u32)
    }

    /// What `--iters` says, or `default`.
    pub(crate) fn rounds_or(&self, default: u32) -> u32 {
        self.iters.unwrap_or(default)
    }

    /// Launches for one row.
    pub(crate) fn launches(&self) -> usize {
        (self.warmup + self.repeats) as usize
    }

    pub(crate) fn repeats(&self) -> usize {
        self.repeats as usize
    }

    /// Whether a launch, counted from 0, is behind the warm-up.
    pub(crate) fn counts(&self, launch: usize) -> bool {
        launch >= self.warmup as usize
    }

    /// Whether a byte is to be made wrong before data is compared.
    pub(crate) fn spoils(&self) -> bool {
        self.spoil
    }

    pub(crate) fn chooses_devices(&self) -> bool {
        self.devices.is_some()
    }
}

/// The first bytes of this side's memory are sent; the peer's data is to arrive in [`Exchange::destination`].
pub(crate) struct Exchange<'a> {
    // Declared first: when it is dropped, it waits for the kernels that use the rest.
    pub(crate) stopwatch: Stopwatch<'a>,
    pair: &'a Pair,
    channels: Vec<MemoryChannel>,
    memory: DeviceBuffer,
    /// Where packets arrive.
    scratch: Option<DeviceBuffer>,
    incoming: u64,
}

impl<'a> Exchange<'a> {
    /// For messages of up to `largest` bytes, as packets of up to `packets` bytes if that is not 0, over so many
    /// channels that have this in common.
    pub(crate) fn new(pair: &'a Pair, largest: u64, packets: u64, channels: u32) -> Result<Self> {
        const PAGE: u64 = 4096;
        let incoming = largest.next_multiple_of(PAGE) + PAGE;
        let memory = pair.gpu.allocate(incoming + largest + GUARD)?;
        let scratch = (packets != 0).then(|| pair.gpu.allocate(packets)).transpose()?;

        let transport = Transport::CUDA_IPC;
        let connection = pair.connect(transport)?;
        let [mine, others] = pair.share(&memory, transport)?;
        let scratches = scratch.as_ref().map(|scratch| pair.share(scratch, transport)).transpose()?;
        let semaphores = pair.semaphores(&connection, channels)?;
        let channels = semaphores
            .iter()
            .map(|semaphore| match &scratches {
                Some([here, there]) => MemoryChannel::new(semaphore, there, &mine, Some(here)),
                None => MemoryChannel::new(semaphore, &others, &mine, None),
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { stopwatch: Stopwatch::new(pair, semaphores)?, pair, channels, memory, scratch, incoming })
    }

    /// Not empty.
    pub(crate) fn channels(&self) -> &[MemoryChannel] {
        &self.channels
    }

    /// Where the peer's data goes, in bytes from the start of this side's memory.
    pub(crate) fn incoming(&self) -> u64 {
        self.incoming
    }

    fn destination(&self) -> Destination<'_> {
        Destination { memory: &self.memory, offset: self.incoming }
    }

    /// What is sent from now on. Packets of earlier messages are gone.
    ///
    /// Nobody sends before the other side's kernel has begun, so that this can be done while the other is still at it.
    pub(crate) fn load(&self, data: &[u8]) -> Result<()> {
        self.memory.write(0, data)?;
        if let Some(scratch) = &self.scratch {
            scratch.fill(0, scratch.len(), 0)?;
        }
        Ok(())
    }

    /// The times of all repeats in microseconds, each of all its rounds; none if data was wrong or a wait failed, on
    /// either side and in the warm-up too. `submit` submits one launch, behind which the message that `expected` gives
    /// for its number, counted from 0, is to be there.
    pub(crate) fn measure<'d>(
        &self,
        measuring: &Measuring,
        progress: &mut Progress,
        label: &str,
        submit: impl Fn(&Stream) -> Result<(), GpuError>,
        expected: impl Fn(u32) -> Cow<'d, [u8]>,
    ) -> Result<Option<Vec<f64>>> {
        let destination = self.destination();
        let mut times = Vec::new();
        let mut ok = true;
        for launch in 0..measuring.warmup + measuring.repeats {
            progress.step(label);
            let expected = expected(launch);
            let len = expected.len() as u64;
            destination.poison(len)?;
            let us = self.stopwatch.time(&submit)?;
            if measuring.spoil {
                destination.spoil(len)?;
            }
            ok &= us.is_some() && destination.holds(&expected)?;
            times.extend(us.filter(|_| launch >= measuring.warmup));
        }
        Ok(self.pair.ranks.both(ok)?.then_some(times))
    }
}

/// A graph of `rounds` times what `launch` submits to the stream.
pub(crate) fn capture(
    stream: &Stream,
    rounds: u32,
    launch: impl Fn() -> Result<(), GpuError>,
) -> Result<Graph, GpuError> {
    stream.begin_capture()?;
    let launched = (0..rounds).try_for_each(|_| launch());
    // Also after an error: the stream is to be usable again.
    let graph = stream.end_capture();
    launched.and(graph)
}
