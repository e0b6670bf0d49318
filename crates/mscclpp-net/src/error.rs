use std::{error::Error, io};

/// A system call failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed")]
pub struct SystemError {
    /// What was tried.
    pub operation: &'static str,
    /// The system's answer.
    pub source: io::Error,
}

/// Names the operation of a failed system call.
pub trait SystemCall<T> {
    /// Turns a failure into one of `operation`.
    ///
    /// # Errors
    /// The same failure, with its operation.
    fn during(self, operation: &'static str) -> Result<T, SystemError>;
}

impl<T, E: Into<io::Error>> SystemCall<T> for Result<T, E> {
    fn during(self, operation: &'static str) -> Result<T, SystemError> {
        self.map_err(|source| SystemError { operation, source: source.into() })
    }
}

/// An error and its causes as one text: `"listening for peers failed: Address already in use"`.
///
/// For places that show or keep a text alone: a log line, a message to another process, the end of a program. A cause
/// whose text the error before it ends with is not said again.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn causes_follow_in_order_and_each_is_said_once() {
        let layer = |text, source| Layer { text, source: Some(Box::new(source)) };
        let inner = Layer { text: "inner", source: None };
        let outer = layer("outer", layer("wrapped: inner", inner));
        assert_eq!(with_causes(&outer), "outer: wrapped: inner");
    }
}
