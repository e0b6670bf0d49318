//! `ncclCommSplit` and `ncclCommShrink`: communicators of some of another communicator's ranks.
//!
//! Each becomes a job of its own, whose ranks meet through its first rank. So it can outlive its parent, and an abort of one does
//! not affect the other.

use std::{
    ffi::c_int,
    ptr,
    sync::{Arc, atomic::Ordering, mpsc},
    time::Duration,
};

use crate::{
    abi::{Code, Config, Handle, UniqueId},
    answers,
    comm::{Backend, Comm},
    config::{self, Settings},
    env::Env,
    failure::{Failure, guarded},
    forming::{self, Outcome},
    group, id,
    nccl::Handed,
    ours::Ours,
    pointers::OutPointer,
};

/// The upper bits of the tags of messages; the lower ones, `NUMBERS`, are the number of the split.
const SPLITS: u32 = 0x6e00_0000;
const NUMBERS: u32 = 0x00ff_ffff;

/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOR: c_int = -1;

/// `ncclCommSplit`.
///
/// # Safety
/// `config` is what [`config::read`] asks for.
pub(crate) unsafe fn split(
    parent: Handle,
    color: c_int,
    key: c_int,
    place: OutPointer<Handle>,
    config: *const Config,
) -> Result<Code, Failure> {
    let parent = crate::comm::of(parent)?;
    let env = forming::begin()?;
    if color < NO_COLOR {
        return Err(Failure::argument(format!(
            "`color` is {color}; colors are counted from 0, and -1 is none"
        )));
    }
    // SAFETY: the caller's promise.
    let settings = unsafe { config::read(config, &parent.settings, env)? };
    if let Backend::Handed(_) = parent.formed()? {
        return split_handed(&parent, color, key, place, settings, env);
    }
    let tag = next_tag(&parent);
    let splitting = Splitting::of(&parent);
    if color == NO_COLOR {
        place.set(ptr::null_mut());
        // This rank only exchanges its color.
        forming::spawn(move || {
            let parent = &splitting.0;
            let exchanged = guarded("a split", || gather(parent.ours("")?, tag, color, key, env.timeout));
            if let Err(failure) = exchanged {
                answers::remember(&splitting.failed(failure));
            }
        })?;
        return Ok(Code::SUCCESS);
    }
    let child = Comm::new(parent.gpu.clone(), settings, env);
    forming::in_background(&child, splitting, move |child, splitting| {
        let parent = &splitting.0;
        let members = parent.ours("").and_then(|ours| {
            let all = gather(ours, tag, color, key, env.timeout)?;
            let mut members: Vec<usize> = (0..all.len()).filter(|r| all[*r].0 == color).collect();
            members.sort_by_key(|r| all[*r].1);
            Ok(members)
        });
        let members = members.map_err(|failure| splitting.failed(failure))?;
        of_members(parent, child, &members, tag, env).map_err(|failure| splitting.failed(failure))
    })?;
    group::created(place, child)
}

/// The tag of the messages by which the ranks of a communicator split it or let it grow. It is the same on all of them.
pub(crate) fn next_tag(parent: &Comm) -> u32 {
    SPLITS | parent.splits.fetch_add(1, Ordering::Relaxed) & NUMBERS
}

/// Counts a split, a shrinking or a growth of a communicator as under way, until it is dropped.
pub(crate) struct Splitting(pub(crate) Arc<Comm>);

impl Splitting {
    pub(crate) fn of(parent: &Arc<Comm>) -> Self {
        parent.splitting.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(parent))
    }

    /// Records a failure with the parent too: a rank without a color has no other communicator that reports it.
    pub(crate) fn failed(&self, failure: Failure) -> Failure {
        if failure.code != Code::INVALID_USAGE {
            self.0.fail(&failure);
        }
        failure
    }
}

impl Drop for Splitting {
    fn drop(&mut self) {
        self.0.splitting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Exchanges colors and keys, and returns those of all ranks.
fn gather(
    ours: &Ours,
    tag: u32,
    color: c_int,
    key: c_int,
    timeout: Duration,
) -> Result<Vec<(c_int, c_int)>, Failure> {
    let mut bytes = color.to_le_bytes().to_vec();
    bytes.extend(key.to_le_bytes());
    let all = exchange(ours, tag, &bytes, timeout)?;
    let read = |(peer, bytes): (usize, Vec<u8>)| {
        let bytes: [u8; 8] = bytes.as_slice().try_into().map_err(|_| unexpected(peer, bytes.len()))?;
        let number = |at: usize| c_int::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok((number(0), number(4)))
    };
    all.into_iter().enumerate().map(read).collect()
}

/// Sends bytes to all ranks of a communicator, and returns those of all.
pub(crate) fn exchange(
    ours: &Ours,
    tag: u32,
    own: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, Failure> {
    let bootstrap = ours.comm.bootstrap();
    let (rank, ranks) = (bootstrap.rank(), bootstrap.n_ranks());
    for peer in (0..ranks).filter(|peer| *peer != rank) {
        bootstrap.send(own, peer, tag)?;
    }
    let of = |peer| match peer == rank {
        true => Ok(own.to_vec()),
        false => Ok(bootstrap.recv_timeout(peer, tag, timeout)?),
    };
    (0..ranks).map(of).collect()
}

/// The failure of a rank that sent something else than was due.
pub(crate) fn unexpected(peer: usize, bytes: usize) -> Failure {
    Failure::usage(format!(
        "rank {peer} sent {bytes} bytes where its part of a split or a growth was due; all ranks make the same calls"
    ))
}

/// Forms the communicator of the ranks `members` of `parent`, of which this rank is one.
fn of_members(parent: &Comm, child: &Comm, members: &[usize], tag: u32, env: &'static Env) -> Outcome {
    let bootstrap = parent.ours("")?.comm.bootstrap();
    let own = bootstrap.rank();
    let position = position(members, own)?;
    child.set_position(position, members.len());
    let id = if position == 0 {
        let id = id::own(env)?;
        for peer in &members[1..] {
            bootstrap.send(&id.0, *peer, tag)?;
        }
        id
    } else {
        let bytes = bootstrap.recv_timeout(members[0], tag, env.timeout)?;
        UniqueId(bytes.as_slice().try_into().map_err(|_| unexpected(members[0], bytes.len()))?)
    };
    let job = forming::join(position, members.len(), &id, env)?;
    forming::form(child, job, env)
}

fn position(members: &[usize], own: usize) -> Result<usize, Failure> {
    let position = members.iter().position(|rank| *rank == own);
    position.ok_or_else(|| Failure::argument(format!("rank {own} is not among the ranks {members:?}")))
}

/// `ncclCommSplit` of a communicator that was handed over to NCCL.
fn split_handed(
    parent: &Arc<Comm>,
    color: c_int,
    key: c_int,
    place: OutPointer<Handle>,
    settings: Settings,
    env: &'static Env,
) -> Result<Code, Failure> {
    fn made(parent: &Comm, color: c_int, key: c_int) -> Result<Option<Handed>, Failure> {
        match parent.formed()? {
            Backend::Handed(handed) => handed.split(color, key),
            Backend::Ours(_) => Err(Failure::usage("this communicator is not NCCL's")),
        }
    }
    if color == NO_COLOR {
        place.set(ptr::null_mut());
        // The split must be complete before the next call for the parent: NCCL asks its callers to order the calls of a
        // communicator.
        let of = Arc::clone(parent);
        return group::together(parent, move || {
            let (tell, told) = mpsc::channel();
            let name = of.name();
            forming::spawn(move || {
                let split = guarded("a split", || {
                    of.gpu.make_current()?;
                    made(&of, color, key).map(drop)
                });
                // After the time-out nobody listens.
                let _ = tell.send(split);
            })?;
            told.recv_timeout(env.timeout).unwrap_or_else(|_| {
                let text = format!(
                    "NCCL's ncclCommSplit of {name} did not end within {:?} (MSCCLPP_NCCL_TIMEOUT)",
                    env.timeout
                );
                Err(Failure::new(Code::REMOTE_ERROR, text))
            })
        });
    }
    let child = Comm::new(parent.gpu.clone(), settings, env);
    forming::in_background(&child, Arc::clone(parent), move |child, parent| {
        parent.gpu.make_current()?;
        let made = made(parent, color, key)?;
        let made = made.ok_or_else(|| Failure::new(Code::INTERNAL_ERROR, "NCCL made no communicator"))?;
        let (rank, ranks) = made.position()?;
        child.set_position(rank, ranks);
        Ok(Ok(Backend::Handed(made)))
    })?;
    group::created(place, child)
}

/// `ncclCommShrink`.
///
/// # Safety
/// `config` is what [`config::read`] asks for.
pub(crate) unsafe fn shrink(
    parent: Handle,
    excluded: &[c_int],
    place: OutPointer<Handle>,
    config: *const Config,
    flags: c_int,
) -> Result<Code, Failure> {
    let parent = crate::comm::of(parent)?;
    let env = forming::begin()?;
    let abort = match flags {
        0 => false,
        1 => true,
        other => return Err(Failure::argument(format!("`shrinkFlags` is {other}; 0 and 1 are known"))),
    };
    // SAFETY: the caller's promise.
    let settings = unsafe { config::read(config, &parent.settings, env)? };
    let ours = parent.ours("")?;
    let (rank, ranks) = parent.position()?;
    let mut members: Vec<usize> = (0..ranks).collect();
    for excluded in excluded {
        match usize::try_from(*excluded) {
            Ok(excluded) if excluded < ranks => members.retain(|rank| *rank != excluded),
            _ => {
                return Err(Failure::argument(format!(
                    "there is no rank {excluded} to exclude, of {ranks} ranks"
                )));
            }
        }
    }
    if excluded.is_empty() {
        return Err(Failure::argument("`excludeRanksCount` is 0: no rank is excluded"));
    }
    let position = position(&members, rank)?;
    let child = Comm::new(parent.gpu.clone(), settings, env);
    child.set_position(position, members.len());
    // No messages go through the parent, whose job may have failed: the remaining ranks meet through the first of them, under an
    // id that they derive from its spare one.
    let spare = ours.spares.get(members[0]).copied().flatten();
    let spare = spare.ok_or_else(|| Failure::usage("a communicator of one rank cannot be shrunk"))?;
    let id = id::of_shrinking(&spare, &members, parent.shrink_to(&members))?;
    let job = forming::join(position, members.len(), &id, env)?;
    if abort {
        ours.abort("ncclCommShrink was called with NCCL_SHRINK_ABORT");
    }
    let kept = ((!abort).then(|| Splitting::of(&parent)), ours.spare.clone());
    forming::in_background(&child, kept, move |child, (splitting, _)| {
        forming::form(child, job, env).map_err(|failure| match splitting {
            Some(splitting) => splitting.failed(failure),
            None => failure,
        })
    })?;
    group::created(place, child)
}
