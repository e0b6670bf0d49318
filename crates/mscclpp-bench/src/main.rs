//! `mscclpp-bench`: the workloads of this project, each by its name.
//!
//! Every row names the machine, is checked for correctness, and gives the median of its repeats with minimum and
//! maximum. Rows of the platform `sim` are of devices simulated on the CPU: they show regressions, but never a GPU's
//! speed.

mod bare_verbs;
mod block;
mod bootstrap;
mod call;
mod collectives;
mod data;
mod device_clock;
mod doctor;
mod ethernet;
mod ethernet_bw;
mod exchange;
mod experts;
mod fifo;
mod help;
mod hold;
mod host_memory;
mod ib;
mod kernels;
mod launch_cost;
mod launches;
mod machine;
mod measuring;
mod memory;
mod nccl;
mod one_device;
mod one_way;
mod output;
mod packet_pingpong;
mod pair;
mod plot;
mod ports;
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

/// Benchmarks of mscclpp.
///
/// Each workload is called by its name, checks its results, and prints one row for each size and variant. On a machine
/// without GPUs, workloads run on devices simulated on the CPU (platform `sim`), whose times say nothing about GPUs.
/// On a machine with a single GPU, the processes of a workload take turns on it, some milliseconds each, and the times
/// show that. `doctor` reports what a machine can do, and why it cannot do the rest.
#[derive(Parser)]
#[command(name = "mscclpp-bench", after_help = help::columns(None))]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Two processes, one thread on each device: one side signals, the other waits, in turns. Time of one hop.
    SignalPingpong(BetweenRanks<signal_pingpong::Options>),
    /// Two processes, one block each: messages of LL8 packets back and forth, checked. Time of one hop.
    Ll8Pingpong(BetweenRanks<packet_pingpong::Options>),
    /// Like ll8-pingpong, with LL16 packets.
    Ll16Pingpong(BetweenRanks<packet_pingpong::Options>),
    /// Two processes that put into each other's memory at once: handshake, put, signal and wait.
    MemoryPut(BetweenRanks<memory::CopyOptions>),
    /// Two processes that get from each other's memory at once: handshake, get.
    MemoryGet(BetweenRanks<memory::CopyOptions>),
    /// Two processes that put packets into each other's memory at once: handshake, put, unpack.
    MemoryPutPackets(BetweenRanks<memory::PacketOptions>),
    /// Two processes that put to each other at once through port channels, one thread each: signal, wait, put with
    /// signal, wait.
    PortPut(BetweenRanks<ports::PutOptions>),
    /// Two processes, one block each: messages back and forth through port channels, checked. Time of a round trip.
    PortPingpong(BetweenRanks<ports::PingPongOptions>),
    /// Like port-pingpong, with LL16 packets and no waits.
    PortPacketPingpong(BetweenRanks<ports::PacketOptions>),
    /// Threads of one block push triggers and a proxy takes them: one at a time, and as fast as possible.
    Fifo(Alone<fifo::Options>),
    /// The time that a launch takes on the thread that makes it: with values and with objects, on a stream of the library and of
    /// others, and captured. Compared with the driver's own call.
    Launches(Alone<launch_cost::Options>),
    /// The processor time of an idle proxy, and how long the first trigger after the idle time waits.
    ProxyIdle(Alone<proxy_idle::Options>),
    /// One process puts into the other's memory over Ethernet connections. Compared with a plain socket.
    EthernetBw(BetweenRanks<ethernet_bw::Options>),
    /// One process puts into the other's memory over RDMA adapters. Compared with bare verbs that post the same
    /// requests.
    IbBw(BetweenRanks<ib::BandwidthOptions>),
    /// Two processes put 8 bytes with a signal to each other in turns over RDMA adapters. Compared with bare verbs.
    /// Time of a round trip.
    IbLat(BetweenRanks<ib::LatencyOptions>),
    /// An all_reduce (sum) of the library's collectives between processes, optionally beside NCCL's. Sizes and bandwidths as
    /// in nccl-tests.
    AllReduce(BetweenRanks<collectives::Options>),
    /// Like all-reduce: an all_gather. The size is that of a rank's result.
    AllGather(BetweenRanks<collectives::Options>),
    /// Like all-reduce: a reduce_scatter (sum). The size is that of a rank's input.
    ReduceScatter(BetweenRanks<collectives::Options>),
    /// Like all-reduce: an all_to_all. The size is that of a rank's input.
    AllToAll(BetweenRanks<collectives::Options>),
    /// Finds which protocol, blocks and threads are fastest for each collective and size, between processes. Prints them as a
    /// table for the library.
    Tune(BetweenRanks<collectives::TuneOptions>),
    /// Two processes, an all_reduce of f16 followed by residual and RMSNorm: in one launch, in two, and without them.
    AllReduceRmsnorm(BetweenRanks<rms_norm::Options>),
    /// Dispatch and combine of a mixture-of-experts layer between processes, beside the collectives that do the same work.
    Experts(BetweenRanks<experts::Options>),
    /// Ranks as threads of this process: initialise, all_gather of 256 B, barrier.
    Bootstrap(Alone<bootstrap::Options>),
    /// Repeats earlier measurements, and fails, naming each row that has become slower.
    ///
    /// A row is repeated before it counts as slower, and the spread of its repeats is shown. With --against, another build of
    /// this program is measured in turns. Each row is measured once; nothing is repeated after four minutes (--limit).
    Hold(hold::Options),
    /// Tests what this machine can do: platforms, devices, peer access, RDMA, interfaces, compilers, limits. Gives a reason and
    /// a remedy for everything that does not work. Changes nothing, needs no root, and does not hang.
    Doctor(doctor::Options),
    /// Draw time and bandwidth over size as an SVG, from files written by --json and tables of nccl-tests.
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
        self.output.write(&table.into_report(call::arguments())?)
    }
}

fn main() -> ExitCode {
    let matches = help::complete(Arguments::command()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(&arguments.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", mscclpp::Report(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    if let Command::AllReduce(it)
    | Command::AllGather(it)
    | Command::ReduceScatter(it)
    | Command::AllToAll(it) = command
    {
        it.options.set_environment();
    }
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
                let says = text.split_once(option).and_then(|(_, rest)| rest.split_once("[default: "));
                assert!(!text.contains(option) || says.is_some(), "{option}: {text}");
            }
        }
        assert!(!help("doctor").contains("--examine") && help("doctor").contains("--strict"));
        assert!(!help("plot").contains("--json <FILE>") && help("fifo").contains("--json <FILE>"));
        assert!(help("memory-put").contains("--rank") && !help("fifo").contains("--rank"));
    }
}
