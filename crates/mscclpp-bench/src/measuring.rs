//! How often a workload is run, and the checks after each measurement.

use std::{borrow::Cow, ops::Range, time::Duration};

use clap::Args;
use mscclpp::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    Error, Result,
    data::Destination,
    pair::{Devices, Pair},
    progress::Progress,
    ranks::Joining,
    report::{Bandwidth, Row, SizeOf, Times},
    sizes,
    stopwatch::Stopwatch,
};

/// The options of every workload that moves messages of several sizes.
#[derive(Args)]
pub(crate) struct Messages {
    #[command(flatten)]
    pub(crate) sizes: sizes::Range,
    #[command(flatten)]
    pub(crate) measuring: Measuring,
}

/// The options of every workload that moves data.
#[derive(Args)]
pub(crate) struct Measuring {
    /// The number of rounds that are timed together.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) iters: Option<u32>,
    /// The number of runs of all rounds before the measurements; they do not count.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// The number of measurements.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    #[command(flatten)]
    pub(crate) devices: Devices,
    /// Make a byte wrong before data is compared: the check must notice.
    #[arg(long, hide = true)]
    pub(crate) spoil: bool,
}

/// The most bytes that a measurement moves by default, so that it takes under a second on a GPU. Simulated devices move a
/// thousandth of them.
const BYTES_OF_A_TIME: u64 = 64 << 30;

impl Measuring {
    /// Joins `count` ranks, with the library's default transports.
    pub(crate) fn join(&self, count: usize, joining: &Joining) -> Result<Pair> {
        Pair::join(count, &self.devices, Context::on, joining)
    }

    /// The number of rounds for messages of `bytes` bytes.
    pub(crate) fn rounds(&self, pair: &Pair, bytes: u64) -> u32 {
        let budget = match pair.gpu.platform() {
            Platform::Sim => BYTES_OF_A_TIME / 1000,
            _ => BYTES_OF_A_TIME,
        };
        // The value fits, because it is at most `most_rounds`.
        self.rounds_or((budget / bytes).clamp(1, pair.most_rounds().into()) as u32)
    }

    /// The value of `--iters`, or `default`.
    pub(crate) fn rounds_or(&self, default: u32) -> u32 {
        self.iters.unwrap_or(default)
    }

    /// The number of launches for one row.
    pub(crate) fn launches(&self) -> usize {
        (self.warmup + self.repeats) as usize
    }

    pub(crate) fn repeats(&self) -> usize {
        self.repeats as usize
    }

    /// Whether a launch, counted from 0, comes after the warm-up.
    pub(crate) fn counts(&self, launch: usize) -> bool {
        launch >= self.warmup as usize
    }
}

/// The processor time of all threads of this process, in the program and in the system on its behalf.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Neither number is ever negative.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The subject of a row: what it measures.
pub(crate) struct Subject {
    pub(crate) workload: &'static str,
    pub(crate) variant: String,
    pub(crate) bytes: u64,
    pub(crate) rounds: u32,
    /// The number of timed parts in a round: 2 if a part is a hop.
    pub(crate) parts: u32,
    /// The number of launches of a kernel or graph by which the rounds are submitted.
    pub(crate) launches: u32,
}

impl Subject {
    /// A subject whose rounds have one part, and which is submitted by some launches.
    pub(crate) fn of_launches(
        workload: &'static str,
        variant: String,
        bytes: u64,
        rounds: u32,
        launches: u32,
    ) -> Self {
        Self { workload, variant, bytes, rounds, parts: 1, launches }
    }
}

/// The place at which the peer's message arrives while the stopwatch runs.
pub(crate) struct Arrival<'a> {
    pub(crate) stopwatch: &'a Stopwatch<'a>,
    pub(crate) destination: Destination<'a>,
}

impl Arrival<'_> {
    /// Returns the row of all repeats; without times if data was wrong or a wait failed, on either side and in the warm-up too.
    /// `submit` is given the number of the repeat, counted from 0, and which of its launches to submit. Behind all of them, the
    /// message that `expected` gives for the number is to be there.
    pub(crate) fn row<'d, E: Into<Error>>(
        &self,
        measuring: &Measuring,
        progress: &mut Progress,
        subject: Subject,
        submit: impl Fn(&Stream, u32, Range<u32>) -> Result<(), E>,
        expected: impl Fn(u32) -> Cow<'d, [u8]>,
    ) -> Result<Row> {
        let Self { stopwatch, destination } = self;
        let Subject { workload, variant, bytes, rounds, parts, launches } = subject;
        let label = format!("{workload} {variant} {}", SizeOf::Bytes.show(bytes));
        let mut times = Vec::new();
        let mut ok = true;
        for repeat in 0..measuring.warmup + measuring.repeats {
            progress.step(&label);
            let expected = expected(repeat);
            let len = expected.len() as u64;
            destination.poison(len)?;
            let us = stopwatch
                .time(launches, |stream, range| submit(stream, repeat, range).map_err(Into::into))?;
            if measuring.spoil {
                destination.spoil(len)?;
            }
            ok &= us.is_some() && destination.holds(&expected)?;
            let counted = us.filter(|_| repeat >= measuring.warmup);
            times.extend(counted.map(|us| us / (f64::from(parts) * f64::from(rounds))));
        }
        let times = Times::of(times);
        let bandwidth = times.map(|times| Bandwidth::of(bytes, times.median));
        let row = Row::new(workload, &variant, (bytes, SizeOf::Bytes), rounds, measuring.repeats());
        let row = Row { bandwidth, ..row.with(times) };
        Ok(row.only_if(stopwatch.ranks().all(ok)?))
    }
}
