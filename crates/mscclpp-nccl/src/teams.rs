//! Teams, and what is not covered.

use std::ffi::c_int;

use crate::{
    abi::{Handle, Team},
    comm,
    failure::Failure,
};

/// A team that nobody is in, for a communicator of which nothing is known.
const NONE: Team = Team { n_ranks: 0, rank: -1, stride: 0 };

/// `ncclTeamWorld`: all ranks. So is `ncclTeamLsa`, the ranks whose devices reach each other's memory.
pub(crate) fn world(handle: Handle) -> Team {
    position(handle).map_or(NONE, |(rank, ranks)| Team { n_ranks: ranks, rank, stride: 1 })
}

/// `ncclTeamRail`: the ranks that have this one's number on their nodes, of which there is one.
pub(crate) fn rail(handle: Handle) -> Team {
    position(handle).map_or(NONE, |(_, ranks)| Team { n_ranks: 1, rank: 0, stride: ranks })
}

/// `ncclTeamRankToWorld`, and `ncclTeamRankToLsa`: the number in the communicator of a team's rank; -1 if there is none.
pub(crate) fn to_world(handle: Handle, team: Team, rank: c_int) -> c_int {
    let Some((own, ranks)) = position(handle) else { return -1 };
    let away = rank.checked_sub(team.rank).and_then(|away| away.checked_mul(team.stride));
    let number = away.and_then(|away| own.checked_add(away));
    number.filter(|number| (0..ranks).contains(number)).unwrap_or(-1)
}

fn position(handle: Handle) -> Option<(c_int, c_int)> {
    let (rank, ranks) = comm::of(handle).ok()?.position().ok()?;
    Some((c_int::try_from(rank).ok()?, c_int::try_from(ranks).ok()?))
}

/// What a function answers that this library does not have.
pub(crate) fn not_covered(what: &str) -> Result<(), Failure> {
    Err(Failure::usage(format!("not covered: {what}; use NCCL for it (docs/src/nccl.md)")))
}
