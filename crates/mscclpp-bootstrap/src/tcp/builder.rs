//! The settings of a rank, and its start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclpp_net::interface;
use mscclpp_net::{SystemCall, random};
use mscclpp_os::waiting::FIRST_LOG;

use crate::address::Address;
use crate::env::{Env, INTERFACE};
use crate::host;
use crate::inbox::Inbox;
use crate::job::{Formation, Job, Join, Limits, Plan};
use crate::launch::launchers;
use crate::member::Member;
use crate::protocol::handshake::JobKey;
use crate::protocol::hello::LaunchedJob;
use crate::protocol::table::{Entry, Place};
use crate::tcp::bootstrap::TcpBootstrap;
use crate::tcp::forming::Forming;
use crate::tcp::handle::ReactorHandle;
use crate::tcp::listening::{self, Places};
use crate::tcp::published;
use crate::tcp::reactor::Reactor;
use crate::tcp::socket::Listener;
use crate::{Error, Family, LOG, Result, UniqueId};

/// The way in which a rank finds rank 0: by unique id or by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeetingPlace {
    /// The id that one process created, usually that of rank 0.
    Id(UniqueId),
    /// The address at which rank 0 is to listen.
    Address(String),
}

impl From<&UniqueId> for MeetingPlace {
    fn from(id: &UniqueId) -> Self {
        Self::Id(*id)
    }
}

impl From<UniqueId> for MeetingPlace {
    fn from(id: UniqueId) -> Self {
        Self::Id(id)
    }
}

impl From<&str> for MeetingPlace {
    fn from(address: &str) -> Self {
        Self::Address(address.to_owned())
    }
}

impl From<String> for MeetingPlace {
    fn from(address: String) -> Self {
        Self::Address(address)
    }
}

impl From<&String> for MeetingPlace {
    fn from(address: &String) -> Self {
        Self::Address(address.clone())
    }
}

/// The settings of a [`TcpBootstrap`]. Settings that are not given come from the environment ([`Env`]), or have a
/// default.
///
/// ```no_run
/// use std::time::Duration;
/// # use mscclpp_bootstrap::TcpBootstrap;
///
/// let bootstrap = TcpBootstrap::builder(1, 4)
///     .timeout(Duration::from_secs(60))
///     .secret("correct horse battery staple")
///     .connect("eth0:10.0.0.1:15505")?;
/// # Ok::<(), mscclpp_bootstrap::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TcpBootstrapBuilder {
    rank: usize,
    n_ranks: usize,
    timeout: Duration,
    env: Option<Env>,
    given: Env,
    ipc_domain: Option<String>,
    log_after: Duration,
    limits: Limits,
    job_id: Option<String>,
    /// The last generation that this rank was in, for a job whose ranks may be replaced.
    last_generation: Option<u64>,
    /// An address, and the environment variable that it was read from.
    address_from: Option<(String, &'static str)>,
}

impl TcpBootstrapBuilder {
    pub(crate) fn new(rank: usize, n_ranks: usize) -> Self {
        Self {
            rank,
            n_ranks,
            timeout: Duration::from_secs(30),
            env: None,
            given: Env::default(),
            ipc_domain: None,
            log_after: FIRST_LOG,
            limits: Limits::default(),
            job_id: None,
            last_generation: None,
            address_from: None,
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn after_generation(mut self, last: u64) -> Self {
        self.last_generation = Some(last);
        self
    }

    /// Sets the time that joining the job may take, from [`connect`](Self::connect) or [`start`](Self::start) on; and
    /// later, that the opening of one connection may take. 30 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets a text that all ranks of a job share, and by which they recognise each other, if the job meets at an
    /// address. It replaces `MSCCLPP_BOOTSTRAP_SECRET`. Somebody who can read the handshake can try guesses, so make
    /// it long and random; it has 1 to 1024 bytes. A unique id has a key of its own, and does not use this.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.given.secret = Some(secret.into());
        self
    }

    /// Sets the launcher's id of the job, which all its ranks share and no other job has. A rank of another job that
    /// comes to the same address is then refused with [`Error::OtherJob`], and this job is not disturbed. The id is
    /// not secret, and no protection against intent. It has 1 to 512 bytes. A unique id names its job by itself, and
    /// does not use this.
    ///
    /// If not set, the id is `MSCCLPP_JOB_ID`, or else the launcher's id, as described for
    /// [`Rendezvous`](crate::Rendezvous); with [`env`](Self::env) there is none.
    pub fn job_id(mut self, id: impl Into<String>) -> Self {
        self.job_id = Some(id.into());
        self
    }

    /// Sets the identity of the node: two ranks with the same value count as being on one node. It replaces
    /// `MSCCLPP_HOSTID`.
    pub fn host_id(mut self, id: impl Into<String>) -> Self {
        self.given.host_id = Some(id.into());
        self
    }

    /// Sets the IPC domain: the devices of two ranks with the same value reach each other's memory. A domain can be
    /// more than one node. If not set, the domain is the node.
    pub fn ipc_domain(mut self, id: impl Into<String>) -> Self {
        self.ipc_domain = Some(id.into());
        self
    }

    /// Sets the one network interface to use, in place of `MSCCLPP_SOCKET_IFNAME`. An interface in the address takes
    /// precedence.
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.given.interface = Some(name.into());
        self
    }

    /// Sets the one IP version to use, in place of `MSCCLPP_SOCKET_FAMILY`.
    pub fn family(mut self, family: Family) -> Self {
        self.given.family = Some(family);
        self
    }

    /// Sets the time after which a waiting call of this rank is first logged: ten seconds if not set,
    /// [`Duration::MAX`] for never. See [`Bootstrap`](crate::Bootstrap).
    pub fn log_waits_after(mut self, first: Duration) -> Self {
        self.log_after = first;
        self
    }

    /// Sets the limits of waits. Tests set them.
    #[doc(hidden)]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Notes that `address` was read from `variable` of the environment, which errors about it then name.
    pub(crate) fn address_from(mut self, address: &str, variable: &'static str) -> Self {
        self.address_from = Some((address.to_owned(), variable));
        self
    }

    /// Takes settings that are not given from `env`, and not from the process's environment.
    pub fn env(mut self, env: Env) -> Self {
        self.env = Some(env);
        self
    }

    /// Joins the job, like [`TcpBootstrap::new`].
    pub fn connect(self, at: impl Into<MeetingPlace>) -> Result<TcpBootstrap> {
        self.start(at)?.wait()
    }

    /// Begins to join the job, like [`TcpBootstrap::start`].
    pub fn start(self, at: impl Into<MeetingPlace>) -> Result<Forming> {
        let started = Instant::now();
        let (rank, n_ranks) = (self.rank, self.n_ranks);
        if !(1..=MAX_RANKS).contains(&n_ranks) {
            return Err(Error::InvalidArgument(format!("n_ranks is {n_ranks}; allowed: 1 to {MAX_RANKS}")));
        }
        if rank >= n_ranks {
            let what = format!(
                "rank is {rank}; the ranks of a job of {n_ranks} are numbered from 0 to {}",
                n_ranks - 1
            );
            return Err(Error::InvalidArgument(what));
        }
        let log_after = self.log_after;
        if let Some(id) = self.job_id.as_ref().filter(|id| !(1..=512).contains(&id.len())) {
            let what = format!("the job's id has {} bytes; allowed: 1 to 512", id.len());
            return Err(Error::InvalidArgument(what));
        }
        if let Some(secret) = self.given.secret.as_ref().filter(|text| !(1..=1024).contains(&text.len())) {
            let what = format!("the secret has {} bytes; allowed: 1 to 1024", secret.len());
            return Err(Error::InvalidArgument(what));
        }
        let at = ParsedPlace::parse(at.into(), self.address_from.as_ref())?;
        let settings = self.resolve(&at, started)?;
        let inbox = Arc::new(Inbox::default());
        let handle = Arc::new(ReactorHandle::new(Arc::clone(&inbox))?);
        let mut bootstrap = TcpBootstrap {
            member: Member::new(rank, n_ranks, inbox),
            handle: Arc::clone(&handle),
            thread: None,
            timeout: settings.plan.timeout,
        };
        bootstrap.member.log_after = log_after;
        if n_ranks == 1 {
            bootstrap.handle.set_formed(Arc::new(settings.formation.table_of_one()));
            return Ok(Forming::alone(bootstrap));
        }
        let deadline = settings.plan.deadline;
        let job = Job::new(settings.plan, settings.formation, Instant::now());
        let reactor = Reactor::new(rank, job, handle, settings.listener, settings.places)?;
        Forming::begin(bootstrap, reactor, deadline)
    }

    /// Resolves everything that can be known before there is a thread. Wrong arguments and a wrong environment are
    /// found here.
    fn resolve(self, at: &ParsedPlace, started: Instant) -> Result<Settings> {
        let by_address = matches!(at, ParsedPlace::Address(_));
        let job_id = match self.job_id {
            None if by_address && self.env.is_none() => launchers::job_id(std::env::var_os, self.n_ranks)?,
            given => given,
        };
        let env = match self.env {
            Some(env) => env,
            None => Env::read()?,
        };
        let family = self.given.family.or(env.family);
        let secret = self.given.secret.or(env.secret);
        let host_id = self.given.host_id.or(env.host_id);
        let given = self.given.interface.map(|name| (name, None));
        let of_env = env.interface.map(|name| (name, Some(INTERFACE)));
        let (interface, variable) = at.interface().or(given).or(of_env).unzip();

        let interfaces = interface::list()?;
        let own = interface::candidates(&interfaces, interface.as_deref(), family)
            .map_err(|error| Error::no_such_interface(error, variable.flatten()))?;
        if own.is_empty() && self.n_ranks > 1 {
            return Err(Error::NoNetwork);
        }
        let (key, job, candidates) = match at {
            ParsedPlace::Id(id) => (JobKey::of_unique_id(id.key()), Some(id.job()), id.addresses()),
            ParsedPlace::Address(address) => {
                let key = secret.as_deref().map_or_else(JobKey::none, JobKey::of_secret);
                (key, None, address.resolve(family, self.timeout)?)
            }
        };
        if self.n_ranks > 1 && !key.secret && candidates.iter().any(|a| !a.ip().is_loopback()) {
            tracing::warn!(
                target: LOG,
                rank = self.rank,
                "this job has no key: anybody who can reach it can join it; set MSCCLPP_BOOTSTRAP_SECRET, or use a \
                 unique id"
            );
        }
        let mut plan = Plan {
            job,
            by_address,
            last_generation: self.last_generation,
            log_after: self.log_after,
            limits: self.limits,
            launched: job_id.filter(|_| by_address).map(LaunchedJob::new),
            ..Plan::new(self.rank, self.n_ranks, key, started, self.timeout)
        };
        let host = match &host_id {
            Some(id) => host::named("host", id),
            None => host::detected()?,
        };
        let domain = self.ipc_domain.as_deref().map_or(host, |id| host::named("domain", id));

        let member = |plan, candidates| {
            let listen_at = if interface.is_some() { own.clone() } else { Vec::new() };
            let formation = Formation::of_member(Join { candidates, listened: !by_address, host, domain });
            let places = Places { listen_at, others: own.clone() };
            Settings { plan, listener: None, formation, places }
        };
        if self.rank > 0 {
            return Ok(member(plan, candidates));
        }
        // Another process may be rank 0 of this job too, and wait for the rank that this one should have been.
        let second = |plan, place, error| {
            let formation = Formation::of_second_root(place, error);
            Ok(Settings { plan, listener: None, formation, places: Places::default() })
        };
        let listener = match at {
            ParsedPlace::Id(id) => match published::take(id) {
                Some(listener) => Some(listener),
                // There is no other rank to meet, even if another process made the id.
                None if self.n_ranks == 1 => None,
                None => return Ok(member(plan, candidates)),
            },
            // A job of one rank needs no port.
            ParsedPlace::Address(_) if self.n_ranks == 1 => None,
            ParsedPlace::Address(address) => match listening::at_address(address, &candidates, &interfaces) {
                Err(Error::AddressInUse { address }) => {
                    return second(plan, address, Error::AddressInUse { address });
                }
                listener => Some(Arc::new(listener?)),
            },
        };
        let local = listener.as_ref().map(|listener| listener.local_addr()).transpose();
        let local = local.during("asking for a socket's address")?;
        let (port, addresses) = match local {
            None => (0, Vec::new()),
            Some(local) if local.ip().is_unspecified() => (local.port(), own.clone()),
            Some(local) => (local.port(), vec![local.ip()]),
        };
        if plan.job.is_none() {
            plan.job = Some(random()?);
        }
        let shown = candidates.first().map_or_else(String::new, ToString::to_string);
        let root = Entry { host, domain, place: Place { port, addresses } };
        let formation = Formation::of_root(&plan, shown, root);
        Ok(Settings { plan, listener, formation, places: Places::default() })
    }
}

/// The largest number of ranks. A larger one is taken for a mistake.
const MAX_RANKS: usize = 1 << 20;

/// A [`MeetingPlace`] whose text was parsed.
enum ParsedPlace {
    Id(UniqueId),
    Address(Address),
}

impl ParsedPlace {
    /// Parses a place. `known` is an address, and the environment variable that holds it.
    fn parse(at: MeetingPlace, known: Option<&(String, &'static str)>) -> Result<Self> {
        Ok(match at {
            MeetingPlace::Id(id) => Self::Id(id),
            MeetingPlace::Address(text) => {
                let variable = known.filter(|(address, _)| *address == text).map(|(_, variable)| *variable);
                Self::Address(Address::parse(&text, variable)?)
            }
        })
    }

    /// Returns the interface that is part of the address, and the environment variable that holds both.
    fn interface(&self) -> Option<(String, Option<&'static str>)> {
        match self {
            Self::Id(_) => None,
            Self::Address(address) => Some((address.interface.clone()?, address.variable)),
        }
    }
}

struct Settings {
    plan: Plan,
    listener: Option<Arc<Listener>>,
    formation: Formation,
    places: Places,
}
