//! What one rank of any kind of job does the same way: checks of arguments, collectives, failure.

use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::collective::{self, Carrier, Collectives};
use crate::inbox::Inbox;
use crate::{Error, Result};

/// One rank.
pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) n_ranks: usize,
    pub(crate) inbox: Arc<Inbox>,
    collectives: Mutex<Collectives>,
}

impl Member {
    pub(crate) fn new(rank: usize, n_ranks: usize, inbox: Arc<Inbox>) -> Self {
        Self { rank, n_ranks, inbox, collectives: Mutex::new(Collectives::new()) }
    }

    pub(crate) fn check_peer(&self, peer: usize) -> Result<()> {
        if peer < self.n_ranks {
            Ok(())
        } else {
            Err(Error::InvalidArgument(format!("there is no rank {peer} in a job of {}", self.n_ranks)))
        }
    }

    /// Runs a collective call. Calls of several threads take turns. The failures that leave ranks out of step
    /// with each other are handed to `fatal`, to end the job for all.
    pub(crate) fn collective<T>(
        &self,
        call: impl FnOnce(&mut Collectives) -> Result<T>,
        fatal: impl FnOnce(&Error),
    ) -> Result<T> {
        let mut collectives = self.collectives.lock();
        let outcome = call(&mut collectives);
        match outcome {
            Err(error @ (Error::Mismatch { .. } | Error::PeerLost { .. })) => {
                fatal(&error);
                // Whichever failure came first is what every call reports.
                Err(self.inbox.failure().unwrap_or(error))
            }
            outcome => outcome,
        }
    }

    /// Meets the named ranks.
    pub(crate) fn group_barrier(&self, carrier: &impl Carrier, ranks: &[usize]) -> Result<()> {
        let mut members = ranks.to_vec();
        members.sort_unstable();
        for pair in members.windows(2) {
            if pair[0] == pair[1] {
                return Err(Error::InvalidArgument(format!(
                    "the group {ranks:?} names rank {} twice",
                    pair[0]
                )));
            }
        }
        members.iter().try_for_each(|&rank| self.check_peer(rank))?;
        if members.binary_search(&self.rank).is_err() {
            return Err(Error::InvalidArgument(format!(
                "rank {} called group_barrier for the group {ranks:?}, which it is not in",
                self.rank
            )));
        }
        if let Some(error) = self.inbox.failure() {
            return Err(error);
        }
        collective::group_barrier(carrier, &members, group_tag(&members))
    }
}

/// Groups that share members must not take each other's messages: the tag is a digest of who is in the group.
fn group_tag(members: &[usize]) -> u64 {
    let mut hash = Sha256::new();
    for &rank in members {
        hash.update((rank as u64).to_le_bytes());
    }
    let digest = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}
