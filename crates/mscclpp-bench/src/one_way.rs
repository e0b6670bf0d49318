//! Messages in one direction, from rank 0 to rank 1. Several contenders carry them in turns; the data is compared after
//! each measurement.

use std::time::Instant;

use crate::{
    Result,
    data::{Destination, GUARD, Memory, random_bytes},
    machine::Machine,
    measuring::{Measuring, cpu_time},
    progress::Progress,
    ranks::Ranks,
    report::{Bandwidth, Cpu, Row, SizeOf, Times},
    sizes::Sizes,
    table::Table,
};

/// The number of bytes that are timed together by default.
const BYTES_OF_A_TIME: u64 = 1 << 30;

/// A way to move messages from rank 0 to rank 1.
pub(crate) trait Transfer {
    /// The memory whose beginning is sent on rank 0, or in which data arrives behind the guard on rank 1.
    fn memory(&self) -> &dyn Memory;

    /// Loads the data that is sent from now on.
    fn load(&self, data: &[u8]) -> Result<()> {
        self.memory().write(0, data)
    }

    /// The place at which data arrives.
    fn destination(&self) -> Destination<'_> {
        Destination { memory: self.memory(), offset: GUARD }
    }

    /// Moves the first `bytes` bytes `rounds` times; both ranks call this. On rank 0 it returns when the last have arrived.
    fn carry(&self, bytes: u64, rounds: u32) -> Result<()>;
}

/// A transfer with the name and goal of its row.
pub(crate) struct Contender<'a> {
    pub(crate) variant: String,
    pub(crate) transfer: &'a dyn Transfer,
    /// The goal, as a part of the baseline's bandwidth.
    pub(crate) goal: Option<f64>,
}

/// A workload in one direction. Its first contender is the baseline of the others.
pub(crate) struct OneWay<'a> {
    pub(crate) workload: &'static str,
    pub(crate) ranks: &'a Ranks,
    pub(crate) measuring: &'a Measuring,
    /// The name of the baseline, as a possessive.
    pub(crate) baseline: &'static str,
    /// The most rounds that are timed together by default.
    pub(crate) most_rounds: u32,
    /// The smallest message for which goals count.
    pub(crate) goals_from: u64,
}

/// The results of one transfer with messages of one size.
struct Measured {
    us: Vec<f64>,
    /// The processor seconds of this rank and of the other; the result is used on rank 0 only.
    cpu: [f64; 2],
    ok: bool,
}

impl Measured {
    /// The times of a round; none if data was wrong.
    fn times(&self, rounds: u32) -> Option<Times> {
        let us = self.us.iter().map(|us| us / f64::from(rounds)).collect();
        Times::of(us).filter(|_| self.ok)
    }
}

/// The baseline of contender `n`: the median of the first; none for that contender itself, and if its data was wrong.
fn baseline(all: &[Measured], n: usize, rounds: u32) -> Option<f64> {
    all[0].times(rounds).filter(|_| n > 0).map(|times| times.median)
}

impl OneWay<'_> {
    /// Measures all sizes and contenders. Behind `notes` comes one note for each row about values for which the table has no
    /// column.
    pub(crate) fn run(
        &self,
        sizes: Sizes,
        contenders: &[Contender<'_>],
        machine: Machine,
        mut notes: Vec<String>,
        table: &mut Table,
    ) -> Result<()> {
        table.begin(machine, sizes.count() * self.measuring.launches())?;
        for bytes in sizes.iter() {
            for (row, remark) in self.rows(contenders, bytes, &mut table.progress)? {
                table.push(row)?;
                notes.push(remark);
            }
        }
        // No rank frees memory or closes a connection that the other still uses.
        self.ranks.meet()?;
        table.end(notes)
    }

    /// Measures all contenders with messages of one size, in turns.
    fn rows(
        &self,
        contenders: &[Contender<'_>],
        bytes: u64,
        progress: &mut Progress,
    ) -> Result<Vec<(Row, String)>> {
        // The value fits, because it is at most `most_rounds`.
        let rounds = (BYTES_OF_A_TIME / bytes).clamp(1, self.most_rounds.into()) as u32;
        let rounds = self.measuring.rounds_or(rounds);
        let seed = self.ranks.seed_of_rank_0()?;
        let data = random_bytes(seed, bytes as usize);
        let mut all = Vec::new();
        for contender in contenders {
            contender.transfer.load(&data)?;
            all.push(Measured { us: Vec::new(), cpu: Default::default(), ok: true });
        }
        for launch in 0..self.measuring.launches() {
            progress.step(&format!("{} {}", self.workload, SizeOf::Bytes.show(bytes)));
            for (contender, measured) in contenders.iter().zip(&mut all) {
                self.once(contender.transfer, &data, rounds, self.measuring.counts(launch), measured)?;
            }
        }
        let rows = contenders.iter().enumerate().map(|(n, contender)| {
            let baseline = baseline(&all, n, rounds);
            // The ratios are of times that were taken one after the other, so that both contain the machine's other work.
            let ratios = all[0].us.iter().zip(&all[n].us).map(|(base, us)| 100.0 * base / us).collect();
            let ratio = baseline.and_then(|_| Times::of(ratios));
            let row = self.row(contender, bytes, rounds, &all[n], baseline);
            let remark = self.remark(&row, ratio);
            (row, remark)
        });
        Ok(rows.collect())
    }

    /// Makes a contender's row.
    fn row(
        &self,
        contender: &Contender<'_>,
        bytes: u64,
        rounds: u32,
        measured: &Measured,
        baseline: Option<f64>,
    ) -> Row {
        let repeats = self.measuring.repeats();
        let gigabytes = bytes as f64 * f64::from(rounds) * repeats as f64 / 1e9;
        let [sender, receiver] = measured.cpu.map(|seconds| seconds / gigabytes);
        let times = measured.times(rounds);
        let goal =
            contender.goal.filter(|_| bytes >= self.goals_from).and_then(|part| Some(baseline? / part));
        let row = Row::new(self.workload, &contender.variant, (bytes, SizeOf::Bytes), rounds, repeats);
        Row {
            bandwidth: times.map(|times| Bandwidth::of(bytes, times.median)),
            cpu: times.map(|_| Cpu { sender, receiver }),
            baseline,
            goal,
            ..row.with(times)
        }
    }

    fn once(
        &self,
        transfer: &dyn Transfer,
        data: &[u8],
        rounds: u32,
        counts: bool,
        measured: &mut Measured,
    ) -> Result<()> {
        let (ranks, len) = (self.ranks, data.len() as u64);
        let receives = ranks.rank == 1;
        if receives {
            transfer.destination().poison(len)?;
        }
        ranks.meet()?;
        let (cpu, start) = (cpu_time(), Instant::now());
        transfer.carry(len, rounds)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        ranks.meet()?;
        let cpu = (cpu_time() - cpu).as_secs_f64();
        let mut ok = true;
        if receives {
            if self.measuring.spoil {
                transfer.destination().spoil(len)?;
            }
            ok = transfer.destination().holds(data)?;
        }
        measured.ok &= ranks.all(ok)?;
        let others = ranks.swap(&cpu)?;
        if counts {
            measured.us.push(us);
            measured.cpu[0] += cpu;
            measured.cpu[1] += others;
        }
        Ok(())
    }

    /// A note about a row. `ratio` is that to the baseline's bandwidth, in percent.
    fn remark(&self, row: &Row, ratio: Option<Times>) -> String {
        let Some(Cpu { sender, receiver }) = row.cpu else {
            return format!("{}, {}: no figures", row.variant, row.size_of.show(row.size));
        };
        let ratio = ratio.map_or_else(String::new, |Times { median, min, max }| {
            let whose = self.baseline;
            format!("{median:.1} % of {whose} bandwidth, repeat by repeat {min:.1} to {max:.1}; ")
        });
        format!(
            "{}, {}: {ratio}CPU seconds for each GB: {sender:.3} sender, {receiver:.3} receiver",
            row.variant,
            row.size_of.show(row.size)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_the_first_contenders_or_none() {
        let measured = |us, ok| Measured { us: vec![us], cpu: [0.0; 2], ok };
        let all = [measured(8.0, true), measured(6.0, true), measured(4.0, true)];
        assert_eq!([0, 1, 2].map(|n| baseline(&all, n, 2)), [None, Some(4.0), Some(4.0)]);
        let wrong = [measured(8.0, false), measured(6.0, true), measured(4.0, true)];
        assert_eq!([0, 1, 2].map(|n| baseline(&wrong, n, 2)), [None; 3]);
    }
}
