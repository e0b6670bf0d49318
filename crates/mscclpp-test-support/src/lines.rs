use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

/// A writer that collects the lines of a log. Clones share one text.
#[derive(Clone, Default)]
pub struct Lines {
    text: Arc<Mutex<Vec<u8>>>,
    then: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Lines {
    /// Makes a writer that calls `then` whenever something is logged.
    pub fn then(then: impl Fn() + Send + Sync + 'static) -> Self {
        Self { then: Some(Arc::new(then)), ..Self::default() }
    }

    /// Returns the text written so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(then) = &self.then {
            then();
        }
        self.text.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
