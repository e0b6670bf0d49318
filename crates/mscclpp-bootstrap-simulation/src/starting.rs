//! How ranks start.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::world::Starter;
use mscclpp_bootstrap::Error;
use mscclpp_bootstrap::job::{Formation, Job, Join, Plan};
use mscclpp_bootstrap::protocol::handshake::JobKey;
use mscclpp_bootstrap::protocol::hello::Process;
use mscclpp_bootstrap::protocol::table::{Entry, Place};

/// The time-out of initialisation.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const PORT: u16 = 5000;
/// A second port at which rank 0 listens.
pub(super) const OTHER_PORT: u16 = 5001;

/// Makes the plan of a rank that starts at this time.
pub(super) fn plan_of(rank: usize, n: usize, key: JobKey, by_address: bool, at: Instant) -> Plan {
    Plan {
        job: (rank == 0 || !by_address).then_some([5; 16]),
        by_address,
        process: Process::named("played", rank as u32 + 1),
        ..Plan::new(rank, n, key, at, TIMEOUT)
    }
}

/// Makes a function that starts a rank; rank 0 then listens.
pub(super) fn starter(plan: Plan, root: SocketAddr, candidates: Vec<SocketAddr>) -> Starter {
    Box::new(move |world, now| {
        let (host, domain) = ([plan.rank as u8 % 3; 16], [0; 16]);
        let formation = if plan.rank == 0 {
            for port in [PORT, OTHER_PORT] {
                world.listen(0, SocketAddr::new(root.ip(), port));
            }
            let place = Place { port: root.port(), addresses: vec![root.ip()] };
            let entry = Entry { host, domain, place };
            Formation::of_root(&plan, root.to_string(), entry)
        } else {
            Formation::of_member(Join { candidates, listened: false, host, domain })
        };
        Job::new(plan, formation, now)
    })
}

/// Makes a function that starts a second rank 0, which finds its address taken.
pub(super) fn second_root(plan: Plan, root: SocketAddr) -> Starter {
    let taken = Error::AddressInUse { address: root };
    Box::new(move |_, now| Job::new(plan, Formation::of_second_root(root, taken), now))
}
