use super::RouteId;

/// What a [`Queue`](super::Queue) knows of its routes, by their numbers.
#[derive(Debug)]
pub struct Routes<T>(Vec<Option<T>>);

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Routes<T> {
    /// For [`Queue::prepare`](super::Queue::prepare).
    pub fn insert(&mut self, route: RouteId, known: T) {
        if self.0.len() <= route.index() {
            self.0.resize_with(route.index() + 1, || None);
        }
        self.0[route.index()] = Some(known);
    }

    /// What is known of a route that is prepared.
    #[must_use]
    pub fn get(&self, route: RouteId) -> Option<&T> {
        self.0.get(route.index())?.as_ref()
    }

    /// As [`Routes::get`].
    pub fn get_mut(&mut self, route: RouteId) -> Option<&mut T> {
        self.0.get_mut(route.index())?.as_mut()
    }

    /// For [`Queue::release`](super::Queue::release).
    pub fn remove(&mut self, route: RouteId) -> Option<T> {
        self.0.get_mut(route.index())?.take()
    }
}
