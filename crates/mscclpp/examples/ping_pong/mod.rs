//! What the two ping-pong examples share: the kernels, one side's launch, and the end of it.

use std::{error::Error, time::Duration};

use mscclpp::{BaseMemoryChannelHandle, Event, Kernel, Stream, kernels, prelude::*};

/// Rounds of a launch.
pub(crate) const ROUNDS: i32 = 100;
/// How long the spinning side keeps the other waiting in each round, in clock cycles: some milliseconds.
const SPIN_CYCLES: i64 = 10_000_000;
/// A round that took less has not waited for the spinning side.
const LEAST_MS_PER_ROUND: f32 = 1.0;
/// Device waits without a bound: they end with a signal, or when the semaphore is aborted.
const NO_BOUND: i64 = -1;
/// When to give up and abort.
const LIMIT: Duration = Duration::from_secs(60);

// ANCHOR: player
/// Which of the two kernels a side runs.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// Waits, spins, signals.
    Spinning,
    /// Signals, waits.
    Plain,
}

/// One side: a loaded kernel and what it works on.
pub(crate) struct Player {
    kernel: Kernel,
    spin: Option<i64>,
    stream: Stream,
    start: Event,
    end: Event,
    /// Device memory: the round in which a wait failed, plus 1.
    failed: DeviceBuffer,
    /// Device memory: the channel's handle.
    handle: DeviceBuffer,
}
// ANCHOR_END: player

impl Player {
    // ANCHOR: load
    /// Loads the kernel and makes all that the launch needs, so that launching loads nothing: that could deadlock
    /// against a kernel that waits already.
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
        // If time runs out, it ends the kernel's waits, so that the device stays usable. If a wait failed, it says why.
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

/// Prints the result; an error if the rounds were too short to have waited for the spinning side.
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
