//! The barriers of a block and of its warps.

use super::{
    super::abi::WARP,
    state::{Block, Status},
};

impl Block<'_> {
    /// Makes the thread wait at the block's barrier, with its `value`.
    pub(super) fn wait_for_block(&mut self, number: usize, value: bool) {
        self.comes_to_barrier(number);
        self.threads[number].status = Status::AtBlockBarrier { value };
        self.at_barrier += 1;
        self.settle_block();
    }

    /// Makes the thread wait for the threads of its warp in `mask`.
    pub(super) fn wait_for_warp(&mut self, number: usize, mask: u32) {
        self.comes_to_barrier(number);
        let mask = mask | 1 << (number % WARP);
        self.threads[number].status = Status::AtWarpBarrier { mask };
        self.settle_warp(number / WARP, mask);
    }

    fn comes_to_barrier(&mut self, number: usize) {
        if let Some(races) = &mut self.races {
            races.gives_way(number, true);
        }
        self.threads[number].is_behind_barrier = true;
    }

    /// Updates the barriers after the end of a thread, for which others need not wait any more.
    pub(super) fn settle_after_end(&mut self, number: usize) {
        self.settle_block();
        let warp = number / WARP;
        for number in warp * WARP..self.threads.len().min((warp + 1) * WARP) {
            if let Status::AtWarpBarrier { mask } = self.threads[number].status {
                self.settle_warp(warp, mask);
            }
        }
    }

    /// If all live threads are at the block's barrier, lets them go on.
    fn settle_block(&mut self) {
        if self.at_barrier == 0 || self.at_barrier < self.live {
            return;
        }
        let at = |value| Status::AtBlockBarrier { value };
        let values = self.threads.iter().filter(|thread| thread.status == at(true)).count() as u64;
        let answer = (self.at_barrier as u64) << 32 | values;
        if let Some(races) = &mut self.races {
            let threads = &self.threads;
            races.meet(|number| matches!(threads[number].status, Status::AtBlockBarrier { .. }));
        }
        for thread in self.threads.iter_mut().filter(|thread| [at(false), at(true)].contains(&thread.status))
        {
            thread.status = Status::Ready;
            thread.from_round = self.round + 1;
            thread.answer = answer;
        }
        self.at_barrier = 0;
    }

    /// Releases the threads of a warp that wait for those in `mask`, if these have all come.
    fn settle_warp(&mut self, warp: usize, mask: u32) {
        let end = self.threads.len().min((warp + 1) * WARP);
        let threads = &mut self.threads[warp * WARP..end];
        let lanes = |is: &dyn Fn(Status) -> bool| {
            threads
                .iter()
                .enumerate()
                .fold(0, |all, (lane, thread)| all | u32::from(is(thread.status)) << lane)
        };
        let came = lanes(&|status| status == Status::AtWarpBarrier { mask });
        if came != mask & lanes(&|status| status != Status::Ended) {
            return;
        }
        if let Some(races) = &mut self.races {
            races.meet_in_warp(warp * WARP..end, |lane| came >> lane & 1 != 0);
        }
        for thread in threads.iter_mut().filter(|thread| thread.status == Status::AtWarpBarrier { mask }) {
            thread.status = Status::Ready;
            thread.from_round = self.round + 1;
            thread.answer = u64::from(came);
        }
    }

    /// Returns the message for a block in which no thread can go on.
    pub(super) fn stuck(&self) -> String {
        let count =
            |status: fn(&Status) -> bool| self.threads.iter().filter(|thread| status(&thread.status)).count();
        let block = count(|status| matches!(status, Status::AtBlockBarrier { .. }));
        let warp = count(|status| matches!(status, Status::AtWarpBarrier { .. }));
        let ended = count(|status| *status == Status::Ended);
        format!(
            "block {:?}: no thread can go on: {block} wait at a barrier of the block (__syncthreads), {warp} at one of \
             their warp (__syncwarp, votes, shuffles), {ended} have ended",
            self.work.index
        )
    }
}
