//! The rank and the job of this process, as its launcher describes them.
//!
//! Everything is a function of a map of variables; only [`Rendezvous::from_env`] reads the process's own.
//!
//! Launchers run inside each other: one task of Slurm for each node starts a torchrun, which starts a rank for each
//! device. The inner one of such a pair counts. They are told apart by the number of processes that they count: two
//! that count equally many must agree on the rank, and everything that the user sets must agree with the launcher.

pub(crate) mod launchers;
mod root_address;
mod store;
mod variables;

use std::ffi::OsString;
use std::time::Duration;

pub use store::LauncherStore;

use crate::error::RANK;
use crate::launch::launchers::{Claim, Launcher};
use crate::launch::root_address::RootAddress;
use crate::launch::variables::{Setting, Variables, agreed};
use crate::{Error, LOG, Result, TcpBootstrap, TcpBootstrapBuilder};

/// The rank and the job of this process, and the address where the ranks meet, as a launcher tells the processes it
/// starts.
///
/// ```no_run
/// use std::time::Duration;
/// # use mscclpp_bootstrap::{Bootstrap, Rendezvous};
///
/// // mpirun -n 8 ..., srun -n 8 ..., torchrun --nproc-per-node 8 ..., or MSCCLPP_RANK=0 MSCCLPP_N_RANKS=8 ...
/// let job = Rendezvous::from_env()?.connect(Duration::from_secs(30))?;
/// job.barrier()?;
/// # Ok::<(), mscclpp_bootstrap::Error>(())
/// ```
///
/// # What is read
// ANCHOR: read
/// | launcher | rank | number of ranks | on this node | id of the job |
/// | --- | --- | --- | --- | --- |
/// | none: you set them yourself | `MSCCLPP_RANK` | `MSCCLPP_N_RANKS` | | `MSCCLPP_JOB_ID` |
/// | torchrun | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | `TORCHELASTIC_RUN_ID`, unless it is `none` |
/// | any other that sets both | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | |
/// | Open MPI's mpirun | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | `PMIX_NAMESPACE` |
/// | PMIx | `PMIX_RANK` | | | `PMIX_NAMESPACE` |
/// | PMI: MPICH's mpiexec and others | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID`, `PMI_LOCAL_RANK` | `PMI_JOBID` |
/// | srun | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS` | `SLURM_LOCALID` | `SLURM_JOB_ID` and `SLURM_STEP_ID` |
/// | Kubernetes' indexed jobs | `JOB_COMPLETION_INDEX` | `MSCCLPP_N_RANKS` | | `JOB_NAME`, or `HOSTNAME` without the index |
///
/// torchrun's row counts only if `TORCHELASTIC_RUN_ID` is set, and srun's only if `SLURM_STEP_ID` is set.
///
// ANCHOR_END: read
// ANCHOR: conflicts
/// If two rows contradict each other, that is an error that names both variables and their values
/// ([`Error::EnvironmentConflict`]), with one exception: a launcher may start another one, as srun may start a torchrun on
/// each node. Then the inner launcher's values are used, and the outer one's are ignored. torchrun always counts as the
/// inner one. If two other launchers give different numbers of ranks, the one whose row comes first in the table counts as
/// the inner one. If they give the same number, or one of them gives none, their ranks must be the same too. Values that
/// you set yourself (the first and the third row) must always agree with the launcher; only `MSCCLPP_JOB_ID` replaces the
/// launcher's id.
// ANCHOR_END: conflicts
///
/// # Where the ranks meet
/// The first of these that is known counts:
///
// ANCHOR: place
/// 1. `MSCCLPP_ADDRESS`: `ip:port` or `host:port`, also with an interface in front.
/// 2. `MASTER_ADDR`, with a port that follows from `MASTER_PORT`. It is not the same port, because the launcher's own store
///    listens there: it is 10000 plus the last four digits, such as 19500 for 29500. For a `MASTER_PORT` from 10000 to 19999
///    it is 20000 plus these digits. Without `MASTER_PORT` it is the port of the job's id.
/// 3. If all ranks are on one node, 127.0.0.1 with the port of the job's id. It is computed from the id, and is from
///    10000 to 29999.
/// 4. If srun started the ranks, the first node of `SLURM_STEP_NODELIST` (else of `SLURM_JOB_NODELIST`), with the
///    port of the job's id.
// ANCHOR_END: place
///
/// # The id of the job
/// The id is part of the handshake: a rank of another job that meets this one at the same address is refused with
/// [`Error::OtherJob`], and this job is not disturbed. The id is not secret; see [`TcpBootstrapBuilder::secret`] for
/// a key. A rank that was given its number and an address without a `Rendezvous` has the same id, unless the launcher
/// has started fewer processes than the job has ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rendezvous {
    /// The number of this rank.
    pub rank: usize,
    /// The number of ranks.
    pub n_ranks: usize,
    /// The address at which rank 0 listens: `ip:port` or `host:port`, perhaps with an interface in front.
    /// `MSCCLPP_COMM_ID` is read as an older name of `MSCCLPP_ADDRESS`.
    pub address: String,
    /// The launcher's id of the job, if it has one.
    pub job: Option<String>,
    /// The number of this rank among those on its node, if the launcher says: a suitable number for its device.
    pub local_rank: Option<usize>,
    /// The launcher's store of keys and values, through which ranks that can use it may share a unique id instead of
    /// meeting at [`address`](Self::address). There is one under torchrun (`TORCHELASTIC_USE_AGENT_STORE` is `True`),
    /// at `MASTER_ADDR` and `MASTER_PORT`. `None` if `MSCCLPP_ADDRESS` is set, which takes precedence.
    pub store: Option<LauncherStore>,
    /// The variable that `address` was read from.
    address_from: Option<&'static str>,
}

impl Rendezvous {
    /// Reads the process's environment. Logs the values that it has read (at level info).
    ///
    /// # Errors
    /// [`Error::NotLaunched`] if no launcher has started this process; [`Error::EnvironmentConflict`],
    /// [`Error::IncompleteEnvironment`], [`Error::BadEnvironment`] and [`Error::BadAddress`], which name the
    /// variables concerned, and what to set.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(std::env::var_os)
    }

    /// Reads variables through a function, for tests and for programs with settings of their own.
    ///
    /// ```
    /// # use mscclpp_bootstrap::Rendezvous;
    ///
    /// let job = Rendezvous::from_lookup(|name| match name {
    ///     "OMPI_COMM_WORLD_RANK" => Some("3".into()),
    ///     "OMPI_COMM_WORLD_SIZE" => Some("8".into()),
    ///     "PMIX_NAMESPACE" => Some("prterun-login-77@1".into()),
    ///     "MSCCLPP_ADDRESS" => Some("10.0.0.1:15505".into()),
    ///     _ => None,
    /// })?;
    /// assert_eq!((job.rank, job.n_ranks, job.address.as_str()), (3, 8, "10.0.0.1:15505"));
    /// assert_eq!(job.job.as_deref(), Some("PMIx namespace prterun-login-77@1"));
    /// # Ok::<(), mscclpp_bootstrap::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`from_env`](Self::from_env).
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let variables = Variables::new(&lookup);
        let by_user: Vec<Claim> = [Launcher::Own, Launcher::Torch]
            .into_iter()
            .filter_map(|launcher| Claim::of(launcher, &variables).transpose())
            .collect::<Result<_>>()?;
        let (inner, outer) = Claim::of_launchers(&variables)?;
        let claims: Vec<Claim> = by_user.into_iter().chain(inner).collect();
        let rank = agreed("ranks", claims.iter().filter_map(|claim| claim.rank.as_ref()))?;
        let n_ranks = agreed("numbers of ranks", claims.iter().filter_map(|claim| claim.n_ranks.as_ref()))?;
        let (rank, n_ranks) = complete(rank, n_ranks)?;

        let job = match variables.text("MSCCLPP_JOB_ID")? {
            Some(id) => Some(id.value),
            None => claims.iter().find_map(|claim| claim.job.clone()),
        };
        let on_one_host = n_ranks == 1 || claims.iter().any(|claim| claim.on_one_host);
        let of_slurm = claims.iter().any(|claim| claim.launcher == Launcher::Slurm);
        let known = root_address::Job { id: job.as_deref(), on_one_host, of_slurm };
        let RootAddress { address, how, variable } = match root_address::find(&variables, &known)? {
            Some(found) => found,
            // A rank alone has nobody to meet.
            None if n_ranks == 1 => RootAddress {
                address: "127.0.0.1:1".to_owned(),
                how: "one rank alone".to_owned(),
                variable: None,
            },
            None => {
                return Err(Error::incomplete(
                    "where rank 0 listens",
                    "MSCCLPP_ADDRESS",
                    &claims_text(&claims),
                ));
            }
        };
        let local_rank = claims.iter().find_map(|claim| claim.local_rank.as_ref()).map(|local| local.value);
        let by_torchrun = claims.iter().any(|claim| claim.launcher == Launcher::Torchrun);
        let store = if by_torchrun { store::of_torchrun(&variables)? } else { None };
        tracing::info!(
            target: LOG, rank, n_ranks, address, how, job, read = claims_text(&claims),
            ignored = claims_text(&outer), "which rank this is, as the environment says"
        );
        Ok(Self { rank, n_ranks, address, job, local_rank, store, address_from: variable })
    }

    /// Returns the settings of this rank, to be followed by [`connect`](TcpBootstrapBuilder::connect) or
    /// [`start`](TcpBootstrapBuilder::start) with [`address`](Self::address).
    pub fn builder(&self) -> TcpBootstrapBuilder {
        let mut builder = TcpBootstrap::builder(self.rank, self.n_ranks);
        if let Some(variable) = self.address_from {
            builder = builder.address_from(&self.address, variable);
        }
        match &self.job {
            Some(job) => builder.job_id(job),
            None => builder,
        }
    }

    /// Joins the job, like [`TcpBootstrap::new`].
    ///
    /// # Errors
    /// The same as [`TcpBootstrap::new`], and [`Error::OtherJob`] if rank 0 at the address belongs to another job.
    /// Errors about the address name the variable that it was read from.
    pub fn connect(&self, timeout: Duration) -> Result<TcpBootstrap> {
        self.builder().timeout(timeout).connect(&self.address)
    }
}

fn complete(rank: Option<Setting<usize>>, n_ranks: Option<Setting<usize>>) -> Result<(usize, usize)> {
    match (rank, n_ranks) {
        (_, Some(Setting { name, value: 0 })) => {
            Err(Error::BadEnvironment { variable: name, value: "0".to_owned(), allowed: "a number from 1" })
        }
        (Some(rank), Some(n_ranks)) if rank.value < n_ranks.value => Ok((rank.value, n_ranks.value)),
        (Some(rank), Some(n_ranks)) => {
            Err(Error::InvalidArgument(format!("{rank} is no rank of {n_ranks}: ranks are counted from 0")))
        }
        (Some(rank), None) => {
            Err(Error::incomplete("how many ranks there are", "MSCCLPP_N_RANKS", &rank.to_string()))
        }
        (None, Some(n_ranks)) => Err(Error::incomplete("which rank this is", RANK, &n_ranks.to_string())),
        (None, None) => Err(Error::NotLaunched),
    }
}

fn claims_text(claims: &[Claim]) -> String {
    claims.iter().flat_map(Claim::settings).collect::<Vec<_>>().join(", ")
}
