use std::net::SocketAddr;
use std::time::Instant;

use mscclpp_net::dial::Search;

use crate::Error;
use crate::protocol::hello::Purpose;

/// The search for a connection to one rank. It tries one address after the other, because the rank could already have
/// taken an abandoned connection for a link (S1). A connection whose proof is not answered is passed over; see
/// `Job::attempt_expired`.
pub(super) struct Dial {
    pub(super) purpose: Purpose,
    pub(super) search: Search,
    /// The error that a job was complete where this rank asked. It may have been an earlier job of the same
    /// processes.
    pub(super) complete: Option<Error>,
}

impl Dial {
    pub(super) fn new(
        purpose: Purpose,
        candidates: Vec<SocketAddr>,
        now: Instant,
        deadline: Instant,
    ) -> Self {
        Self { purpose, search: Search::new(candidates, now, deadline), complete: None }
    }
}
