//! The effects of faults on the simulated world.

use crate::fault::Fault;
use crate::world::{Node, World};
use mscclpp_bootstrap::job::Command;

impl World {
    /// Notes a fault that all must hear of, and for which these ranks may be reported lost.
    pub(super) fn hit(&mut self, ranks: &[usize]) {
        self.suspects.extend(ranks);
        self.last_fault = self.now;
        self.concerns_all = true;
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        // A process is over if it has ended, or if it is to be replaced and does not run now.
        let is_over =
            |node: &Node| node.program.is_over() || node.dead || (node.lives.is_some() && node.job.is_none());
        match fault {
            Fault::Kill(node) if !is_over(&self.nodes[node]) => {
                self.hit(&[node]);
                self.nodes[node].program.victim = true;
                self.end_process(node);
            }
            Fault::Vanish(node) if !is_over(&self.nodes[node]) => {
                self.hit(&[node]);
                self.nodes[node].program.victim = true;
                self.nodes[node].dead = true;
                self.nodes[node].vanished = true;
                self.cut_wires();
            }
            Fault::Stop(node, time) => {
                let until = self.now + time;
                self.nodes[node].busy_until = self.nodes[node].busy_until.max(until);
            }
            Fault::Break(which) => self.break_wire(which),
            Fault::Cut(parts) => {
                if parts.contains(&true) && parts.contains(&false) {
                    self.hit(&(0..parts.len()).collect::<Vec<_>>());
                }
                self.parted = Some(parts);
                self.cut_wires();
            }
            Fault::Abort(node) if !is_over(&self.nodes[node]) => {
                let error = mscclpp_bootstrap::Error::Aborted { rank: node, reason: "played".to_owned() };
                let now = self.instant();
                if let Some(job) = &mut self.nodes[node].job {
                    job.on_command(now, Command::Fail(error));
                    self.hit(&[]);
                    self.act(node);
                }
            }
            Fault::Kill(_) | Fault::Vanish(_) | Fault::Abort(_) => {}
        }
    }
}
