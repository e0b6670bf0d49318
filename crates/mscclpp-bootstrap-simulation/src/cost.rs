//! The costs of a job: connections, frames, bytes, and the hops that follow each other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::costs::{Cost, Costs, PIECE, Traffic};
use crate::program::Step;
use crate::starting::{PORT, plan_of, starter};
use crate::world::{Event, Network, World};
use mscclpp_bootstrap::protocol::handshake::JobKey;

/// The most ranks that are simulated. Each has the table of all, so their memory grows with the square.
const MOST_PLAYED: usize = 4096;

/// Returns the costs of a job of `n` ranks, if each way between two nodes takes `latency` and nothing else takes
/// time.
///
/// # Errors
/// If there are fewer than 2 or more than 4096 ranks, or the latency is zero, or above 100 milliseconds.
pub fn cost(n: usize, latency: Duration) -> Result<Costs, String> {
    if !(2..=MOST_PLAYED).contains(&n) {
        return Err(format!("{n} ranks; allowed: 2 to {MOST_PLAYED}"));
    }
    if !(Duration::from_micros(1)..=Duration::from_millis(100)).contains(&latency) {
        return Err(format!("a latency of {latency:?}; allowed: 1 us to 100 ms"));
    }
    let network = Network {
        least_latency: latency,
        most_latency: latency,
        buffer: usize::MAX,
        busy: Duration::ZERO,
        cuts_writes: false,
    };
    let mut world = World::new(1, network, n);
    let root = SocketAddr::new(world.nodes[0].ip, PORT);
    // The pause is longer than a call takes, because each of its hops waits for the one before.
    let pause = latency * 100 + Duration::from_secs(1);
    for rank in 0..n {
        let plan = plan_of(rank, n, JobKey::of_unique_id([9; 32]), true, world.instant());
        world.schedule(Duration::ZERO, Event::Start(rank, starter(plan, root, vec![root])));
        let program = &mut world.nodes[rank].program;
        (program.rank, program.n, program.piece) = (rank, n, Some(PIECE));
        let calls =
            [Step::Sleep(pause), Step::AllGather, Step::Sleep(pause), Step::Barrier, Step::Sleep(pause)];
        program.steps = VecDeque::from(calls);
    }
    let mut parts = Vec::new();
    let mut before = vec![Traffic::default(); n];
    let mut until = pause / 2;
    for (number, what) in ["initialise", "all_gather", "barrier"].into_iter().enumerate() {
        world.run(until, u64::MAX);
        // The time of each rank's call counts from the end of its own last call.
        let ends = |call: usize| {
            let end = |rank: usize| world.nodes[rank].program.ends.get(call).copied();
            (0..n).map(end).collect::<Option<Vec<Duration>>>()
        };
        let Some(end) = ends(number).and_then(|ends| ends.into_iter().max()) else {
            return Err(format!("{what} did not end within {until:?}"));
        };
        let last_begin = match number.checked_sub(1) {
            None => Duration::ZERO,
            Some(last) => ends(last).and_then(|ends| ends.into_iter().max()).unwrap_or_default() + pause,
        };
        let time = end.saturating_sub(last_begin);
        let written: Vec<Traffic> =
            world.written.iter().zip(&before).map(|(now, then)| now.since(*then)).collect();
        let most_of_others =
            written[1..].iter().copied().max_by_key(|written| written.bytes).unwrap_or_default();
        let hops = (time.as_nanos() / latency.as_nanos()) as u32;
        parts.push(Cost::new(what, hops, latency, written[0], most_of_others));
        before.clone_from(&world.written);
        until = end + pause + pause / 2;
    }
    let most = |ranks: std::ops::Range<usize>| world.most_wires[ranks].iter().copied().max().unwrap_or(0);
    Ok(Costs { parts, connections_of_rank_0: most(0..1), most_connections_of_others: most(1..n) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_costs_what_its_tree_says() {
        let costs = cost(64, Duration::from_millis(1)).unwrap();
        assert_eq!(costs.connections_of_rank_0, 63);
        assert_eq!(
            costs.most_connections_of_others, 4,
            "its edges, and for a while the connection to rank 0"
        );
        let [initialise, all_gather, barrier] = &costs.parts[..] else { panic!("{costs:?}") };
        // A tree of 64 ranks has six levels below the root, and each call goes up and down.
        assert_eq!((all_gather.hops, barrier.hops), (12, 12));
        assert_eq!((barrier.rank_0.frames, barrier.most_of_others.frames), (2, 3));
        let all = (64 * (PIECE + 12)) as u64;
        assert!((2 * all..2 * all + 200).contains(&all_gather.rank_0.bytes), "{all_gather:?}");
        // Rank 0 writes the table twice, and for each rank a handshake and where its parent is.
        let tables = 2 * 64 * 15;
        assert!((tables..tables + 64 * 160).contains(&initialise.rank_0.bytes), "{initialise:?}");
        assert!(initialise.hops >= 12, "{initialise:?}");
        assert_eq!(cost(64, Duration::from_millis(1)), Ok(costs));
    }

    #[test]
    fn what_cannot_be_counted_is_an_error() {
        assert!(cost(1, Duration::from_millis(1)).is_err());
        assert!(cost(MOST_PLAYED + 1, Duration::from_millis(1)).is_err());
        assert!(cost(2, Duration::ZERO).is_err());
    }
}
