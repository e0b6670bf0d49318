//! The state of a job that forms.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use mscclpp_net::wire::{Malformed, Reader};
use mscclpp_os::waiting::LongWait;

use crate::Error;
use crate::job::action::ConnectionId;
use crate::job::directory::Directory;
use crate::job::plan::{Join, Plan};
use crate::job::roster::Roster;
use crate::protocol::frame::Frame;
use crate::protocol::notice;
use crate::protocol::table::{Entry, Table};

pub struct Formation {
    pub(super) stage: Stage,
    /// The list of ranks that have come, at rank 0.
    pub(super) roster: Option<Roster>,
    /// The missing ranks, as rank 0 reported them.
    pub(super) missing: Vec<usize>,
    /// The number of descriptors of rank 0, if it has none left.
    pub(super) full: Option<u32>,
    /// The time until which rank 0 waits for processes that have come again: see `Job::begin_tree_if_all_came`.
    pub(super) claims_until: Option<Instant>,
    pub(super) ready_children: BTreeSet<usize>,
    pub(super) ready_sent: bool,
    /// The time at which rank 0 next reports who is missing.
    pub(super) progress_at: Option<Instant>,
    pub(super) wait: Option<LongWait>,
}

/// The stages of forming. Rank 0 goes from `Collecting` to `Formed`, other ranks go through the stages between. A rank 0 whose
/// unique id another process made looks for that process first, and tells it where it listens: it is `Searching` and `Listening`
/// before it is `Collecting`.
pub(super) enum Stage {
    /// Rank 0 collects ranks, which are not all connected yet.
    Collecting,
    /// The rank looks for rank 0.
    Searching(Join),
    /// Rank 0 has admitted this rank on this connection, and the rank begins to listen for others.
    Listening(ConnectionId, Join),
    /// Rank 0 knows where this rank listens. The rank connects to its neighbours in the tree, and gets the table.
    Joined,
    /// Another rank 0 has this address, and this one reports to it. If that gives no reason, the job fails with this
    /// error.
    SecondRoot(SocketAddr, Error),
    /// The process made a unique id, and tells its ranks where rank 0 listens.
    Directory(Directory),
    /// All ranks are connected.
    Formed { at: Instant },
}

impl Formation {
    /// Makes the formation of rank 0, which listens at `address` and collects all ranks.
    pub fn of_root(plan: &Plan, address: String, root: Entry) -> Self {
        let roster = Some(Roster::new(plan, address, root));
        Self { roster, ..Self::at(Stage::Collecting) }
    }

    pub fn of_member(join: Join) -> Self {
        Self::at(Stage::Searching(join))
    }

    /// Makes the state of a process that has made a unique id. It is no rank.
    pub fn of_directory(directory: Directory) -> Self {
        Self::at(Stage::Directory(directory))
    }

    /// Makes the formation of a second rank 0, which finds its `place` taken. Without it nobody would hear of this
    /// process, and the first rank 0 would wait until its time is up for a rank that was wrongly started as another
    /// rank 0. So this process connects there like a rank that joins, and says who it is. It fails for the reason
    /// that it gets, or with `otherwise`.
    pub fn of_second_root(place: SocketAddr, otherwise: Error) -> Self {
        Self::at(Stage::SecondRoot(place, otherwise))
    }

    /// Returns the table of a job of one rank, which is rank 0 and needs no other.
    pub fn table_of_one(&self) -> Table {
        let bytes = self.roster().and_then(Roster::table).unwrap_or_default();
        let Ok(table) = Table::parse(bytes, 0, 1) else { unreachable!("rank 0 of one has a complete list") };
        table
    }

    fn at(stage: Stage) -> Self {
        Self {
            stage,
            roster: None,
            missing: Vec::new(),
            full: None,
            claims_until: None,
            ready_children: BTreeSet::new(),
            ready_sent: false,
            progress_at: None,
            wait: None,
        }
    }

    pub(super) fn formed_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Formed { at } => Some(at),
            _ => None,
        }
    }

    /// Returns rank 0's list of ranks if the job has formed.
    pub(super) fn complete_mut(&mut self) -> Option<&mut Roster> {
        self.formed_at().and(self.roster.as_mut())
    }

    /// Returns rank 0's list of ranks until the job has formed.
    pub(super) fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref().filter(|_| self.formed_at().is_none())
    }

    pub(super) fn roster_mut(&mut self) -> Option<&mut Roster> {
        let forms = self.formed_at().is_none();
        self.roster.as_mut().filter(|_| forms)
    }

    /// Returns the error of a second rank 0 that gets no reason.
    pub(super) fn second_root(&self) -> Option<&Error> {
        match &self.stage {
            Stage::SecondRoot(_, otherwise) => Some(otherwise),
            _ => None,
        }
    }

    pub(super) fn directory(&self) -> Option<&Directory> {
        match &self.stage {
            Stage::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    pub(super) fn directory_mut(&mut self) -> Option<&mut Directory> {
        match &mut self.stage {
            Stage::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// Returns whether a refused connection is final: the process of the unique id listened before anybody had the id, and it
    /// has not said that it has no descriptor left.
    pub(super) fn listened(&self) -> bool {
        matches!(&self.stage, Stage::Searching(join) if join.listened) && self.full.is_none()
    }

    /// Returns the missing ranks, as far as they are known here.
    pub(super) fn missing(&self) -> Vec<usize> {
        self.roster().map_or_else(|| self.missing.clone(), Roster::missing)
    }

    pub(super) fn wake_at(&self, plan: &Plan) -> Option<Instant> {
        if self.formed_at().is_some() {
            return None;
        }
        let log_at = self.wait.as_ref().and_then(LongWait::wake_at);
        [self.progress_at, log_at, self.claims_until, Some(plan.deadline)].into_iter().flatten().min()
    }

    /// Returns why rank 0 admits nobody, in brackets, if it has said so.
    pub(super) fn no_room(&self) -> String {
        self.full.map_or_else(String::new, |descriptors| {
            format!(
                " (rank 0 accepts no more connections: {descriptors} descriptors are open, see ulimit -n)"
            )
        })
    }

    pub(super) fn take_progress(&mut self, frame: &Frame) -> Result<(), Malformed> {
        let mut reader = Reader::new(&frame.payload);
        self.missing = notice::take_ranks(&mut reader)?;
        self.full = if reader.rest().is_empty() { None } else { Some(reader.take()?) };
        Ok(())
    }
}
