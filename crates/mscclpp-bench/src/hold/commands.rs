//! A workload with its options, and its results, earlier and now.

use std::time::Instant;

use super::{
    figure::{Key, Turns, figure, is_held, keys},
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
    /// The rows that are compared.
    rows: Rows,
    /// The earlier figures.
    pub(super) old: Vec<Report>,
    new: Vec<Report>,
    /// The reason why the command could not be measured.
    pub(super) trouble: Option<String>,
}

enum Rows {
    /// The rows of the first report for which the function returns true.
    Those(fn(&Row) -> bool),
    /// The rows with these keys.
    Known(Vec<(Key, Row)>),
}

/// A row that is compared.
pub(super) struct HeldRow<'a> {
    pub(super) row: &'a Row,
    /// The row's turns; none if it was not measured.
    pub(super) turns: Option<Turns>,
    /// Whether all results of the row were right.
    pub(super) is_right: bool,
}

impl HeldRow<'_> {
    /// The goal of a row that somebody wrote into the file.
    pub(super) fn goal(&self) -> Option<f64> {
        self.row.goal.filter(|_| self.row.is_given())
    }

    /// Whether the row reaches its goal.
    pub(super) fn reaches(&self, goal: f64) -> bool {
        self.is_right && self.turns.is_some_and(|turns| turns.new.median <= goal)
    }
}

impl Command {
    pub(super) fn of_all(arguments: Vec<String>, rows: fn(&Row) -> bool) -> Self {
        Self { arguments, rows: Rows::Those(rows), old: Vec::new(), new: Vec::new(), trouble: None }
    }

    /// A command of which all rows in `report` are compared.
    pub(super) fn of_old(report: Report) -> Self {
        let mut command = Self::of_all(report.arguments.clone(), |_| true);
        command.know(&report);
        command.old.push(report);
        command
    }

    /// The command as it is written on the command line.
    pub(super) fn line(&self) -> String {
        self.arguments.join(" ")
    }

    /// The reports of this program, without rows that are not compared.
    pub(super) fn measured(&self) -> Vec<Report> {
        let is_known = |key: &Key| self.known().iter().any(|(known, _)| known == key);
        let of = |report: &Report| {
            let rows = keys(&report.rows).into_iter().filter(|(key, _)| is_known(key));
            Report { rows: rows.map(|(_, row)| row.clone()).collect(), ..report.clone() }
        };
        self.new.iter().map(of).collect()
    }

    /// Measures one turn, and prints what it does. `other` is the earlier program; the two begin in alternation. An error is
    /// kept in the command, so that other commands can still be measured.
    pub(super) fn measure(&mut self, this: &Program, other: Option<&Program>, turn: u32) {
        let begin = Instant::now();
        let result = match turn % 2 {
            0 => self.measure_old(other).and_then(|()| self.measure_new(this)),
            _ => self.measure_new(this).and_then(|()| self.measure_old(other)),
        };
        let took = begin.elapsed().as_secs_f64();
        match result {
            Ok(()) => eprintln!("turn {}: {}, {took:.1} s", turn + 1, self.line()),
            Err(error) => {
                eprintln!("turn {}: {error}", turn + 1);
                self.trouble = Some(error.to_string());
            }
        }
    }

    fn measure_old(&mut self, other: Option<&Program>) -> Result<()> {
        if let Some(other) = other {
            let report = other.measure(&self.arguments)?;
            self.know(&report);
            self.old.push(report);
        }
        Ok(())
    }

    fn measure_new(&mut self, this: &Program) -> Result<()> {
        let report = Report { arguments: self.arguments.clone(), ..this.measure(&self.arguments)? };
        self.know(&report);
        self.new.push(report);
        Ok(())
    }

    fn know(&mut self, report: &Report) {
        if let Rows::Those(rows) = self.rows {
            let known = keys(&report.rows).into_iter().filter(|(_, row)| is_held(row) && rows(row));
            self.rows = Rows::Known(known.map(|(key, row)| (key, row.clone())).collect());
        }
    }

    fn known(&self) -> &[(Key, Row)] {
        match &self.rows {
            Rows::Known(known) => known,
            Rows::Those(_) => &[],
        }
    }

    /// The compared rows, with their turns so far.
    pub(super) fn rows(&self) -> impl Iterator<Item = HeldRow<'_>> {
        self.known().iter().map(|(key, row)| {
            // The figures of each report that has the row; none for a report in which it was wrong.
            let of = |reports: &[Report]| -> Vec<Option<f64>> {
                let found = |report: &Report| {
                    let (_, row) = keys(&report.rows).into_iter().find(|(other, _)| other == key)?;
                    (!row.is_given() || row.baseline.is_some()).then(|| figure(row))
                };
                reports.iter().filter_map(found).collect()
            };
            let (old, new) = (of(&self.old), of(&self.new));
            let is_right = old.iter().chain(&new).all(Option::is_some);
            let turns = Turns::of(old.into_iter().flatten().collect(), new.into_iter().flatten().collect());
            HeldRow { row, turns, is_right }
        })
    }

    /// Whether a row looks slower, so that the command must be measured again.
    pub(super) fn is_doubtful(&self, tolerance: f64) -> bool {
        let mut changes = self.rows().filter_map(|row| row.turns?.change());
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
        Some((&self.old.first()?.machine, &self.new.first()?.machine))
    }
}
