//! `ncclCommGrow`: a communicator of all ranks of another one, and new ones. It is a job of its own, whose ranks meet under an
//! id of the root's.

use std::{ffi::c_int, sync::Arc};

use crate::{
    abi::{Code, Config, Handle, UniqueId},
    comm::{self, Comm},
    config,
    env::Env,
    failure::Failure,
    forming::{self, Outcome},
    group,
    id::Spare,
    pointers::OutPointer,
    split::{Splitting, exchange, next_tag, unexpected},
};

/// `ncclCommGetUniqueId`: makes the id for new ranks. This process listens for them until the communicator has grown, or is
/// destroyed.
pub(crate) fn unique_id(comm: Handle) -> Result<UniqueId, Failure> {
    let comm = comm::of(comm)?;
    let env = forming::begin()?;
    comm.ours("")?;
    let mut growth = comm.growth.lock();
    if growth.is_some() {
        return Err(Failure::usage(format!("{} has an id that ncclCommGrow has not taken yet", comm.name())));
    }
    Ok(growth.insert(Spare::create(env)?).id())
}

/// `ncclCommGrow`. The ranks of `parent` keep their numbers.
///
/// # Safety
/// `config` is what [`config::read`] asks for.
pub(crate) unsafe fn grow(
    parent: Handle,
    ranks: c_int,
    id: Option<UniqueId>,
    rank: c_int,
    place: OutPointer<Handle>,
    config: *const Config,
) -> Result<Code, Failure> {
    if parent.is_null() {
        let id = id.ok_or_else(|| Failure::argument("`uniqueId` is NULL on a new rank"))?;
        // SAFETY: the caller's promise.
        return unsafe { forming::init_rank(place, ranks, &id, rank, config) };
    }
    let parent = comm::of(parent)?;
    let env = forming::begin()?;
    // SAFETY: the caller's promise.
    let settings = unsafe { config::read(config, &parent.settings, env)? };
    parent.ours("")?;
    let (own, before) = parent.position()?;
    if rank != -1 {
        return Err(Failure::argument(format!(
            "`rank` is {rank}; a rank of `comm` keeps its number, and gives -1"
        )));
    }
    let ranks = usize::try_from(ranks).ok().filter(|ranks| *ranks > before).ok_or_else(|| {
        Failure::argument(format!("`nRanks` is {ranks}, and `comm` has {before} ranks: it grows to more"))
    })?;
    let spare = id.map(|id| taken(&parent, &id)).transpose()?;
    let tag = next_tag(&parent);
    let child = Comm::new(parent.gpu.clone(), settings, env);
    child.set_position(own, ranks);
    let kept = (Splitting::of(&parent), spare);
    forming::in_background(&child, kept, move |child, (splitting, spare)| {
        let formed = form(&splitting.0, child, spare.as_ref(), tag, env);
        formed.map_err(|failure| splitting.failed(failure))
    })?;
    group::created(place, child)
}

/// Takes the id that the root passes, which [`unique_id`] made.
fn taken(parent: &Arc<Comm>, id: &UniqueId) -> Result<Spare, Failure> {
    parent.growth.lock().take_if(|spare| spare.id() == *id).ok_or_else(|| {
        Failure::argument(format!("`uniqueId` is not what ncclCommGetUniqueId gave for {}", parent.name()))
    })
}

/// Forms the communicator on a rank of `parent`, which hears the id from the root.
fn form(parent: &Comm, child: &Comm, spare: Option<&Spare>, tag: u32, env: &'static Env) -> Outcome {
    let own = spare.map(Spare::id).map_or_else(Vec::new, |id| id.0.to_vec());
    let all = exchange(parent.ours("")?, tag, &own, env.timeout)?;
    let roots: Vec<usize> = (0..all.len()).filter(|rank| !all[*rank].is_empty()).collect();
    let [root] = *roots else {
        let text = format!("ranks {roots:?} pass an id to ncclCommGrow; exactly one rank of `comm` must");
        return Ok(Err(Failure::usage(text)));
    };
    let bytes = all[root].as_slice();
    let id = UniqueId(bytes.try_into().map_err(|_| unexpected(root, bytes.len()))?);
    let (rank, ranks) = child.position()?;
    let job = forming::join(rank, ranks, &id, env)?;
    forming::form(child, job, env)
}
