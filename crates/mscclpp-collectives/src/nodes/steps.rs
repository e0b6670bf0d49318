//! The steps that a rank takes for a collective across nodes: launches of one stream, in this order.
//!
//! The steps of all ranks fit together:
//!
//! - P1. The ranks of a node have the same [`Step::Local`]s in the same order, also those that have nothing to do in one.
//! - P2. Two ranks of different nodes have the same steps over their link in the same order, with the same sizes.
//! - P3. What a step needs of another rank, that rank sends in a step of the same number of its list or an earlier one, among
//!   those that the two share. So nobody waits in a circle.

use mscclpp::DevicePtr;

use crate::{DataType, Kind, ReduceOp, Request, choice::NodesModel, handle::Segment, plan::Plan};

use super::topology::Topology;

/// A transfer with a rank on another node: the data that is sent to it, and the data that is taken from it. The peer has the same
/// with the sides exchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Across {
    pub(crate) peer: usize,
    pub(crate) send: DevicePtr,
    pub(crate) recv: DevicePtr,
    pub(crate) send_bytes: u64,
    pub(crate) recv_bytes: u64,
}

impl Across {
    /// A transfer that only sends.
    pub(super) fn to(peer: usize, send: DevicePtr, bytes: u64) -> Self {
        Self { peer, send, recv: DevicePtr::NULL, send_bytes: bytes, recv_bytes: 0 }
    }

    /// A transfer that only takes.
    pub(super) fn from(peer: usize, recv: DevicePtr, bytes: u64) -> Self {
        Self { peer, send: DevicePtr::NULL, recv, send_bytes: 0, recv_bytes: bytes }
    }

    /// Takes data from a rank in the same transfer that sends to it, if there is one.
    pub(super) fn take(moves: &mut Vec<Self>, peer: usize, recv: DevicePtr, bytes: u64) {
        match moves.iter_mut().find(|it| it.peer == peer) {
            Some(it) => (it.recv, it.recv_bytes) = (recv, bytes),
            None => moves.push(Self::from(peer, recv, bytes)),
        }
    }
}

/// The place that the numbers of a node come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    /// This rank's memory.
    Here(DevicePtr),
    /// A rank of that node, which is sent so many bytes from there.
    Peer { peer: usize, send: DevicePtr, send_bytes: u64 },
}

/// The numbers of all nodes, in their order, which become one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reduction {
    pub(crate) sources: Vec<Origin>,
    /// Which of the sources is this node.
    pub(crate) own: usize,
    pub(crate) recv: DevicePtr,
    pub(crate) bytes: u64,
    /// The most that any rank sends to another in this step.
    pub(crate) most: u64,
    pub(crate) op: ReduceOp,
    pub(crate) data_type: DataType,
    /// Whether the own numbers are the program's, and not those that the node has reduced already: then they, and what is
    /// sent, may have to be multiplied.
    pub(crate) raw: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Between the ranks of this node, by their numbers on the node.
    Local(Box<Plan>),
    Move {
        moves: Vec<Across>,
        /// The operation and type, if the program's numbers are sent, which may have to be multiplied for it.
        raw: Option<(ReduceOp, DataType)>,
    },
    Reduce(Box<Reduction>),
    Copy {
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
    },
    /// Portions of a message: while one is between nodes, the node does the step before that for the next.
    Portions(Vec<Portion>),
}

/// A part of a message: what the node does, what is done between nodes with that, and what the node does then.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Portion {
    pub(crate) before: Step,
    pub(crate) between: Vec<Step>,
    pub(crate) after: Step,
}

/// Makes the steps of collectives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maker<'a> {
    pub(crate) topology: &'a Topology,
    /// The network, by which patterns are chosen.
    pub(crate) model: NodesModel,
    /// Memory of this rank's own for what is neither the program's numbers nor the result.
    pub(crate) scratch: DevicePtr,
    /// How much of it, the same on all ranks: a multiple of 16.
    pub(crate) scratch_bytes: u64,
}

/// Up to how many bytes of a message each rank sends all of it, so that no step of the node comes behind.
pub(crate) const WHOLE_MAX: u64 = 64 << 10;

impl Step {
    /// Whether there is something to do. All that share it know that.
    pub(crate) fn is_some(&self) -> bool {
        match self {
            Self::Local(plan) => plan.most_bytes != Some(0),
            Self::Move { moves, .. } => !moves.is_empty(),
            Self::Reduce(reduction) => reduction.most > 0,
            Self::Copy { to, from, bytes } => to != from && *bytes > 0,
            Self::Portions(_) => true,
        }
    }

    /// A step that moves data as it is.
    pub(crate) fn moved(moves: Vec<Across>) -> Self {
        Self::Move { moves, raw: None }
    }
}

impl Maker<'_> {
    /// The steps of a request of which `plan` says who gives what to whom.
    pub(crate) fn steps(&self, request: &Request<'_>, plan: &Plan) -> Vec<Step> {
        let of_nodes = |op: ReduceOp| op.of_nodes(request.data_type, self.topology.n_ranks());
        let mut steps = match request.kind {
            Kind::AllReduce(op) => self.all_reduce(request, of_nodes(op), plan),
            Kind::ReduceScatter(op) => self.reduce_scatter(request, of_nodes(op), plan),
            Kind::Reduce { root, op } => self.reduce(request, root, of_nodes(op), plan),
            Kind::AllGather => self.all_gather(request, plan),
            Kind::AllToAll => self.all_to_all(request, plan),
            Kind::Broadcast { root } => self.broadcast(request, root, plan),
            _ => self.directly(plan),
        };
        steps.retain(Step::is_some);
        steps
    }

    /// Everything straight from who has it to who gets it.
    pub(crate) fn directly(&self, plan: &Plan) -> Vec<Step> {
        let topology = self.topology;
        let own = plan.segments[topology.locals()[topology.index]];
        let local = self.local(
            |local| plan.segments[topology.locals()[local]],
            None,
            plan.data_type,
            plan.most_bytes,
            plan.one_way,
        );
        let moves = topology.remote().into_iter().filter_map(|peer| {
            let Segment { send, recv, send_bytes, recv_bytes } = plan.segments[peer];
            let is_some = send_bytes > 0 || recv_bytes > 0;
            is_some.then_some(Across { peer, send, recv, send_bytes, recv_bytes })
        });
        let copy = if topology.locals().len() > 1 { 0 } else { own.recv_bytes };
        vec![Step::Copy { to: own.recv, from: own.send, bytes: copy }, local, Step::moved(moves.collect())]
    }

    /// A step within this node.
    pub(crate) fn local(
        &self,
        segment: impl Fn(usize) -> Segment,
        op: Option<ReduceOp>,
        data_type: DataType,
        most_bytes: Option<u64>,
        one_way: bool,
    ) -> Step {
        let segments = (0..self.topology.locals().len()).map(segment).collect();
        let plan = Plan { segments, op, data_type, most_bytes, one_way, whole: None, same_offsets: false };
        Step::Local(Box::new(plan))
    }

    /// So many bytes as `parts` parts at multiples of 16 bytes: where one begins, and its size.
    pub(crate) fn part(bytes: u64, parts: usize, n: usize) -> (u64, u64) {
        let size = bytes.div_ceil(parts as u64).next_multiple_of(16);
        let begin = (size * n as u64).min(bytes);
        (begin, size.min(bytes - begin))
    }
}

/// The operation within a node: numbers that are divided at the end are not divided before.
pub(crate) fn within_a_node(op: ReduceOp) -> ReduceOp {
    if op == ReduceOp::Avg { ReduceOp::Sum } else { op }
}
