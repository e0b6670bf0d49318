//! The group that sets up collectives, and what its ranks tell each other of their devices.

use std::collections::HashSet;

use mscclpp::{Communicator, Gpu, engine::Group};

use crate::{Error, Result, handle::MAX_RANKS};

/// This build of what ranks must have alike: headers and kernels, and this crate, which lays out the scratch and chooses. Nobody
/// counts it up: it is made of the bytes of the sources.
const BUILD: u64 = mscclpp_kernels::FINGERPRINT ^ sources().rotate_left(1);

const fn sources() -> u64 {
    match u64::from_str_radix(env!("MSCCLPP_COLLECTIVES_SOURCES"), 10) {
        Ok(number) => number,
        Err(_) => panic!("the build script writes a number"),
    }
}

/// The purposes for which ranks that have met tell each other something: see [`Group::telling`].
pub(crate) mod purpose {
    /// Who is in which part.
    pub(crate) const SPLIT: u64 = 0;
    /// The set-up of the parts of a split, which has a number.
    pub(crate) const PART: u64 = 1;
    pub(crate) const REGISTER: u64 = 2;
    /// The calls that ranks have made.
    pub(crate) const CALLS: u64 = 3;
    /// Memory that is given back for a while.
    pub(crate) const SUSPEND: u64 = 4;
    /// The memory that ranks publish.
    pub(crate) const PUBLISH: u64 = 5;
}

/// Meets the ranks that set up collectives. Blocks.
pub(crate) fn meet(comm: &Communicator, ranks: Option<Vec<usize>>, tag: u32) -> Result<Group> {
    Ok(Group::meet(comm, "collectives", BUILD, ranks, tag)?)
}

/// Checks that the ranks can all be on one node.
pub(crate) fn check_size(group: &Group) -> Result<()> {
    match group.ranks().len() {
        ..=MAX_RANKS => Ok(()),
        ranks => Err(Error::InvalidArgument(format!("{ranks} ranks; {MAX_RANKS} are the most on one node"))),
    }
}

/// The identity of each rank's device. Blocks: all ranks call it.
pub(crate) fn devices(group: &Group, gpu: &Gpu) -> Result<Vec<[u8; 16]>> {
    let uuid = u128::from_le_bytes(gpu.properties().uuid);
    let all = group.all_gather([uuid as u64, (uuid >> 64) as u64])?;
    let uuid = |[low, high]: [u64; 2]| (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
    Ok(all.into_iter().map(uuid).collect())
}

/// One of the ranks `of` whose device's memory this rank's device is known not to reach. `devices` are those of all ranks.
pub(crate) fn unreached(
    group: &Group,
    gpu: &Gpu,
    devices: &[[u8; 16]],
    of: &[usize],
) -> Result<Option<usize>> {
    for r in of.iter().copied().filter(|r| *r != group.rank()) {
        // A device that this process does not see counts as reachable: nothing is known of it.
        if gpu.peer_access_by_uuid(&devices[r])?.is_some_and(|access| !access.reachable) {
            return Ok(Some(r));
        }
    }
    Ok(None)
}

/// Those of the group's `ranks` on this node, `here`, that share a device, if this process sees devices that no rank of the node
/// has. They have their numbers in the job.
pub(crate) fn sharing(ranks: &[usize], devices: &[[u8; 16]], here: &[usize], seen: usize) -> Vec<usize> {
    let of = |r: &usize| here.iter().filter(|other| devices[**other] == devices[*r]).count();
    let distinct: HashSet<_> = here.iter().map(|r| devices[*r]).collect();
    if seen <= distinct.len() {
        return Vec::new();
    }
    here.iter().filter(|r| of(r) > 1).map(|r| ranks[*r]).collect()
}

/// The lowest compute capability of the ranks' devices, if all have one, and the fewest multiprocessors. Blocks.
pub(crate) fn least_device(group: &Group, gpu: &Gpu) -> Result<(Option<(u32, u32)>, u32)> {
    let properties = gpu.properties();
    let (major, minor) = properties.compute_capability.unwrap_or_default();
    let own = [major, minor, properties.multiprocessors].map(u64::from);
    let (mut capability, mut multiprocessors) = ((major, minor), properties.multiprocessors);
    for (r, words) in group.all_gather(own)?.into_iter().enumerate() {
        let [major, minor, theirs] = words.map(|word| group.u32_of(r, word));
        capability = capability.min((major?, minor?));
        multiprocessors = multiprocessors.min(theirs?);
    }
    Ok(((capability != (0, 0)).then_some(capability), multiprocessors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_share_a_device_while_others_are_free_are_named() {
        let ranks = [0, 1, 2, 3];
        let devices = [0, 1, 0, 2].map(|device| [device; 16]);
        assert_eq!(sharing(&ranks, &devices, &[0, 1, 2, 3], 4), [0, 2]);
        assert!(sharing(&ranks, &devices, &[0, 1, 2, 3], 3).is_empty(), "all devices are taken");
        assert!(sharing(&ranks, &devices, &[0, 1, 3], 4).is_empty(), "rank 2 is on another node");
    }
}
