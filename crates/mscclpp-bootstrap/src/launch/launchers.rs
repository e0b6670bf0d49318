//! The launchers that this crate knows, and the variables that each sets.

use std::ffi::OsString;

use crate::Result;
use crate::launch::variables::{Setting, Variables};

/// A program that starts processes and tells each its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// The user, by variables of this library.
    Own,
    /// A program that sets `RANK` and `WORLD_SIZE` in the way of PyTorch, but is not torchrun.
    Torch,
    /// torchrun, which sets a variable of its own too.
    Torchrun,
    OpenMpi,
    Pmix,
    Pmi,
    Slurm,
    Kubernetes,
}

/// The launchers from the inside to the outside: each may be started by those behind it.
const NESTING: [Launcher; 6] = [
    Launcher::Torchrun,
    Launcher::OpenMpi,
    Launcher::Pmix,
    Launcher::Pmi,
    Launcher::Slurm,
    Launcher::Kubernetes,
];

/// The values that a launcher gives.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) launcher: Launcher,
    pub(crate) rank: Option<Setting<usize>>,
    pub(crate) n_ranks: Option<Setting<usize>>,
    pub(crate) local_rank: Option<Setting<usize>>,
    /// Whether all ranks are on one node, as far as the launcher says.
    pub(crate) on_one_host: bool,
    pub(crate) job: Option<String>,
}

impl Claim {
    /// Reads the values of `launcher`. Returns `None` if it has not started this process.
    pub(crate) fn of(launcher: Launcher, variables: &Variables<'_>) -> Result<Option<Self>> {
        let names = launcher.names();
        let rank = variables.first_number(names.rank)?;
        let n_ranks = variables.first_number(names.n_ranks)?;
        if !launcher.is_there(variables, rank.is_some(), n_ranks.is_some())? {
            return Ok(None);
        }
        let here = variables.first_number(names.ranks_here)?;
        let hosts = variables.first_number(names.hosts)?;
        let all_here = here.zip(n_ranks.as_ref()).is_some_and(|(here, all)| here.value == all.value);
        Ok(Some(Self {
            launcher,
            local_rank: variables.first_number(names.local_rank)?,
            on_one_host: all_here || hosts.is_some_and(|hosts| hosts.value == 1),
            job: launcher.job(variables, rank.as_ref())?,
            rank,
            n_ranks,
        }))
    }

    /// Returns the claims of the launchers that are present, from the inside to the outside. The second list has the
    /// claims of those that only started another launcher.
    pub(crate) fn of_launchers(variables: &Variables<'_>) -> Result<(Vec<Self>, Vec<Self>)> {
        let all = NESTING.iter().filter_map(|launcher| Self::of(*launcher, variables).transpose());
        let all: Vec<Self> = all.collect::<Result<_>>()?;
        let innermost = all.first().cloned();
        Ok(all.into_iter().partition(|claim| {
            innermost.as_ref().is_none_or(|it| it.launcher == claim.launcher || !it.ran_inside(claim))
        }))
    }

    /// Returns whether `outer`, which comes later in the nesting, has started this claim's launcher and counts
    /// processes in a different way. An example is one task of Slurm for each node, in which torchrun starts a rank
    /// for each device.
    fn ran_inside(&self, outer: &Self) -> bool {
        if self.launcher == Launcher::Torchrun {
            return true;
        }
        // Open MPI and PMIx are two sets of variables of one launcher.
        let one = [Launcher::OpenMpi, Launcher::Pmix];
        if one.contains(&self.launcher) && one.contains(&outer.launcher) {
            return false;
        }
        match (&self.n_ranks, &outer.n_ranks) {
            (Some(ours), Some(theirs)) => ours.value != theirs.value,
            _ => false,
        }
    }

    /// Returns the variables of the claim, for the log.
    pub(crate) fn settings(&self) -> Vec<String> {
        [&self.rank, &self.n_ranks, &self.local_rank].into_iter().flatten().map(ToString::to_string).collect()
    }
}

/// The names of a launcher's variables. If several can hold one value, the first that is set counts.
#[derive(Default)]
struct Names {
    rank: &'static [&'static str],
    n_ranks: &'static [&'static str],
    local_rank: &'static [&'static str],
    ranks_here: &'static [&'static str],
    hosts: &'static [&'static str],
}

impl Launcher {
    fn names(self) -> Names {
        match self {
            Self::Own => Names { rank: &["MSCCLPP_RANK"], n_ranks: &["MSCCLPP_N_RANKS"], ..Names::default() },
            Self::Torch | Self::Torchrun => Names {
                rank: &["RANK"],
                n_ranks: &["WORLD_SIZE"],
                local_rank: &["LOCAL_RANK"],
                ranks_here: &["LOCAL_WORLD_SIZE"],
                ..Names::default()
            },
            Self::OpenMpi => Names {
                rank: &["OMPI_COMM_WORLD_RANK"],
                n_ranks: &["OMPI_COMM_WORLD_SIZE"],
                local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
                ranks_here: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
                ..Names::default()
            },
            Self::Pmix => Names { rank: &["PMIX_RANK"], ..Names::default() },
            Self::Pmi => Names {
                rank: &["PMI_RANK"],
                n_ranks: &["PMI_SIZE"],
                local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
                ranks_here: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
                ..Names::default()
            },
            Self::Slurm => Names {
                rank: &["SLURM_PROCID"],
                n_ranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
                local_rank: &["SLURM_LOCALID"],
                hosts: &["SLURM_STEP_NUM_NODES"],
                ..Names::default()
            },
            Self::Kubernetes => Names { rank: &["JOB_COMPLETION_INDEX"], ..Names::default() },
        }
    }

    /// Returns whether the launcher has started this process.
    fn is_there(self, variables: &Variables<'_>, rank: bool, n_ranks: bool) -> Result<bool> {
        let by_torchrun = || variables.text("TORCHELASTIC_RUN_ID").map(|id| id.is_some());
        Ok(match self {
            Self::Own => rank || n_ranks,
            // The names are so common that one alone may mean anything.
            Self::Torch => rank && n_ranks && !by_torchrun()?,
            Self::Torchrun => by_torchrun()?,
            // The shell of a job has numbers of Slurm too, but none of a step.
            Self::Slurm => rank && slurm_step(variables)?.is_some(),
            Self::OpenMpi | Self::Pmix | Self::Pmi | Self::Kubernetes => rank,
        })
    }

    fn job(self, variables: &Variables<'_>, rank: Option<&Setting<usize>>) -> Result<Option<String>> {
        let text = |name| Ok::<_, crate::Error>(variables.text(name)?.map(|setting| setting.value));
        Ok(match self {
            Self::Own => text("MSCCLPP_JOB_ID")?,
            Self::Torch => None,
            // torchrun sets this value when it was given no id.
            Self::Torchrun => {
                text("TORCHELASTIC_RUN_ID")?.filter(|id| id != "none").map(|id| format!("torchrun run {id}"))
            }
            Self::OpenMpi | Self::Pmix => {
                text("PMIX_NAMESPACE")?.map(|name| format!("PMIx namespace {name}"))
            }
            Self::Pmi => text("PMI_JOBID")?.map(|id| format!("PMI job {id}")),
            Self::Slurm => match (text("SLURM_JOB_ID")?, slurm_step(variables)?) {
                (Some(job), Some(step)) => Some(format!("Slurm job {job} step {step}")),
                _ => None,
            },
            Self::Kubernetes => {
                let name = match text("JOB_NAME")? {
                    Some(name) => Some(name),
                    // The name of a pod of an indexed job consists of the job's name and its index.
                    None => text("HOSTNAME")?.zip(rank).and_then(|(host, rank)| {
                        host.strip_suffix(&format!("-{}", rank.value)).map(str::to_owned)
                    }),
                };
                name.map(|name| format!("Kubernetes job {name}"))
            }
        })
    }
}

/// Returns the step of a Slurm job that started this process. Returns `None` in the shell of a batch job or an
/// allocation, whose steps have numbers from the end of the 32 bits.
fn slurm_step(variables: &Variables<'_>) -> Result<Option<usize>> {
    let step = variables.first_number(&["SLURM_STEP_ID", "SLURM_STEPID"])?;
    Ok(step.map(|step| step.value).filter(|step| *step < 0xffff_fff0))
}

/// Returns the id of the job of a rank that was given its number and the address in another way: `MSCCLPP_JOB_ID`, or
/// its launcher's id. A launcher that has started fewer processes than the job has ranks has not started the job.
pub(crate) fn job_id(
    lookup: impl Fn(&'static str) -> Option<OsString>,
    n_ranks: usize,
) -> Result<Option<String>> {
    let variables = Variables::new(&lookup);
    if let Some(id) = variables.text("MSCCLPP_JOB_ID")? {
        return Ok(Some(id.value));
    }
    // The launcher's rank is not used here, so an unreadable one is left for `Rendezvous` to report.
    let Ok((inner, _)) = Claim::of_launchers(&variables) else { return Ok(None) };
    let started_all = inner.iter().flat_map(|claim| &claim.n_ranks).all(|it| it.value >= n_ranks);
    Ok(if started_all { inner.into_iter().find_map(|claim| claim.job) } else { None })
}
