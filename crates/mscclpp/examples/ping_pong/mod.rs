//! The part that the two ping-pong examples share: the kernels, one side's launch, and its end.

use std::{error::Error, time::Duration};

use mscclpp::{BaseMemoryChannelHandle, Event, Kernel, Stream, kernels, prelude::*};

/// The rounds of a launch.
pub(crate) const ROUNDS: i32 = 100;
/// The clock cycles for which the spinning side keeps the other waiting in each round: some milliseconds.
const SPIN_CYCLES: i64 = 10_000_000;
/// The least time of a round that has waited for the spinning side.
const LEAST_MS_PER_ROUND: f32 = 1.0;
/// The bound of device waits that have none: they end with a signal, or when the semaphore is aborted.
const NO_BOUND: i64 = -1;
/// The time after which a side gives up and aborts.
const LIMIT: Duration = Duration::from_secs(60);

// ANCHOR: player
/// Which of the two kernels a side runs.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// The kernel that waits, spins, and then signals.
    Spinning,
    /// The kernel that signals and then waits.
    Plain,
}

/// One side: a loaded kernel and the objects that it uses.
pub(crate) struct Player {
    kernel: Kernel,
    spin: Option<i64>,
    stream: Stream,
    start: Event,
    end: Event,
    /// The round in which a wait failed, plus 1, in device memory.
    failed: DeviceBuffer,
    /// The channel's handle, in device memory.
    handle: DeviceBuffer,
}
// ANCHOR_END: player

impl Player {
    // ANCHOR: load
    /// Loads the kernel and makes all objects that the launch needs, so that launching loads nothing: loading could
    /// deadlock with a kernel that already waits.
    pub(crate) fn new(role: Role, gpu: &Gpu) -> mscclpp::Result<Self> {
        let (name, spin) = match role {
            Role::Spinning => ("ping_pong_spin", Some(SPIN_CYCLES)),
            Role::Plain => ("ping_pong_plain", None),
        };
        Ok(Self {
            kernel: Module::load(gpu, &kernels::PING_PONG)?.kernel(name)?,
            spin,
            stream: gpu.stream()?,
            start: gpu.event(true)?,
            end: gpu.event(true)?,
            failed: gpu.allocate(4)?,
            handle: gpu.allocate(size_of::<BaseMemoryChannelHandle>() as u64)?,
        })
    }
    // ANCHOR_END: load

    // ANCHOR: launch
    /// Submits the kernel.
    pub(crate) fn launch(&self, channel: &BaseMemoryChannel) -> mscclpp::Result<()> {
        self.handle.write_params(0, &[channel.device_handle()])?;
        self.failed.fill(0, 4, 0)?;
        let args = KernelArgs::new().with(self.handle.ptr()).with(ROUNDS);
        let args = self.spin.map_or(args.clone(), |cycles| args.with(cycles));
        let args = args.with(NO_BOUND).with(self.failed.ptr());
        self.stream.record(&self.start)?;
        // SAFETY: these are the kernel's arguments; `self` and `channel` are kept until `finish` has seen its end.
        unsafe { self.kernel.launch(&self.stream, LaunchConfig::linear(1, 1), &args)? };
        self.stream.record(&self.end)?;
        Ok(())
    }
    // ANCHOR_END: launch

    // ANCHOR: finish
    /// Waits for the kernel and returns the milliseconds of one round.
    pub(crate) fn finish(&self, channel: &BaseMemoryChannel) -> Result<f32, Box<dyn Error>> {
        // When the time is up this ends the kernel's waits, so that the device stays usable. If a wait failed, the error
        // says why.
        self.stream.synchronize_or_abort(LIMIT, channel)?;
        let mut failed = [0; 4];
        self.failed.read(0, &mut failed)?;
        match u32::from_ne_bytes(failed) {
            0 => Ok(self.end.elapsed_ms(&self.start)? / ROUNDS as f32),
            round => Err(format!("a wait of round {} failed", round - 1).into()),
        }
    }
    // ANCHOR_END: finish
}

/// Prints the result. Returns an error if the rounds were too short to have waited for the spinning side.
pub(crate) fn report(ms_per_round: f32) -> Result<(), Box<dyn Error>> {
    println!("Elapsed {ms_per_round} ms per iteration ({ROUNDS})");
    if ms_per_round < LEAST_MS_PER_ROUND {
        return Err(
            format!("less than {LEAST_MS_PER_ROUND} ms: the sides have not waited for each other").into()
        );
    }
    println!("Succeed!");
    Ok(())
}
