//! Port channels between two processes that have a proxy each, and the workloads over them.

mod ping_pong;

use std::borrow::Cow;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use mscclpp::proxy::{ProxyServiceBuilder, ServiceStats};

pub(crate) use self::ping_pong::{Options as PingPongOptions, PacketOptions, packet_ping_pong, ping_pong};
use crate::{Error, data::Destination, ethernet::Tuning, kernels::PORT_BENCH, prelude::*};

/// The options of every workload over port channels.
#[derive(Args)]
pub(crate) struct Common {
    #[command(flatten)]
    messages: Messages,
    /// The largest put that a kernel's thread does itself, 0 for none [default: the library's].
    #[arg(long, value_name = "BYTES")]
    direct_put_max: Option<u32>,
    /// The largest put that a kernel's thread does itself by bulk copies, 0 for none [default: the library's].
    #[arg(long, value_name = "BYTES")]
    bulk_put_max: Option<u32>,
    /// The number of triggers that the FIFO holds, a power of two from 2 to 4096 [default: the library's].
    #[arg(long, value_name = "TRIGGERS")]
    fifo_size: Option<u64>,
}

/// The options for the transport of the proxies.
#[derive(Args)]
pub(crate) struct Carriage {
    /// The transport of the proxies.
    #[arg(long, default_value = "cuda-ipc", value_parser = PossibleValuesParser::new(["cuda-ipc", "ethernet"])
        .map(|name| if name == "ethernet" { Transport::ETHERNET } else { Transport::CUDA_IPC }))]
    transport: Transport,
    #[command(flatten)]
    tuning: Tuning,
}

/// This side of a port channel: the bytes of its `source` are put to the start of the peer's arrivals.
struct Ports<'a> {
    // The stopwatch is declared first: when it is dropped, it waits for the kernels that use the rest.
    stopwatch: Stopwatch<'a>,
    channel: PortChannel,
    service: ProxyService,
    source: DeviceBuffer,
    /// The memory of which the peer's puts can reach the part from [`ARRIVALS`] on, with guards on both sides.
    arrivals: DeviceBuffer,
    /// The registration: as long as it is kept, the peer may put.
    _here: RegisteredMemory,
}

const ARRIVALS: u64 = 4096;

impl<'a> Ports<'a> {
    /// Makes this side for puts of up to `largest` bytes.
    fn new(pair: &'a Pair, options: &Common, transport: Transport, largest: u64) -> Result<Self> {
        let comm = &pair.ranks.comm;
        let source = pair.gpu.allocate(largest)?;
        let arrivals = pair.gpu.allocate(ARRIVALS + largest + ARRIVALS)?;
        // The memory is never freed, because the peer may put to it even after an error here.
        std::mem::forget(arrivals.clone());
        let from = comm.register_buffer(&source, transport)?;
        // SAFETY: the range is a part of memory that is never freed.
        let here = unsafe { comm.register_memory(arrivals.ptr().add(ARRIVALS), largest, transport)? };
        let there = pair.ranks.share(&here)?;

        let builder = ProxyService::builder(&pair.gpu);
        let builder = options.direct_put_max.into_iter().fold(builder, ProxyServiceBuilder::direct_put_max);
        let builder = options.bulk_put_max.into_iter().fold(builder, ProxyServiceBuilder::bulk_put_max);
        let builder = options.fifo_size.into_iter().fold(builder, ProxyServiceBuilder::fifo_size);
        let service = builder.build()?;
        let connection = pair.connect(transport)?;
        let channel = service.build_port_channel(comm, &connection, &there, &from)?;
        service.start_proxy(true)?;
        let stopwatch = Stopwatch::new(pair, vec![channel.semaphore().clone()])?;
        Ok(Self { stopwatch, channel, service, source, arrivals, _here: here })
    }

    /// The address at which the peer's puts arrive.
    fn arrivals(&self) -> DevicePtr {
        self.arrivals.ptr().add(ARRIVALS)
    }

    fn arrival(&self) -> Arrival<'_> {
        let destination = Destination { memory: &self.arrivals, offset: ARRIVALS };
        Arrival { stopwatch: &self.stopwatch, destination }
    }

    /// The service's own error, if it has one, otherwise `error`.
    fn explain(&self, error: Error) -> Error {
        self.service.health().err().map_or(error, Into::into)
    }

    /// A note on the operations of this side's service since `before`.
    fn remark(&self, label: &str, before: &ServiceStats) -> String {
        let (now, before) = (self.service.stats().total, before.total);
        format!(
            "{label}: rank 0 did {} puts and {} signals directly, and {} puts, {} signals and {} flushes by its proxy",
            now.direct_puts - before.direct_puts,
            now.direct_signals - before.direct_signals,
            now.data - before.data,
            now.flags - before.flags,
            now.syncs - before.syncs,
        )
    }

    /// Ends the proxy once this side is done, and waits for the other side.
    fn finish(self, pair: &Pair) -> Result<()> {
        self.service.stop_proxy()?;
        pair.ranks.meet()
    }
}

/// The options of `port-put`: both devices put to each other at once, one thread each: signal, wait, put with signal, wait.
#[derive(Args)]
pub(crate) struct PutOptions {
    #[command(flatten)]
    common: Common,
    /// Run all rounds in one launch, instead of a launch for each.
    #[arg(long)]
    in_kernel: bool,
    #[command(flatten)]
    carriage: Carriage,
}

pub(crate) fn put(options: &PutOptions, joining: &Joining, table: &mut Table) -> Result<()> {
    let PutOptions { common, in_kernel, carriage: Carriage { transport, tuning } } = options;
    // Wrong sizes are reported before there is a second process, which would report them again.
    let default = match Platform::detect_or_sim()? {
        Platform::Sim => Sizes { begin: 1 << 10, end: 64 << 10, factor: 8 },
        _ if *in_kernel => Sizes { begin: 1 << 10, end: 128 << 20, factor: 4 },
        _ => Sizes { begin: 1 << 10, end: 128 << 20, factor: 1 << 10 },
    };
    let Messages { sizes, measuring } = &common.messages;
    let sizes = sizes.or(default, 1)?;
    let pair = Pair::join(2, &measuring.devices, |platform| tuning.context(platform), joining)?;
    let module = Module::load(&pair.gpu, &PORT_BENCH)?;
    let kernel = module.kernel("port_put")?;
    let ports = Ports::new(&pair, common, *transport, sizes.end)?;

    table.begin(pair.machine(*transport), sizes.count())?;
    table.note(if *in_kernel {
        "one round, two processes with a thread and a proxy each; the rounds in one launch; timed by the device's events"
    } else {
        "one round, two processes with a thread and a proxy each; a launch is a round, in a graph of as many launches as \
         there are rounds, or of 1000 that is replayed; timed by the device's events"
    });
    table.note("random data, compared on both sides for each time");
    let measure = |table: &mut Table, bytes: u64| {
        let rounds = measuring.rounds(&pair, bytes);
        let messages = pair.ranks.random_bytes_of_each(bytes)?;
        let (mine, expected) = (&messages[pair.ranks.rank], &messages[pair.ranks.other()]);
        ports.source.write(0, mine)?;
        let of_a_launch = if *in_kernel { rounds } else { 1 };
        let args = KernelArgs::new()
            .with(ports.channel.device_handle())
            .with(0u64)
            .with(0u64)
            .with(bytes)
            .with(of_a_launch as i32)
            .with(ports.stopwatch.failed());
        // SAFETY: these are the kernel's arguments. The stopwatch is dropped before the memory that the kernels use, and
        // waits for the kernels' end.
        let launches = unsafe {
            let launch = |stream: &Stream| Ok(kernel.launch(stream, LaunchConfig::linear(1, 1), &args)?);
            Launches::capture(ports.stopwatch.stream(), rounds / of_a_launch, OF_A_GRAPH, launch)?
        };
        let once = ports.arrival().once(
            launches.count(),
            |stream, _, range| launches.submit(stream, range),
            |_| Cow::Borrowed(expected),
        );
        let variant = if *in_kernel { "in kernel" } else { "launches" };
        let row = Row::new("port-put", variant, (bytes, SizeOf::Bytes), rounds);
        table.measure(measuring.repeats, &pair.ranks, Contender::new(row, once))
    };
    for bytes in sizes.iter() {
        let before = ports.service.stats();
        let row = measure(table, bytes).map_err(|error| ports.explain(error))?;
        table.note(ports.remark(&SizeOf::Bytes.show(bytes), &before));
        table.push(row)?;
    }
    ports.finish(&pair)
}
