//! The environment variables of this crate, read here and nowhere else.

use mscclpp_net::env;

use crate::error::Result;

const DEFAULT_STREAM: &str = "MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM";

/// Reads `MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM`: `1` or `true` makes links copy on the device's default stream instead
/// of streams of their own. Links of proxies use it too, so a kernel on the default stream that waits for a proxy's
/// copy never ends.
pub(crate) fn use_default_stream() -> Result<bool> {
    Ok(env::switch(DEFAULT_STREAM, std::env::var_os(DEFAULT_STREAM))?.unwrap_or(false))
}
