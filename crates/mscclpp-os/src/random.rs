use crate::{SystemCall, SystemError};

/// Returns `N` random bytes from the system, which nobody can guess.
///
/// Early after a boot, waits until the system has collected enough randomness.
///
/// # Errors
/// Fails if the system has no source of random bytes. Use no substitute for them.
pub fn random<const N: usize>() -> Result<[u8; N], SystemError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).during("drawing random bytes")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        assert_ne!(random::<32>().unwrap(), random::<32>().unwrap());
    }
}
