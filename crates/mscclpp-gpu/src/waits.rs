//! The peers for which the kernels of a stream really wait.
//!
//! Waits themselves record nothing, because that would slow them down: the counts of semaphores show them. An unbounded wait
//! claims the next signal and stays until it has come. So a count of claims that is larger than that of signals is a wait
//! that goes on. Bounded waits claim signals that have come, and flushes claim nothing: their peers are only possible ones.

use crate::{DevicePtr, Gpu, KernelWait, Owner, Probe, object::Counts};

impl KernelWait {
    /// A wait for `name` that kernels are certainly in.
    #[must_use]
    pub fn certain(name: String) -> Self {
        Self { name, counts: None }
    }

    /// A wait for `name` that kernels are in if the word `claimed`, the number of signals that their waits have claimed,
    /// is larger than the sum of the words `arrived`, the number of signals that have come. All three only grow.
    ///
    /// # Safety
    /// They are 8-byte words that `gpu` reaches, as long as `owner` lives.
    #[must_use]
    pub unsafe fn counted(
        name: String,
        gpu: &Gpu,
        claimed: DevicePtr,
        arrived: [DevicePtr; 2],
        owner: Owner,
    ) -> Self {
        Self { name, counts: Some(Counts { device: gpu.properties().uuid, claimed, arrived, _owner: owner }) }
    }
}

/// Returns the peers for which kernels of `gpu` wait now, each once; none if nothing shows it. Asks the device if there
/// are counts, for as long as [`Probe::read`], and waits for no kernel.
pub(crate) fn waited_for(gpu: &Gpu, waits: Vec<KernelWait>) -> Vec<String> {
    let mut certain: Vec<String> = Vec::new();
    let mut counted: Vec<(String, Counts)> = Vec::new();
    for KernelWait { name, counts } in waits {
        match counts {
            None if !certain.contains(&name) => certain.push(name),
            Some(counts)
                if counts.device == gpu.properties().uuid
                    && !counted.iter().any(|(_, known)| known.claimed == counts.claimed) =>
            {
                counted.push((name, counts));
            }
            _ => {}
        }
    }
    if counted.is_empty() {
        return certain;
    }
    // The claims are read first: a signal that was claimed then, and had not come later, was waited for in between.
    let at: Vec<DevicePtr> =
        counted.iter().flat_map(|(_, c)| [c.claimed, c.arrived[0], c.arrived[1]]).collect();
    // SAFETY: the promise of `KernelWait::counted`; the owners live during the call, and for ever if it fails.
    match unsafe { Probe::new(gpu).read(&at) } {
        Ok(words) => {
            for ((name, _), words) in counted.into_iter().zip(words.chunks_exact(3)) {
                if words[0] > words[1].wrapping_add(words[2]) && !certain.contains(&name) {
                    certain.push(name);
                }
            }
        }
        Err(error) => {
            tracing::warn!(target: "mscclpp::gpu", %error, "{gpu} does not say what its kernels wait for");
            std::mem::forget(counted);
        }
    }
    certain
}
