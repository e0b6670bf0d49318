//! `fifo`: threads of one block push triggers, and a proxy takes them.

use mscclpp::proxy::Fifo;

use crate::{
    machine::{Machine, OneDevice},
    prelude::*,
    pushers::{Pushers, Pushing, Shape},
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
    #[command(flatten)]
    repeats: Repeats,
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
    table.begin(Machine::of_one(&gpu)?, 2 * options.threads.len())?;
    table.note(
        "one block, one proxy; timed by the device's events; the proxy checks that each thread's triggers come once and \
         in order",
    );
    table.note(
        "push and sync: the time of one, all threads at once; pipelined: the time for each trigger, all threads together",
    );
    for pushing in [Pushing::AndSync, Pushing::Pipelined] {
        for &threads in &options.threads {
            let per_thread = options.iters.unwrap_or_else(|| pushing.per_thread(gpu.platform(), threads));
            let shape = Shape { pushing, threads, per_thread, fifo_size: options.fifo_size };
            let mut pushers = Pushers::new(&gpu, shape, options.repeats.spoil)?;
            // The triggers that are timed one after the other, and those that are timed at once.
            let (behind, beside) = match pushing {
                Pushing::AndSync => (1.0, f64::from(threads)),
                Pushing::Pipelined => (f64::from(threads), 1.0),
            };
            let row = Row::new("fifo", pushing.name(), (threads.into(), SizeOf::Threads), per_thread);
            let contender = Contender::new(row, Box::new(|_| pushers.launch()));
            let contender = Contender { per: contender.per * behind, bus: None, ..contender };
            let (row, _) = table.measure_in_turns(options.repeats, None, vec![contender])?.swap_remove(0);
            if let Some(times) = row.times {
                let label = format!("{}, {}", row.variant, SizeOf::Threads.show(row.size));
                table.note(format!("{label}: {:.2} million triggers a second", beside / times.median));
            }
            table.push(row)?;
        }
    }
    Ok(())
}
