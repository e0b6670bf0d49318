//! The thread's answers to adapters and ports that fail.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{EventSource, Service};
use crate::{
    adapter::{Adapter, AsyncEvent},
    error::Error,
    side::Side,
};

/// The time for which a port may be down before its connections fail: queue pairs outlast a short outage.
const PORT_GRACE: Duration = Duration::from_secs(3);

/// A port that went down.
pub(super) struct PortDown {
    adapter: Arc<Adapter>,
    port: u8,
    pub(super) deadline: Instant,
}

impl Service {
    pub(super) fn handle_event(&mut self, adapter: &Arc<Adapter>, event: AsyncEvent) {
        tracing::debug!(target: "mscclpp::conn", device = adapter.name(), ?event, "an adapter says");
        match event {
            AsyncEvent::PortDown(port) => {
                let (adapter, deadline) = (adapter.clone(), Instant::now() + PORT_GRACE);
                self.ports_down.push(PortDown { adapter, port, deadline });
            }
            AsyncEvent::PortUp(port) => {
                self.ports_down.retain(|down| !Arc::ptr_eq(&down.adapter, adapter) || down.port != port);
            }
            AsyncEvent::DeviceFailed(text) => self.fail(adapter, |_| true, &text),
            // The sending end of a queue pair needs nothing here: its requests under way fail, with the reason.
            AsyncEvent::QueuePairFailed(qpn, text) => {
                for number in
                    self.numbers_where(|it| Arc::ptr_eq(&it.side().adapter, adapter) && it.qpn() == qpn)
                {
                    if let Some(receiver) = self.receivers.get(&number) {
                        let mut receiver = receiver.lock();
                        receiver.serve();
                        receiver.report_broken(&text);
                    }
                    self.close(number);
                }
            }
            AsyncEvent::Other(_) => {}
        }
    }

    /// Fails all links of an adapter for which `concern` is true.
    fn fail(&mut self, adapter: &Arc<Adapter>, concern: impl Fn(&Side) -> bool, event: &str) {
        let links = mem::take(&mut *self.shared.links.lock());
        for link in links.iter().filter_map(std::sync::Weak::upgrade) {
            if Arc::ptr_eq(&link.side.adapter, adapter) && concern(&link.side) {
                link.fail(Error::Event { device: adapter.name().to_owned(), event: event.to_owned() });
            }
        }
        self.shared.links.lock().extend(links);
    }

    /// Drops adapters that were taken away, because the system may be waiting for that.
    pub(super) fn give_up_removed(&mut self) {
        let adapters = self.sources.values().filter_map(|source| match source {
            EventSource::Events(adapter) => Some(adapter.clone()),
            _ => None,
        });
        for adapter in adapters.filter(|adapter| adapter.is_removed()).collect::<Vec<_>>() {
            self.fail(&adapter, |_| true, "the device was removed");
            self.shared.adapters.lock().retain(|_, known| !Arc::ptr_eq(known, &adapter));
            let lost = self.numbers_where(|receiver| Arc::ptr_eq(&receiver.side().adapter, &adapter));
            lost.into_iter().for_each(|number| self.close(number));
            self.ports_down.retain(|down| !Arc::ptr_eq(&down.adapter, &adapter));
            let events = &self.events;
            self.sources.retain(|_, source| match source {
                EventSource::Events(of) if Arc::ptr_eq(of, &adapter) => {
                    events.remove(&**of);
                    false
                }
                EventSource::Completions(channel) if Arc::ptr_eq(channel.adapter(), &adapter) => {
                    events.remove(&**channel);
                    false
                }
                _ => true,
            });
        }
    }

    pub(super) fn give_up_ports(&mut self, now: Instant) {
        let late: Vec<_> = self.ports_down.extract_if(.., |down| down.deadline <= now).collect();
        for PortDown { adapter, port, .. } in late {
            if !adapter.is_active(port) {
                let event = format!("port {port} went down; is the cable plugged in, the interface up?");
                self.fail(&adapter, |side| side.port.number == port, &event);
            }
        }
    }
}
