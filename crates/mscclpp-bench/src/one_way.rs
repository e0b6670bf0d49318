//! Messages in one direction, from rank 0 to rank 1. Several contenders carry them in turns; the data is compared after
//! each measurement.

use std::time::Instant;

use crate::{
    data::{Destination, GUARD, Memory, random_bytes},
    machine::Machine,
    measuring::cpu_time,
    prelude::*,
    report::Cpu,
};

/// The number of bytes that are timed together by default.
const BYTES_OF_A_TIME: u64 = 1 << 30;

pub(crate) trait Transfer {
    /// The memory of this rank: rank 0 sends its first bytes; on rank 1 data arrives after the first [`GUARD`] bytes.
    fn memory(&self) -> &dyn Memory;

    /// Moves the first `bytes` bytes `rounds` times; both ranks call this. On rank 0 it returns when the last have arrived.
    fn carry(&self, bytes: u64, rounds: u32) -> Result<()>;
}

/// A transfer with the name of its row, and the goal as a function of the baseline.
pub(crate) type Named<'a> = (String, &'a dyn Transfer, Option<Goal>);

/// A workload in one direction. Its first transfer is the baseline of the others.
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

impl OneWay<'_> {
    /// Measures all sizes and transfers. Each row has a note about values for which the table has no column.
    pub(crate) fn run(
        &self,
        sizes: Sizes,
        transfers: &[Named<'_>],
        machine: Machine,
        table: &mut Table,
    ) -> Result<()> {
        table.begin(machine, sizes.count())?;
        for bytes in sizes.iter() {
            self.rows(transfers, bytes, table)?;
        }
        // No rank frees memory or closes a connection that the other still uses.
        self.ranks.meet()
    }

    /// Measures all transfers with messages of one size, in turns.
    fn rows(&self, transfers: &[Named<'_>], bytes: u64, table: &mut Table) -> Result<()> {
        let repeats = self.measuring.repeats;
        // The value fits, because it is at most `most_rounds`.
        let rounds = (BYTES_OF_A_TIME / bytes).clamp(1, self.most_rounds.into()) as u32;
        let rounds = self.measuring.rounds_or(rounds);
        let data = random_bytes(self.ranks.seed_of_rank_0()?, bytes as usize);
        let mut cpu = vec![[0.0; 2]; transfers.len()];
        let mut contenders = Vec::new();
        for (n, ((variant, transfer, goal), cpu)) in transfers.iter().zip(&mut cpu).enumerate() {
            transfer.memory().write(0, &data)?;
            let row = Row::new(self.workload, variant, (bytes, SizeOf::Bytes), rounds);
            let goal = goal.filter(|_| bytes >= self.goals_from);
            let (transfer, data) = (*transfer, &data[..]);
            contenders.push(Contender {
                label: format!("{} {}", self.workload, SizeOf::Bytes.show(bytes)),
                beside: (n > 0).then_some((0, goal)),
                ..Contender::new(row, Box::new(move |time| self.once(transfer, data, rounds, time, cpu)))
            });
        }
        let measured = table.measure_in_turns(repeats, Some(self.ranks), contenders)?;
        let first = measured[0].1.clone();
        let gigabytes = bytes as f64 * f64::from(rounds) * f64::from(repeats.repeats) / 1e9;
        for ((row, times), cpu) in measured.into_iter().zip(cpu) {
            let [sender, receiver] = cpu.map(|seconds| seconds / gigabytes);
            let row = Row { cpu: row.times.map(|_| Cpu { sender, receiver }), ..row };
            let ratio = row.baseline.and_then(|_| Times::of_ratios(&first, &times));
            table.note(self.remark(&row, ratio));
            table.push(row)?;
        }
        Ok(())
    }

    /// Moves the data `rounds` times, and adds the processor seconds of this rank and of the other, which rank 0 uses, to `cpu`.
    fn once(
        &self,
        transfer: &dyn Transfer,
        data: &[u8],
        rounds: u32,
        time: Time,
        cpu: &mut [f64; 2],
    ) -> Result<Option<f64>> {
        let (ranks, len) = (self.ranks, data.len() as u64);
        let destination = Destination { memory: transfer.memory(), offset: GUARD };
        let receives = ranks.rank == 1;
        if receives {
            destination.poison(len)?;
        }
        ranks.meet()?;
        let (before, start) = (cpu_time(), Instant::now());
        transfer.carry(len, rounds)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        ranks.meet()?;
        let used = (cpu_time() - before).as_secs_f64();
        if receives && time.spoils {
            destination.spoil(len)?;
        }
        let is_right = !receives || destination.holds(data)?;
        let others = ranks.swap(&used)?;
        if time.counts {
            *cpu = [cpu[0] + used, cpu[1] + others];
        }
        Ok(is_right.then_some(us))
    }

    /// A note about a row. `ratio` is that of the baseline's times to its own.
    fn remark(&self, row: &Row, ratio: Option<Times>) -> String {
        let Some(Cpu { sender, receiver }) = row.cpu else {
            return format!("{}, {}: no figures", row.variant, row.size_of.show(row.size));
        };
        let ratio = ratio.map_or_else(String::new, |Times { median, min, max }| {
            let ([median, min, max], whose) = ([median, min, max].map(|it| 100.0 * it), self.baseline);
            format!("{median:.1} % of {whose} bandwidth, repeat by repeat {min:.1} to {max:.1}; ")
        });
        format!(
            "{}, {}: {ratio}CPU seconds for each GB: {sender:.3} sender, {receiver:.3} receiver",
            row.variant,
            row.size_of.show(row.size)
        )
    }
}
