//! Work of a call that goes into a stream of its own.

use mscclpp::{Platform, Stream};

use crate::Result;

/// Whether work of a call in `stream` may go into `side`, too. A stream that was forked into a capture
/// belongs to it until the capture ends, and takes no other work until then. Simulated devices capture one stream alone.
pub(crate) fn can_fork(stream: &Stream, side: &Stream) -> Result<bool> {
    if stream.gpu().platform() == Platform::Sim {
        return Ok(!stream.is_capturing()?);
    }
    if !side.is_capturing()? {
        return Ok(true);
    }
    // None of a capture that has failed and was not ended yet.
    let capture = side.capture_id()?;
    Ok(capture.is_some() && capture == stream.capture_id()?)
}
