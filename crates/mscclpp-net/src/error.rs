use std::{error::Error, fmt::Write};

/// An error and its causes as one text: `"listening for peers failed: Address already in use"`.
///
/// For places that keep a text alone, such as a log line or a message to another process.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string does not fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
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
    fn causes_follow_in_order() {
        let inner = Layer { text: "inner", source: None };
        let middle = Layer { text: "middle", source: Some(Box::new(inner)) };
        let outer = Layer { text: "outer", source: Some(Box::new(middle)) };
        assert_eq!(chain(&outer), "outer: middle: inner");
    }
}
