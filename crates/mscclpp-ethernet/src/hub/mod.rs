//! What a process needs once, however many connections it has: its links, its regions, and the threads on which peers'
//! data arrives. These threads touch only memory in the table of regions.

mod link_state;
mod receivers;

use std::sync::Arc;

use mscclpp_net::links::{self, Links, Options};

use crate::{PROTOCOL, Settings, env, error::Result, regions::Regions};
pub(crate) use link_state::LinkState;
use receivers::Receivers;

/// What one provider runs. Stopped when the last endpoint, link and registration is gone.
pub(crate) struct Hub {
    links: Arc<Links>,
    settings: Settings,
    regions: Arc<Regions>,
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
            },
        )?;
        Ok(Arc::new(Self { links, settings, regions }))
    }

    pub(crate) fn links(&self) -> &Arc<Links> {
        &self.links
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }
}
