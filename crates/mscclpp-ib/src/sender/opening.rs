//! Making both ends of a queue.

use std::{
    collections::VecDeque,
    io::{self, Write},
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mscclpp_core::provider::Routes;
use mscclpp_net::{SystemCall, links, socket::Incoming};

use super::{
    Sender,
    plan::{How, Plan},
    request::Chain,
};
use crate::{
    adapter::{Cq, QpSizes, QueuePair, random_psn},
    blob::{Answer, EXCHANGE, Offer},
    error::{Error, Result},
    side::{LinkState, Side},
};

/// The number of bytes of data that a request should be able to carry itself.
const INLINE: u32 = 64;
/// The longest time that the peer may take to make its end of a queue.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

impl Sender {
    /// Makes this end, has the peer make the other, and connects the two.
    pub(super) fn open(link: &Arc<LinkState>, to_peer: &links::Link) -> Result<Self> {
        let Side { adapter, port, reliability, config, max_waiting, .. } = &link.side;
        let limits = adapter.limits();
        let capacity = [Some(config.max_send_wr), Some(config.max_cq_size), *max_waiting]
            .into_iter()
            .flatten()
            .fold(limits.max_qp_wr.min(limits.max_cqe), u32::min)
            .max(1);
        let cq = Cq::new(adapter, capacity, config.max_cq_poll_num.min(capacity), None)?;
        let sizes = QpSizes { send: capacity, receive: 0, inline: INLINE };
        let psn = random_psn()?;
        let qp = QueuePair::new(adapter, [&cq; 2], sizes, port, reliability.pkey_index, psn)?;
        let longest = config.max_wr_per_send.min(capacity);
        let chain = Chain::new(adapter, longest, capacity, qp.inline())?;
        let mut connection = to_peer.open_data()?;
        let offer =
            Offer { path: qp.path(port), immediates: link.immediates(), credit: chain.credit_place() };
        let written =
            connection.stream.write(&offer.seal(&connection.outbound)).during("offering a queue")?;
        if written != EXCHANGE {
            return Err(io::Error::from(io::ErrorKind::WriteZero)).during("offering a queue")?;
        }
        let bytes = await_answer(link, to_peer, &connection.stream)?;
        let answer = Answer::open(&mut connection.inbound, &bytes)?;
        qp.connect(port, &answer.path, reliability)?;
        let how =
            How { immediates: link.immediates(), quarter: (capacity / 4).max(1), inline: chain.inline() };
        tracing::debug!(
            target: "mscclpp::conn", device = adapter.name(), from = qp.number(), to = answer.path.qpn, capacity,
            inline = chain.inline(), immediates = how.immediates, "queue pair connected"
        );
        Ok(Self {
            remote: format!("GID {}, queue pair {}", answer.path.gid, answer.path.qpn),
            qp,
            cq,
            chain,
            plan: Plan::new(how),
            routes: Routes::default(),
            sources: Routes::default(),
            released: VecDeque::new(),
            link: link.clone(),
            posted: 0,
            completed: 0,
            flushed: None,
            capacity,
            receives: answer.receives,
            awaits_receives: None,
            reached: 0,
            names: vec![""; capacity as usize].into(),
            stream: connection.stream,
        })
    }
}

fn await_answer(link: &LinkState, to_peer: &links::Link, stream: &TcpStream) -> Result<[u8; EXCHANGE]> {
    let mut answer = Incoming::<EXCHANGE>::default();
    let began = Instant::now();
    loop {
        match answer.read(stream) {
            Ok(Some(answer)) => return Ok(*answer),
            Ok(None) if began.elapsed() > ANSWER_LIMIT => {
                return Err(Error::Silent { what: "make its end of a queue", after: ANSWER_LIMIT });
            }
            Ok(None) => thread::sleep(Duration::from_micros(50)),
            Err(error) => {
                // The link reports its own reason in a moment; otherwise it ends with the reason given here.
                to_peer.suspicions().report(format!("it closed a queue that was being opened ({error})"));
                while link.check().is_ok() && began.elapsed() < ANSWER_LIMIT {
                    thread::sleep(Duration::from_millis(1));
                }
                return Err(error).during("waiting for the peer's end of a queue")?;
            }
        }
    }
}
