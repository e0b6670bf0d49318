//! Workloads over RDMA adapters, InfiniBand or RoCE: `ib-bw` and `ib-lat`. Each runs the library and bare verbs in turns.

mod latency;
mod ping_pong;
mod puts;

pub(crate) use latency::{Options as LatencyOptions, run as latency};

use mscclpp::InfiniBand;
use mscclpp_ib::bare::BareDevice;

use self::puts::{BarePuts, QueuePuts};
use crate::{machine::Machine, one_way::OneWay, prelude::*, puts::Puts};

/// The adapters from which each rank takes one if the user names none.
const TRANSPORTS: [Transport; 2] = [Transport::IB0, Transport::IB1];

/// The choice of the ranks' adapters.
#[derive(Args)]
pub(crate) struct Choice {
    /// The adapters of the two ranks, IB0 to IB7 [default: IB0 and IB1, or twice the only one; IB0 if the ranks are
    /// started by hand].
    #[arg(long, num_args = 2, value_names = ["TRANSPORT", "TRANSPORT"])]
    transports: Option<Vec<Transport>>,
}

/// One rank of two, with its adapter.
struct OnAdapter {
    ranks: Ranks,
    transport: Transport,
    /// The same adapter, opened once more for bare verbs.
    bare: BareDevice,
    /// The transports and names of both ranks' adapters.
    names: String,
}

impl OnAdapter {
    fn join(choice: &Choice, measuring: &Measuring, joining: &Joining) -> Result<Self> {
        measuring.require_no_devices(
            joining,
            "choose GPUs; here host memory is sent, by the adapters of --transports",
        )?;
        let provider = InfiniBand::new();
        let known = provider.device_names()?;
        let context = Context::builder().provider(provider).platform(Platform::Sim).build();
        let ranks = Ranks::join(2, context, joining)?;
        let transport = match &choice.transports {
            Some(chosen) => chosen[ranks.rank],
            None if joining.is_by_hand() => Transport::IB0,
            None => TRANSPORTS[ranks.rank.min(known.len() - 1)],
        };
        if !(0..known.len()).any(|n| format!("IB{n}") == transport.to_string()) {
            return Err(format!("{transport} is no adapter here; there are {}", known.join(", ")).into());
        }
        let bare = InfiniBand::new().open_bare(transport)?;
        let names = ranks.say(&format!("{transport} ({})", bare.name))?.join(" and ");
        Ok(Self { transport, bare, names, ranks })
    }

    /// The configuration of a node endpoint with the library's defaults.
    fn endpoint(&self) -> EndpointConfig {
        EndpointConfig::new(self.transport, Device::CPU)
    }

    /// The most requests that the library has under way, with its defaults.
    fn depth(&self) -> u32 {
        let ib = self.endpoint().ib;
        ib.max_send_wr.min(ib.max_cq_size).min(self.bare.depth())
    }

    fn machine(&self) -> Machine {
        Machine::of(&[], &self.names)
    }
}

/// The options of `ib-bw`: puts from rank 0's memory to rank 1's, by the library and by bare verbs.
#[derive(Args)]
pub(crate) struct BandwidthOptions {
    #[command(flatten)]
    messages: Messages,
    #[command(flatten)]
    choice: Choice,
}

const DEFAULT: Sizes = Sizes { begin: 64 << 10, end: 64 << 10, factor: 2 };
const MOST_ROUNDS: u32 = 5000;
/// The most bytes that one work request moves.
const LARGEST: u64 = 1 << 30;
/// The size from which messages count as large; and the time that the library should take with them: the bare verbs', divided
/// by the part of their bandwidth that is the goal.
const LARGE: u64 = 64 << 10;
const GOAL: Goal = |bare| bare / 0.95;

pub(crate) fn bandwidth(options: &BandwidthOptions, joining: &Joining, table: &mut Table) -> Result<()> {
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.or(DEFAULT, 1)?;
    let most = sizes.end;
    if most > LARGEST {
        return Err(format!("--end {most} is more than 1G, the most that one work request moves").into());
    }
    let on = OnAdapter::join(&options.choice, measuring, joining)?;
    let bare = BarePuts::new(&on, most)?;
    let connection = Puts::between_nodes(&on.ranks, &on.endpoint(), 1, most)?;
    let queue = QueuePuts::new(&on, most)?;
    let one_way = OneWay {
        workload: "ib-bw",
        ranks: &on.ranks,
        measuring,
        baseline: "the bare verbs'",
        most_rounds: MOST_ROUNDS,
        goals_from: LARGE,
    };
    table.note(
        "one way from rank 0 to rank 1, host to host; a time is that of all rounds and one flush behind them, by the \
         sender's clock",
    );
    table.note(format!(
        "bare verbs: one RDMA write for each round, posted by itself, at most {} under way, and a completion for each \
         quarter of these, in turns with the others in the same run; the baseline of the rows behind it",
        on.depth()
    ));
    table.note("random data, compared by the receiver after each time");
    let transfers = [
        ("bare verbs".to_owned(), &bare as _, None),
        ("Connection::write".to_owned(), &connection as _, Some(GOAL)),
        ("SendQueue".to_owned(), &queue as _, Some(GOAL)),
    ];
    one_way.run(sizes, &transfers, on.machine(), table)
}
