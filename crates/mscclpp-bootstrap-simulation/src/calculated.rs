//! The costs of a job that is too large to be simulated. The frames follow from the rules of forming and of the tree,
//! and the time of a message from the window. A test compares the results with simulated jobs.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use mscclpp_net::wire::Wire;

use crate::costs::{Cost, Costs, PIECE, Traffic};
use mscclpp_bootstrap::collective::call::{Call, Operation, contribution};
use mscclpp_bootstrap::collective::exchange::Envelope;
use mscclpp_bootstrap::inbox::Channel;
use mscclpp_bootstrap::job::{Plan, hello};
use mscclpp_bootstrap::protocol::frame::{HEADER, Kind, MAX_PAYLOAD, encode};
use mscclpp_bootstrap::protocol::hello::Purpose;
use mscclpp_bootstrap::protocol::message;
use mscclpp_bootstrap::protocol::outbox::{Intake, Outbox};
use mscclpp_bootstrap::protocol::table::{self, Entry, Place};
use mscclpp_bootstrap::protocol::tree;

const PROOF: usize = 32;
const NONCE: usize = 32;
const JOB: usize = 16;

/// The cost of one message on the way from a rank to its neighbour.
#[derive(Clone, Copy, Default)]
struct Passage {
    hops: u32,
    message: Traffic,
    /// The traffic that the receiver writes meanwhile, to report that it has taken parts of the message.
    credit: Traffic,
}

impl Passage {
    /// Simulates sending this many bytes, in steps of one hop: all that the window allows, and then what the credit
    /// allows.
    fn of(bytes: usize) -> Self {
        let mut passage = Self::default();
        let (mut outbox, mut intake) = (Outbox::default(), Intake::default());
        outbox.push_message(message::frames(Channel::Tree, 0, 0, &vec![0; bytes]), None);
        let mut credits: VecDeque<(u32, usize)> = VecDeque::new();
        for now in 0.. {
            while credits.front().is_some_and(|(at, _)| *at == now) {
                let (_, credit) = credits.pop_front().unwrap_or_default();
                outbox.credit(credit);
            }
            while !outbox.pending().is_empty() {
                let frame = outbox.pending().len();
                outbox.advance(frame);
                passage.message.add(frame);
                passage.hops = now + 1;
                if let Some(frame) = intake.take(frame - HEADER) {
                    passage.credit.add(frame.len());
                    let credit = frame[HEADER..].try_into().map_or(0, u32::from_le_bytes);
                    credits.push_back((now + 2, credit as usize));
                }
            }
            if outbox.is_empty() {
                break;
            }
        }
        passage
    }
}

/// A collective call of ranks in a tree. Costs are kept by the number of ranks in a subtree, because subtrees of one
/// size have one shape.
struct Gather {
    operation: Operation,
    n: usize,
    ups: BTreeMap<usize, (u32, Passage)>,
}

impl Gather {
    fn new(operation: Operation, n: usize) -> Self {
        Self { operation, n, ups: BTreeMap::new() }
    }

    /// Returns the length of a message with the contributions of this many ranks.
    fn bytes(&self, ranks: usize) -> usize {
        let piece = match self.operation {
            Operation::AllGather => contribution(0, &[0; PIECE]),
            _ => Vec::new(),
        };
        let call = Call { operation: self.operation, number: 0, rank: 0, n: self.n };
        call.seal(&Ok(vec![0; ranks * piece.len()])).map_or(0, |message| message.len())
    }

    /// Returns when the root of a subtree of this many ranks has all their contributions, and the message that it
    /// then sends up.
    fn up(&mut self, ranks: usize) -> (u32, Passage) {
        if let Some(known) = self.ups.get(&ranks) {
            return *known;
        }
        let arrivals = subtrees(ranks).into_iter().map(|below| {
            let (ready, passage) = self.up(below);
            ready + passage.hops
        });
        let ready = arrivals.into_iter().max().unwrap_or(0);
        let up = (ready, Passage::of(self.bytes(ranks)));
        self.ups.insert(ranks, up);
        up
    }

    fn cost(mut self, what: &'static str, latency: Duration) -> Cost {
        let n = self.n;
        let (ready, _) = self.up(n);
        let down = Passage::of(self.bytes(n));
        // The root of a subtree writes the message down to its children, and credit for the messages that came up
        // from them.
        let mut written = |ranks: usize| {
            let mut all = Traffic::default();
            for below in subtrees(ranks) {
                all = all.plus(down.message).plus(self.up(below).1.credit);
            }
            all
        };
        // Of the other ranks, rank 1 writes the most, because the subtree below it is the largest.
        let (rank_0, first) = (written(n), subtrees(n)[0]);
        let below_first = written(first);
        let most_of_others = below_first.plus(self.up(first).1.message).plus(down.credit);
        Cost::new(what, ready + depth(n) * down.hops, latency, rank_0, most_of_others)
    }
}

/// Returns the numbers of ranks in the subtrees of the root's children, in a tree of `ranks`.
fn subtrees(ranks: usize) -> Vec<usize> {
    tree::children(0, ranks).map(|child| 1 + tree::below(child, ranks).count()).collect()
}

fn depth(n: usize) -> u32 {
    n.ilog2()
}

/// Returns the costs of a job of `n` ranks. `plan` is that of a rank that joins, `entry` is the description that a
/// rank gives of itself, and `hosts` is the number of nodes.
pub(super) fn costs(n: usize, latency: Duration, plan: &Plan, entry: &Entry, hosts: usize) -> Costs {
    let challenge = HEADER + NONCE;
    let accept = HEADER + PROOF + JOB;
    let empty = encode(Kind::Go, &[]).len();
    let hello = HEADER + PROOF + hello(plan, 0, Purpose::Join, [0; NONCE]).to_bytes().len();
    let join = HEADER + entry.to_bytes().len();
    let table = table::encode(std::slice::from_ref(entry), 1).len();
    // An entry is measured without its two nodes and the head, which grow in another way with the number of ranks.
    let one = table::encode(&[entry.clone(), entry.clone()], 1).len() - table;
    let names = usize::from(entry.host != entry.domain) + 1;
    let table = table - one - 16 * names + 16 * hosts + n * one;
    let parts = table.div_ceil(MAX_PAYLOAD - 1);
    let place = one - 2 * size_of::<u32>();

    let mut rank_0 = Traffic::default();
    let children_of_0 = tree::children(0, n).count();
    rank_0.add_many(n - 1, challenge + accept + empty, 3);
    rank_0.add_many(n - 1 - children_of_0, HEADER + place, 1);
    rank_0.add_many(children_of_0, table + parts * (HEADER + 1), parts as u64);
    let other = |rank: usize| {
        let (by_itself, children) = (tree::parent(rank) != Some(0), tree::children(rank, n).count());
        let mut all = Traffic::default();
        all.add_many(1, hello + join + empty, 3);
        all.add_many(usize::from(by_itself), hello, 1);
        let of_child = challenge + accept + empty + table + parts * (HEADER + 1);
        all.add_many(children, of_child, 3 + parts as u64);
        (all, 1 + usize::from(by_itself) + children)
    };
    let others: Vec<(Traffic, usize)> = (1..n.min(16)).map(other).collect();
    let most = others.iter().map(|(traffic, _)| *traffic).max_by_key(|traffic| traffic.bytes);
    // The numbers were found by counting in simulated jobs: eight until rank 0 has admitted all ranks and its
    // children have the table, and three for each level: the table comes down, Ready goes up, Go comes down.
    let hops = if n < 4 { 8 } else { 8 + 3 * depth(n) };
    Costs {
        parts: vec![
            Cost::new("initialise", hops, latency, rank_0, most.unwrap_or_default()),
            Gather::new(Operation::AllGather, n).cost("all_gather", latency),
            Gather::new(Operation::Barrier, n).cost("barrier", latency),
        ],
        connections_of_rank_0: n - 1,
        most_connections_of_others: others.iter().map(|(_, connections)| *connections).max().unwrap_or(0),
        played: false,
    }
}

/// Returns the description that a rank of a simulated job gives of itself.
pub(super) fn entry_of(ip: IpAddr, port: u16) -> Entry {
    Entry { host: [1; 16], domain: [0; 16], place: Place { port, addresses: vec![ip] } }
}
