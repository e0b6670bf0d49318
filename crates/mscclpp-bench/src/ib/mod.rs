//! Workloads over RDMA adapters, InfiniBand or RoCE: `ib-bw` and `ib-lat`. Each runs the library and bare verbs in turns.

mod bandwidth;
mod latency;
mod ping_pong;
mod puts;

pub(crate) use bandwidth::{Options as BandwidthOptions, run as bandwidth};
pub(crate) use latency::{Options as LatencyOptions, run as latency};

use mscclpp::InfiniBand;
use mscclpp_ib::bare::BareDevice;

use crate::{machine::Machine, prelude::*};

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
