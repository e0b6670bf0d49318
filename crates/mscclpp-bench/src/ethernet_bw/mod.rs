//! `ethernet-bw`: one process puts into the other's memory over Ethernet connections, beside a plain socket that carries
//! the same in the same run.

mod host_memory;
mod puts;
mod socket;

use std::time::Instant;

use clap::Args;
use mscclpp::prelude::*;

use self::{puts::Puts, socket::PlainSocket};
use crate::{
    Result,
    cpu_time::CpuTime,
    data::{Destination, fresh_seed, random_bytes},
    ethernet::Tuning,
    machine::{Machine, UsedDevice},
    measuring::Measuring,
    progress::Progress,
    ranks::{Joining, Ranks},
    report::{Bandwidth, Cpu, Report, Row, SizeOf, Times, Unit},
    sizes::{self, Sizes},
};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    sizes: sizes::Range,
    #[command(flatten)]
    measuring: Measuring,
    /// Put from one device's memory to the other's, not from host memory to host memory.
    #[arg(long)]
    device_memory: bool,
    /// Share each message among so many connections; several numbers make a row each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: Vec<u32>,
    #[command(flatten)]
    tuning: Tuning,
}

/// How messages get from rank 0 to rank 1.
trait Transfer {
    /// What is sent from now on.
    fn load(&self, data: &[u8]) -> Result<()>;

    /// Where they arrive, on rank 1.
    fn destination(&self) -> Destination<'_>;

    /// On both ranks: the first `bytes` bytes, so many times. Returns on rank 0 when the last is there.
    fn carry(&self, bytes: u64, rounds: u32) -> Result<()>;
}

const WORKLOAD: &str = "ethernet-bw";
const DEFAULT: Sizes = Sizes { begin: 64 << 20, end: 64 << 20, factor: 2 };
/// By default a time is that of so many bytes.
const BYTES_OF_A_TIME: u64 = 1 << 30;
const MOST_ROUNDS: u64 = 1000;
/// How much of a plain socket's bandwidth one connection is to have, with messages of at least 64 MiB.
const LARGE: u64 = 64 << 20;
const GOAL: f64 = 0.9;
const GOAL_OF_GPUS: f64 = 0.8;

pub(crate) fn run(options: &Options, joining: &Joining) -> Result<Option<Report>> {
    let sizes = options.sizes.or(DEFAULT, 1)?;
    let most = sizes.iter().max().unwrap_or(0);
    let numbers = || options.connections.iter().copied();
    if options.device_memory {
        let pair = options.measuring.join_with(|platform| options.tuning.context(platform), joining)?;
        let transfers = numbers().map(|n| Puts::between_gpus(&pair, n, most)).collect::<Result<Vec<_>>>()?;
        let goal = pair.is_of_two_gpus().then_some(GOAL_OF_GPUS);
        let bench = Bench { options, ranks: &pair.ranks, what: "GPU to GPU", goal };
        bench.run(sizes, &transfers, &pair.devices)
    } else {
        if options.measuring.chooses_devices() || joining.chooses_gpu() {
            return Err(
                "--devices and --gpu choose devices for --device-memory; from host to host there are none"
                    .into(),
            );
        }
        let ranks = Ranks::join(options.tuning.context(Platform::Host), joining)?;
        let transfers =
            numbers().map(|n| Puts::between_hosts(&ranks, n, most)).collect::<Result<Vec<_>>>()?;
        let bench = Bench { options, ranks: &ranks, what: "host to host", goal: Some(GOAL) };
        bench.run(sizes, &transfers, &[])
    }
}

struct Bench<'a> {
    options: &'a Options,
    ranks: &'a Ranks,
    /// Between what.
    what: &'static str,
    /// Of one connection, as a part of the plain socket's bandwidth.
    goal: Option<f64>,
}

/// A transfer with its row.
struct Contender<'a> {
    variant: String,
    transfer: &'a dyn Transfer,
    /// As [`Bench::goal`].
    goal: Option<f64>,
}

/// What messages of one size took, with one transfer.
struct Measured {
    us: Vec<f64>,
    /// Of rank 0, and the other; only rank 0's view is in this order.
    cpu: [CpuTime; 2],
    ok: bool,
}

impl Bench<'_> {
    /// `puts`: for each number of connections.
    fn run(&self, sizes: Sizes, puts: &[Puts<'_>], devices: &[UsedDevice]) -> Result<Option<Report>> {
        let measuring = &self.options.measuring;
        let is_peer = self.ranks.rank == 1;
        let plain = PlainSocket::new(self.ranks, sizes.iter().max().unwrap_or(0))?;
        let mut contenders =
            vec![Contender { variant: "plain socket".to_owned(), transfer: &plain, goal: None }];
        contenders.extend(puts.iter().zip(&self.options.connections).map(|(puts, n)| Contender {
            variant: format!("{} x{n}", self.what),
            transfer: puts,
            goal: self.goal.filter(|_| *n == 1),
        }));
        let mut progress = Progress::new(sizes.count() * measuring.launches(), is_peer);
        let mut rows = Vec::new();
        let mut notes = vec![
            format!(
                "one way from rank 0 to rank 1, {}, {}; a time is that of all rounds and one flush behind them, by the \
                 sender's clock",
                self.what,
                self.ranks.way()
            ),
            "plain socket: one connection, writes of 1 MiB, host to host, in turns with the others in the same run; it \
             is the baseline of the rows behind it"
                .to_owned(),
            "random data, compared by the receiver after each time".to_owned(),
        ];
        for bytes in sizes.iter() {
            for (row, remark) in self.rows(&contenders, bytes, &mut progress)? {
                rows.push(row);
                notes.push(remark);
            }
        }
        drop(progress);
        // Nobody takes away memory or a connection that the other still uses.
        self.ranks.meet()?;
        let machine = Machine::of(devices, &Transport::ETHERNET.to_string());
        Ok((!is_peer).then_some(Report { machine, rows, notes }))
    }

    /// All contenders with messages of one size, in turns: their rows, and what the table has no column for. The first is
    /// the plain socket.
    fn rows(
        &self,
        contenders: &[Contender<'_>],
        bytes: u64,
        progress: &mut Progress,
    ) -> Result<Vec<(Row, String)>> {
        let measuring = &self.options.measuring;
        // At most `MOST_ROUNDS`, which fits.
        let rounds = measuring.rounds_or((BYTES_OF_A_TIME / bytes).clamp(1, MOST_ROUNDS) as u32);
        // Rank 0's, on both sides.
        let mine = fresh_seed();
        let others = self.ranks.swap(mine)?;
        let data = random_bytes(if self.ranks.rank == 0 { mine } else { others }, bytes as usize);
        let mut all = Vec::new();
        for contender in contenders {
            contender.transfer.load(&data)?;
            all.push(Measured { us: Vec::new(), cpu: Default::default(), ok: true });
        }
        for launch in 0..measuring.launches() {
            progress.step(&format!("{WORKLOAD} {}", SizeOf::Bytes.show(bytes)));
            for (contender, measured) in contenders.iter().zip(&mut all) {
                self.once(contender.transfer, &data, rounds, measuring.counts(launch), measured)?;
            }
        }
        let plain = all[0].us.clone();
        let mut baseline = None;
        let rows = contenders.iter().zip(all).map(|(contender, measured)| {
            // Of times that were taken one behind the other, so that what else the machine does is in both.
            let ratios = plain.iter().zip(&measured.us).map(|(plain, us)| 100.0 * plain / us).collect();
            let ratio = baseline.and_then(|_| Times::of(ratios));
            let row = self.row(contender, bytes, rounds, measured, baseline);
            baseline = baseline.or(row.times.map(|times| times.median));
            let remark = remark(&row, ratio);
            (row, remark)
        });
        Ok(rows.collect())
    }

    /// `baseline`: the median of the plain socket, if this is another.
    fn row(
        &self,
        contender: &Contender<'_>,
        bytes: u64,
        rounds: u32,
        measured: Measured,
        baseline: Option<f64>,
    ) -> Row {
        let repeats = self.options.measuring.repeats();
        let gigabytes = bytes as f64 * f64::from(rounds) * repeats as f64 / 1e9;
        let [sender, receiver] = measured.cpu.map(|cpu| cpu.seconds() / gigabytes);
        let times = Times::of(measured.us.into_iter().map(|us| us / f64::from(rounds)).collect());
        let times = times.filter(|_| measured.ok);
        let goal = contender.goal.filter(|_| bytes >= LARGE).and_then(|part| Some(baseline? / part));
        Row {
            workload: WORKLOAD.to_owned(),
            variant: contender.variant.clone(),
            size: bytes,
            size_of: SizeOf::Bytes,
            unit: Unit::Microseconds,
            times,
            rounds,
            repeats,
            bandwidth: times.map(|times| Bandwidth::of(bytes, times.median)),
            baseline,
            goal,
            cpu: times.map(|_| Cpu { sender, receiver }),
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
        let (cpu, start) = (CpuTime::now(), Instant::now());
        transfer.carry(len, rounds)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        ranks.meet()?;
        let cpu = CpuTime::now() - cpu;
        let mut ok = true;
        if receives {
            if self.options.measuring.spoils() {
                transfer.destination().spoil(len)?;
            }
            ok = transfer.destination().holds(data)?;
        }
        measured.ok &= ranks.both(ok)?;
        let others = CpuTime::from_nanos(ranks.swap(cpu.as_nanos())?);
        if counts {
            measured.us.push(us);
            measured.cpu[0] += cpu;
            measured.cpu[1] += others;
        }
        Ok(())
    }
}

/// `ratio`: to the plain socket's bandwidth, in percent.
fn remark(row: &Row, ratio: Option<Times>) -> String {
    let Some(Cpu { sender, receiver }) = row.cpu else {
        return format!("{}, {}: no figures", row.variant, row.size_of.show(row.size));
    };
    let ratio = ratio.map_or_else(String::new, |Times { median, min, max }| {
        format!("{median:.1} % of the plain socket's bandwidth, repeat by repeat {min:.1} to {max:.1}; ")
    });
    format!(
        "{}, {}: {ratio}CPU seconds for each GB: {sender:.3} sender, {receiver:.3} receiver",
        row.variant,
        row.size_of.show(row.size)
    )
}
