//! The properties of a communicator, its memory, and how it is suspended.

use std::{collections::BTreeSet, ffi::c_int, ptr, sync::Arc};

use crate::{
    abi::{Code, CommProperties, Handle, Versioned as _},
    comm::{self, as_int},
    ending,
    failure::Failure,
    group,
    pointers::stated_size,
};

/// `ncclCommQueryProperties`. Of the parts of NCCL that need its device API or its network plugins, there are none.
///
/// # Safety
/// `place` is null, or points to as many bytes as its first field says.
pub(crate) unsafe fn query(handle: Handle, place: *mut CommProperties) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::argument("`props` is NULL"));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { stated_size(place)? };
    let comm = comm::of(handle)?;
    let ours = comm.ours(OF)?;
    let (rank, ranks) = comm.position()?;
    // SAFETY: the struct begins with these fields.
    let (magic, version) = unsafe {
        ((&raw const (*place).magic).read_unaligned(), (&raw const (*place).version).read_unaligned())
    };
    let known = CommProperties {
        size,
        magic,
        version,
        rank: as_int(rank),
        n_ranks: as_int(ranks),
        cuda_dev: as_int(comm.gpu.id()),
        nvml_dev: as_int(comm.gpu.id()),
        n_lsa_teams: as_int(ours.nodes.iter().collect::<BTreeSet<_>>().len()),
        host_rma_support: ours.has_signals(),
        comm_hash: ours.hash,
        ..CommProperties::INITIAL
    };
    // SAFETY: no more bytes are written than the caller's struct has, and the source is as long.
    unsafe {
        ptr::copy_nonoverlapping(
            (&raw const known).cast(),
            place.cast::<u8>(),
            size.min(size_of_val(&known)),
        );
    }
    Ok(())
}

/// `ncclCommMemStats`. Suspended memory counts as the communicator's, though others have it meanwhile.
pub(crate) fn memory(handle: Handle, statistic: c_int) -> Result<u64, Failure> {
    let comm = comm::of(handle)?;
    let ours = comm.ours(OF)?;
    let (total, suspendable) = (ours.device_bytes(), ours.collectives.suspendable_bytes());
    match statistic {
        0 => Ok(suspendable),
        1 => Ok(ours.collectives.is_suspended().into()),
        2 => Ok(total - suspendable),
        3 => Ok(total),
        other => Err(Failure::argument(format!("`stat` is {other}; 0 to 3 are known"))),
    }
}

/// `ncclCommSuspend`: refuses calls until [`resume`], and gives the memory back through which calls go. Blocks until all ranks
/// call it and the calls that they have made are complete; in a group, the group's end blocks instead.
///
/// # Safety
/// Until the communicator is resumed, no graph that has its calls is launched, and those that were launched are complete.
pub(crate) unsafe fn suspend(handle: Handle, flags: c_int) -> Result<Code, Failure> {
    /// `NCCL_SUSPEND_MEM`.
    const MEMORY: c_int = 1;
    if flags != MEMORY {
        return Err(Failure::argument(format!("`flags` is {flags}; {MEMORY} is known")));
    }
    let comm = comm::of(handle)?;
    comm.ours(OF)?;
    group::together(&Arc::clone(&comm), move || {
        // The communicator may have ended, or be suspended already.
        let ours = comm.backend()?.ours(OF)?;
        ending::wait_complete(&comm, ours)?;
        // SAFETY: the communicator refuses calls, those before are complete, and the caller has promised the rest.
        unsafe { ours.collectives.suspend() }.map_err(Into::into)
    })
}

/// `ncclCommResume`: takes the memory again. Blocks until all ranks call it; in a group, the group's end blocks instead.
pub(crate) fn resume(handle: Handle) -> Result<Code, Failure> {
    let comm = comm::of(handle)?;
    comm.ours(OF)?;
    group::together(&Arc::clone(&comm), move || {
        let collectives = &comm.ours(OF)?.collectives;
        if !collectives.is_suspended() {
            return Err(Failure::usage(format!("{} is not suspended", comm.name())));
        }
        Ok(collectives.resume()?)
    })
}

/// The thing that is not covered if NCCL has the communicator.
const OF: &str = "the properties of ";
