//! The ranks that set up collectives, and what they tell each other.

use mscclpp::{Communicator, Gpu};

use crate::{Error, Result, handle::MAX_RANKS};

/// The ranks that take part, and this one's number among them.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    comm: Communicator,
    pub(crate) ranks: Vec<usize>,
    pub(crate) rank: usize,
    tag: u32,
}

impl Group {
    pub(crate) fn new(comm: &Communicator, ranks: Option<Vec<usize>>, tag: u32) -> Result<Self> {
        let (own, all) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
        let ranks = ranks.unwrap_or_else(|| (0..all).collect());
        let refused = |why: String| Err(Error::InvalidArgument(why));
        if let Some(unknown) = ranks.iter().find(|rank| **rank >= all) {
            return refused(format!("there is no rank {unknown} in a job of {all}"));
        }
        if let Some(twice) = ranks.iter().enumerate().find(|(i, rank)| ranks[..*i].contains(rank)) {
            return refused(format!("rank {} is named twice in {ranks:?}", twice.1));
        }
        let Some(rank) = ranks.iter().position(|rank| *rank == own) else {
            return refused(format!("rank {own} is not among the ranks {ranks:?} that it gives"));
        };
        Ok(Self { comm: comm.clone(), ranks, rank, tag })
    }

    /// That they can all be on one host.
    pub(crate) fn check_size(&self) -> Result<()> {
        if self.ranks.len() > MAX_RANKS {
            let ranks = self.ranks.len();
            return Err(Error::InvalidArgument(format!(
                "{ranks} ranks; {MAX_RANKS} are the most on one host"
            )));
        }
        Ok(())
    }

    /// The numbers of the others in the group.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks.len());
        (0..ranks).filter(move |r| *r != rank)
    }

    /// What every rank gives, in the order of the group. Blocks.
    pub(crate) fn all_gather(&self, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        let bootstrap = self.comm.bootstrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for r in self.others() {
            bootstrap.send(&bytes, self.ranks[r], self.tag)?;
        }
        let mut all = vec![words.to_vec(); self.ranks.len()];
        for r in self.others() {
            let bytes = bootstrap.recv(self.ranks[r], self.tag)?;
            all[r] = bytes.chunks(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect();
        }
        Ok(all)
    }

    /// A rank whose device's memory this rank's device is known not to reach.
    pub(crate) fn unreached(&self, gpu: &Gpu) -> Result<Option<usize>> {
        let uuid = u128::from_le_bytes(gpu.properties().uuid);
        let all = self.all_gather(&[uuid as u64, (uuid >> 64) as u64])?;
        for r in self.others() {
            if let &[low, high] = all[r].as_slice() {
                let uuid = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
                // Of a device that this process does not see, nothing is known.
                if gpu.peer_access_by_uuid(&uuid)?.is_some_and(|access| !access.reachable) {
                    return Ok(Some(r));
                }
            }
        }
        Ok(None)
    }

    /// The lowest compute capability of the ranks' devices, if all have one, and the fewest multiprocessors.
    pub(crate) fn least_device(&self, gpu: &Gpu) -> Result<(Option<(u32, u32)>, u32)> {
        let properties = gpu.properties();
        let (major, minor) = properties.compute_capability.unwrap_or_default();
        let all =
            self.all_gather(&[u64::from(major) << 32 | u64::from(minor), properties.multiprocessors.into()])?;
        let least = |i: usize| all.iter().map(|words| words.get(i).copied().unwrap_or(0)).min().unwrap_or(0);
        let (capability, multiprocessors) = (least(0), least(1));
        let capability = (capability != 0).then_some(((capability >> 32) as u32, capability as u32));
        Ok((capability, multiprocessors as u32))
    }

    /// That all ranks give the same.
    pub(crate) fn agree(&self, values: &[(&'static str, u64)]) -> Result<()> {
        let ours: Vec<u64> = values.iter().map(|(_, value)| *value).collect();
        for (r, theirs) in self.all_gather(&ours)?.into_iter().enumerate() {
            for (i, (what, ours)) in values.iter().enumerate() {
                let theirs = theirs.get(i);
                if theirs != Some(ours) {
                    return Err(Error::Differ {
                        rank: self.ranks[self.rank],
                        other: self.ranks[r],
                        what,
                        ours: ours.to_string(),
                        theirs: theirs.map_or_else(|| "none".to_owned(), ToString::to_string),
                    });
                }
            }
        }
        Ok(())
    }

    /// What this rank has, if all ranks have it; else why this one has not, or that another has not. Nobody returns
    /// before all have called.
    pub(crate) fn all_have<T>(&self, what: &str, own: Result<T>) -> Result<T> {
        let all = self.all_gather(&[own.is_ok().into()])?;
        let own = own?;
        match all.iter().position(|words| words != &[1]) {
            None => Ok(own),
            Some(r) => Err(Error::InvalidArgument(format!(
                "{what}: rank {} could not, and has an error that says why",
                self.ranks[r]
            ))),
        }
    }

    /// Whether it holds for all ranks. Nobody returns before all have called.
    pub(crate) fn all(&self, holds: bool) -> Result<bool> {
        Ok(self.all_gather(&[holds.into()])?.iter().all(|words| words == &[1]))
    }
}
