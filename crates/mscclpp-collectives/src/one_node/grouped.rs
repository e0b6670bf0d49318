//! Several small `all_reduce`s in one launch.

use mscclpp::LaunchConfig;

use crate::{
    Kind, Protocol, Request, Result,
    handle::{CollectiveGroup, PARTS, Part, Segment},
    plan::{Exchange, Plan, Whole},
    rank::{Call, List, RankState},
};

use super::{engine::OneNode, kernels::WordOperation};

/// The most bytes that a rank sends to all others for all_reduces that go together. Up to there LL16 takes no longer than
/// several calls by LL128.
const MOST_TOGETHER: u64 = 256 << 10;

impl OneNode {
    /// How many of these exchanges, from the first on, go in one launch: those that every rank can see are small
    /// `all_reduce`s of one type and operation. It depends on nothing else, since all ranks must do alike.
    pub(super) fn together(&self, rank: &RankState, asked: &[Exchange<'_, '_>]) -> usize {
        if rank.n_ranks() == 1 || rank.options.checks() || !rank.options.algorithms.is_empty() {
            return 1;
        }
        let Some((Request { kind: Kind::AllReduce(op), data_type, .. }, _)) = asked.first() else { return 1 };
        // Factors may be others on each rank.
        if op.scales() {
            return 1;
        }
        let most = MOST_TOGETHER / (rank.n_ranks() as u64 - 1);
        let mut bytes = 0;
        let fits = |(request, plan): &&Exchange<'_, '_>| {
            bytes += words(plan) * 8;
            request.kind == Kind::AllReduce(*op) && request.data_type == *data_type && bytes <= most
        };
        asked.iter().take(PARTS).take_while(fits).count().max(1)
    }

    /// Puts exchanges that go [`together`](Self::together) into the stream, if they go by LL16. Returns whether it did.
    ///
    /// # Safety
    /// Their memory lives until the launch is complete, and the device reaches it. No result overlaps anything else.
    pub(super) unsafe fn all_reduce_together(
        &self,
        rank: &RankState,
        asked: &[Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<bool> {
        let mut parts = [Part::NONE; PARTS];
        let mut before = 0;
        for (part, (request, plan)) in parts.iter_mut().zip(asked) {
            let bytes = plan.whole.map_or(0, |whole| whole.bytes);
            // At most MOST_TOGETHER.
            *part =
                Part { send: request.send, recv: request.recv, bytes: bytes as u32, before: before as u32 };
            before += words(plan);
        }
        let mut plan = asked[0].1.clone();
        let bytes = before * 8;
        plan.segments.fill(Segment::NONE);
        plan.most_bytes = Some(bytes);
        plan.whole = plan.whole.map(|whole| Whole { bytes, ..whole });
        let mut query = self.query_with(&plan, &List::default(), rank.rank(), false);
        query.possible.ll128 = false;
        let selection = self.choose(call.selector, &query);
        if selection.protocol != Protocol::Ll16 || selection.two_steps {
            return Ok(false);
        }
        let collective = self.collective_call(rank, &plan, selection, [0; 2]);
        let group = CollectiveGroup { call: collective, parts, count: asked.len() as u64 };
        let args = call.keeping(&self.owner).with(self.handle).with(group);
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        let kernel = self.kernels.of_group(WordOperation::of(plan.op, plan.data_type));
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { kernel.launch(call.stream, config, &args)? };
        Ok(true)
    }
}

/// The words of 8 bytes of a message, of which the last may be less than whole.
fn words(plan: &Plan) -> u64 {
    plan.whole.map_or(0, |whole| whole.bytes.div_ceil(8))
}
