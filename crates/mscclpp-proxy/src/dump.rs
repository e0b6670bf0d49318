//! The text that explains a stuck job: for each peer, what is pending, and who waits for whom.

use std::fmt::Write as _;

use mscclpp_core::Report;

use crate::{
    FifoPosition, ProxyService,
    state::ServiceState,
    stats::{ConnectionStats, SemaphoreState, ServiceStats},
};

impl ProxyService {
    /// A text for people: what the service has done, and for each connection, by its label, what is pending and which
    /// kernels wait for that peer. Only unbounded waits are shown, because bounded waits and polls claim no signal
    /// while they wait.
    ///
    /// Blocks as [`ProxyService::stats`] does.
    ///
    /// ```text
    /// proxy service of sim device 0 (sim): 7 triggers carried out, 1 in the FIFO, error: none
    ///   to rank 1 over CudaIpc: pushed up to 7, carried out up to 6, complete up to 4
    ///     a flush at position 5 has been pending for 1.2s
    ///     triggers wait for the proxy
    ///     put 12 (49152 bytes), signalled 5, flushed 1; kernels themselves put 3 (24 bytes), signalled 2
    ///     semaphore 0: 2 signals have come, 3 are waited for: kernels here wait for rank 1
    /// ```
    #[must_use]
    pub fn dump(&self) -> String {
        let stats = self.stats();
        let states = self.proxy.here().map_or_else(|_| Ok(Vec::new()), |()| self.state.semaphore_states());
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.state.write(&mut text, &stats, states.as_deref().unwrap_or_default());
        if let Err(error) = states {
            let _ = writeln!(text, "  the device does not answer: {}", Report(&error));
        }
        text
    }
}

impl ServiceState {
    fn write(&self, out: &mut String, stats: &ServiceStats, states: &[SemaphoreState]) -> std::fmt::Result {
        let depth = stats.queue_depth.map_or("?".to_owned(), |depth| depth.to_string());
        let error = stats.last_error.as_ref().map_or("none".to_owned(), |error| Report(error).to_string());
        writeln!(
            out,
            "proxy service of {}: {} triggers carried out, {depth} in the FIFO, error: {error}",
            self.gpu, stats.triggers
        )?;
        for (number, connection) in (0..).zip(&stats.connections) {
            connection.write(out)?;
            for state in states.iter().filter(|state| state.connection == number) {
                let SemaphoreState { id, arrived, expected, .. } = state;
                write!(out, "    semaphore {id}: {arrived} signals have come, ")?;
                if expected > arrived {
                    writeln!(out, "{expected} are waited for: kernels here wait for {}", connection.peer)?;
                } else {
                    writeln!(out, "{expected} of them were taken")?;
                }
            }
        }
        Ok(())
    }
}

impl ServiceStats {
    /// Describes what a stop waits for, peer by peer.
    pub(crate) fn pending(&self) -> String {
        let behind = |due: fn(&ConnectionStats) -> FifoPosition| -> Vec<String> {
            let late = self.connections.iter().filter(|each| each.is_behind(due(each)));
            late.map(ConnectionStats::progress).collect()
        };
        let mut peers = behind(|each| each.asked);
        if peers.is_empty() {
            // After puts that neither a signal nor a flush follows, only the stop asks whether they are complete.
            peers = behind(|each| each.taken);
        }
        match (&*peers, self.queue_depth) {
            ([], Some(depth)) => format!("{depth} triggers are in the FIFO"),
            ([], None) => "the device does not answer".to_owned(),
            (peers, _) => peers.join("; "),
        }
    }
}

impl ConnectionStats {
    /// Whether a trigger was pushed but not handed over, or is not complete up to `due`.
    fn is_behind(&self, due: FifoPosition) -> bool {
        self.pushed.is_some_and(|pushed| pushed > self.taken)
            || self.waiting > 0
            || self.completed.is_some_and(|completed| completed < due)
    }

    /// Describes how far the connection is.
    fn progress(&self) -> String {
        let known =
            |position: Option<FifoPosition>| position.map_or("?".to_owned(), |position| position.to_string());
        format!(
            "{} over {}: pushed up to {}, carried out up to {}, complete up to {}",
            self.peer,
            self.transport,
            known(self.pushed),
            self.taken,
            known(self.completed)
        )
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "  to {}", self.progress())?;
        if let Some(flush) = &self.oldest_pending_flush {
            writeln!(
                out,
                "    a flush at position {} has been pending for {:.1?}",
                flush.position, flush.age
            )?;
        } else if self.completed.is_some_and(|completed| completed < self.asked) {
            writeln!(out, "    a signal is not complete yet")?;
        }
        if self.waiting > 0 {
            writeln!(out, "    {} operations wait for room at the transport", self.waiting)?;
        }
        if self.pushed.is_some_and(|pushed| pushed > self.taken) {
            writeln!(out, "    triggers wait for the proxy")?;
        }
        let traffic = &self.traffic;
        writeln!(
            out,
            "    put {} ({} bytes), signalled {}, flushed {}; kernels themselves put {} ({} bytes), signalled {}",
            traffic.data,
            traffic.bytes,
            traffic.flags,
            traffic.syncs,
            traffic.direct_puts,
            traffic.direct_bytes,
            traffic.direct_signals
        )
    }
}
