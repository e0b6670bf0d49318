//! The faults of the simulated world.

use std::time::Duration;

use crate::job::Command;
use crate::simulation::world::{Node, World};

/// A fault that can happen.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// A process ends.
    Kill(usize),
    /// A node is gone.
    Vanish(usize),
    /// A process does nothing for a while.
    Stop(usize, Duration),
    /// A connection of a rank breaks, chosen by this number.
    Break(usize),
    /// The processes with `true` and those with `false` do not reach each other any more.
    Cut(Vec<bool>),
    /// A caller aborts the job.
    Abort(usize),
}

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
                let error = crate::Error::Aborted { rank: node, reason: "played".to_owned() };
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
