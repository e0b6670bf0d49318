//! Teams of ranks, and the failure of functions that are not covered.

use std::ffi::c_int;

use crate::{
    abi::{Handle, Team},
    comm,
    failure::Failure,
};

/// The empty team, for a communicator that is unknown or not formed yet.
pub(crate) const NONE: Team = Team { n_ranks: 0, rank: -1, stride: 0 };

/// `ncclTeamWorld`: the team of all ranks. It is also that of `ncclTeamLsa`, the ranks whose devices reach each other's memory.
pub(crate) fn world(handle: Handle) -> Team {
    position(handle).map_or(NONE, |(rank, ranks)| Team { n_ranks: ranks, rank, stride: 1 })
}

/// `ncclTeamRail`: the team of the ranks that have this one's number on their nodes. As there is one node, it is this rank alone.
pub(crate) fn rail(handle: Handle) -> Team {
    position(handle).map_or(NONE, |(_, ranks)| Team { n_ranks: 1, rank: 0, stride: ranks })
}

/// `ncclTeamRankToWorld` and `ncclTeamRankToLsa`: converts a rank's number in a team to its number in the communicator, or -1 if
/// there is no such rank.
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

/// The failure of a function that this library does not cover.
pub(crate) fn not_covered(what: &str) -> Result<(), Failure> {
    Err(Failure::usage(format!("not covered: {what}; use NCCL for it (docs/src/nccl.md)")))
}
