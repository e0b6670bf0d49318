//! The memory that peers have registered, as a rank's kernels reach it.

use mscclpp::{DevicePtr, MemoryChannel, RegisteredMemory, engine::Group, gpu::KernelArgument};

use crate::{
    Result,
    handle::{MAX_RANKS, MappedSegments},
    rank::{Mapping, RankState},
};

use super::engine::OneNode;

impl OneNode {
    /// Maps the memory that the peers have registered together with `own`. `parts` describes the part of each rank: its second
    /// and third words are the part's offset and length. All ranks call it.
    pub(super) fn map_registered(
        &self,
        rank: &RankState,
        group: &Group,
        own: &RegisteredMemory,
        parts: &[[u64; 4]],
    ) -> Result<Mapping> {
        for r in group.others() {
            rank.comm.send_memory(own, group.ranks()[r], group.tag())?;
        }
        let theirs = group.others().map(|r| rank.comm.recv_memory(group.ranks()[r], group.tag())?.wait());
        let theirs = theirs.collect::<mscclpp::Result<Vec<_>>>()?;
        let (mut peers, mut owners) =
            (MappedSegments { at: [DevicePtr::NULL; MAX_RANKS], bytes: [0; MAX_RANKS] }, Vec::new());
        for ((r, theirs), channel) in group.others().zip(&theirs).zip(self.scratch.channels()) {
            let channel = MemoryChannel::new(channel.semaphore(), theirs, own, None)?;
            let ([_, offset, len, _], size) = (parts[r], theirs.size());
            if offset.checked_add(len).is_none_or(|end| end > size) {
                let problem = format!("it registers {len} bytes at offset {offset} of a memory of {size}");
                return Err(group.malformed(r, problem).into());
            }
            peers.at[r] = DevicePtr::from_ptr(channel.device_handle().dst).add(offset);
            peers.bytes[r] = len;
            owners.extend(KernelArgument::owner(&&channel));
        }
        Ok(Mapping { peers, memories: theirs, owners })
    }
}
