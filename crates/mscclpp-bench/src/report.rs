//! Rows, as a table and as JSON.

use std::{fmt, fs, io, path::Path};

use serde::Serialize;

use crate::machine::Machine;

/// What one command measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    /// What the table does not show in columns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

/// One measured quantity.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) workload: &'static str,
    pub(crate) variant: String,
    /// Rounds of a launch, ranks, ...
    pub(crate) size: u64,
    pub(crate) unit: &'static str,
    /// None if the check failed.
    pub(crate) times: Option<Times>,
    pub(crate) repeats: usize,
    /// Of the reference implementation, where the row is comparable.
    pub(crate) baseline: Option<f64>,
    /// What this project wants there.
    pub(crate) goal: Option<f64>,
}

/// Of all repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Times {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Times {
    /// None for no times at all.
    pub(crate) fn of(mut all: Vec<f64>) -> Option<Self> {
        all.sort_by(f64::total_cmp);
        let (min, max) = (*all.first()?, *all.last()?);
        let half = all.len() / 2;
        let median = if all.len() % 2 == 1 { all[half] } else { f64::midpoint(all[half - 1], all[half]) };
        Some(Self { median, min, max })
    }
}

impl Report {
    pub(crate) fn all_ok(&self) -> bool {
        self.rows.iter().all(|row| row.times.is_some())
    }

    pub(crate) fn write_json(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        fs::write(path, text)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { platform, devices, driver, transport, commit, cores } = &self.machine;
        writeln!(
            f,
            "# devices    {}",
            if devices.is_empty() { "none".to_owned() } else { devices.join(", ") }
        )?;
        writeln!(f, "# driver     {driver}, {cores} cores")?;
        writeln!(f, "# transport  {transport}")?;
        writeln!(f, "# commit     {commit}")?;
        for note in &self.notes {
            writeln!(f, "# {note}")?;
        }
        writeln!(
            f,
            "#\n# {:<8} {:<16} {:<16} {:>8} {:>4} {:>10} {:>10} {:>10} {:>9} {:>9}  check",
            "platform", "workload", "variant", "size", "unit", "median", "min", "max", "baseline", "goal"
        )?;
        for row in &self.rows {
            let figure =
                |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
            write!(
                f,
                "  {platform:<8} {:<16} {:<16} {:>8} {:>4} {:>10} {:>10} {:>10} {:>9} {:>9}",
                row.workload,
                row.variant,
                row.size,
                row.unit,
                figure(row.times.map(|times| times.median)),
                figure(row.times.map(|times| times.min)),
                figure(row.times.map(|times| times.max)),
                figure(row.baseline),
                figure(row.goal),
            )?;
            writeln!(f, "  {}", if row.times.is_some() { "ok" } else { "FAILED" })?;
        }
        Ok(())
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
}
