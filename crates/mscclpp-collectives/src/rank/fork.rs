//! Work of a call that goes into a stream of its own.

use mscclpp::{Platform, Stream};

use crate::Result;

/// Whether work of a call in `stream` may go into `side`, too. A stream stays in a capture that it was forked into until that
/// ends, and is none for work outside of it or of another one. Simulated devices capture one stream alone.
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
