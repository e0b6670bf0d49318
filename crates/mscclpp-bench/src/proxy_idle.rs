//! `proxy-idle`: the processor time of an idle proxy, and how long the first trigger after the idle time waits.

use std::{
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use mscclpp::{prelude::*, proxy::Fifo};

use crate::{
    Result,
    measuring::cpu_time,
    one_device::{OneDevice, machine},
    pushers::{Pushers, Pushing, Shape},
    report::{Row, SizeOf, Times, Unit},
    table::Table,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Milliseconds without triggers before the measurement begins.
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=60_000))]
    idle: u64,
    /// Milliseconds over which processor time is measured; after them comes the first trigger.
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    window: u64,
    /// The number of measurements [default: 7, 3 on simulated devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    #[command(flatten)]
    on: OneDevice,
}

pub(crate) fn run(options: &Options, table: &mut Table) -> Result<()> {
    let gpu = options.on.open()?;
    let repeats = options.repeats.unwrap_or(if gpu.platform() == Platform::Sim { 3 } else { 7 });
    let fifo_size = Fifo::DEFAULT_SIZE;
    let spoil = options.on.spoil;
    let shape = Shape { pushing: Pushing::AndSync, threads: 1, per_thread: 1, fifo_size, spoil };
    let mut pushers = Pushers::new(&gpu, shape)?;
    table.begin(machine(&gpu)?, repeats as usize)?;
    // The first launch is slow, and is not counted.
    let mut ok = pushers.launch()?.is_some();
    let (mut shares, mut waits) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        table.progress.step("proxy-idle");
        thread::sleep(Duration::from_millis(options.idle));
        let (before, started) = (cpu_time(), Instant::now());
        thread::sleep(Duration::from_millis(options.window));
        let used = (cpu_time() - before).as_secs_f64();
        shares.push(used / started.elapsed().as_secs_f64());
        let us = pushers.launch()?;
        ok &= us.is_some();
        waits.extend(us);
    }
    let row = |variant: &str, unit, values| {
        let size = (options.idle, SizeOf::Milliseconds);
        let row = Row::new("proxy-idle", variant, size, 1, repeats as usize);
        Row { unit, ..row.with(Times::of(values).filter(|_| ok)) }
    };
    table.push(row("core time a second", Unit::Seconds, shares))?;
    table.push(row("first trigger", Unit::Microseconds, waits))?;
    let notes = vec![
        format!(
            "one proxy with the defaults; size: how long there were no triggers; core time a second: of the whole process, \
             over the next {} ms",
            options.window
        ),
        "first trigger: a launch that pushes one and waits until it is taken, by the device's events"
            .to_owned(),
    ];
    table.end(notes)
}
