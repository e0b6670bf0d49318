//! Jobs whose ranks are processes: children of the test, see [`mscclpp_test_support::job`].

use std::{
    fmt::{Debug, Display},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use mscclpp::prelude::*;
use mscclpp_test_support::job;
#[allow(unused_imports, reason = "each test program uses a part of this")]
pub(crate) use mscclpp_test_support::{
    child::{hear, say, this_program},
    job::{Children, Role, all_succeed},
};

use super::{LIMIT, assert_usable, device_of, platform};

/// Runs the role of a child; does nothing in the parent.
pub(crate) fn run_if_child(run: impl FnOnce(&Role)) -> Option<ExitCode> {
    job::run_if_child(|role| {
        mscclpp::log::init().expect("logging");
        run(role);
    })
}

/// Keeps connections open until all ranks are here, so that no rank closes one that its peer still uses.
pub(crate) fn together(comm: &Communicator) {
    comm.bootstrap().barrier().expect("all ranks");
}

/// The job and the communicator that a child's role gives it.
pub(crate) trait RoleExt {
    /// Forms the job.
    fn bootstrap(&self, timeout: Duration) -> mscclpp::Result<TcpBootstrap>;

    /// Makes a communicator of the job.
    fn communicator(&self) -> mscclpp::Result<Communicator>;

    /// Does [`Role::was_killed`], and checks that the device is still usable.
    fn survives<E: Debug + Display>(&self, survive: impl FnOnce(&Role, &str, usize) -> Result<(), E>)
    -> bool;
}

impl RoleExt for Role {
    fn bootstrap(&self, timeout: Duration) -> mscclpp::Result<TcpBootstrap> {
        let id = self.unique_id(|| TcpBootstrap::create_unique_id().map(|id| id.to_hex()))?;
        Ok(TcpBootstrap::new(self.rank, self.n_ranks, id.parse::<UniqueId>()?, timeout)?)
    }

    fn communicator(&self) -> mscclpp::Result<Communicator> {
        Ok(Communicator::with_context(Arc::new(self.bootstrap(LIMIT)?), Context::on(platform())))
    }

    fn survives<E: Debug + Display>(
        &self,
        survive: impl FnOnce(&Role, &str, usize) -> Result<(), E>,
    ) -> bool {
        self.was_killed(survive, || assert_usable(device_of(self.rank)))
    }
}
