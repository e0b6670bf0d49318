//! Jobs whose ranks are processes: children of the test, see [`mscclpp_test_support::child`].

use std::{
    fmt::{Debug, Display},
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use libtest_mimic::Failed;
use mscclpp::prelude::*;
pub(crate) use mscclpp_test_support::child::{hear, say, this_program};
use mscclpp_test_support::{Child, child};

use super::{LIMIT, assert_usable, device_of, platform};

/// The role that a child was started for.
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) rank: usize,
    pub(crate) n_ranks: usize,
}

/// Runs the role of a child; does nothing in the parent.
pub(crate) fn run_if_child(run: impl FnOnce(&Role)) -> Option<ExitCode> {
    let role = child::role()?;
    let [name, rank, n_ranks] = role.as_slice() else { panic!("no role: {role:?}") };
    let number = |text: &String| text.parse().expect("a number");
    let role = Role { name: name.clone(), rank: number(rank), n_ranks: number(n_ranks) };
    mscclpp::log::init().expect("logging");
    run(&role);
    Some(ExitCode::SUCCESS)
}

impl Role {
    /// Forms the job, in a child. Rank 0 makes the unique id, and the parent passes it on.
    pub(crate) fn bootstrap(&self, timeout: Duration) -> mscclpp::Result<TcpBootstrap> {
        let id = if self.rank == 0 {
            let id = TcpBootstrap::create_unique_id()?;
            say(&format!("id {}", id.to_hex()));
            id
        } else {
            let said = hear();
            said.strip_prefix("id ").unwrap_or(&said).parse()?
        };
        say("formed?");
        assert_eq!(hear(), "go");
        Ok(TcpBootstrap::new(self.rank, self.n_ranks, id, timeout)?)
    }

    /// Makes a communicator of the job, in a child.
    pub(crate) fn communicator(&self) -> mscclpp::Result<Communicator> {
        Ok(Communicator::with_context(Arc::new(self.bootstrap(LIMIT)?), Context::on(platform())))
    }

    /// Runs `survive` in a child whose role is `killed-MOMENT-VICTIM`, and returns whether it is such a child. `survive`
    /// gets the moment and the victim, and must end with an error, after which the device is still usable.
    pub(crate) fn was_killed<E: Debug + Display>(
        &self,
        survive: impl FnOnce(&Self, &str, usize) -> Result<(), E>,
    ) -> bool {
        let Some(moment) = self.name.strip_prefix("killed-") else { return false };
        let (moment, victim) = moment.rsplit_once('-').expect("moment and victim");
        let victim: usize = victim.parse().expect("a rank");
        let error = survive(self, moment, victim).expect_err("a job without one of its ranks");
        say(&format!("error {error}"));
        assert_usable(device_of(self.rank));
        say("usable");
        true
    }
}

/// The time in which every rank must have noticed that another was killed: ten times the promised time, for busy
/// machines.
const NOTICE: Duration = Duration::from_secs(50);

/// Runs a role with `n` ranks, each of which must succeed.
pub(crate) fn all_succeed(role: &str, n: usize) -> Result<(), Failed> {
    println!("{n} ranks on {}", platform());
    let mut children = Children::form(role, n);
    (0..n).for_each(|rank| children.expect_success(rank));
    Ok(())
}

/// The processes of a job by rank, as the parent sees them.
pub(crate) struct Children(Vec<Child>);

impl Children {
    /// Starts the ranks, and passes the unique id on. Each then waits for its first `go` before it joins the job.
    pub(crate) fn start(role: &str, n_ranks: usize) -> Self {
        Self::start_as(role, n_ranks, |_| this_program())
    }

    /// Starts the ranks as [`Children::start`] does, each by the command of its rank, which gets more arguments.
    pub(crate) fn start_as(role: &str, n_ranks: usize, command: impl Fn(usize) -> Command) -> Self {
        let start =
            |rank: usize| Child::start_by(command(rank), &[role, &rank.to_string(), &n_ranks.to_string()]);
        let mut children = Self((0..n_ranks).map(start).collect());
        let id = children.next_line(0);
        assert!(id.starts_with("id "), "{id}");
        for rank in 1..n_ranks {
            children.tell(rank, &id);
        }
        for rank in 0..n_ranks {
            children.expect(rank, "formed?");
        }
        children
    }

    /// Starts the ranks and lets all join.
    pub(crate) fn form(role: &str, n_ranks: usize) -> Self {
        let mut children = Self::start(role, n_ranks);
        children.go();
        children
    }

    /// Lets all ranks continue.
    pub(crate) fn go(&mut self) {
        self.0.iter_mut().for_each(|child| child.tell("go"));
    }

    pub(crate) fn tell(&mut self, rank: usize, what: &str) {
        self.0[rank].tell(what);
    }

    /// Returns the next line that a rank prints.
    pub(crate) fn next_line(&self, rank: usize) -> String {
        self.0[rank].next_line()
    }

    pub(crate) fn expect(&self, rank: usize, what: &str) {
        self.0[rank].expect(what);
    }

    /// Kills a rank with SIGKILL.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.0[rank].kill();
    }

    /// Waits until a rank ends, and checks that it prints nothing more and succeeds.
    pub(crate) fn expect_success(&mut self, rank: usize) {
        self.0[rank].expect_success();
    }

    /// Checks that each survivor prints in time which rank was killed `at` that moment, then that its device is usable,
    /// and ends.
    pub(crate) fn expect_named(
        &mut self,
        survivors: &[usize],
        victim: usize,
        at: Instant,
    ) -> Result<(), Failed> {
        for rank in survivors {
            let said = self.next_line(*rank);
            let after = at.elapsed();
            println!("rank {rank} after {after:?}: {said}");
            if !said.starts_with("error ") || !said.contains(&format!("rank {victim}")) {
                return Err(format!("rank {rank} does not name rank {victim}: {said}").into());
            }
            if after > NOTICE {
                return Err(format!("rank {rank} took {after:?}").into());
            }
        }
        for rank in survivors {
            self.expect(*rank, "usable");
            self.expect_success(*rank);
        }
        Ok(())
    }
}
