//! The start of the examples with a process per rank. The program starts itself once for each rank, or its arguments say
//! which rank it is, or the launcher that started it does (mpirun, srun, torchrun, Kubernetes).

mod processes;

use std::{
    error::Error,
    fmt,
    process::{Child, Command, ExitCode},
    time::Duration,
};

use mscclpp::{errors::BootstrapError, prelude::*};
use processes::{BAD_ARGUMENTS, FAILED, is_about_the_address, stop, wait_for};

use crate::devices::print_devices;

const DEFAULT_ADDRESS: &str = "lo:127.0.0.1:15505";
const LAUNCHED: &str = "\
Started without arguments by mpirun, srun, torchrun or an indexed job of Kubernetes, it is the rank that these say.";
/// The longest time that the ranks may take to find each other.
const INIT: Duration = Duration::from_secs(30);

/// An example with a process per rank.
pub(crate) struct Program {
    /// The text that is printed when the arguments are wrong.
    pub(crate) usage: &'static str,
    /// Returns the numbers of the devices that the ranks get, on a node with so many devices; at least one.
    pub(crate) devices: fn(usize) -> Vec<usize>,
    /// Returns the further arguments of the ranks that the program starts, given the number of ranks.
    pub(crate) more: fn(usize) -> Vec<String>,
    /// Runs the program as one rank.
    pub(crate) run: fn(&Rank) -> Result<(), Box<dyn Error>>,
}

/// The arguments of a rank: `ADDRESS RANK GPU`, and those of the program itself.
pub(crate) struct Rank {
    pub(crate) address: String,
    pub(crate) rank: usize,
    pub(crate) gpu: usize,
    pub(crate) more: Vec<String>,
    pub(crate) platform: Platform,
    /// The rank and addresses that the launcher says, if the program's arguments name no rank.
    launched: Option<Rendezvous>,
}

/// The arguments of a rank are wrong.
#[derive(Debug)]
pub(crate) struct BadArguments;

impl fmt::Display for BadArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these arguments make no sense")
    }
}

impl Error for BadArguments {}

impl Rank {
    /// Finds the other ranks.
    pub(crate) fn bootstrap(&self, n_ranks: usize) -> mscclpp::Result<TcpBootstrap> {
        println!("GPU {}: Initializing a bootstrap ...", self.gpu);
        if let Some(launched) = &self.launched {
            if launched.n_ranks != n_ranks {
                let problem = format!("{} ranks were launched; this program has {n_ranks}", launched.n_ranks);
                return Err(BootstrapError::InvalidArgument(problem).into());
            }
            // ANCHOR: launched
            let bootstrap = launched.connect(INIT)?;
            // ANCHOR_END: launched
            return Ok(bootstrap);
        }
        // ANCHOR: bootstrap
        let bootstrap = TcpBootstrap::new(self.rank, n_ranks, &self.address, INIT)?;
        // ANCHOR_END: bootstrap
        Ok(bootstrap)
    }
}

impl Program {
    /// The program's `main`.
    pub(crate) fn main(&self) -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let outcome = match arguments.as_slice() {
            [] => self.run_launched(),
            [option] if option == "-h" || option == "--help" => {
                println!("{}\n{LAUNCHED}", self.usage);
                return ExitCode::SUCCESS;
            }
            [option, ..] if option.starts_with('-') => return self.usage(),
            [address] => self.run_all(address),
            [address, rank, gpu, more @ ..] => match (rank.parse(), gpu.parse()) {
                (Ok(rank), Ok(gpu)) => self.run_given(address, rank, gpu, more),
                _ => return self.usage(),
            },
            _ => return self.usage(),
        };
        match outcome {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                let rank = arguments.get(1).map_or(String::new(), |rank| format!("Rank {rank}: "));
                eprintln!("{rank}Failed: {}", mscclpp::Report(&*error));
                match error.is::<BadArguments>()
                    || error.downcast_ref::<mscclpp::Error>().is_some_and(is_about_the_address)
                {
                    true => self.usage(),
                    false => ExitCode::from(FAILED),
                }
            }
        }
    }

    fn usage(&self) -> ExitCode {
        eprintln!("{}\n{LAUNCHED}", self.usage);
        ExitCode::from(BAD_ARGUMENTS)
    }

    /// Runs as the rank that the launcher says, or starts all ranks if there is no launcher.
    fn run_launched(&self) -> Result<u8, Box<dyn Error>> {
        mscclpp::log::init()?;
        let launched = match Rendezvous::from_env() {
            Err(BootstrapError::NotLaunched) => return self.run_all(DEFAULT_ADDRESS),
            launched => launched?,
        };
        let count = Platform::detect_or_sim()?.device_count()?.max(1);
        let gpu = launched.local_rank.unwrap_or(launched.rank) % count;
        let (address, more) = (launched.address.clone(), (self.more)(launched.n_ranks));
        self.run_one(&address, launched.rank, gpu, &more, Some(launched)).map(|()| 0)
    }

    fn run_given(
        &self,
        address: &str,
        rank: usize,
        gpu: usize,
        more: &[String],
    ) -> Result<u8, Box<dyn Error>> {
        mscclpp::log::init()?;
        self.run_one(address, rank, gpu, more, None).map(|()| 0)
    }

    fn run_one(
        &self,
        address: &str,
        rank: usize,
        gpu: usize,
        more: &[String],
        launched: Option<Rendezvous>,
    ) -> Result<(), Box<dyn Error>> {
        let platform = Platform::detect_or_sim()?;
        // The device is opened before this rank waits for the others.
        platform.gpu(gpu)?;
        println!("GPU {gpu}: Running on platform {platform}");
        let (address, more) = (address.to_owned(), more.to_vec());
        (self.run)(&Rank { address, rank, gpu, more, platform, launched })
    }

    /// Starts this program once per rank and returns the exit code of the first that fails, or 0.
    fn run_all(&self, address: &str) -> Result<u8, Box<dyn Error>> {
        let platform = Platform::detect_or_sim()?;
        let gpus = (self.devices)(platform.device_count()?.max(1));
        print_devices(platform, &gpus)?;

        let program = std::env::current_exe()?;
        let mut ranks: Vec<Child> = Vec::new();
        for (rank, gpu) in gpus.iter().enumerate() {
            let mut command = Command::new(&program);
            command.args([address, &rank.to_string(), &gpu.to_string()]).args((self.more)(gpus.len()));
            match command.env("MSCCLPP_PLATFORM", platform.to_string()).spawn() {
                Ok(child) => ranks.push(child),
                Err(error) => {
                    stop(&mut ranks);
                    return Err(error.into());
                }
            }
        }
        wait_for(ranks)
    }
}
