//! The requester's part in carrying out what is posted.

use std::time::{Duration, Instant};

use mscclpp_verbs_sys as sys;

use crate::{
    config::Execution,
    landing::load,
    responder::{Refusal, takes_receive},
    state::{Request, Source, State},
};

/// The time that an adapter waits before it tries again.
const RETRY: Duration = Duration::from_micros(20);
/// The number of attempts to reach the peer if steps stand for time.
const ATTEMPTS: u32 = 1000;
/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Something was carried out.
    Done,
    /// There is nothing to do but to try again after a while.
    Waiting,
    /// There is nothing to do.
    Idle,
}

enum Action {
    Execute(u32),
    Land(u32, usize),
}

impl State {
    /// Makes one step, chosen at random among all that are possible.
    pub(crate) fn step(&mut self) -> Step {
        let now = Instant::now();
        let timed = self.config.execution == Execution::Thread;
        let (mut actions, mut waiting) = (Vec::new(), false);
        for (&number, qp) in &self.qps {
            let failed =
                qp.sends.iter().take(qp.executed).any(|request| request.status != sys::IBV_WC_SUCCESS);
            if qp.state == sys::IBV_QPS_RTS && qp.sends.len() > qp.executed && !failed {
                if timed && qp.again.is_some_and(|again| again > now) {
                    waiting = true;
                } else {
                    actions.push(Action::Execute(number));
                }
            }
            actions.extend(self.eligible(number).into_iter().map(|index| Action::Land(number, index)));
        }
        if actions.is_empty() {
            return if waiting { Step::Waiting } else { Step::Idle };
        }
        let chosen = self.random.usize(..actions.len());
        match actions[chosen] {
            Action::Land(number, index) => {
                self.land(number, index);
                Step::Done
            }
            Action::Execute(number) => self.execute(number, now),
        }
    }

    /// Carries out the first request that has not been carried out, or finds that it must wait.
    fn execute(&mut self, number: u32, now: Instant) -> Step {
        let Some(qp) = self.qps.get(&number) else { return Step::Idle };
        let (device, domain) = (qp.device, qp.domain);
        let Some(request) = qp.sends.get(qp.executed).cloned() else { return Step::Idle };
        let Some(peer) = self.peer(number) else {
            self.counters.transport_retries += 1;
            return self.try_again(number, now, sys::IBV_WC_RETRY_EXC_ERR);
        };
        if takes_receive(request.opcode) && self.qps[&peer].receives.is_empty() {
            self.counters.rnr_retries += 1;
            return self.try_again(number, now, sys::IBV_WC_RNR_RETRY_EXC_ERR);
        }
        if let Some(qp) = self.qps.get_mut(&number) {
            (qp.attempts, qp.attempts_since, qp.again) = (0, None, None);
        }
        if let Some(status) = self.faults.of_completion(device) {
            self.fail_next(number, status);
            return Step::Done;
        }
        let outcome = match self.gather(&request, domain) {
            Ok(data) => self.respond(number, peer, &request, data),
            Err(refusal) => Err(refusal),
        };
        match outcome {
            Ok(()) => self.complete_acknowledged(number),
            Err(refusal) => {
                self.refused(refusal.why);
                self.fail_next(number, refusal.status);
                if let Some(status) = refusal.receive {
                    self.fail_receive(peer, status);
                } else if let Some(event) = refusal.event {
                    self.fail_responder(peer, event);
                }
            }
        }
        Step::Done
    }

    /// Delays the request at the head, or fails it if that was done too often.
    fn try_again(&mut self, number: u32, now: Instant, status: sys::ibv_wc_status) -> Step {
        let timed = self.config.execution == Execution::Thread;
        let patience = self.config.patience;
        let Some(qp) = self.qps.get_mut(&number) else { return Step::Idle };
        qp.attempts += 1;
        qp.again = Some(now + RETRY);
        let since = *qp.attempts_since.get_or_insert(now);
        let over = match status {
            // The value 7 means for ever.
            sys::IBV_WC_RNR_RETRY_EXC_ERR => {
                qp.attr.rnr_retry < 7 && qp.attempts > u32::from(qp.attr.rnr_retry)
            }
            _ if timed => now - since > patience,
            _ => qp.attempts > ATTEMPTS,
        };
        if over {
            self.fail_next(number, status);
            return Step::Done;
        }
        Step::Waiting
    }

    /// Returns the queue pair at the other end, if packets reach it.
    fn peer(&self, number: u32) -> Option<u32> {
        let qp = self.qps.get(&number)?;
        let peer_number = qp.attr.dest_qp_num;
        let peer = self.qps.get(&peer_number)?;
        let ready = peer.state == sys::IBV_QPS_RTR || peer.state == sys::IBV_QPS_RTS;
        let paired = peer.attr.dest_qp_num == number && peer.attr.rq_psn == qp.attr.sq_psn;
        let ports = [(qp.device, qp.attr.port_num), (peer.device, peer.attr.port_num)];
        let up = ports.iter().all(|&(device, port)| {
            let device = &self.devices[device];
            !device.failed && device.active.get(usize::from(port).wrapping_sub(1)) == Some(&true)
        });
        let port = |device: usize, port: u8| &self.devices[device].config.ports[usize::from(port) - 1];
        let (own, theirs) = (port(ports[0].0, ports[0].1), port(ports[1].0, ports[1].1));
        let address = &qp.attr.ah_attr;
        let reached = if address.is_global == 0 {
            !own.ethernet && !theirs.ethernet && address.dlid == theirs.lid
        } else {
            let kind = own.gids.get(usize::from(address.grh.sgid_index))?.kind;
            // SAFETY: all views of a GID are bytes.
            let wanted = unsafe { address.grh.dgid.raw };
            theirs.gids.iter().any(|gid| gid.raw == wanted && gid.kind == kind)
        };
        (ready && paired && up && reached).then_some(peer_number)
    }

    /// Reads the data of a request from the requester's memory. An atomic has no data; its place for the result is
    /// checked.
    fn gather(&self, request: &Request, domain: usize) -> Result<Vec<u8>, Refusal> {
        let atomic = request.opcode == sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let pieces = match &request.source {
            Source::Inline(data) => return Ok(data.clone()),
            Source::Memory(pieces) => pieces,
        };
        if atomic && (pieces.len() != 1 || pieces[0].length != 8) {
            let why = "the result of an atomic needs one piece of 8 bytes".to_owned();
            return Err(Refusal::local(sys::IBV_WC_LOC_LEN_ERR, why));
        }
        let needed = if atomic { sys::IBV_ACCESS_LOCAL_WRITE } else { 0 };
        let mut data = Vec::new();
        for piece in pieces {
            let found = self.region(piece.lkey, piece.addr, piece.length as usize, domain, needed);
            let found = found
                .map_err(|why| Refusal::local(sys::IBV_WC_LOC_PROT_ERR, format!("local memory: {why}")))?;
            if !atomic {
                data.extend(load(found.address, piece.length as usize));
            }
        }
        Ok(data)
    }
}
