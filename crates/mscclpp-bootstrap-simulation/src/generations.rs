//! Ranks that form their job again.

use std::time::Duration;

use crate::starting::{plan_of, starter};
use crate::world::{Event, World};
use mscclpp_bootstrap::protocol::hello::Process;

impl World {
    /// Starts the next generation of a rank whose job forms again, if it has not made all its calls.
    pub(super) fn live_again(&mut self, node: usize) {
        let (now, start) = (self.now, self.start);
        let rank = &mut self.nodes[node];
        let Some(lives) = &mut rank.lives else { return };
        lives.formed.extend(rank.program.generation);
        if lives.left == 0 || matches!(rank.program.outcome, Some((_, Ok(())))) {
            return;
        }
        lives.left -= 1;
        let killed = std::mem::take(&mut rank.program.victim);
        if killed {
            // A new process knows nothing of the generations before.
            lives.formed.clear();
        }
        let last = lives.formed.last().copied().unwrap_or(0);
        lives.processes += u32::from(killed);
        let (number, n) = (rank.program.rank, rank.program.n);
        let at = now + self.dice.between(Duration::ZERO, lives.delay);
        let mut plan = plan_of(number, n, lives.key.clone(), true, start + at);
        plan.last_generation = Some(last);
        plan.process = Process::named("played", 1000 * lives.processes + number as u32 + 1);
        // Each generation has an identity of its own.
        plan.job = plan.job.map(|_| [self.dice.below(250) as u8; 16]);
        let starts = starter(plan, lives.root, vec![lives.root]);
        rank.program = rank.program.again(lives.steps.clone());
        (rank.dead, rank.wake_at, rank.busy_until) = (false, None, now);
        self.schedule(at, Event::Start(node, starts));
    }
}
