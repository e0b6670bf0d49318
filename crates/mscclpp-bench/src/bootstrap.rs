//! `bootstrap`: how long a job takes to form, and how many resources it takes. Ranks are threads of this process.

use std::{
    fs,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use crate::{machine::Machine, prelude::*, report::Unit};

const MESSAGE: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(120);
const STACK: usize = 256 << 10;

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of ranks, one row for each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024],
        value_parser = clap::value_parser!(u32).range(1..=16384))]
    ranks: Vec<u32>,
    /// Jobs that are timed, after one that is not.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
}

pub(crate) fn run(options: &Options, table: &mut Table) -> Result<()> {
    table.note("seconds from the first rank's start to the last rank's end; the address is a unique id");
    table.begin(Machine::of(&[], "TCP"), options.ranks.len())?;
    for &ranks in &options.ranks {
        let mut jobs = Vec::new();
        for n in 0..=options.repeats {
            table
                .progress
                .step(&format!("bootstrap {ranks} ranks"), f64::from(n) / f64::from(options.repeats + 1));
            jobs.push(job(ranks as usize)?);
        }
        table.progress.cell();
        let ok = jobs.iter().all(|job| job.ok);
        let warm_up = jobs.remove(0);
        table.note(format!("{ranks} ranks, all formed: {}", warm_up.cost));
        // The times at which each phase begins and ends; 0 is the start.
        for (variant, begin, end) in
            [("initialise", 0, 1), ("all_gather 256 B", 1, 2), ("barrier", 2, 3), ("all three", 0, 3)]
        {
            let times = jobs.iter().map(|job| job.at[end].saturating_sub(job.at[begin]).as_secs_f64());
            let times = Times::of(times.collect::<Vec<_>>()).filter(|_| ok);
            let row = Row::new("bootstrap", variant, (ranks.into(), SizeOf::Ranks), 1);
            table.push(Row { unit: Unit::Seconds, repeats: jobs.len(), ..row.with(times, None) })?;
        }
    }
    Ok(())
}

struct Job {
    /// The times since the job's start: 0, and when the last rank had formed, gathered and met.
    at: [Duration; 4],
    ok: bool,
    cost: String,
}

fn job(n: usize) -> Result<Job> {
    let id = TcpBootstrap::create_unique_id()?;
    let before = held();
    let (formed, counted) = (Barrier::new(n + 1), Barrier::new(n + 1));
    let started = Instant::now();
    let rank = |rank: usize| -> Result<([Duration; 3], bool)> {
        let bootstrap = TcpBootstrap::new(rank, n, id, TIMEOUT);
        let at_formed = started.elapsed();
        // Ranks that failed wait here too, because the others would wait for them for ever.
        formed.wait();
        counted.wait();
        let bootstrap = bootstrap?;
        let counting = started.elapsed().saturating_sub(at_formed);
        let all = bootstrap.all_gather(&message(rank))?;
        let at_gathered = started.elapsed().saturating_sub(counting);
        bootstrap.barrier()?;
        let at_met = started.elapsed().saturating_sub(counting);
        let ok = all.len() == n && all.iter().enumerate().all(|(rank, bytes)| *bytes == message(rank));
        Ok(([at_formed, at_gathered, at_met], ok))
    };
    let (results, during) = thread::scope(|scope| -> Result<_> {
        let mut threads = Vec::with_capacity(n);
        for number in 0..n {
            let rank = &rank;
            let started = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || rank(number));
            match started {
                Ok(thread) => threads.push(thread),
                // The other ranks wait for this one, so an error could not be returned.
                Err(error) => {
                    eprintln!("error: starting the thread of rank {number}: {error}");
                    std::process::exit(1);
                }
            }
        }
        formed.wait();
        let during = held();
        counted.wait();
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<_>>()?;
        Ok((results, during))
    })?;
    let last = |phase: usize| results.iter().map(|(times, _)| times[phase]).max().unwrap_or_default();
    Ok(Job {
        at: [Duration::ZERO, last(0), last(1), last(2)],
        ok: results.iter().all(|(_, ok)| *ok),
        cost: per_rank(before, during, n),
    })
}

/// The message of a rank, which differs from those of the others.
fn message(rank: usize) -> Vec<u8> {
    (0..MESSAGE).map(|i| (rank * 31 + i * 7) as u8).collect()
}

/// The resources that the process holds: threads, descriptors, and KiB of resident memory.
fn held() -> [usize; 3] {
    let entries = |path| fs::read_dir(path).map_or(0, Iterator::count);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
    [entries("/proc/self/task"), entries("/proc/self/fd"), resident.unwrap_or(0)]
}

/// The use of each rank. The rank's own thread, which this program started, is not counted.
fn per_rank(before: [usize; 3], during: [usize; 3], n: usize) -> String {
    let own = [n, 0, 0];
    let [threads, descriptors, resident]: [f64; 3] =
        std::array::from_fn(|i| during[i].saturating_sub(before[i] + own[i]) as f64 / n as f64);
    format!("{threads:.1} threads, {descriptors:.1} descriptors, {resident:.0} KiB resident per rank")
}
