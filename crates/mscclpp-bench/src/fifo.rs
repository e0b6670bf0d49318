//! `fifo`: threads of one block push triggers, and a proxy takes them.

use clap::Args;
use mscclpp::{prelude::*, proxy::Fifo};

use crate::{
    Result,
    one_device::{OneDevice, machine},
    progress::Progress,
    pushers::{Pushers, Pushing, Shape},
    report::{Row, SizeOf, Times},
    table::Table,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of threads, two rows for each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32, 512],
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Triggers that a thread pushes in a launch [default: 1000; without waits 1000000 shared among all threads; 20 on
    /// simulated devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iters: Option<u32>,
    /// The number of launches before the measurements; they do not count.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// The number of launches that count.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// The number of triggers that the FIFO holds, a power of two from 2 to 4096.
    #[arg(long, value_name = "TRIGGERS", default_value_t = Fifo::DEFAULT_SIZE)]
    fifo_size: u64,
    #[command(flatten)]
    on: OneDevice,
}

impl Pushing {
    fn name(self) -> &'static str {
        match self {
            Self::AndSync => "push and sync",
            Self::Pipelined => "pipelined",
        }
    }

    /// The default number of triggers of a thread.
    fn per_thread(self, platform: Platform, threads: u32) -> u32 {
        match (platform, self) {
            (Platform::Sim, _) => 20,
            (_, Self::AndSync) => 1000,
            (_, Self::Pipelined) => 1_000_000 / threads,
        }
    }
}

pub(crate) fn run(options: &Options, table: &mut Table) -> Result<()> {
    let gpu = options.on.open()?;
    let launches = (options.warmup + options.repeats) as usize;
    table.begin(machine(&gpu)?, 2 * options.threads.len() * launches)?;
    let mut notes = [
        "one block, one proxy; timed by the device's events; the proxy checks that each thread's triggers come once and \
         in order",
        "push and sync: the time of one, all threads at once; pipelined: the time for each trigger, all threads together",
    ]
    .map(str::to_owned)
    .to_vec();
    for pushing in [Pushing::AndSync, Pushing::Pipelined] {
        for &threads in &options.threads {
            let row = row(options, &gpu, &mut table.progress, pushing, threads)?;
            if let Some(times) = row.times {
                let triggers = if pushing == Pushing::AndSync { f64::from(threads) } else { 1.0 };
                let label = format!("{}, {}", row.variant, SizeOf::Threads.show(row.size));
                notes.push(format!("{label}: {:.2} million triggers a second", triggers / times.median));
            }
            table.push(row)?;
        }
    }
    table.end(notes)
}

fn row(options: &Options, gpu: &Gpu, progress: &mut Progress, pushing: Pushing, threads: u32) -> Result<Row> {
    let platform = gpu.platform();
    let per_thread = options.iters.unwrap_or_else(|| pushing.per_thread(platform, threads));
    let (fifo_size, spoil) = (options.fifo_size, options.on.spoil);
    let mut pushers = Pushers::new(gpu, Shape { pushing, threads, per_thread, fifo_size, spoil })?;
    let of_a_time = match pushing {
        Pushing::AndSync => f64::from(per_thread),
        Pushing::Pipelined => f64::from(per_thread) * f64::from(threads),
    };
    let repeats = options.repeats as usize;
    let mut times = Vec::new();
    for _ in 0..options.warmup + options.repeats {
        progress.step(&format!("fifo {} {threads} threads", pushing.name()));
        // An error in the pushed triggers stays, so there is no need to go on.
        match pushers.launch()? {
            Some(us) => times.push(us / of_a_time),
            None => break,
        }
    }
    let counted = times.get(options.warmup as usize..).filter(|counted| counted.len() == repeats);
    let row = Row::new("fifo", pushing.name(), (threads.into(), SizeOf::Threads), per_thread, repeats);
    Ok(row.with(counted.and_then(|times| Times::of(times.to_vec()))))
}
