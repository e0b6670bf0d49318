//! The Ethernet settings of the command line.

use std::time::Duration;

use clap::Args;
use mscclpp::{CudaIpc, Ethernet, prelude::*};

use crate::sizes;

/// Settings of the provider; what is not given stays at the library's default.
#[derive(Args, Debug, Default)]
pub(crate) struct Tuning {
    /// Over Ethernet: the size of the pieces of pinned memory through which device memory travels, and how many pieces
    /// a queue has at each end [default: the library's].
    #[arg(long, value_name = "SIZE,COUNT", value_parser = parse_staging)]
    staging: Option<Staging>,
    /// Over Ethernet: how long threads look for more work before they sleep [default: the library's].
    #[arg(long, value_name = "US")]
    busy_poll: Option<u64>,
    /// Over Ethernet: send checksums of the data.
    #[arg(long)]
    checksums: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Staging {
    bytes: u64,
    count: usize,
}

fn parse_staging(text: &str) -> Result<Staging, String> {
    let (bytes, count) = text.split_once(',').ok_or("a size and a number, as in 1M,4")?;
    let count = count.parse().map_err(|_| format!("{count} is no number of pieces"))?;
    Ok(Staging { bytes: sizes::parse_bytes(bytes)?, count })
}

impl Tuning {
    /// With all transports, Ethernet set up like this.
    pub(crate) fn context(&self, platform: Platform) -> Context {
        let mut ethernet = Ethernet::builder().checksums(self.checksums);
        if let Some(Staging { bytes, count }) = self.staging {
            ethernet = ethernet.staging(bytes, count);
        }
        if let Some(us) = self.busy_poll {
            ethernet = ethernet.busy_poll(Duration::from_micros(us));
        }
        Context::builder().provider(CudaIpc::new()).provider(ethernet.build()).platform(platform).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_is_a_size_and_a_number() {
        assert_eq!(parse_staging("1M,4"), Ok(Staging { bytes: 1 << 20, count: 4 }));
        assert!(["1M", "1M,", "4,1M", "1M,-1", ""].iter().all(|text| parse_staging(text).is_err()));
    }
}
