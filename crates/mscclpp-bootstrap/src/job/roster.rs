//! Rank 0's list of ranks that have come.

use std::collections::HashSet;

use crate::error::JOB_IDS;
use crate::job::Plan;
use crate::protocol::hello::{
    Hello, JobId, LaunchedJob, Origin, PROTOCOL_VERSION, Process, Purpose, Rejection,
};
use crate::protocol::table::{self, Entry};
use crate::{Error, Party};

pub(super) struct Roster {
    job: JobId,
    launched: Option<LaunchedJob>,
    /// The address at which rank 0 listens, for messages.
    address: String,
    ranks: Vec<Option<(Entry, Origin)>>,
    absent: usize,
    /// The ranks that have proved themselves, entered or not.
    proved: HashSet<u32>,
    /// Whether a rank has proved itself twice before it was entered.
    contested: bool,
    /// Whether ranks may be replaced.
    elastic: bool,
    /// The last generation of the job in which any of its ranks was.
    last_generation: u64,
}

/// The refusal of a member: the answer to it, and the error if the job ends by it.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) rejection: Rejection,
    pub(super) fatal: Option<Box<Error>>,
}

impl Roster {
    /// Makes the list of rank 0, which listens at `address` and is described by `root`.
    pub(super) fn new(plan: &Plan, address: String, root: Entry) -> Self {
        let mut ranks: Vec<_> = (0..plan.n_ranks).map(|_| None).collect();
        ranks[0] = Some((root, plan.process.at(&address)));
        Self {
            job: plan.job.unwrap_or_default(),
            launched: plan.launched.clone(),
            address,
            ranks,
            absent: plan.n_ranks - 1,
            proved: HashSet::from([0]),
            contested: false,
            elastic: plan.is_elastic(),
            last_generation: plan.last_generation.unwrap_or(0),
        }
    }

    /// Judges a verified member that wants to join.
    pub(super) fn admit(&mut self, hello: &Hello, from: &Origin) -> Result<(), Refused> {
        if hello.purpose != Purpose::Join || hello.to != 0 {
            return Err(Refused { rejection: Rejection::WrongPlace { here: 0 }, fatal: None });
        }
        // The job is compared first, because everything else may differ between jobs.
        if let Some(rejection) = other_job(self.launched.as_ref(), hello) {
            return Err(Refused { rejection, fatal: None });
        }
        let n = self.ranks.len() as u32;
        let differs = [
            ("protocol versions", PROTOCOL_VERSION, hello.version),
            ("numbers of ranks (n_ranks)", n, hello.n_ranks),
        ];
        for (what, ours, theirs) in differs {
            if ours != theirs {
                return Err(self.mismatch(what, &ours.to_string(), &theirs.to_string(), hello, from));
            }
        }
        if self.launched.is_none() && hello.job != [0; 16] && hello.job != self.job {
            return Err(self.mismatch(JOB_IDS, "none", "one", hello, from));
        }
        let rank = hello.from as usize;
        match self.ranks.get(rank) {
            None => Err(self.mismatch("ranks", &format!("{n} ranks"), &format!("rank {rank}"), hello, from)),
            // The rank replaces one whose loss is not known here yet, so it asks again.
            Some(Some(_)) if self.elastic => {
                Err(Refused { rejection: Rejection::Complete { n_ranks: n }, fatal: None })
            }
            Some(Some((_, first))) => Err(Refused {
                rejection: Rejection::Duplicate { first: first.to_string() },
                fatal: Some(Box::new(self.claimed_twice(rank, first, from))),
            }),
            Some(None) => {
                self.contested |= !self.proved.insert(hello.from);
                self.last_generation = self.last_generation.max(hello.generation);
                Ok(())
            }
        }
    }

    /// Removes a rank that was admitted and withdraws its proof before it was entered. It may come again.
    pub(super) fn withdraw(&mut self, rank: usize) {
        self.proved.remove(&(rank as u32));
    }

    /// Returns whether two processes have been admitted as the same rank.
    pub(super) fn is_contested(&self) -> bool {
        self.contested
    }

    /// Returns whether there are ranks that have not even proved themselves.
    pub(super) fn awaits_proofs(&self) -> bool {
        self.proved.len() < self.ranks.len()
    }

    fn mismatch(&self, what: &str, ours: &str, theirs: &str, hello: &Hello, from: &Origin) -> Refused {
        Refused {
            rejection: Rejection::Mismatch { what: what.to_owned(), theirs: ours.to_owned() },
            fatal: Some(Box::new(Error::Mismatch {
                what: what.to_owned(),
                ours: Box::new(Party {
                    rank: 0,
                    address: Some(self.address.clone()),
                    value: ours.to_owned(),
                }),
                theirs: Box::new(Party {
                    rank: hello.from as usize,
                    address: Some(from.to_string()),
                    value: theirs.to_owned(),
                }),
            })),
        }
    }

    /// Returns the error if this rank has been entered, and another process claims to be it.
    pub(super) fn twice(&self, rank: usize, from: &Origin) -> Option<Error> {
        let (_, first) = self.ranks.get(rank)?.as_ref()?;
        Some(self.claimed_twice(rank, first, from))
    }

    fn claimed_twice(&self, rank: usize, first: &Origin, second: &Origin) -> Error {
        let [first, second] = [first, second].map(ToString::to_string);
        Error::DuplicateRank { rank, first, second, address: self.address.clone() }
    }

    /// Enters a rank that was admitted. Two connections may have been admitted for one rank before either said more;
    /// `other_claim` is the origin of the other one. Two claims end the job at once, because once all ranks have come
    /// nobody would wait for the message of the other.
    pub(super) fn enter(
        &mut self,
        rank: usize,
        entry: Entry,
        from: Origin,
        other_claim: Option<&Origin>,
    ) -> Result<(), Error> {
        match (self.ranks.get(rank), other_claim) {
            (Some(None), Some(other_claim)) => Err(self.claimed_twice(rank, &from, other_claim)),
            (Some(None), None) => {
                self.ranks[rank] = Some((entry, from));
                self.absent -= 1;
                Ok(())
            }
            (Some(Some((_, first))), _) => Err(self.claimed_twice(rank, first, &from)),
            (None, _) => Err(Error::InvalidArgument(format!("there is no rank {rank}"))),
        }
    }

    pub(super) fn missing(&self) -> Vec<usize> {
        self.ranks.iter().enumerate().filter(|(_, place)| place.is_none()).map(|(rank, _)| rank).collect()
    }

    /// Returns whether a rank has come from this process.
    pub(super) fn has_process(&self, process: &Process) -> bool {
        self.ranks.iter().flatten().any(|(_, from)| from.process == *process)
    }

    /// Returns the table of all ranks, once all have come.
    pub(super) fn table(&self) -> Option<Vec<u8>> {
        if self.absent > 0 {
            return None;
        }
        let entries: Vec<Entry> = self.ranks.iter().flatten().map(|(entry, _)| entry.clone()).collect();
        Some(table::encode(&entries, self.last_generation.saturating_add(1)))
    }
}

/// Returns the answer to a rank that wants to join another job of a launcher than this one. Returns `None` if it
/// wants this job, or if this job has no name to compare. The rank cannot disturb this job.
fn other_job(here: Option<&LaunchedJob>, hello: &Hello) -> Option<Rejection> {
    let here = here.filter(|here| here.id != hello.job)?;
    Some(match hello.version {
        PROTOCOL_VERSION => Rejection::OtherJob { theirs: here.name.clone() },
        // A rank of another version would not understand that answer.
        _ => {
            Rejection::Mismatch { what: "protocol versions".to_owned(), theirs: PROTOCOL_VERSION.to_string() }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fuzzing;
    use crate::protocol::handshake::JobKey;
    use crate::protocol::table::Place;

    fn entry() -> Entry {
        Entry { host: [1; 16], domain: [1; 16], place: Place { port: 1, addresses: vec![] } }
    }

    fn plan() -> Plan {
        let plan = Plan::new(0, 3, JobKey::none(), Instant::now(), Duration::ZERO);
        Plan { job: Some([5; 16]), ..plan }
    }

    fn roster_of(plan: &Plan) -> Roster {
        Roster::new(plan, "10.0.0.1:5000".into(), entry())
    }

    fn roster() -> Roster {
        roster_of(&plan())
    }

    fn at(address: &str) -> Origin {
        Process::default().at(address)
    }

    fn hello(from: u32) -> Hello {
        Hello { process: Process::default(), ..fuzzing::hello(true, 3, from) }
    }

    #[test]
    fn a_job_fills_up() {
        let mut roster = roster();
        assert_eq!(roster.missing(), [1, 2]);
        for rank in [2, 1] {
            assert!(roster.table().is_none() && roster.awaits_proofs());
            roster.admit(&hello(rank), &at("x")).unwrap();
            roster.enter(rank as usize, entry(), at("x"), None).unwrap();
        }
        assert!(roster.missing().is_empty() && roster.table().is_some() && !roster.awaits_proofs());
    }

    #[test]
    fn ranks_of_another_launched_job_are_refused_and_end_nothing() {
        let here = LaunchedJob::new("Slurm job 7 step 0".to_owned());
        let theirs = LaunchedJob::new("Slurm job 8 step 0".to_owned());
        let mut roster = roster_of(&Plan { launched: Some(here.clone()), ..plan() });
        for hello in [
            Hello { job: theirs.id, ..hello(1) },
            Hello { job: theirs.id, n_ranks: 9, ..hello(8) },
            hello(0),
            hello(1),
        ] {
            let refused = roster.admit(&hello, &at("10.0.0.3:8")).unwrap_err();
            assert_eq!(refused.rejection, Rejection::OtherJob { theirs: "Slurm job 7 step 0".into() });
            assert!(refused.fatal.is_none());
        }
        let older = Hello { job: theirs.id, version: 1, ..hello(1) };
        let refused = roster.admit(&older, &at("10.0.0.3:8")).unwrap_err();
        assert!(
            matches!(&refused.rejection, Rejection::Mismatch { what, .. } if what == "protocol versions")
        );
        assert!(refused.fatal.is_none());
        // A rank of this job that does not fit still ends it.
        let misfit = Hello { job: here.id, n_ranks: 9, ..hello(1) };
        assert!(roster.admit(&misfit, &at("10.0.0.3:8")).unwrap_err().fatal.is_some());
        roster.admit(&Hello { job: here.id, ..hello(1) }, &at("10.0.0.2:7")).unwrap();
    }

    #[test]
    fn the_same_rank_twice_names_both() {
        let mut roster = roster();
        roster.enter(1, entry(), at("10.0.0.2:7"), None).unwrap();
        let refused = roster.admit(&hello(1), &at("10.0.0.3:8")).unwrap_err();
        let message = refused.fatal.unwrap().to_string();
        for part in ["rank 1", "10.0.0.2:7", "10.0.0.3:8", "10.0.0.1:5000"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(roster.admit(&hello(0), &at("10.0.0.3:8")).is_err(), "rank 0 is here");
        assert!(roster.enter(1, entry(), at("10.0.0.4:9"), None).is_err());
    }

    #[test]
    fn two_that_were_let_in_for_one_rank_are_both_named_when_one_says_more() {
        let mut roster = roster();
        roster.admit(&hello(2), &at("10.0.0.2:7")).unwrap();
        assert!(!roster.is_contested());
        roster.admit(&hello(2), &at("10.0.0.3:8")).unwrap();
        assert!(roster.is_contested());
        let error = roster.enter(2, entry(), at("10.0.0.3:8"), Some(&at("10.0.0.2:7"))).unwrap_err();
        let message = error.to_string();
        for part in ["rank 2", "10.0.0.2:7", "10.0.0.3:8", "10.0.0.1:5000"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(roster.missing(), [1, 2], "neither is taken for the rank");
    }

    #[test]
    fn what_must_be_equal_is_compared() {
        for (hello, what) in [
            (Hello { version: 9, ..hello(1) }, "version"),
            (Hello { n_ranks: 4, ..hello(1) }, "n_ranks"),
            (Hello { job: [6; 16], ..hello(1) }, "has one; if this is one job"),
            (hello(3), "rank 3"),
        ] {
            let refused = roster().admit(&hello, &at("10.0.0.3:8")).unwrap_err();
            let message = refused.fatal.unwrap().to_string();
            assert!(message.contains(what) && message.contains("10.0.0.3:8"), "{message}");
        }
        let lost = Hello { to: 4, ..hello(1) };
        assert!(
            roster().admit(&lost, &at("x")).unwrap_err().fatal.is_none(),
            "one that looked for another rank"
        );
    }
}
