//! Teams of ranks, and the failure of functions that are not covered.

use std::ffi::c_int;

use crate::{
    abi::{Handle, Team},
    comm::{self, as_int},
    failure::Failure,
};

/// The empty team, for a communicator that is unknown, not formed yet, or NCCL's.
pub(crate) const NONE: Team = Team { n_ranks: 0, rank: -1, stride: 0 };

/// `ncclTeamWorld`: the team of all ranks.
pub(crate) fn world(handle: Handle) -> Team {
    position(handle).map_or(NONE, |(rank, ranks)| Team { n_ranks: ranks, rank, stride: 1 })
}

/// `ncclTeamLsa`: the team of the ranks of this node.
pub(crate) fn lsa(handle: Handle) -> Team {
    on_node(handle).map_or(NONE, |(own, ranks)| team(&ranks, own, 1))
}

/// `ncclTeamRail`: the team of the ranks that have this one's number on their nodes.
pub(crate) fn rail(handle: Handle) -> Team {
    let Ok(comm) = comm::of(handle) else { return NONE };
    let (Ok((own, ranks)), Ok(ours)) = (comm.position(), comm.ours("")) else { return NONE };
    let number = |rank| ours.on_node_of(rank).iter().position(|other| *other == rank);
    let rail: Vec<usize> = (0..ranks).filter(|rank| number(*rank) == number(own)).collect();
    team(&rail, own, ours.on_node_of(own).len())
}

/// `ncclTeamRankToWorld`: converts a rank's number in a team to its number in the communicator, or -1 if there is no such rank.
pub(crate) fn to_world(handle: Handle, team: Team, rank: c_int) -> c_int {
    let Some((own, ranks)) = position(handle) else { return -1 };
    let away = rank.checked_sub(team.rank).and_then(|away| away.checked_mul(team.stride));
    let number = away.and_then(|away| own.checked_add(away));
    number.filter(|number| (0..ranks).contains(number)).unwrap_or(-1)
}

/// `ncclTeamRankToLsa`: converts a rank's number in a team to its number in the team of this node, or -1 if it is not there.
pub(crate) fn to_lsa(handle: Handle, team: Team, rank: c_int) -> c_int {
    let lsa = self::lsa(handle);
    let world = to_world(handle, team, rank);
    (0..lsa.n_ranks).find(|rank| world >= 0 && to_world(handle, lsa, *rank) == world).unwrap_or(-1)
}

/// This rank, and the ranks of its node.
fn on_node(handle: Handle) -> Option<(usize, Vec<usize>)> {
    let comm = comm::of(handle).ok()?;
    let (own, _) = comm.position().ok()?;
    Some((own, comm.ours("").ok()?.on_node_of(own)))
}

/// A team of ranks, ascending. NCCL's teams have ranks at equal distances: if these have not, the team is `own` alone. `alone` is
/// the distance in a team of one rank.
fn team(ranks: &[usize], own: usize, alone: usize) -> Team {
    let stride = match ranks {
        [first, second, ..] => second - first,
        _ => alone,
    };
    match ranks.windows(2).all(|pair| pair[1] - pair[0] == stride) {
        true => {
            let rank = ranks.iter().position(|rank| *rank == own).unwrap_or(0);
            Team { n_ranks: as_int(ranks.len()), rank: as_int(rank), stride: as_int(stride) }
        }
        false => Team { n_ranks: 1, rank: 0, stride: as_int(alone) },
    }
}

fn position(handle: Handle) -> Option<(c_int, c_int)> {
    let (rank, ranks) = comm::of(handle).ok()?.position().ok()?;
    Some((c_int::try_from(rank).ok()?, c_int::try_from(ranks).ok()?))
}

/// The failure of a function that this library does not cover.
pub(crate) fn not_covered(what: &str) -> Result<(), Failure> {
    Err(Failure::usage(format!("not covered: {what}; use NCCL for it (docs/src/nccl-functions.md)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_at_equal_distances_are_a_team() {
        let said = |ranks: &[usize], own| {
            let team = team(ranks, own, 9);
            (team.n_ranks, team.rank, team.stride)
        };
        assert_eq!(said(&[2, 3, 4], 4), (3, 2, 1));
        assert_eq!(said(&[1, 5, 9], 5), (3, 1, 4));
        assert_eq!(said(&[7], 7), (1, 0, 9));
        assert_eq!(said(&[0, 1, 3], 1), (1, 0, 9));
    }
}
