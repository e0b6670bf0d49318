//! A workload with its options, and the figures of its rows, earlier and now.

use std::time::Instant;

use super::{
    figure::{Key, Turns, figure, is_beside_another, is_held, keys},
    program::Program,
};
use crate::{
    Result,
    machine::Machine,
    report::{Report, Row},
};

/// A call of this program whose rows are compared.
pub(super) struct Command {
    pub(super) arguments: Vec<String>,
    /// Says which rows of the first report are compared.
    is_compared: fn(&Row) -> bool,
    /// The compared rows; none before the first report.
    rows: Option<Vec<HeldRow>>,
    /// The machine of each side's first report.
    machines: [Option<Machine>; 2],
    /// The reports of this program, without rows that are not compared.
    pub(super) measured: Vec<Report>,
    /// The reason why the command could not be measured.
    pub(super) trouble: Option<String>,
}

/// The origin of a report.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The earlier program, or a file.
    Old,
    /// This program.
    New,
}

/// A row that is compared.
pub(super) struct HeldRow {
    pub(super) key: Key,
    /// The row as it was in the first report.
    pub(super) row: Row,
    /// The figures of each side's reports that have the row.
    pub(super) figures: [Vec<f64>; 2],
    /// Whether all results of the row were right.
    pub(super) is_right: bool,
}

impl HeldRow {
    /// The row's turns; none if it was not measured.
    pub(super) fn turns(&self) -> Option<Turns> {
        let [old, new] = self.figures.clone();
        Turns::of(old, new)
    }

    /// The goal of a row that somebody wrote into the file.
    pub(super) fn goal(&self) -> Option<f64> {
        self.row.goal.filter(|_| self.row.is_given())
    }

    /// Whether the row has a goal and reaches it.
    pub(super) fn reaches_its_goal(&self) -> bool {
        let reaches = |goal| self.turns().is_some_and(|turns| turns.new.median <= goal);
        self.is_right && self.goal().is_some_and(reaches)
    }
}

impl Command {
    pub(super) fn new(arguments: Vec<String>, is_compared: fn(&Row) -> bool) -> Self {
        let (machines, measured) = ([None, None], Vec::new());
        Self { arguments, is_compared, rows: None, machines, measured, trouble: None }
    }

    /// The command as it is written on the command line.
    pub(super) fn line(&self) -> String {
        self.arguments.join(" ")
    }

    /// Measures one turn, and prints what it does. `other` is the earlier program; the two begin in alternation. An error is
    /// kept in the command, so that other commands can still be measured.
    pub(super) fn measure(&mut self, this: &Program, other: Option<&Program>, turn: u32) {
        let begin = Instant::now();
        let mut sides = [(Side::Old, other), (Side::New, Some(this))];
        if turn % 2 == 1 {
            sides.reverse();
        }
        let mut sides = sides.into_iter().filter_map(|(side, program)| Some((side, program?)));
        let result = sides.try_for_each(|(side, program)| self.take(program.measure(&self.arguments)?, side));
        let took = begin.elapsed().as_secs_f64();
        match result {
            Ok(()) => eprintln!("turn {}: {}, {took:.1} s", turn + 1, self.line()),
            Err(error) => {
                eprintln!("turn {}: {error}", turn + 1);
                self.trouble = Some(error.to_string());
            }
        }
    }

    /// Adds the figures of a report.
    ///
    /// # Errors
    /// If the results of what rows are compared with were wrong.
    pub(super) fn take(&mut self, report: Report, side: Side) -> Result<()> {
        let is_lost = |row: &&Row| is_beside_another(row) && !is_held(row) && row.times.is_none();
        if let Some(row) = report.rows.iter().find(is_lost) {
            let why = format!("the results of {} were wrong, so nothing can be compared with it", row.name());
            return Err(format!("{}: {why}", self.line()).into());
        }
        let keys = keys(&report.rows);
        let is_compared = self.is_compared;
        let rows = self.rows.get_or_insert_with(|| {
            let compared = keys.iter().filter(|(_, row)| is_held(row) && is_compared(row));
            let held = |(key, row): &(Key, &Row)| HeldRow {
                key: key.clone(),
                row: (*row).clone(),
                figures: Default::default(),
                is_right: true,
            };
            compared.map(held).collect()
        });
        let mut kept = Vec::new();
        for (key, row) in keys {
            let Some(held) = rows.iter_mut().find(|held| held.key == key) else { continue };
            match figure(row) {
                Some(figure) => held.figures[side as usize].push(figure),
                // The row of a file may have nothing but a goal.
                None => held.is_right &= row.is_given(),
            }
            kept.push(row.clone());
        }
        self.machines[side as usize].get_or_insert_with(|| report.machine.clone());
        if side == Side::New {
            self.measured.push(Report { arguments: self.arguments.clone(), rows: kept, ..report });
        }
        Ok(())
    }

    /// Forgets the earlier figures, and still compares the same rows.
    pub(super) fn forget_old(&mut self) {
        self.machines[Side::Old as usize] = None;
        self.rows.iter_mut().flatten().for_each(|row| row.figures[Side::Old as usize].clear());
    }

    /// The compared rows, with their figures so far.
    pub(super) fn rows(&self) -> impl Iterator<Item = &HeldRow> {
        self.rows.iter().flatten()
    }

    /// Whether a row looks slower, so that the command must be measured again.
    pub(super) fn is_doubtful(&self, tolerance: f64) -> bool {
        let mut changes = self.rows().filter_map(|row| row.turns()?.change());
        self.trouble.is_none() && changes.any(|change| change > tolerance)
    }

    /// Fails if the earlier figures are from other devices, because such figures cannot be compared.
    ///
    /// # Errors
    /// If platforms or devices differ and that is not `allowed`.
    pub(super) fn require_same_devices(&self, allowed: bool) -> Result<()> {
        let Some((old, new)) = self.machines() else { return Ok(()) };
        if allowed || (&old.platform, &old.devices) == (&new.platform, &new.devices) {
            return Ok(());
        }
        Err(format!(
            "{} was measured on {}, and here are {}: figures of different devices cannot be compared. Write a baseline here \
             (--write), compare with another build (--against), or insist (--other-hardware)",
            self.line(),
            old.described(),
            new.described()
        )
        .into())
    }

    /// The machines of the earlier and of the new figures, if there are both.
    pub(super) fn machines(&self) -> Option<(&Machine, &Machine)> {
        let [old, new] = &self.machines;
        old.as_ref().zip(new.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Times;

    #[test]
    fn rows_beside_something_that_was_wrong_are_not_taken() {
        let row = |variant: &str, median: Option<f64>, baseline| Row {
            workload: "ethernet-bw".to_owned(),
            variant: variant.to_owned(),
            size: 8,
            times: median.map(|median| Times { median, min: median, max: median }),
            repeats: 1,
            baseline,
            ..Row::default()
        };
        let report = |rows| Report::new(Machine::of(&[], "TCP"), rows, Vec::new());
        let right = vec![row("plain socket", Some(4.0), None), row("host to host x1", Some(5.0), Some(4.0))];
        let wrong = vec![row("plain socket", None, None), row("host to host x1", Some(5.0), None)];
        let mut first = Command::new(vec!["ethernet-bw".to_owned()], |_| true);
        let error = first.take(report(wrong.clone()), Side::New).expect_err("nothing to compare with");
        assert!(error.to_string().contains("ethernet-bw plain socket, 8 B were wrong"), "{error}");
        first.take(report(right), Side::New).expect("right results");
        first.take(report(wrong), Side::New).expect_err("a time in microseconds is no ratio");
        let figures: Vec<_> = first.rows().map(|row| &row.figures[1][..]).collect();
        assert_eq!((figures, first.measured.len()), (vec![&[1.25][..]], 1));
    }
}
