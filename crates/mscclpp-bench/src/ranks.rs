//! Processes: this one is rank 0, and starts itself again as each other rank. Or each is started by hand, possibly on several
//! nodes. Most workloads have two ranks; collectives can have more, or only one.

use std::{
    env,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::CommandFactory;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Arguments, call,
    data::{fresh_seed, random_bytes},
    help,
    prelude::*,
    watchdog::ended,
};

const INIT: Duration = Duration::from_secs(60);
/// The time limit for joining if ranks are started by hand, one after the other.
const INIT_BY_HAND: Duration = Duration::from_secs(600);
/// The time in which the other ranks may end by themselves.
const GRACE: Duration = Duration::from_secs(10);
/// The most characters of a call that are shown.
const SHOWN: usize = 1000;

/// The options for joining the ranks.
#[derive(Args)]
pub(crate) struct Joining {
    /// Be this rank, counted from 0, and start no other rank. Start the others yourself, on this node or others, with the
    /// same workload, options and --address. Rank 0 prints the results.
    #[arg(long, requires = "address")]
    rank: Option<u8>,
    /// The address at which the ranks meet: address and port of rank 0, with the interface in front if needed.
    /// MSCCLPP_BOOTSTRAP_SECRET keeps strangers out.
    #[arg(long, requires = "rank", value_name = "[INTERFACE:]HOST:PORT")]
    address: Option<String>,
    /// With --rank, the device number of this rank [default: 0].
    #[arg(long, requires = "rank", value_name = "GPU")]
    pub(crate) gpu: Option<usize>,
    /// Marks a process that rank 0 has started as this rank.
    #[arg(long, hide = true, conflicts_with = "rank")]
    peer: Option<u8>,
}

impl Joining {
    pub(crate) fn rank(&self) -> usize {
        self.rank.or(self.peer).map_or(0, usize::from)
    }

    /// Whether this rank reports the results.
    pub(crate) fn reports(&self) -> bool {
        self.rank() == 0
    }

    /// Whether each rank was started by hand.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.rank.is_some()
    }
}

/// One rank of several, or the only one.
pub(crate) struct Ranks {
    pub(crate) comm: Communicator,
    /// The rank of this process.
    pub(crate) rank: usize,
    /// The address at which ranks that were started by hand have met.
    address: Option<String>,
    _others: Others,
}

impl Ranks {
    /// Joins `count` ranks: starts the others, with this process's arguments, or joins as one of them; or meets the others,
    /// which were started by hand.
    pub(crate) fn join(count: usize, context: Context, joining: &Joining) -> Result<Self> {
        let rank = joining.rank();
        if count == 1 && joining.is_by_hand() {
            return Err("a single rank has nobody to meet: leave out --rank and --address".into());
        }
        if rank >= count {
            return Err(format!("there is no rank {rank} of {count}: --rank counts from 0").into());
        }
        if let Some(address) = joining.address.clone() {
            let bootstrap = TcpBootstrap::new(rank, count, address.as_str(), INIT_BY_HAND)?;
            let comm = Communicator::with_context(Arc::new(bootstrap), context);
            let ranks = Self { comm, rank, address: Some(address), _others: Others::default() };
            let program = help::complete(Arguments::command());
            ranks.require_same_call(&call::text(&program, &program.clone().get_matches()))?;
            return Ok(ranks);
        }
        let (id, mut others) = match joining.peer {
            Some(_) => {
                // Rank 0 may be killed while this process waits, in a kernel, for what it would have sent.
                set_parent_process_death_signal(Some(Signal::KILL))?;
                (read_id()?, Others::default())
            }
            None => start_others(context.platform()?, count)?,
        };
        let bootstrap = others.meanwhile(move || TcpBootstrap::new(rank, count, id, INIT))??;
        let comm = Communicator::with_context(Arc::new(bootstrap), context);
        Ok(Self { comm, rank, address: None, _others: others })
    }

    /// Fails if the ranks have different workloads or options, because they would wait for each other until the time limit.
    fn require_same_call(&self, mine: &str) -> Result<()> {
        let all = self.say(&mine.to_owned())?;
        let Some((other, theirs)) = all.iter().enumerate().find(|(_, call)| *call != mine) else {
            return Ok(());
        };
        let shown = |call: &str| call.chars().take(SHOWN).collect::<String>();
        Err(format!(
            "rank {other} was started with {:?}, this rank with {:?}: start all with the same workload and options",
            shown(theirs),
            shown(mine)
        )
        .into())
    }

    /// An address of rank 0 for a plain socket: on this node, unless the ranks were started by hand.
    pub(crate) fn address_of_rank_0(&self, port: u16) -> Result<SocketAddr> {
        let Some(address) = &self.address else { return Ok((Ipv4Addr::LOCALHOST, port).into()) };
        let resolve = |text: &str| text.to_socket_addrs().ok().and_then(|mut all| all.next());
        // The address may have an interface in front.
        let found = resolve(address).or_else(|| resolve(address.split_once(':')?.1));
        let mut found = found.ok_or_else(|| format!("{address} has no address for the plain socket"))?;
        // The scope of a link-local address stays.
        found.set_port(port);
        Ok(found)
    }

    /// The way of messages over a network, as text for a note.
    pub(crate) fn way(&self) -> &'static str {
        match self.address {
            None => "on one node, through the loopback device",
            Some(_) => "by the network between the ranks, which were started by hand",
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.comm.bootstrap().n_ranks()
    }

    /// Exchanges values: returns each rank's, in the order of ranks. Waits for all ranks.
    pub(crate) fn say<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let all = self.comm.bootstrap().all_gather(&serde_json::to_vec(mine)?)?;
        Ok(all.iter().map(|said| serde_json::from_slice(said)).collect::<Result<_, _>>()?)
    }

    /// Exchanges values with the other rank, and returns that rank's.
    pub(crate) fn swap<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<T> {
        Ok(self.say(mine)?.swap_remove(self.other()))
    }

    pub(crate) fn other(&self) -> usize {
        1 - self.rank
    }

    pub(crate) fn connect(&self, config: EndpointConfig) -> Result<Connection> {
        Ok(self.comm.connect(config, self.other(), 0)?.wait()?)
    }

    /// Exchanges memories with the other rank, and returns that rank's.
    pub(crate) fn share(&self, mine: &RegisteredMemory) -> Result<RegisteredMemory> {
        self.comm.send_memory(mine, self.other(), 0)?;
        Ok(self.comm.recv_memory(self.other(), 0)?.wait()?)
    }

    /// The random messages of all ranks, of `bytes` bytes each, in the order of ranks.
    pub(crate) fn random_bytes_of_each(&self, bytes: u64) -> Result<Vec<Vec<u8>>> {
        let seeds = self.say(&fresh_seed())?;
        Ok(seeds.into_iter().map(|seed| random_bytes(seed, bytes as usize)).collect())
    }

    /// A random seed, which is the same on all ranks.
    pub(crate) fn seed_of_rank_0(&self) -> Result<u64> {
        Ok(self.say(&fresh_seed())?.swap_remove(0))
    }

    /// Whether `yes` is true on all ranks. Waits for all ranks.
    pub(crate) fn all(&self, yes: bool) -> Result<bool> {
        Ok(self.say(&yes)?.into_iter().all(|yes| yes))
    }

    /// Waits until all ranks have called this.
    pub(crate) fn meet(&self) -> Result<()> {
        Ok(self.comm.bootstrap().barrier()?)
    }
}

/// The processes that this one has started, with their ranks. Dropping this waits for them.
#[derive(Default)]
struct Others(Vec<(usize, Child)>);

fn start_others(platform: Platform, count: usize) -> Result<(UniqueId, Others)> {
    let id = TcpBootstrap::create_unique_id()?;
    let mut others = Others::default();
    for rank in 1..count {
        let mut process = Command::new(env::current_exe()?)
            .args(env::args_os().skip(1))
            .arg(format!("--peer={rank}"))
            .env("MSCCLPP_PLATFORM", platform.to_string())
            .stdin(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take();
        others.0.push((rank, process));
        // The id does not go on the command line, because it contains the job's key.
        if let Some(mut input) = input {
            input.write_all(id.to_hex().as_bytes())?;
        }
    }
    Ok((id, others))
}

impl Others {
    /// Runs `form`, which needs the other ranks; fails as soon as one of their processes has ended.
    fn meanwhile<T: Send + 'static>(&mut self, form: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let forming = thread::spawn(form);
        while !forming.is_finished() {
            for (rank, process) in &mut self.0 {
                if let Some(status) = process.try_wait()? {
                    return Err(
                        format!("the process of rank {rank} ended before it had joined: {status}").into()
                    );
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
        forming.join().map_err(|_| "forming the job panicked".into())
    }
}

fn read_id() -> Result<UniqueId> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text.parse()?)
}

impl Drop for Others {
    fn drop(&mut self) {
        let deadline = Instant::now() + GRACE;
        for (_, process) in &mut self.0 {
            if matches!(ended(process, deadline.saturating_duration_since(Instant::now())), Ok(None)) {
                // A failure to kill it cannot be handled.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}
