//! How a job ends by a failure, and how a rank leaves. The invariants S1 to S3 are those of `service`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::frame::{self, Kind};
use crate::protocol::notice;
use crate::tcp::connection::Phase;
use crate::tcp::links::Peer;
use crate::tcp::service::Service;
use crate::{Error, LOG};

/// How long a dropped bootstrap waits for its last bytes to be taken.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

impl Service {
    /// A rank is gone, by S2.
    pub(crate) fn lose(&mut self, rank: usize, why: &str, token: u64) {
        if self.closing.is_some() || self.failed.is_some() {
            return;
        }
        let detail = format!("{why}, without saying goodbye, as rank {} saw", self.plan.rank);
        self.fail(&Error::PeerLost { rank, detail }, Some(token));
    }

    /// The job has failed (S3). `from` is the connection that told us, if one did.
    pub(crate) fn fail(&mut self, error: &Error, from: Option<u64>) {
        if self.failed.is_some() || self.closing.is_some() {
            return;
        }
        self.failed = Some(error.clone());
        tracing::debug!(target: LOG, rank = self.plan.rank, %error, "the job has failed");
        let notice = Arc::new(frame::encode(Kind::Notice, &notice::encode(error, self.plan.rank)));
        let mut unproven = Vec::new();
        for (&token, connection) in &mut self.connections {
            if !connection.is_proven() {
                unproven.push(token);
            } else if Some(token) != from {
                connection.outbox.clear();
                connection.outbox.push(Arc::clone(&notice));
                self.dirty.insert(token);
            }
        }
        self.dials.clear();
        unproven
            .retain(|token| !matches!(self.connections.get(token).map(|c| &c.phase), Some(Phase::Leaving)));
        for token in unproven {
            self.remove(token);
        }
        self.write_dirty();
        self.shared.inbox.fail(error);
    }

    pub(crate) fn close(&mut self) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(Instant::now() + LINGER);
        if let Some(listener) = self.listener.take() {
            self.poller.remove(&listener);
        }
        self.dials.clear();
        let mut others = Vec::new();
        for (&token, connection) in &mut self.connections {
            if let Some(link) = connection.link_mut() {
                // A connection that was given up has had its last frame; its peer is told on the other.
                if !link.retire_sent {
                    let sent = self.peers.get(&link.peer).map_or(0, Peer::sent);
                    connection.outbox.push(frame::encode(Kind::Goodbye, &sent.to_le_bytes()));
                }
                self.dirty.insert(token);
            } else if connection.is_proven() {
                // A job that did not form: what there is to say, a notice, is in the outbox.
                self.dirty.insert(token);
            } else {
                others.push(token);
            }
        }
        for token in others {
            self.remove(token);
        }
    }

    pub(crate) fn is_finished(&self, now: Instant) -> bool {
        self.closing.is_some_and(|deadline| self.connections.is_empty() || now >= deadline)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }
}
