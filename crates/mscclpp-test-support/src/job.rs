//! Jobs whose ranks are processes: children of the test, see [`child`].

use std::{
    fmt::{Debug, Display},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use libtest_mimic::Failed;

use crate::child::{self, Child, hear, say, this_program};

/// The role that a child was started for.
pub struct Role {
    /// The name of the role, which says what the child does.
    pub name: String,
    /// The child's rank.
    pub rank: usize,
    /// The number of ranks.
    pub n_ranks: usize,
}

/// Runs the role of a child; does nothing in the parent.
pub fn run_if_child(run: impl FnOnce(&Role)) -> Option<ExitCode> {
    let role = child::role()?;
    let [name, rank, n_ranks] = role.as_slice() else { panic!("no role: {role:?}") };
    let number = |text: &String| text.parse().expect("a number");
    run(&Role { name: name.clone(), rank: number(rank), n_ranks: number(n_ranks) });
    Some(ExitCode::SUCCESS)
}

impl Role {
    /// Returns the module that plays this role, and the role there, whose name is `MODULE ROLE` for the program.
    ///
    /// # Panics
    /// Panics if the name has no module.
    pub fn of_module(&self) -> (&str, Self) {
        let (module, name) = self.name.split_once(' ').expect("a module and a role");
        (module, Self { name: name.to_owned(), ..*self })
    }

    /// Returns the job's unique id, in a child, when the parent lets all join. Rank 0 makes the id, and the parent passes it on.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn unique_id<E>(&self, make: impl FnOnce() -> Result<String, E>) -> Result<String, E> {
        let id = if self.rank == 0 {
            let id = make()?;
            say(&format!("id {id}"));
            id
        } else {
            let said = hear();
            said.strip_prefix("id ").unwrap_or(&said).to_owned()
        };
        say("formed?");
        assert_eq!(hear(), "go");
        Ok(id)
    }

    /// Runs `survive` in a child whose role is `killed-MOMENT-VICTIM`, and returns whether it is such a child. `survive`
    /// gets the moment and the victim, and must end with an error, after which `check` is called.
    pub fn was_killed<E: Debug + Display>(
        &self,
        survive: impl FnOnce(&Self, &str, usize) -> Result<(), E>,
        check: impl FnOnce(),
    ) -> bool {
        let Some(moment) = self.name.strip_prefix("killed-") else { return false };
        let (moment, victim) = moment.rsplit_once('-').expect("moment and victim");
        let victim: usize = victim.parse().expect("a rank");
        let error = survive(self, moment, victim).expect_err("a job without one of its ranks");
        say(&format!("error {error}"));
        check();
        say("usable");
        true
    }
}

/// The time in which every rank must have noticed that another was killed: ten times the promised time, for busy
/// machines.
const NOTICE: Duration = Duration::from_secs(50);

/// Runs a role with `n` ranks, each of which must succeed.
///
/// # Errors
/// None: it panics if a rank does not succeed.
pub fn all_succeed(role: &str, n: usize) -> Result<(), Failed> {
    let mut children = Children::form(role, n);
    (0..n).for_each(|rank| children.expect_success(rank));
    Ok(())
}

/// The processes of a job by rank, as the parent sees them.
pub struct Children(Vec<Child>);

impl Children {
    /// Starts the ranks, and passes the unique id on. Each then waits for its first `go` before it joins the job.
    pub fn start(role: &str, n_ranks: usize) -> Self {
        Self::start_as(role, n_ranks, |_| this_program())
    }

    /// Starts the ranks as [`Children::start`] does, each by the command of its rank, which gets more arguments.
    pub fn start_as(role: &str, n_ranks: usize, command: impl Fn(usize) -> Command) -> Self {
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
    pub fn form(role: &str, n_ranks: usize) -> Self {
        let mut children = Self::start(role, n_ranks);
        children.go();
        children
    }

    /// Lets all ranks continue.
    pub fn go(&mut self) {
        self.0.iter_mut().for_each(|child| child.tell("go"));
    }

    /// Sends a rank a message.
    pub fn tell(&mut self, rank: usize, what: &str) {
        self.0[rank].tell(what);
    }

    /// Returns the next line that a rank prints.
    pub fn next_line(&self, rank: usize) -> String {
        self.0[rank].next_line()
    }

    /// Waits for the next line that a rank prints, and checks it.
    pub fn expect(&self, rank: usize, what: &str) {
        self.0[rank].expect(what);
    }

    /// Kills a rank with SIGKILL.
    pub fn kill(&mut self, rank: usize) {
        self.0[rank].kill();
    }

    /// Waits until a rank ends, and checks that it prints nothing more and succeeds.
    pub fn expect_success(&mut self, rank: usize) {
        self.0[rank].expect_success();
    }

    /// Checks that each survivor prints in time which rank was killed `at` that moment, then that its device is usable,
    /// and ends.
    ///
    /// # Errors
    /// A survivor that names no or another rank, or is late.
    pub fn expect_named(&mut self, survivors: &[usize], victim: usize, at: Instant) -> Result<(), Failed> {
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
