use super::RouteId;

/// The values that a [`Queue`](super::Queue) keeps for its routes, by their numbers.
#[derive(Debug)]
pub struct Routes<T>(Vec<Option<T>>);

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Routes<T> {
    /// Keeps `known` for `route`, as [`Queue::prepare`](super::Queue::prepare) needs it.
    pub fn insert(&mut self, route: RouteId, known: T) {
        if self.0.len() <= route.index() {
            self.0.resize_with(route.index() + 1, || None);
        }
        self.0[route.index()] = Some(known);
    }

    /// Returns the value kept for a route that is prepared.
    #[must_use]
    pub fn get(&self, route: RouteId) -> Option<&T> {
        self.0.get(route.index())?.as_ref()
    }

    /// Returns the value kept for a route that is prepared, to be changed.
    pub fn get_mut(&mut self, route: RouteId) -> Option<&mut T> {
        self.0.get_mut(route.index())?.as_mut()
    }

    /// Removes the value kept for `route`, as [`Queue::release`](super::Queue::release) needs it.
    pub fn remove(&mut self, route: RouteId) -> Option<T> {
        self.0.get_mut(route.index())?.take()
    }
}
