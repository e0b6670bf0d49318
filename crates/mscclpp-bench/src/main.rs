//! `mscclpp-bench`: a program that measures each part of the library, checks the results, and compares.
//!
//! Every row names the machine, and gives the median of its repeats with minimum and maximum. Rows of the platform `sim` come
//! from devices simulated on the CPU: they show that a change made something slower, and say nothing about a GPU.

mod bare_verbs;
mod bootstrap;
mod call;
mod collectives;
mod data;
mod doctor;
mod ethernet;
mod ethernet_bw;
mod exchange;
mod experts;
mod fifo;
mod help;
mod hold;
mod ib;
mod kernels;
mod launch_cost;
mod launches;
mod lines;
mod machine;
mod measuring;
mod memory;
mod nccl;
mod one_way;
mod output;
mod packet_pingpong;
mod pair;
mod plot;
mod ports;
mod prelude;
mod progress;
mod proxy_idle;
mod pushers;
mod puts;
mod ranks;
mod report;
mod rms_norm;
mod signal_pingpong;
mod sizes;
mod stopwatch;
mod table;
mod waiting;
mod watchdog;

use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use collectives::What;
use output::Output;
use ranks::Joining;
use table::{Stream, Table};

/// The error of a workload: one message for the user.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// Measures each part of mscclpp, and checks the results. `doctor` tests what this machine can do.
///
/// A workload prints one row for each size and variant. Without GPUs, it runs on devices simulated on the CPU (platform
/// `sim`), and the times say nothing about GPUs. On a single GPU, the processes of a workload take turns of some
/// milliseconds, so the times are too long.
#[derive(Parser)]
#[command(name = "mscclpp-bench", after_help = help::columns(None))]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures a signal: two devices signal each other in turns, with one thread each. The time is that of one hop.
    SignalPingpong(BetweenRanks<signal_pingpong::Options>),
    /// Measures a message in LL8 packets, sent back and forth between two devices by one block each. The time is that of one
    /// hop.
    Ll8Pingpong(BetweenRanks<packet_pingpong::Options>),
    /// Measures what ll8-pingpong does, in LL16 packets.
    Ll16Pingpong(BetweenRanks<packet_pingpong::Options>),
    /// Measures puts through memory channels, in both directions at once: handshake, put, signal, wait.
    MemoryPut(BetweenRanks<memory::CopyOptions>),
    /// Measures gets through memory channels, in both directions at once: handshake, get.
    MemoryGet(BetweenRanks<memory::CopyOptions>),
    /// Measures puts of packets through memory channels, in both directions at once: handshake, put, unpack.
    MemoryPutPackets(BetweenRanks<memory::PacketOptions>),
    /// Measures puts through port channels, in both directions at once, by one thread on each device: signal, wait, put with
    /// signal, wait.
    PortPut(BetweenRanks<ports::PutOptions>),
    /// Measures a message through port channels, sent back and forth by one block on each device. The time is that of a round
    /// trip.
    PortPingpong(BetweenRanks<ports::PingPongOptions>),
    /// Measures what port-pingpong does, in LL16 packets and without waits for signals.
    PortPacketPingpong(BetweenRanks<ports::PacketOptions>),
    /// Measures the FIFO: threads of one block push triggers, and a proxy takes them, one at a time or as fast as possible.
    Fifo(Alone<fifo::Options>),
    /// Measures how long a launch occupies its thread, beside the driver's own call: with values and with objects as
    /// arguments, on streams of the library and of others, and captured into a graph.
    Launches(Alone<launch_cost::Options>),
    /// Measures an idle proxy: its processor time, and how long the first trigger after the idle time waits.
    ProxyIdle(Alone<proxy_idle::Options>),
    /// Measures puts over Ethernet from one process to another, beside a plain socket.
    EthernetBw(BetweenRanks<ethernet_bw::Options>),
    /// Measures puts over RDMA adapters from one process to another, beside bare verbs that post the same requests.
    IbBw(BetweenRanks<ib::BandwidthOptions>),
    /// Measures round trips of 8 bytes with a signal over RDMA adapters, beside bare verbs.
    IbLat(BetweenRanks<ib::LatencyOptions>),
    /// Measures all_reduce (sum), with --compare beside NCCL. Sizes and bandwidths are counted as in nccl-tests.
    AllReduce(BetweenRanks<collectives::Options>),
    /// Measures all_gather, as all-reduce does. The size is that of a rank's result.
    AllGather(BetweenRanks<collectives::Options>),
    /// Measures reduce_scatter (sum), as all-reduce does. The size is that of a rank's input.
    ReduceScatter(BetweenRanks<collectives::Options>),
    /// Measures all_to_all, as all-reduce does. The size is that of a rank's input.
    AllToAll(BetweenRanks<collectives::Options>),
    /// Finds the protocol, blocks and threads that are fastest for each collective and size, and prints them as a table for the
    /// library.
    Tune(BetweenRanks<collectives::TuneOptions>),
    /// Measures an all_reduce of f16 with residual and RMSNorm: all in one launch, in two launches, and the all_reduce alone.
    AllReduceRmsnorm(BetweenRanks<rms_norm::Options>),
    /// Measures dispatch and combine of a mixture-of-experts layer, beside the collectives that do the same work.
    #[command(visible_alias = "ep")]
    Experts(BetweenRanks<experts::Options>),
    /// Measures how a job forms, with threads as ranks: initialise, all_gather of 256 bytes, barrier.
    Bootstrap(Alone<bootstrap::Options>),
    /// Measures rows again that were measured before, and fails if one has become slower.
    ///
    /// Each row is measured once. One that looks slower is repeated before it counts, and the spread of its repeats is shown;
    /// nothing is repeated after four minutes (--limit). With --against, another build of this program is measured in turns
    /// with this one.
    Hold(hold::Options),
    /// Tests what this machine can do, and says for everything that does not work why, and what to do about it.
    ///
    /// The doctor looks at platforms, devices, peer access, RDMA, interfaces, compilers and limits. It changes nothing and needs
    /// no root. A test that does not end is stopped.
    Doctor(doctor::Options),
    /// Draws time and bandwidth over size as an SVG, from files of --json and from tables of nccl-tests.
    Plot(plot::Options),
}

/// A workload between processes: two, or as many as `--ranks` says.
#[derive(Args)]
struct BetweenRanks<O: Args> {
    #[command(flatten)]
    options: O,
    #[command(flatten)]
    joining: Joining,
    #[command(flatten)]
    output: Output,
}

/// A workload that runs in this process alone.
#[derive(Args)]
struct Alone<O: Args> {
    #[command(flatten)]
    options: O,
    #[command(flatten)]
    output: Output,
}

impl<O: Args> BetweenRanks<O> {
    /// Runs the workload. Rank 0 prints its rows and writes its report; other ranks have nothing to report.
    fn run(&self, workload: impl FnOnce(&O, &Joining, &mut Table) -> Result<()>) -> Result<ExitCode> {
        let joining = &self.joining;
        let stream = if joining.reports() { self.output.open()? } else { Stream::Nowhere };
        let mut table = Table::new(stream, joining.rank());
        workload(&self.options, joining, &mut table)?;
        table.end()?;
        if !joining.reports() {
            return Ok(ExitCode::SUCCESS);
        }
        // Ranks that were started by hand are separate calls, each with its own address, so no call is recorded.
        let arguments = if joining.is_by_hand() { Vec::new() } else { call::arguments() };
        self.output.write(&table.into_report(arguments)?)
    }
}

impl<O: Args> Alone<O> {
    fn run(&self, workload: impl FnOnce(&O, &mut Table) -> Result<()>) -> Result<ExitCode> {
        let mut table = Table::new(self.output.open()?, 0);
        workload(&self.options, &mut table)?;
        table.end()?;
        self.output.write(&table.into_report(call::arguments())?)
    }
}

fn main() -> ExitCode {
    let matches = help::complete(Arguments::command()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if matches.subcommand().is_some_and(|(_, it)| it.try_contains_id("compare").unwrap_or(false)) {
        nccl::set_environment();
    }
    match run(&arguments.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", mscclpp::Report(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    mscclpp::log::init()?;
    let collective =
        |what| move |options: &_, joining: &_, table: &mut _| collectives::run(what, options, joining, table);
    match command {
        Command::SignalPingpong(workload) => workload.run(signal_pingpong::run),
        Command::Ll8Pingpong(workload) => workload.run(|options, joining, table| {
            packet_pingpong::run(&packet_pingpong::LL8, options, joining, table)
        }),
        Command::Ll16Pingpong(workload) => workload.run(|options, joining, table| {
            packet_pingpong::run(&packet_pingpong::LL16, options, joining, table)
        }),
        Command::MemoryPut(workload) => workload.run(memory::put),
        Command::MemoryGet(workload) => workload.run(memory::get),
        Command::MemoryPutPackets(workload) => workload.run(memory::put_packets),
        Command::PortPut(workload) => workload.run(ports::put),
        Command::PortPingpong(workload) => workload.run(ports::ping_pong),
        Command::PortPacketPingpong(workload) => workload.run(ports::packet_ping_pong),
        Command::AllReduce(workload) => workload.run(collective(What::AllReduce)),
        Command::AllGather(workload) => workload.run(collective(What::AllGather)),
        Command::ReduceScatter(workload) => workload.run(collective(What::ReduceScatter)),
        Command::AllToAll(workload) => workload.run(collective(What::AllToAll)),
        Command::Tune(workload) => workload.run(collectives::tune),
        Command::AllReduceRmsnorm(workload) => workload.run(rms_norm::run),
        Command::Experts(workload) => workload.run(experts::run),
        Command::Fifo(workload) => workload.run(fifo::run),
        Command::Launches(workload) => workload.run(launch_cost::run),
        Command::ProxyIdle(workload) => workload.run(proxy_idle::run),
        Command::EthernetBw(workload) => workload.run(ethernet_bw::run),
        Command::IbBw(workload) => workload.run(ib::bandwidth),
        Command::IbLat(workload) => workload.run(ib::latency),
        Command::Bootstrap(workload) => workload.run(bootstrap::run),
        Command::Hold(options) => hold::run(options),
        Command::Doctor(options) => doctor::run(options),
        Command::Plot(options) => plot::run(options).map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        help::complete(Arguments::command()).debug_assert();
    }

    #[test]
    fn the_help_of_a_workload_has_its_own_defaults_and_no_other() {
        let mut program = help::complete(Arguments::command());
        program.build();
        let help = |workload: &str| {
            let command = program.find_subcommand(workload).expect("a workload");
            command.clone().render_long_help().to_string()
        };
        assert!(help("port-put").contains("[default: 1024, 4 with --in-kernel, 8 on simulated devices]"));
        assert!(help("ll16-pingpong").contains("[default: 8, or --begin]"));
        assert!(help("ethernet-bw").contains("[default: as many as 1 GiB takes, at most 1000]"));
        for workload in program.get_subcommands() {
            let text = help(workload.get_name());
            // The text after this is about the table, and the same for all workloads.
            let text = text.split("\nColumns:").next().unwrap_or_default();
            assert!(!(text.contains("--ranks <RANKS>") && text.contains("wo processes")), "{text}");
            assert!(!text.contains("of ping-pongs") && !text.contains("of ethernet-bw"), "{text}");
            // Each option for sizes and rounds names its default.
            for option in ["--begin <SIZE>", "--end <SIZE>", "--factor <FACTOR>", "--iters <ITERS>"] {
                let Some((_, help)) = text.split_once(option) else { continue };
                let help = help.split("\n  -").next().unwrap_or_default();
                assert!(
                    help.split("\n      --").next().is_some_and(|it| it.contains("[default: ")),
                    "{option}: {text}"
                );
            }
        }
        assert!(!help("doctor").contains("--examine") && help("doctor").contains("--strict"));
        assert!(!help("plot").contains("--json <FILE>") && help("fifo").contains("--json <FILE>"));
        assert!(help("memory-put").contains("--rank") && !help("fifo").contains("--rank"));
    }
}
