//! `proxy-idle`: the processor time of an idle proxy, and how long the first trigger after the idle time waits.

use std::{
    thread,
    time::{Duration, Instant},
};

use mscclpp::proxy::Fifo;

use crate::{
    machine::{Machine, OneDevice},
    measuring::cpu_time,
    prelude::*,
    pushers::{Pushers, Pushing, Shape},
    report::Unit,
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
    /// Expect a wrong result: the check must notice.
    #[arg(long, hide = true)]
    spoil: bool,
    #[command(flatten)]
    on: OneDevice,
}

pub(crate) fn run(options: &Options, table: &mut Table) -> Result<()> {
    let gpu = options.on.open()?;
    let repeats = options.repeats.unwrap_or(if gpu.platform() == Platform::Sim { 3 } else { 7 });
    let shape = Shape { pushing: Pushing::AndSync, threads: 1, per_thread: 1, fifo_size: Fifo::DEFAULT_SIZE };
    let mut pushers = Pushers::new(&gpu, shape, options.spoil)?;
    table.begin(Machine::of_one(&gpu)?, repeats as usize)?;
    // The first launch is slow, and is not counted.
    let mut ok = pushers.launch()?.is_some();
    let (mut shares, mut waits) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        table.progress.step("proxy-idle", 0.0);
        thread::sleep(Duration::from_millis(options.idle));
        let (before, started) = (cpu_time(), Instant::now());
        thread::sleep(Duration::from_millis(options.window));
        let used = (cpu_time() - before).as_secs_f64();
        shares.push(used / started.elapsed().as_secs_f64());
        let us = pushers.launch()?;
        ok &= us.is_some();
        waits.extend(us);
        table.progress.cell();
    }
    for (variant, unit, values) in
        [("core time a second", Unit::Seconds, shares), ("first trigger", Unit::Microseconds, waits)]
    {
        let row = Row::new("proxy-idle", variant, (options.idle, SizeOf::Milliseconds), 1);
        let row = Row { unit, repeats: repeats as usize, ..row };
        table.push(row.with(Times::of(values).filter(|_| ok), None))?;
    }
    table.note(format!(
        "one proxy with the defaults; size: how long there were no triggers; core time a second: of the whole process, over \
         the next {} ms",
        options.window
    ));
    table.note("first trigger: a launch that pushes one and waits until it is taken, by the device's events");
    Ok(())
}
