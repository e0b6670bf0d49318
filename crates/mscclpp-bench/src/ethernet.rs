//! The command line options for Ethernet.

use std::time::Duration;

use mscclpp::{CudaIpc, Ethernet, EthernetBuilder};

use crate::{prelude::*, sizes};

/// Settings of the provider. Those that are not given keep the library's defaults.
#[derive(Args, Debug, Default)]
pub(crate) struct Tuning {
    /// Over Ethernet: the size of the chunks of pinned memory through which device memory travels, and the number of chunks
    /// that a queue has at each end [default: the library's].
    #[arg(long, value_name = "SIZE,COUNT", value_parser = parse_staging)]
    staging: Option<Staging>,
    /// Over Ethernet: the time for which threads poll for more work before they sleep, in microseconds [default: the library's].
    #[arg(long, value_name = "US")]
    busy_poll: Option<u64>,
    /// Over Ethernet: send checksums of the data.
    #[arg(long)]
    checksums: bool,
}

type Staging = (u64, usize);

fn parse_staging(text: &str) -> Result<Staging, String> {
    let (bytes, count) = text.split_once(',').ok_or("a size and a number, as in 1M,4")?;
    let count = count.parse().map_err(|_| format!("{count} is not a number of chunks"))?;
    Ok((sizes::parse_bytes(bytes)?, count))
}

impl Tuning {
    /// A context with all transports, of which Ethernet has these settings.
    pub(crate) fn context(&self, platform: Platform) -> Context {
        let ethernet = Ethernet::builder().checksums(self.checksums);
        let ethernet = self.staging.into_iter().fold(ethernet, |it, (bytes, count)| it.staging(bytes, count));
        let busy_poll = self.busy_poll.map(Duration::from_micros);
        let ethernet = busy_poll.into_iter().fold(ethernet, EthernetBuilder::busy_poll);
        Context::builder().provider(CudaIpc::new()).provider(ethernet.build()).platform(platform).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_is_a_size_and_a_number() {
        assert_eq!(parse_staging("1M,4"), Ok((1 << 20, 4)));
        assert!(["1M", "1M,", "4,1M", "1M,-1", ""].iter().all(|text| parse_staging(text).is_err()));
    }
}
