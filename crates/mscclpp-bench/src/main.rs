//! `mscclpp-bench`: the workloads of this project, each by its name.
//!
//! Every row says where it ran, is checked for correctness, and gives the median of its repeats with minimum and
//! maximum. Rows of the platform `host` are devices simulated on the CPU: good for seeing regressions, never a GPU's
//! speed.

mod bootstrap;
mod cpu_time;
mod data;
mod device_clock;
mod ethernet;
mod ethernet_bw;
mod exchange;
mod fifo;
mod kernels;
mod launches;
mod machine;
mod measuring;
mod memory;
mod packet_pingpong;
mod pair;
mod plot;
mod ports;
mod progress;
mod proxy_idle;
mod pushers;
mod ranks;
mod report;
mod signal_pingpong;
mod sizes;
mod stopwatch;
mod table;

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use report::Report;

/// What workloads fail with: one message for the user.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Benchmarks of mscclpp.
///
/// Each workload runs by its name, checks its results, and prints one row for each size and variant. On a machine without
/// GPUs the same runs on devices simulated on the CPU (platform `host`), whose times say nothing about GPUs. On one with
/// a single GPU two processes take turns on it by milliseconds, and the times of workloads of two devices are of these.
#[derive(Parser)]
#[command(name = "mscclpp-bench", after_help = COLUMNS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Also write the rows to FILE, as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// This process is the other rank of the same command.
    #[arg(long, hide = true, global = true)]
    peer: bool,
}

/// Below the help of the program and of each workload.
const COLUMNS: &str = "\
Columns:
  platform  cuda; host: devices simulated on the CPU; cpu: no device involved
  workload, variant
            what ran; for memory workloads the kind of packet and the roles of the blocks, the kind of
            barriers, blocks x threads
  size      of the message that a side sends, or what else the workload is over: rounds, ranks, threads, or
            milliseconds without work; exact in the JSON
  rounds    how often the round was repeated for one time
  unit      of all times of the row
  median, min, max
            of the repeats: the time of one round (of ll8-, ll16- and signal-pingpong, of one hop, which is half a round)
  algbw     algorithm bandwidth in GB/s: the size over the median
  busbw     bus bandwidth in GB/s: what a direction of the link carries of it. A side sends its size to the other, so
            it equals algbw; the flags of packets do not count
  baseline  the reference implementation on two H200 of one host; of ethernet-bw, the plain socket of this run
  goal      what this project wants there; both only where the row is comparable
  check     ok, or FAILED if data or signals were wrong: then there are no times, and the program exits with 1";

#[derive(Subcommand)]
enum Command {
    /// Two processes, one thread on each device: one side signals, the other waits, in turns. Time of one hop.
    #[command(after_help = COLUMNS)]
    SignalPingpong(signal_pingpong::Options),
    /// Two processes, one block each: messages of LL8 packets back and forth, checked. Time of one hop.
    #[command(after_help = COLUMNS)]
    Ll8Pingpong(packet_pingpong::Options),
    /// As ll8-pingpong, with LL16 packets.
    #[command(after_help = COLUMNS)]
    Ll16Pingpong(packet_pingpong::Options),
    /// Two processes that put into each other's memory at once: handshake, put, signal and wait.
    #[command(after_help = COLUMNS)]
    MemoryPut(memory::CopyOptions),
    /// Two processes that get from each other's memory at once: handshake, get.
    #[command(after_help = COLUMNS)]
    MemoryGet(memory::CopyOptions),
    /// Two processes that put packets into each other's memory at once: handshake, put, unpack.
    #[command(after_help = COLUMNS)]
    MemoryPutPackets(memory::PacketOptions),
    /// Two processes that put to each other at once through port channels, one thread each: signal, wait, put with
    /// signal, wait.
    #[command(after_help = COLUMNS)]
    PortPut(ports::PutOptions),
    /// Two processes, one block each: messages back and forth through port channels, checked. Time of a round trip.
    #[command(after_help = COLUMNS)]
    PortPingpong(ports::PingPongOptions),
    /// As port-pingpong, with LL16 packets and no waits.
    #[command(after_help = COLUMNS)]
    PortPacketPingpong(ports::PacketOptions),
    /// Threads of one block push triggers and a proxy takes them: one at a time, and as fast as they come.
    #[command(after_help = COLUMNS)]
    Fifo(fifo::Options),
    /// What a proxy without triggers costs, and how long the first trigger after that waits.
    #[command(after_help = COLUMNS)]
    ProxyIdle(proxy_idle::Options),
    /// One process puts into the other's memory over Ethernet connections, beside a plain socket.
    #[command(after_help = COLUMNS)]
    EthernetBw(ethernet_bw::Options),
    /// Ranks as threads of this process: initialise, all_gather 256 B, barrier.
    #[command(after_help = COLUMNS)]
    Bootstrap(bootstrap::Options),
    /// Draw time and bandwidth over size, from the files that --json wrote, as an SVG.
    Plot(plot::Options),
}

fn main() -> ExitCode {
    let Arguments { command, json, peer } = Arguments::parse();
    if matches!(command, Command::Plot(_)) && json.is_some() {
        let conflict = "--json is for workloads; plot writes to --output";
        Arguments::command().error(ErrorKind::ArgumentConflict, conflict).exit();
    }
    let json = json.filter(|_| !peer);
    match require_writable(json.as_deref())
        .and_then(|()| run(&command, peer))
        .and_then(|report| tell(report, json))
    {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", mscclpp::Report(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Fails before the work if its results could not be written.
fn require_writable(json: Option<&Path>) -> Result<()> {
    let Some(path) = json else { return Ok(()) };
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| format!("writing {}: {error}", path.display()).into())
}

/// The other rank has nothing to report, nor has a plot.
fn tell(report: Option<Report>, json: Option<PathBuf>) -> Result<ExitCode> {
    let Some(report) = report else { return Ok(ExitCode::SUCCESS) };
    if let Some(path) = json {
        report.write_json(&path).map_err(|error| format!("writing {}: {error}", path.display()))?;
    }
    let mut out = io::stdout().lock();
    write!(out, "{report}")
        .and_then(|()| out.flush())
        .map_err(|error| format!("writing the table: {error}"))?;
    Ok(if report.all_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(command: &Command, peer: bool) -> Result<Option<Report>> {
    mscclpp::log::init()?;
    match command {
        Command::SignalPingpong(options) => signal_pingpong::run(options, peer),
        Command::Ll8Pingpong(options) => packet_pingpong::run(&packet_pingpong::LL8, options, peer),
        Command::Ll16Pingpong(options) => packet_pingpong::run(&packet_pingpong::LL16, options, peer),
        Command::MemoryPut(options) => memory::put(options, peer),
        Command::MemoryGet(options) => memory::get(options, peer),
        Command::MemoryPutPackets(options) => memory::put_packets(options, peer),
        Command::PortPut(options) => ports::put(options, peer),
        Command::PortPingpong(options) => ports::ping_pong(options, peer),
        Command::PortPacketPingpong(options) => ports::packet_ping_pong(options, peer),
        Command::Fifo(options) => fifo::run(options).map(Some),
        Command::ProxyIdle(options) => proxy_idle::run(options).map(Some),
        Command::EthernetBw(options) => ethernet_bw::run(options, peer),
        Command::Bootstrap(options) => bootstrap::run(options).map(Some),
        Command::Plot(options) => plot::run(options).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
