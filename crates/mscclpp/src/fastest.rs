//! Choosing a semaphore's place in memory by the time that signals take.

use std::time::Duration;

use mscclpp_core::{
    BaseMemoryChannel, BaseMemoryChannelHandle, Connection, Device, DeviceType, Error as CoreError,
    Semaphore, SemaphoreStub,
};
use mscclpp_gpu::{
    DeviceBuffer, Error as GpuError, Event, Gpu, Kernel, KernelArgs, LaunchConfig, Module, ModuleSource,
    Platform, Stream,
};

use crate::{Communicator, Pending, Result};

/// Round trips that a place is measured by.
const ROUNDS: i32 = 400;
/// For all places together, and for the peer to come to it.
const LIMIT: Duration = Duration::from_secs(10);

/// See [`Communicator::build_fastest_semaphore`].
pub(crate) fn build(
    comm: &Communicator,
    connection: &Connection,
    peer: usize,
    tag: u32,
    places: usize,
) -> Result<Semaphore> {
    let what = "build_fastest_semaphore";
    let rank = comm.bootstrap().rank();
    if places == 0 {
        let error = format!("{what}: of 0 places none is the fastest; 16 is a good number");
        return Err(CoreError::InvalidArgument(error).into());
    }
    if peer == rank {
        let error = format!("{what}: rank {rank} cannot time signals to itself; call build_semaphore");
        return Err(CoreError::InvalidArgument(error).into());
    }
    let asked = (places as u64).to_le_bytes();
    comm.exchange(what, Some(&asked), peer, tag, move |bytes| agreed(bytes, places))?.wait()?;
    // Before the peer can get what it needs to start: a driver may wait with loading a kernel for those that run.
    let trial = Trial::new(connection, places)?;
    let pending: Vec<_> = (0..places)
        .map(|_| comm.join_stub(what, SemaphoreStub::in_new_page(connection)?, peer, tag))
        .collect::<Result<_>>()?;
    let semaphores: Vec<_> = pending.iter().map(Pending::wait).collect::<Result<_>>()?;

    // Its end is before the peer hears of it: a driver may wait with unloading a kernel, too.
    let mine = trial.nanoseconds(&semaphores, rank < peer).map_err(|error| comm.explain(error));
    // Of a failure, too, by no figures at all.
    let bytes: Vec<u8> = mine.iter().flatten().flat_map(|nanoseconds| nanoseconds.to_le_bytes()).collect();
    let theirs = comm.exchange(what, Some(&bytes), peer, tag, move |bytes| times(bytes, places))?;
    let (mine, theirs) = (mine?, theirs.wait()?);

    // The same sums on both sides, of which both take the first of the least.
    let sums: Vec<_> = mine.iter().zip(&theirs).map(|(mine, theirs)| mine.saturating_add(*theirs)).collect();
    let fastest = (0..places).min_by_key(|place| sums[*place]).expect("there is a place");
    let (least, most) = (sums.iter().min(), sums.iter().max());
    tracing::debug!(target: "mscclpp::conn", rank, peer, places, fastest, least, most, "{what}: chosen");
    Ok(semaphores[fastest].clone())
}

/// Whether the peer asks for as many places.
fn agreed(bytes: &[u8], places: usize) -> mscclpp_core::Result<()> {
    let problem = match bytes.try_into().map(u64::from_le_bytes) {
        Ok(asked) if asked == places as u64 => return Ok(()),
        Ok(asked) => format!("the peer asks for {asked} places, and this side for {places}"),
        Err(_) => "the peer made another call".to_owned(),
    };
    Err(CoreError::InvalidArgument(problem))
}

/// The peer's figures.
fn times(bytes: &[u8], places: usize) -> mscclpp_core::Result<Vec<u64>> {
    let (times, rest) = bytes.as_chunks();
    if times.len() == places && rest.is_empty() {
        return Ok(times.iter().copied().map(u64::from_le_bytes).collect());
    }
    let problem = "the peer could not time the signals, and has an error that says why";
    Err(CoreError::InvalidArgument(problem.to_owned()))
}

/// What is needed to time signals. Nothing of simulated devices, whose places are all alike; and nothing of one device, on
/// which two processes take turns by milliseconds.
struct Trial {
    of_gpu: Option<OfGpu>,
}

struct OfGpu {
    kernel: Kernel,
    stream: Stream,
    failed: DeviceBuffer,
    /// When the rounds at each place began and ended.
    clocks: Vec<[Event; 2]>,
}

impl Trial {
    fn new(connection: &Connection, places: usize) -> Result<Self> {
        let gpu = match connection.local_device() {
            Device { kind: DeviceType::Gpu, id: Some(id), .. } if !connection.is_within_a_device() => {
                Some(connection.context().gpu(id)?)
            }
            _ => None,
        };
        let cuda = gpu.filter(|gpu| gpu.platform() != Platform::Host);
        Ok(Self { of_gpu: cuda.map(|gpu| OfGpu::new(&gpu, places)).transpose()? })
    }

    /// How long the rounds took at each place.
    fn nanoseconds(self, semaphores: &[Semaphore], first: bool) -> Result<Vec<u64>> {
        let channels: Vec<_> = semaphores.iter().map(BaseMemoryChannel::new).collect::<Result<_, _>>()?;
        let Some(gpu) = self.of_gpu else { return Ok(vec![0; channels.len()]) };
        let done = gpu.play(&channels, first).and_then(|()| gpu.stream.synchronize_timeout(LIMIT));
        if let Err(error) = done {
            // What runs still waits for signals, and works on what is dropped here.
            semaphores.iter().for_each(|semaphore| semaphore.abort("its signals could not be timed"));
            gpu.stream.synchronize_timeout(LIMIT)?;
            return Err(error.into());
        }
        semaphores.iter().try_for_each(Semaphore::check)?;
        let times = gpu.clocks.iter().map(|[start, end]| Ok((end.elapsed_ms(start)? * 1e6) as u64));
        Ok(times.collect::<Result<_, GpuError>>()?)
    }
}

impl OfGpu {
    fn new(gpu: &Gpu, places: usize) -> Result<Self, GpuError> {
        let source =
            ModuleSource { ptx: mscclpp_kernels::SIGNAL_PING_PONG, host_kernels: &[], host_symbols: &[] };
        let clocks =
            (0..places).map(|_| Ok([gpu.event(true)?, gpu.event(true)?])).collect::<Result<_, _>>()?;
        Ok(Self {
            kernel: Module::load(gpu, &source)?.kernel("signal_ping_pong")?,
            stream: gpu.stream()?,
            failed: gpu.allocate(4)?,
            clocks,
        })
    }

    /// Submits the rounds at all places, twice. The first time does not count: in it the sides meet, and clocks rise.
    fn play(&self, channels: &[BaseMemoryChannel], first: bool) -> Result<(), GpuError> {
        let places = || channels.iter().zip(&self.clocks);
        places().chain(places()).try_for_each(|(channel, [start, end])| {
            let args = KernelArgs::new()
                .with::<BaseMemoryChannelHandle>(channel.device_handle())
                .with(ROUNDS)
                .with(i32::from(first))
                .with(self.failed.ptr());
            self.stream.record(start)?;
            // SAFETY: these are the kernel's arguments. The only caller keeps the channels and this until the stream is
            // done, or has aborted what its kernels wait on.
            #[allow(unsafe_code, reason = "kernels are launched by an unsafe call")]
            unsafe {
                self.kernel.launch(&self.stream, LaunchConfig::linear(1, 1), &args)?;
            };
            self.stream.record(end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_of_as_many_places_is_refused() {
        let bytes: Vec<u8> = [3u64, 1 << 40].iter().flat_map(|time| time.to_le_bytes()).collect();
        assert_eq!(times(&bytes, 2).unwrap(), [3, 1 << 40]);
        for (bytes, places) in [(&bytes[..], 1), (&bytes, 3), (&bytes[..15], 2), (&bytes[..15], 1), (&[], 1)]
        {
            assert!(times(bytes, places).unwrap_err().to_string().contains("could not time"));
        }
        agreed(&bytes[..8], 3).unwrap();
        assert!(agreed(&bytes[..8], 2).unwrap_err().to_string().contains("asks for 3 places"));
        assert!(agreed(&bytes, 3).unwrap_err().to_string().contains("another call"));
    }
}
