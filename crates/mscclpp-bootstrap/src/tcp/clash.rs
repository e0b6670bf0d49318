//! Two jobs at one address.

use crate::protocol::hello::{Hello, Purpose};
use crate::protocol::roster::other_job;
use crate::tcp::service::Service;
use crate::{Error, Party};
use mscclpp_net::socket::canonical;

impl Service {
    /// A rank wants to join a job that is complete. If the job was named by an address and formed recently, two jobs may
    /// share that address, and a rank of the other job is in this one. Both must fail.
    pub(crate) fn late_clash(&self, hello: &Hello, from: &str) -> Option<Error> {
        let formed_at = self.formation.formed_at()?;
        let joins = self.plan.rank == 0 && hello.purpose == Purpose::Join && hello.to == 0;
        // Another rank 0 is none of those that may be in the wrong job.
        let joins = joins && hello.from != 0;
        let launched = self.plan.launched.as_ref();
        let of_another_job = other_job(launched, hello).is_some();
        if !joins || of_another_job || !self.plan.by_address || formed_at.elapsed() > self.plan.timeout {
            return None;
        }
        let address = self.listener.as_ref().and_then(|l| l.local_addr().ok());
        let address = address.map_or_else(String::new, |a| canonical(a).to_string());
        let (rank, n) = (hello.from as usize, self.plan.n_ranks);
        if hello.n_ranks as usize != n {
            return Some(Error::Mismatch {
                what: "numbers of ranks (n_ranks)".to_owned(),
                ours: Box::new(Party { rank: 0, address: Some(address), value: n.to_string() }),
                theirs: Box::new(Party {
                    rank,
                    address: Some(from.to_owned()),
                    value: hello.n_ranks.to_string(),
                }),
            });
        }
        Some(Error::DuplicateRank {
            rank,
            first: self.formation.origin(rank).cloned().unwrap_or_default(),
            second: from.to_owned(),
            address,
        })
    }
}
