//! A workload with its options, and what it gave: before, and now.

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

/// One way to call this program, whose rows are compared.
pub(super) struct Command {
    arguments: Vec<String>,
    /// Which of its rows are held.
    rows: Rows,
    old: Vec<Report>,
    new: Vec<Report>,
    /// Why it was not measured to the end.
    trouble: Option<String>,
}

enum Rows {
    /// Those of the first report of which this says so.
    Those(fn(&Row) -> bool),
    /// These, by their keys.
    Known(Vec<(Key, Row)>),
}

/// A row that is held.
pub(super) struct HeldRow<'a> {
    pub(super) row: &'a Row,
    /// None if it was not measured.
    pub(super) turns: Option<Turns>,
    /// Whether all its results were right.
    pub(super) is_right: bool,
}

impl Command {
    pub(super) fn of_all(arguments: Vec<String>, rows: fn(&Row) -> bool) -> Self {
        Self { arguments, rows: Rows::Those(rows), old: Vec::new(), new: Vec::new(), trouble: None }
    }

    /// Of all the rows in `report`.
    pub(super) fn of_old(report: Report) -> Self {
        let mut command = Self::of_all(report.arguments.clone(), |_| true);
        command.know(&report);
        command.old.push(report);
        command
    }

    pub(super) fn is(&self, arguments: &[String]) -> bool {
        self.arguments == arguments
    }

    /// As somebody would call it.
    pub(super) fn line(&self) -> String {
        self.arguments.join(" ")
    }

    pub(super) fn add_old(&mut self, report: Report) {
        self.old.push(report);
    }

    /// Keeps which rows there are; the figures are to come from a program.
    pub(super) fn forget_figures(&mut self) {
        self.old.clear();
    }

    /// What this program gave, without rows that are not held.
    pub(super) fn measured(&self) -> Vec<Report> {
        let is_known = |key: &Key| self.known().iter().any(|(known, _)| known == key);
        let of = |report: &Report| {
            let rows = keys(&report.rows).into_iter().filter(|(key, _)| is_known(key));
            Report { rows: rows.map(|(_, row)| row.clone()).collect(), ..report.clone() }
        };
        self.new.iter().map(of).collect()
    }

    /// One turn, which says what it does. `other` is the program of before; who of both begins changes from turn to turn.
    /// What goes wrong is kept: other commands can still be measured.
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

    /// The rows that are held, with the turns until now.
    pub(super) fn rows(&self) -> impl Iterator<Item = HeldRow<'_>> {
        self.known().iter().map(|(key, row)| {
            // Of each report that has the row; none if it was wrong there.
            let of = |reports: &[Report]| -> Vec<Option<f64>> {
                let found = |report: &Report| {
                    keys(&report.rows).into_iter().find(|(other, _)| other == key).map(|(_, row)| figure(row))
                };
                reports.iter().filter_map(found).collect()
            };
            let (old, new) = (of(&self.old), of(&self.new));
            let is_right = old.iter().chain(&new).all(Option::is_some);
            let turns = Turns::of(old.into_iter().flatten().collect(), new.into_iter().flatten().collect());
            HeldRow { row, turns, is_right }
        })
    }

    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether some row looks slower, so that it is to be measured again.
    pub(super) fn is_doubtful(&self, tolerance: f64) -> bool {
        let mut changes = self.rows().filter_map(|row| row.turns?.change());
        self.trouble.is_none() && changes.any(|change| change > tolerance)
    }

    /// Figures of other devices say nothing.
    ///
    /// # Errors
    /// If platforms or devices differ and that is not `allowed`.
    pub(super) fn require_same_devices(&self, allowed: bool) -> Result<()> {
        let Some((old, new)) = self.machines() else { return Ok(()) };
        if allowed || (&old.platform, &old.devices) == (&new.platform, &new.devices) {
            return Ok(());
        }
        Err(format!(
            "{} was measured on {}, and here are {}: figures of other devices say nothing. Write a baseline here \
             (--write), compare with another build (--against), or insist (--other-hardware)",
            self.line(),
            old.described(),
            new.described()
        )
        .into())
    }

    /// Where the figures of before come from, and those of now, if both are there.
    pub(super) fn machines(&self) -> Option<(&Machine, &Machine)> {
        Some((&self.old.first()?.machine, &self.new.first()?.machine))
    }
}
