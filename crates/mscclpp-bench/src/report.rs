//! The results of a command: rows, written as JSON and read back to be plotted. [`crate::table`] prints the table.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::machine::Machine;

/// The results of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The workload and the options that repeat the measurement; empty if the ranks were started by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) arguments: Vec<String>,
    pub(crate) machine: Machine,
    #[serde(serialize_with = "checked")]
    pub(crate) rows: Vec<Row>,
    /// Remarks on values for which the table has no columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    /// A text that is printed below the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
}

/// One measured quantity. By default its size is in bytes and its times in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    #[serde(default)]
    pub(crate) variant: String,
    pub(crate) size: u64,
    /// The unit of `size`.
    #[serde(default)]
    pub(crate) size_of: SizeOf,
    /// The unit of all times of this row.
    #[serde(default)]
    pub(crate) unit: Unit,
    /// The times; none if the check failed.
    pub(crate) times: Option<Times>,
    /// The number of rounds that were timed together; a time is that of one round or hop.
    #[serde(default)]
    pub(crate) rounds: u32,
    /// The number of measurements from which `times` is made; 0 for a row of a file that has only a baseline and a goal.
    #[serde(default)]
    pub(crate) repeats: usize,
    /// The bandwidth, if bytes are moved and the check passed.
    pub(crate) bandwidth: Option<Bandwidth>,
    /// The time of something else that does the same: of what the workload measures in the same run, or in a file for `hold`
    /// of another implementation.
    pub(crate) baseline: Option<f64>,
    /// The time that this project aims at.
    pub(crate) goal: Option<f64>,
    /// The blocks of a call, if the library chooses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) blocks: Option<u32>,
    /// The times of NCCL for the same calls, in turns with this row's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nccl: Option<Nccl>,
    /// The processor time, if the host does the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<Cpu>,
}

/// The unit of a row's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SizeOf {
    #[default]
    Bytes,
    Rounds,
    Ranks,
    Threads,
    Milliseconds,
}

/// The unit of a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[default]
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "s")]
    Seconds,
}

/// The times of all repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// The bandwidth in GB/s (10^9 bytes), from the median.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    /// The size over the time.
    pub(crate) algorithm: f64,
    /// The load on one direction of the interconnect: for a collective as nccl-tests counts it; for other workloads the
    /// algorithm bandwidth, as a side sends its size to the other. The flags of packets do not count.
    pub(crate) bus: f64,
}

/// NCCL's measurements of the calls of a row; none where they cannot be made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Nccl {
    /// The measurement with ordinary memory.
    pub(crate) plain: Option<Measured>,
    /// The measurement with memory that NCCL has allocated and registered as a symmetric window.
    pub(crate) windows: Option<Measured>,
}

/// A measurement, in the unit of its row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The times; none if the result was wrong.
    pub(crate) times: Option<Times>,
}

/// The seconds of processor time for a GB (10^9 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) sender: f64,
    pub(crate) receiver: f64,
}

impl Unit {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Seconds => "s",
        }
    }

    pub(crate) fn in_seconds(self) -> f64 {
        match self {
            Self::Microseconds => 1e-6,
            Self::Seconds => 1.0,
        }
    }
}

impl Times {
    /// Summarises times. None if there are none.
    pub(crate) fn of(all: impl Into<Vec<f64>>) -> Option<Self> {
        let mut all = all.into();
        all.sort_by(f64::total_cmp);
        let (min, max) = (*all.first()?, *all.last()?);
        let half = all.len() / 2;
        let median = if all.len() % 2 == 1 { all[half] } else { f64::midpoint(all[half - 1], all[half]) };
        Some(Self { median, min, max })
    }

    /// Summarises the ratios of times that were taken one after the other, so that both contain the machine's other work.
    pub(crate) fn of_ratios(these: &[f64], to: &[f64]) -> Option<Self> {
        Self::of(these.iter().zip(to).map(|(this, to)| this / to).collect::<Vec<_>>())
    }
}

impl Bandwidth {
    /// The bandwidth of `bytes` in `us` microseconds, in one direction, or in both at once or in turns.
    pub(crate) fn of(bytes: u64, us: f64) -> Self {
        let algorithm = bytes as f64 / us / 1e3;
        Self { algorithm, bus: algorithm }
    }
}

impl Report {
    pub(crate) fn new(machine: Machine, rows: Vec<Row>, notes: Vec<String>) -> Self {
        Self { arguments: Vec::new(), machine, rows, notes, text: None }
    }

    pub(crate) fn all_ok(&self) -> bool {
        self.rows.iter().all(|row| row.check() == OK)
    }

    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Several reports in one file.
#[derive(Serialize, Deserialize)]
struct All<R> {
    reports: R,
}

/// The JSON of several reports in one file.
pub(crate) fn to_json_of_all(reports: &[Report]) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&All { reports })? + "\n")
}

/// Reads the JSON of one report or of several.
pub(crate) fn parse(text: &str) -> serde_json::Result<Vec<Report>> {
    let one: serde_json::Result<Report> = serde_json::from_str(text);
    match one {
        Err(_) if serde_json::from_str::<All<Value>>(text).is_ok() => {
            serde_json::from_str(text).map(|All { reports }| reports)
        }
        one => one.map(|report| vec![report]),
    }
}

/// Writes rows, each with the result of its check.
fn checked<S: Serializer>(rows: &[Row], to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Checked<'a> {
        #[serde(flatten)]
        row: &'a Row,
        check: &'static str,
    }
    to.collect_seq(rows.iter().map(|row| Checked { row, check: row.check() }))
}

impl Row {
    /// Makes a row without times, of repeats of `rounds` rounds each.
    pub(crate) fn new(
        workload: &str,
        variant: impl Into<String>,
        (size, size_of): (u64, SizeOf),
        rounds: u32,
    ) -> Self {
        let (workload, variant) = (workload.to_owned(), variant.into());
        Self { workload, variant, size, size_of, rounds, ..Self::default() }
    }

    /// Adds times, and the bandwidths if there is a load on the bus for each byte of the size.
    pub(crate) fn with(self, times: Option<Times>, bus: Option<f64>) -> Self {
        let bandwidth = times.zip(bus).map(|(times, bus)| {
            let Bandwidth { algorithm, .. } = Bandwidth::of(self.size, times.median);
            Bandwidth { algorithm, bus: algorithm * bus }
        });
        Self { times, bandwidth, ..self }
    }

    /// Whether the row has only a baseline, a goal or both, which somebody wrote into a file for `hold`.
    pub(crate) fn is_given(&self) -> bool {
        self.repeats == 0
    }

    /// Marks the row as failed unless it was `right`.
    pub(crate) fn only_if(self, right: bool) -> Self {
        if right { self } else { Self { times: None, bandwidth: None, ..self } }
    }

    /// The row's name in texts: `memory-put none 32x1024, 1 KiB`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}, {}", self.workload, self.variant, self.size_of.show(self.size))
    }

    /// The result of the check of data and signals, as the table and the JSON show it.
    pub(crate) fn check(&self) -> &'static str {
        match &self.nccl {
            _ if self.times.is_none() => "FAILED",
            Some(nccl) if nccl.sides().any(|side| side.times.is_none()) => "NCCL FAILED",
            _ => OK,
        }
    }

    /// The algorithm bandwidth in GB/s for each block of a call, which takes a multiprocessor.
    pub(crate) fn per_block(&self) -> Option<f64> {
        Some(self.bandwidth?.algorithm / f64::from(self.blocks?))
    }

    /// The time of NCCL's best measurement, as a multiple of this row's.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let best = self.nccl?.sides().filter_map(|side| side.times).map(|times| times.median);
        Some(best.min_by(f64::total_cmp)? / self.times?.median)
    }
}

/// The result of the check for a row that is right.
const OK: &str = "ok";

impl Nccl {
    fn sides(self) -> impl Iterator<Item = Measured> {
        [self.plain, self.windows].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_odd_and_even_numbers_of_repeats() {
        assert_eq!(Times::of(vec![3.0, 1.0, 2.0]), Some(Times { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Times::of(vec![4.0, 1.0, 2.0, 3.0]).map(|times| times.median), Some(2.5));
        assert_eq!(Times::of(Vec::new()), None);
    }

    #[test]
    fn a_bandwidth_is_in_gigabytes_a_second() {
        let Bandwidth { algorithm, bus } = Bandwidth::of(128 << 20, 389.0);
        assert!((algorithm - 345.03).abs() < 0.01, "{algorithm}");
        assert!((bus - algorithm).abs() < 1e-9);
    }

    #[test]
    fn a_row_stands_beside_the_best_of_nccl() {
        let times = |median| Some(Times { median, min: median, max: median });
        let measured = |median| Some(Measured { times: times(median) });
        let row = Row {
            times: times(2.0),
            bandwidth: Some(Bandwidth { algorithm: 64.0, bus: 32.0 }),
            blocks: Some(16),
            ..Row::default()
        };
        assert_eq!((row.per_block(), row.ratio(), row.check()), (Some(4.0), None, "ok"));
        let beside = |nccl| Row { nccl: Some(nccl), ..row.clone() };
        let both = beside(Nccl { plain: measured(5.0), windows: measured(3.0) });
        assert_eq!((both.ratio(), both.check()), (Some(1.5), "ok"));
        let plain = beside(Nccl { plain: measured(5.0), windows: None });
        assert_eq!((plain.ratio(), plain.check()), (Some(2.5), "ok"));
        let wrong = beside(Nccl { plain: measured(5.0), windows: Some(Measured { times: None }) });
        assert_eq!((wrong.ratio(), wrong.check()), (Some(2.5), "NCCL FAILED"));
        let failed = both.only_if(false);
        assert_eq!((failed.per_block(), failed.ratio(), failed.check()), (None, None, "FAILED"));
    }

    #[test]
    fn json_gives_the_same_report_back() {
        let row = Row {
            workload: "memory-put".to_owned(),
            variant: "half 32x1024".to_owned(),
            size: 1 << 20,
            times: Some(Times { median: 7.25, min: 7.0, max: 8.5 }),
            rounds: 1000,
            repeats: 5,
            bandwidth: Some(Bandwidth::of(1 << 20, 7.25)),
            baseline: Some(9.37),
            cpu: Some(Cpu { sender: 0.25, receiver: 0.5 }),
            ..Row::default()
        };
        let failed = Row { size_of: SizeOf::Ranks, unit: Unit::Seconds, cpu: None, ..row.clone() };
        let rows = vec![row, failed.only_if(false)];
        let report = Report::new(Machine::of(&[], "TCP"), rows, vec!["a note".to_owned()]);
        let report = Report { arguments: vec!["memory-put".to_owned(), "--bulk".to_owned()], ..report };
        let text = serde_json::to_string(&report).expect("it is plain data");
        assert!(text.contains(r#""check":"ok""#) && text.contains(r#""check":"FAILED""#), "{text}");
        assert!(text.contains(r#""size":1048576"#) && text.contains(r#""unit":"us""#), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).expect("its own JSON"), report);
        assert!(!report.all_ok());
    }
}
