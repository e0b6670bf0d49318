//! How often a workload is run, the measurements in turns, and the checks after each.

use std::{borrow::Cow, ops::Range, time::Duration};

use rustix::time::{ClockId, clock_gettime};

use crate::{Error, data::Destination, pair::Devices, prelude::*, sizes};

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
    #[command(flatten)]
    pub(crate) repeats: Repeats,
    #[command(flatten)]
    pub(crate) devices: Devices,
}

/// The number of the measurements of a row.
#[derive(Args, Clone, Copy)]
pub(crate) struct Repeats {
    /// The number of runs of all rounds before the measurements; they do not count.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) warmup: u32,
    /// The number of measurements.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: u32,
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

    /// Fails if the user chose devices for a workload without any. `why` follows the names of the options.
    pub(crate) fn require_no_devices(&self, joining: &Joining, why: &str) -> Result<()> {
        let are_given = self.devices.are_given() || joining.gpu.is_some();
        if are_given { Err(format!("--devices and --gpu {why}").into()) } else { Ok(()) }
    }

    pub(crate) fn rounds_or(&self, default: u32) -> u32 {
        self.iters.unwrap_or(default)
    }
}

impl Repeats {
    /// The number of times that are measured for one row, with those that do not count.
    pub(crate) fn times(&self) -> usize {
        (self.warmup + self.repeats) as usize
    }
}

/// The processor time of all threads of this process, in the program and in the system on its behalf.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Neither number is ever negative.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One of the times of a row.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// The number of the time, counted from 0.
    pub(crate) n: usize,
    /// Whether the warm-up is over.
    pub(crate) counts: bool,
    /// Whether a byte is to be made wrong before data is compared.
    pub(crate) spoils: bool,
}

/// A function that measures one time, in microseconds or whatever the unit of the row is. It returns none if a result was wrong.
pub(crate) type Once<'a> = Box<dyn FnMut(Time) -> Result<Option<f64>> + 'a>;

/// The time that this project aims at, as a function of the baseline.
pub(crate) type Goal = fn(f64) -> f64;

/// One way to do the work of a row.
pub(crate) struct Contender<'a> {
    /// The text that the progress shows.
    pub(crate) label: String,
    /// The row, without times.
    pub(crate) row: Row,
    /// The number of rounds or hops in a time, by which it is divided.
    pub(crate) per: f64,
    /// The load on the bus for each byte of the size; none for a row without bandwidth.
    pub(crate) bus: Option<f64>,
    /// The index of an earlier contender, whose median is the baseline, and the goal that follows from it.
    pub(crate) beside: Option<(usize, Option<Goal>)>,
    pub(crate) once: Once<'a>,
}

impl<'a> Contender<'a> {
    /// A contender with bandwidth, whose times are divided by the rounds of its row.
    pub(crate) fn new(row: Row, once: Once<'a>) -> Self {
        let label = format!("{} {} {}", row.workload, row.variant, row.size_of.show(row.size));
        Self { label, per: row.rounds.into(), row, bus: Some(1.0), beside: None, once }
    }
}

impl Table {
    /// Measures a single contender.
    pub(crate) fn measure(
        &mut self,
        repeats: Repeats,
        ranks: &Ranks,
        contender: Contender<'_>,
    ) -> Result<Row> {
        let mut rows = self.measure_in_turns(repeats, Some(ranks), vec![contender])?;
        Ok(rows.swap_remove(0).0)
    }

    /// Measures contenders in turns, one time of each after the other, so that changes on a machine affect all of them. Returns
    /// their rows, each with the times that count. A row has no times if a result was wrong on any rank, in the warm-up too.
    pub(crate) fn measure_in_turns(
        &mut self,
        repeats: Repeats,
        ranks: Option<&Ranks>,
        mut contenders: Vec<Contender<'_>>,
    ) -> Result<Vec<(Row, Vec<f64>)>> {
        let mut all = vec![(true, Vec::new()); contenders.len()];
        for n in 0..repeats.times() {
            let time = Time { n, counts: n >= repeats.warmup as usize, spoils: repeats.spoil };
            for (contender, (right, times)) in contenders.iter_mut().zip(&mut all) {
                self.progress.step(&contender.label, n as f64 / repeats.times() as f64);
                let one = (contender.once)(time)?;
                *right &= one.is_some();
                times.extend(one.filter(|_| time.counts).map(|one| one / contender.per));
            }
        }
        self.progress.cell();
        let mut rows: Vec<(Row, Vec<f64>)> = Vec::new();
        for (contender, (right, times)) in contenders.into_iter().zip(all) {
            let right = ranks.map_or(Ok(right), |ranks| ranks.all(right))?;
            let mut row = Row { repeats: repeats.repeats as usize, ..contender.row };
            if let Some((other, goal)) = contender.beside {
                row.baseline = rows[other].0.times.map(|times| times.median);
                row.goal = row.baseline.zip(goal).map(|(baseline, goal)| goal(baseline));
            }
            rows.push((row.with(Times::of(&times[..]).filter(|_| right), contender.bus), times));
        }
        Ok(rows)
    }
}

/// The place at which the peer's message arrives while the stopwatch runs.
pub(crate) struct Arrival<'a> {
    pub(crate) stopwatch: &'a Stopwatch<'a>,
    pub(crate) destination: Destination<'a>,
}

impl<'a> Arrival<'a> {
    /// Returns a function that measures one time of some launches and compares what has arrived. `submit` is given the number of
    /// the time and the launches to submit. After the last launch of a time the destination must hold the message that `expected`
    /// returns for it.
    pub(crate) fn once<'d, E: Into<Error>>(
        self,
        launches: u32,
        submit: impl Fn(&Stream, u32, Range<u32>) -> Result<(), E> + 'a,
        expected: impl Fn(u32) -> Cow<'d, [u8]> + 'a,
    ) -> Once<'a> {
        let Self { stopwatch, destination } = self;
        Box::new(move |time| {
            let n = time.n as u32;
            let expected = expected(n);
            let len = expected.len() as u64;
            destination.poison(len)?;
            let us =
                stopwatch.time(launches, |stream, range| submit(stream, n, range).map_err(Into::into))?;
            if time.spoils {
                destination.spoil(len)?;
            }
            Ok(if us.is_some() && destination.holds(&expected)? { us } else { None })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Machine, table};

    #[test]
    fn the_baseline_is_that_of_the_contender_beside_or_none() -> Result<()> {
        let repeats = Repeats { warmup: 1, repeats: 2, spoil: false };
        let mut table = Table::new(table::Stream::Nowhere, 0);
        table.begin(Machine::of(&[], "TCP"), 1)?;
        for (is_right, baseline) in [(true, Some(4.0)), (false, None)] {
            let contender = |us: f64, beside: Option<usize>| {
                let right = is_right || beside == Some(0);
                // A warm-up counts only if it was wrong.
                let once = move |time: Time| Ok((right || time.counts).then_some(us + time.n as f64));
                let row = Row::new("one", "way", (8, SizeOf::Bytes), 2);
                Contender {
                    beside: beside.map(|it| (it, Some((|it| it / 0.5) as Goal))),
                    ..Contender::new(row, Box::new(once))
                }
            };
            let all = [contender(6.5, None), contender(2.5, Some(0))].into();
            let rows = table.measure_in_turns(repeats, None, all)?;
            assert_eq!((rows[1].0.baseline, rows[1].0.goal), (baseline, baseline.map(|it| it / 0.5)));
            assert_eq!(
                (rows[0].0.times.is_some(), rows[1].0.times.map(|it| it.median)),
                (is_right, Some(2.0))
            );
            assert_eq!((&rows[1].1[..], rows[1].0.repeats), (&[1.75, 2.25][..], 2));
        }
        Ok(())
    }
}
