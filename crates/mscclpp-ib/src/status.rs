//! The meanings of failed completions, and what to do about them.

use mscclpp_verbs_sys as sys;

/// A status of `ibv_wc_status`. It is a plain number, because a driver may know more of them than this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

impl Status {
    pub(crate) const SUCCESS: Self = Self(sys::IBV_WC_SUCCESS);
    /// The status of work after the first that failed. It says nothing about the cause.
    pub(crate) const FLUSHED: Self = Self(sys::IBV_WC_WR_FLUSH_ERR);

    /// Returns the name in verbs.h, and what to do.
    pub(crate) fn explain(self) -> (&'static str, &'static str) {
        /// Matches each status with its name and remedy.
        macro_rules! explain {
            ($($name:ident: $remedy:literal,)*) => {
                match self.0 {
                    $(sys::$name => (stringify!($name), $remedy),)*
                    _ => (
                        "a status that this library does not know",
                        "look for the driver's messages in the kernel log",
                    ),
                }
            };
        }
        explain! {
            IBV_WC_SUCCESS: "nothing failed",
            IBV_WC_LOC_LEN_ERR: "a message was larger than its buffer; use one version of the library everywhere",
            IBV_WC_LOC_QP_OP_ERR:
                "the adapter could not carry out the work itself; look for its driver's messages in the kernel log",
            IBV_WC_LOC_PROT_ERR: "the adapter may not read the local memory; was it freed while it was being sent?",
            IBV_WC_WR_FLUSH_ERR: "the queue pair had failed already; the first error says why",
            IBV_WC_BAD_RESP_ERR: "the peer's adapter gave an answer that makes no sense; look for a firmware update",
            IBV_WC_LOC_ACCESS_ERR:
                "the adapter may not write to the local memory that an answer goes to; this is a fault of the library",
            IBV_WC_REM_INV_REQ_ERR:
                "the peer's adapter does not take such a request; if it has no atomics, set MSCCLPP_IBV_MODE=host-no-atomic \
                 on both sides",
            IBV_WC_REM_ACCESS_ERR:
                "the peer's adapter refused the address or key; has the peer dropped the memory, or its registration?",
            IBV_WC_REM_OP_ERR: "the peer's adapter failed; look for messages in the kernel log there",
            IBV_WC_RETRY_EXC_ERR:
                "the peer's adapter does not answer: its process or node may be gone, the port down, or the GIDs of both \
                 sides unable to reach each other (see MSCCLPP_IB_GID_INDEX and ibv_devinfo -v)",
            IBV_WC_RNR_RETRY_EXC_ERR: "the peer had no receive posted for too long; its process may be stopped",
            IBV_WC_REM_ABORT_ERR: "the peer's adapter gave the operation up",
            IBV_WC_FATAL_ERR: "the adapter failed; look for its driver's messages in the kernel log",
            IBV_WC_RESP_TIMEOUT_ERR: "the peer's adapter does not answer in time",
            IBV_WC_GENERAL_ERR: "the adapter gives no reason; look for its driver's messages in the kernel log",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_a_name_and_a_remedy_of_its_own() {
        let explained: Vec<_> = (0..=sys::IBV_WC_GENERAL_ERR).map(|n| Status(n).explain()).collect();
        let named = explained.iter().filter(|(name, _)| name.starts_with("IBV_WC_")).count();
        assert!(named >= 16, "{explained:?}");
        for (n, (name, remedy)) in explained.iter().enumerate() {
            assert!(!remedy.is_empty());
            assert!(explained[..n].iter().all(|(other, _)| other != name || !name.starts_with("IBV_")));
        }
        assert!(Status(4711).explain().0.contains("does not know"));
    }
}
