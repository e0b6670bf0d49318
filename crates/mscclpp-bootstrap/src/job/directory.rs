//! The directory of a unique id: it tells the ranks of the id where rank 0 listens.
//!
//! The process that made the id has it until its own rank 0 takes the listener over. A rank 0 in another process joins here, as
//! other ranks join at rank 0, and says where it listens. Ranks that have come before wait for the answer to their proof.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mscclpp_net::handshake::Verified;
use mscclpp_net::wire::{Malformed, Wire};

use crate::job::connection::{Caller, Phase};
use crate::job::{ConnectionId, Job};
use crate::protocol::frame::{Frame, Kind};
use crate::protocol::hello::{Hello, JobId, PROTOCOL_VERSION, Purpose, Rejection};
use crate::protocol::table::{Entry, Place};

pub struct Directory {
    /// The place at which this process listens.
    here: Place,
    /// Whether some process has rank 0 of the id's job. The first that sets the flag gets that rank: `published::take` sets it
    /// for this process, and the directory for another one.
    claimed: Arc<AtomicBool>,
    /// The places of the ranks 0, by job: that of the id, and those of ids that were derived from it.
    roots: BTreeMap<JobId, Place>,
}

impl Directory {
    pub fn new(here: Place, claimed: Arc<AtomicBool>) -> Self {
        Self { here, claimed, roots: BTreeMap::new() }
    }
}

impl Job {
    /// Handles a process that has proved that it has the key of the id.
    pub(super) fn on_call(&mut self, id: ConnectionId, verified: Verified, hello: &Hello) {
        let Some(directory) = self.formation.directory() else { return };
        let rejection = if hello.version != PROTOCOL_VERSION {
            let (what, theirs) = ("protocol versions".to_owned(), PROTOCOL_VERSION.to_string());
            Some(Rejection::Mismatch { what, theirs })
        } else if hello.purpose != Purpose::Join || hello.to != 0 {
            Some(Rejection::WrongPlace { here: 0 })
        } else {
            directory.roots.get(&hello.job).map(|to| Rejection::Moved { to: to.clone() })
        };
        if let Some(rejection) = rejection {
            return self.say([id], verified.reject(&rejection.to_bytes()));
        }
        let mut caller = Caller { job: hello.job, rank: hello.from, unanswered: Some(verified) };
        // A second rank 0 waits like other ranks, and is told where the first one listens.
        let accepted =
            if caller.rank == 0 && self.claim(caller.job) { caller.unanswered.take() } else { None };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.has_proved_itself();
        connection.phase = Phase::Caller(caller);
        if let Some(verified) = accepted {
            self.say([id], verified.accept(&hello.job));
        }
    }

    /// Claims rank 0 of a job for a caller. Returns whether nobody else has it.
    fn claim(&self, job: JobId) -> bool {
        let Some(directory) = self.formation.directory() else { return false };
        let awaited =
            |phase: &Phase| matches!(phase, Phase::Caller(c) if c.job == job && c.unanswered.is_none());
        let listens_soon = self.connections.values().any(|connection| awaited(&connection.phase));
        !listens_soon && (self.plan.job != Some(job) || !directory.claimed.swap(true, Ordering::AcqRel))
    }

    /// Handles a frame of a caller: a rank 0 says where it listens, or another rank withdraws its proof.
    pub(super) fn on_caller_frame(&mut self, id: ConnectionId, frame: &Frame) -> Result<(), Malformed> {
        let Some(Phase::Caller(caller)) = self.connections.get(&id).map(|c| &c.phase) else { return Ok(()) };
        let (job, listens) = (caller.job, caller.unanswered.is_none());
        match (frame.kind, listens) {
            (Kind::Join, true) => {
                let Entry { place, .. } = Entry::parse(&frame.payload)?;
                self.remove(id);
                self.send_callers_to(&place, Some(job));
                Ok(())
            }
            // The rank has failed or was aborted, or it tries another address.
            (Kind::Retire | Kind::Notice | Kind::Goodbye, _) => {
                self.end(id, "it left");
                Ok(())
            }
            _ => Err(Malformed("a frame of a caller is out of place")),
        }
    }

    /// Tells the ranks of one job, or of all, where to find rank 0.
    fn send_callers_to(&mut self, to: &Place, job: Option<JobId>) {
        if let (Some(job), Some(directory)) = (job, self.formation.directory_mut()) {
            directory.roots.insert(job, to.clone());
        }
        let moved = Rejection::Moved { to: to.clone() }.to_bytes();
        let called = |phase: &Phase| matches!(phase, Phase::Caller(c) if job.is_none_or(|job| job == c.job));
        for id in self.connections_in(called) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let Phase::Caller(caller) = std::mem::replace(&mut connection.phase, Phase::Leaving) else {
                continue;
            };
            match caller.unanswered {
                Some(verified) => self.say([id], verified.reject(&moved)),
                None => drop(self.remove(id)),
            }
        }
    }

    /// Handles the end of a caller's connection. If it was a rank 0 that never said where it listens, another process may be
    /// rank 0: those that wait connect again.
    pub(super) fn caller_left(&mut self, left: &Caller) {
        let Some(directory) = self.formation.directory().filter(|_| left.unanswered.is_none()) else {
            return;
        };
        if self.plan.job == Some(left.job) {
            directory.claimed.store(false, Ordering::Release);
        }
        let waits = |phase: &Phase| matches!(phase, Phase::Caller(c) if c.rank == 0 && c.job == left.job);
        for id in self.connections_in(waits) {
            self.remove(id);
        }
    }

    /// Closes the directory. The callers connect again: to rank 0 of this process, if that has taken the listener over.
    pub(super) fn close_directory(&mut self) {
        if let Some(here) = self.formation.directory().map(|directory| directory.here.clone()) {
            self.send_callers_to(&here, None);
        }
    }
}
