//! The properties that must hold whatever goes wrong.
//!
//! 1. Nothing waits for ever: each rank's caller ends, with success or an error, and each rank ends.
//! 2. If nothing goes wrong, all callers succeed.
//! 3. All ranks know of a loss within five seconds, and if one rank knows, all do.
//! 4. An error names only ranks that have to do with it: a rank that is reported lost or missing, or to have left or
//!    aborted, was hit by a fault, did not come, left or aborted.
//! 5. No message is lost, doubled or out of order on its stream, and collectives give the right results.
//! 6. If ranks that were killed are replaced, all succeed in the end, in one generation.
//! 7. No stranger is admitted, or told more than that it does not belong there.
//! 8. Of two processes that come as one rank, at most one becomes it. If one rank hears of the clash, all do.

use std::time::Duration;

use crate::scenario::{Kind, Scenario};
use crate::starting::TIMEOUT;
use crate::world::Node;
use mscclpp_bootstrap::Error;

/// The promised time within which all ranks know of a loss.
const PROMISE: Duration = Duration::from_secs(5);
/// The additional time that callers and slow processes may take.
const SLACK: Duration = Duration::from_millis(1500);
/// The time after a rank's departure by which those below it are connected to another.
const SETTLED: Duration = Duration::from_secs(2);
/// A time limit for the whole simulation, longer than any scenario.
const LIMIT: Duration = Duration::from_secs(400);
const MOST_EVENTS: u64 = 5_000_000;

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Played {
    /// The kind of fault.
    pub kind: Kind,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of events.
    pub events: u64,
    /// A digest of all events.
    pub trace: u64,
    /// Whether the job formed on all ranks that came.
    pub formed: bool,
}

/// Simulates the scenario of a seed, with at most `most_ranks` ranks.
///
/// # Errors
/// The property that did not hold.
pub fn play(seed: u64, most_ranks: usize) -> Result<Played, String> {
    let mut scenario = Scenario::of_seed(seed, most_ranks);
    let over = scenario.world.run(LIMIT, MOST_EVENTS);
    let judged = if over { scenario.judge() } else { Err("something goes on for ever".to_owned()) };
    let Scenario { kind, n, world, .. } = &scenario;
    judged.map_err(|why| format!("{kind:?} with {n} ranks: {why}\n{}", scenario.outcomes()))?;
    let formed = (0..*n).all(|rank| world.nodes[rank].program.formed_at.is_some());
    Ok(Played { kind: *kind, ranks: *n, events: world.count, trace: world.trace, formed })
}

impl Scenario {
    fn judge(&self) -> Result<(), String> {
        for node in &self.world.nodes {
            let stranger = node.stranger.iter();
            let told =
                stranger.flat_map(|stranger| stranger.violations.iter().cloned().chain(stranger.judge()));
            if let Some(violation) = told.chain(node.program.violations.iter().cloned()).next() {
                return Err(violation);
            }
        }
        match self.twice {
            Some((rank, other)) => self.judge_clash(rank, other),
            None => (0..self.n).try_for_each(|rank| self.judge_rank(rank)),
        }
    }

    /// Judges a scenario in which two processes came as rank `twice`.
    fn judge_clash(&self, twice: usize, other: usize) -> Result<(), String> {
        let mut outcomes = Vec::new();
        for node in (0..self.n).chain([other]) {
            let process = &self.world.nodes[node];
            let Some((at, outcome)) = process.program.outcome.as_ref().filter(|_| process.job.is_none())
            else {
                return Err(format!("process {node} waits for ever"));
            };
            outcomes.push((node, *at, outcome));
        }
        let clash = |outcome: &Result<(), Error>| matches!(outcome, Err(Error::DuplicateRank { .. }));
        let known = outcomes.iter().filter(|(_, _, outcome)| clash(outcome)).map(|(_, at, _)| *at).min();
        let (claimants, ranks): (Vec<_>, Vec<_>) =
            outcomes.into_iter().partition(|(node, ..)| [twice, other].contains(node));
        if claimants.iter().all(|(_, _, outcome)| outcome.is_ok()) {
            return Err(format!("two processes were rank {twice}"));
        }
        for (rank, at, outcome) in ranks {
            let late = known.is_some_and(|known| {
                // Nothing delays the news in this case.
                at > known + SLACK && !self.some_left_before(known) && self.has_formed(rank)
            });
            match outcome {
                _ if late => return Err(format!("rank {rank} did not hear of the clash until {at:.1?}")),
                Err(error) if !self.is_true(error) => {
                    return Err(format!("rank {rank} was told what is not so"));
                }
                _ => {}
            }
        }
        // The process that is not the rank is told so, or comes when the job has ended.
        let heard = |outcome: &Result<(), Error>| match outcome {
            Err(Error::AddressInUse { .. }) => twice == 0,
            Err(Error::JobComplete { .. } | Error::Timeout { .. }) | Ok(()) => true,
            Err(error) => self.is_true(error),
        };
        match claimants.iter().find(|(_, _, outcome)| !heard(outcome)) {
            Some((node, ..)) => {
                Err(format!("process {node}, a second rank {twice}, was told what is not so"))
            }
            None => Ok(()),
        }
    }

    fn has_formed(&self, rank: usize) -> bool {
        self.world.nodes[rank].program.formed_at.is_some()
    }

    fn judge_rank(&self, rank: usize) -> Result<(), String> {
        let node = &self.world.nodes[rank];
        if let Some(lives) = &node.lives {
            let last = |rank: &Node| rank.lives.as_ref().and_then(|lives| lives.formed.last().copied());
            let same = last(node).is_some() && last(node) == last(&self.world.nodes[0]);
            let rises = lives.formed.windows(2).all(|pair| pair[0] < pair[1]);
            return match (&node.program.outcome, node.job.is_none() && same && rises) {
                (Some((_, Ok(()))), true) => Ok(()),
                _ => Err(format!("rank {rank} was in the generations {:?}", lives.formed)),
            };
        }
        if node.program.victim || self.absent == Some(rank) {
            return Ok(());
        }
        let Some((at, outcome)) = &node.program.outcome else {
            return Err(format!("the caller of rank {rank} waits for ever"));
        };
        if node.job.is_some() {
            return Err(format!("rank {rank} does not end"));
        }
        let Err(error) = outcome else {
            // If one rank knows, all must know; and ranks that stay to the end must know in any case.
            let hit = self.kind == Kind::LeftAndKilled && self.world.concerns_all;
            let hit_at = hit.then_some(self.world.last_fault);
            let known_at = hit_at.into_iter().chain(self.first_known()).min();
            let late = |known: Duration| *at > known + PROMISE + SLACK && !self.some_left_before(known);
            return match known_at.is_some_and(late) {
                true => Err(format!("rank {rank} never heard of it, and went on until {at:.1?}")),
                false => Ok(()),
            };
        };
        if matches!(self.kind, Kind::Calm | Kind::Stopped) || self.leavers.contains(&rank) {
            return Err(format!("rank {rank} failed though nothing went wrong for it"));
        }
        if !self.is_true(error) {
            return Err(format!("rank {rank} was told what is not so"));
        }
        let limit = match (node.program.formed_at, error) {
            // A rank that has not reached rank 0 learns nothing before its time is up.
            (None, _) => TIMEOUT + Duration::from_secs(3),
            // If all ranks with a connection to the lost one have left before they could notice, nobody knows. A rank
            // that needs it looks for it.
            (Some(_), Error::Timeout { .. }) => self.world.last_fault + TIMEOUT + PROMISE,
            (Some(_), Error::PeerClosed { rank }) => {
                let left = self.world.nodes[*rank].program.outcome.as_ref().map(|(at, _)| *at);
                self.world.last_fault.max(left.unwrap_or_default()) + PROMISE
            }
            (Some(_), _) => self.world.last_fault + PROMISE,
        } + SLACK;
        if *at > limit {
            return Err(format!("rank {rank} heard of it at {at:.1?}, after {limit:.1?}"));
        }
        Ok(())
    }

    /// Returns whether ranks left about when the fault happened, and before it was known. If all ranks with a
    /// connection to the lost one are among them, those behind do not hear of it.
    fn some_left_before(&self, known: Duration) -> bool {
        let settled = self.world.last_fault.saturating_sub(SETTLED);
        let left = |outcome: &(Duration, Result<(), Error>)| {
            outcome.1.is_ok() && (settled..known + SLACK).contains(&outcome.0)
        };
        self.world.nodes.iter().any(|node| node.program.outcome.as_ref().is_some_and(left))
    }

    /// Returns the time at which the first rank heard that the job has failed.
    fn first_known(&self) -> Option<Duration> {
        let failed = |(at, outcome): &(Duration, Result<(), Error>)| {
            matches!(outcome, Err(Error::PeerLost { .. } | Error::Aborted { .. })).then_some(*at)
        };
        let programs = self.world.nodes.iter().map(|node| &node.program);
        programs.filter_map(|program| program.outcome.as_ref().and_then(failed)).min()
    }

    /// Returns whether an error names ranks that have to do with the fault.
    fn is_true(&self, error: &Error) -> bool {
        let suspects = &self.world.suspects;
        match error {
            // The notice of a rank that ends because of an abort may be thrown away: then others see only its end.
            Error::PeerLost { rank, .. } => {
                let ends = matches!(self.kind, Kind::Aborted | Kind::Clashing);
                suspects.contains(rank) || (ends && self.world.unheard.contains(rank))
            }
            Error::DuplicateRank { rank, .. } => self.twice.is_some_and(|(twice, _)| twice == *rank),
            // A missing rank was hit before the fault could be known, or never came, or could not be reached any
            // more.
            Error::Timeout { missing, .. } => {
                let unreached = |rank: &usize| suspects.contains(rank) || self.absent == Some(*rank);
                let came_too_late = |rank: &usize| self.world.nodes[*rank].program.formed_at.is_none();
                !missing.is_empty() && missing.iter().all(|rank| unreached(rank) || came_too_late(rank))
            }
            // A lost rank that nobody was connected to is taken for one that left, because nobody listens at its
            // address.
            Error::PeerClosed { rank } => {
                let hidden = suspects.contains(rank) && self.some_left_before(self.world.now);
                let of_two = self.twice.is_some_and(|(twice, _)| twice == *rank);
                self.world.nodes[*rank].program.is_over() || hidden || of_two
            }
            Error::Aborted { rank, reason } => {
                self.kind == Kind::Aborted && reason == "played" && *rank < self.n
            }
            _ => false,
        }
    }

    fn outcomes(&self) -> String {
        let mut lines = format!(
            "suspects {:?}, absent {:?}, left {:?}, last fault at {:.3?}",
            self.world.suspects, self.absent, self.leavers, self.world.last_fault
        );
        for rank in (0..self.n).chain(self.twice.map(|(_, other)| other)) {
            let program = &self.world.nodes[rank].program;
            let formed = program.formed_at.map_or("never".to_owned(), |at| format!("at {at:.3?}"));
            lines += &format!(
                "\nrank {rank}: formed {formed}, waits for {}, {:?}",
                program.awaited(),
                program.outcome
            );
        }
        lines
    }
}
