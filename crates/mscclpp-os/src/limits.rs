//! The limits that the system sets for a process.

use std::sync::Once;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of descriptors to the hard one, at the first call. A job takes a descriptor for each connection and each
/// buffer of a simulated device, and shells often allow 1024, which is the limit of `select` alone.
pub fn raise_descriptors() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(target: "mscclpp::env", %error, "the limit of descriptors cannot be raised");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(512);
        setrlimit(Resource::Nofile, limit).unwrap();
        raise_descriptors();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }
}
