//! The parts that a process needs once, however many connections it has: its links, its regions, and the threads that
//! receive peers' data. These threads touch only memory in the table of regions.

mod receivers;

use std::sync::Arc;

use mscclpp_net::links::{self, Links, Options};

use crate::{blob::PROTOCOL, env, error::Result, regions::Regions, settings::Settings};
use receivers::Receivers;

/// The running parts of one provider. They are stopped when the last endpoint, link and registration is gone.
pub(crate) struct Hub {
    pub(crate) links: Arc<Links>,
    pub(crate) settings: Settings,
    pub(crate) regions: Arc<Regions>,
}

impl Hub {
    pub(crate) fn start(settings: &Settings) -> Result<Arc<Self>> {
        let (mut settings, regions) = (settings.clone(), Arc::<Regions>::default());
        if settings.checksums.is_none() {
            settings.checksums = env::checksums().map_err(links::Error::from)?;
        }
        let links = Links::start(
            PROTOCOL,
            Options {
                interface: settings.interface.clone(),
                family: settings.family,
                thread: "mscclpp-eth-hub",
                acceptor: Some(Receivers::new(settings.clone(), regions.clone())),
                grace: settings.grace,
            },
        )?;
        Ok(Arc::new(Self { links, settings, regions }))
    }
}
