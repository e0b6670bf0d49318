//! Choosing a semaphore's place in memory by the time that signals take.

use std::time::Duration;

use mscclpp_core::{
    BaseMemoryChannel, Connection, Device, DeviceType, Error as CoreError, Semaphore, SemaphoreStub,
};
use mscclpp_gpu::{
    DeviceBuffer, Error as GpuError, Event, Gpu, Kernel, KernelArgs, LaunchConfig, Module, Platform, Stream,
};

use crate::{Communicator, Result};

/// The round trips by which a place is measured, with each kernel.
const ROUNDS: i32 = 400;
/// The two pairs of signal and wait. A place that is fast for one may be slow for the other.
const KERNELS: [&str; 2] = ["signal_ping_pong", "relaxed_ping_pong"];
/// The most places of a call: their kernels are submitted at once, and a launch blocks when the driver's queue is full.
const MOST_PLACES: usize = 64;
/// The time for all places together, in which the peer also has to make its call.
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
    if !(1..=MOST_PLACES).contains(&places) {
        let error = format!("{what}: {places} places; it can be 1 to {MOST_PLACES}, and 16 is a good number");
        return Err(CoreError::InvalidArgument(error).into());
    }
    if peer == rank {
        let error = format!("{what}: rank {rank} cannot time signals to itself; call build_semaphore");
        return Err(CoreError::InvalidArgument(error).into());
    }
    // The kernels are loaded before the peer can get what it needs to start: a driver may not load kernels until those
    // that run have ended.
    let trial = Trial::of(connection, places)?;
    let mut stubs =
        (0..places).map(|_| SemaphoreStub::in_new_page(connection)).collect::<Result<Vec<_>, _>>()?;
    // Of two neighbouring pages one is near and one is far. If all of the peer's near pages met far pages here, all
    // places would be slow; so for half of them one side swaps neighbours.
    if rank > peer {
        stubs[places / 2..].chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
    }
    let part = SemaphoreStub::serialize_all(&stubs)?;
    // From here on both sides send and receive exactly two messages, also after a failure: so the next call gets its own.
    let semaphores = comm.exchange(what, Some(&part), peer, tag, move |bytes| joined(&stubs, bytes))?.wait();
    let mine = semaphores.and_then(|semaphores| {
        let channels = semaphores.iter().map(BaseMemoryChannel::new).collect::<Result<Vec<_>, _>>()?;
        let times = trial.map_or(Ok(vec![0; places]), |trial| trial.nanoseconds(&channels, rank < peer))?;
        Ok((times, semaphores))
    });
    // A side that failed sends no times at all.
    let figures = mine.iter().flat_map(|(times, _)| times);
    let bytes: Vec<u8> = figures.flat_map(|nanoseconds| nanoseconds.to_le_bytes()).collect();
    let theirs = comm.exchange(what, Some(&bytes), peer, tag, move |bytes| times(bytes, places));
    let (mine, semaphores) = mine.map_err(|error| comm.explain(error))?;
    let chosen = fastest(&mine, &theirs?.wait()?);
    tracing::debug!(target: "mscclpp::conn", rank, peer, places, chosen, ?mine, "{what}");
    Ok(semaphores[chosen].clone())
}

/// Returns the place with the least sum of both sides' times, or the first of several. Both sides compute the same.
fn fastest(mine: &[u64], theirs: &[u64]) -> usize {
    let sum = |place: &usize| mine[*place].saturating_add(theirs[*place]);
    (0..mine.len()).min_by_key(sum).unwrap_or_default()
}

/// Joins each stub with the peer's stub of the same place to a semaphore.
fn joined(stubs: &[SemaphoreStub], bytes: &[u8]) -> mscclpp_core::Result<Vec<Semaphore>> {
    let theirs = SemaphoreStub::deserialize_all(bytes)?;
    if theirs.len() != stubs.len() {
        let problem = format!("the peer asks for {} places, and this side for {}", theirs.len(), stubs.len());
        return Err(CoreError::InvalidArgument(problem));
    }
    stubs.iter().zip(&theirs).map(|(mine, theirs)| Semaphore::new(mine, theirs)).collect()
}

/// Reads the peer's times of all places.
fn times(bytes: &[u8], places: usize) -> mscclpp_core::Result<Vec<u64>> {
    let (times, rest) = bytes.as_chunks();
    if times.len() == places && rest.is_empty() {
        return Ok(times.iter().copied().map(u64::from_le_bytes).collect());
    }
    let problem = "the peer could not time the signals, and has an error that says why";
    Err(CoreError::InvalidArgument(problem.to_owned()))
}

/// The kernels, stream and events that time signals between two GPUs.
struct Trial {
    kernels: [Kernel; 2],
    stream: Stream,
    failed: DeviceBuffer,
    /// The events at the begin and the end of the rounds at each place.
    clocks: Vec<[Event; 2]>,
}

impl Trial {
    /// Returns nothing between simulated devices, whose places are all alike, and within one device, on which two
    /// processes take turns by milliseconds.
    fn of(connection: &Connection, places: usize) -> Result<Option<Self>> {
        let Device { kind: DeviceType::Gpu, id: Some(id), .. } = connection.local_device() else {
            return Ok(None);
        };
        let gpu = connection.context().gpu(id)?;
        let alike = gpu.platform() == Platform::Sim || connection.is_within_a_device();
        Ok(if alike { None } else { Some(Self::new(&gpu, places)?) })
    }

    fn new(gpu: &Gpu, places: usize) -> Result<Self, GpuError> {
        let module = Module::load(gpu, &mscclpp_kernels::SIGNAL_PING_PONG)?;
        let [ordered, relaxed] = KERNELS.map(|name| module.kernel(name));
        let clocks =
            (0..places).map(|_| Ok([gpu.event(true)?, gpu.event(true)?])).collect::<Result<_, _>>()?;
        Ok(Self { kernels: [ordered?, relaxed?], stream: gpu.stream()?, failed: gpu.allocate(4)?, clocks })
    }

    /// Returns how long the rounds took at each place.
    fn nanoseconds(self, channels: &[BaseMemoryChannel], first: bool) -> Result<Vec<u64>> {
        let played = self.play(channels, first).and_then(|()| self.stream.synchronize_timeout(LIMIT));
        if let Err(error) = played {
            // The kernels that run still wait for signals: the abort ends them.
            for channel in channels {
                channel.semaphore().abort("its signals could not be timed");
            }
            self.stream.synchronize_timeout(LIMIT)?;
            return Err(error.into());
        }
        channels.iter().try_for_each(|channel| channel.semaphore().check())?;
        let times = self.clocks.iter().map(|[start, end]| Ok((end.elapsed_ms(start)? * 1e6) as u64));
        Ok(times.collect::<Result<_, GpuError>>()?)
    }

    /// Submits the rounds at all places twice. The first time does not count: in it the two sides meet, and the GPUs'
    /// clock rates rise.
    fn play(&self, channels: &[BaseMemoryChannel], first: bool) -> Result<(), GpuError> {
        let places = || channels.iter().zip(&self.clocks);
        places().chain(places()).try_for_each(|(channel, [start, end])| {
            let args = KernelArgs::new().with(channel).with(ROUNDS).with(i32::from(first)).with(&self.failed);
            self.stream.record(start)?;
            for kernel in &self.kernels {
                // SAFETY: these are the arguments of both kernels, which keep their memory until the kernels have ended.
                #[allow(unsafe_code, reason = "kernels are launched by an unsafe call")]
                unsafe {
                    kernel.launch(&self.stream, LaunchConfig::linear(1, 1), &args)?;
                };
            }
            self.stream.record(end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_choose_the_place_of_the_least_sum() {
        for (a, b, chosen) in [
            (&[5, 4, 3][..], &[1, 1, 4][..], 1),
            (&[7, 3, 3], &[0, 3, 3], 1),
            (&[u64::MAX, 9], &[1, 9], 1),
            (&[0], &[0], 0),
        ] {
            assert_eq!((fastest(a, b), fastest(b, a)), (chosen, chosen));
        }
    }

    #[test]
    fn what_is_not_of_these_places_is_refused() {
        let bytes: Vec<u8> = [3u64, 1 << 40].iter().flat_map(|time| time.to_le_bytes()).collect();
        assert_eq!(times(&bytes, 2).unwrap(), [3, 1 << 40]);
        for (bytes, places) in [(&bytes[..], 1), (&bytes, 3), (&bytes[..15], 2), (&bytes[..15], 1), (&[], 1)]
        {
            assert!(times(bytes, places).unwrap_err().to_string().contains("could not time"));
        }
    }
}
