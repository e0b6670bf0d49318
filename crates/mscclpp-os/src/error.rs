use std::{error::Error, fmt, io, sync::Arc};

/// A system call failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed")]
pub struct SystemError {
    /// The operation that failed.
    pub operation: &'static str,
    /// The system's error.
    pub source: io::Error,
}

/// A call of the operating system failed, as errors that are cloned keep it: a [`SystemError`] whose operation may name values.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} failed")]
pub struct SystemFailure {
    /// The operation that failed, with the values that matter.
    pub operation: String,
    /// The system's error.
    pub source: Arc<dyn Error + Send + Sync>,
}

impl SystemFailure {
    /// Makes the error of an operation that the system refused.
    pub fn new(operation: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { operation: operation.into(), source: source.into().into() }
    }
}

impl From<SystemError> for SystemFailure {
    fn from(SystemError { operation, source }: SystemError) -> Self {
        Self::new(operation, source)
    }
}

/// Adds to a failed system call the name of the operation.
pub trait SystemCall<T> {
    /// Turns a failure into a [`SystemError`] that names `operation`.
    ///
    /// # Errors
    /// The same failure, as a [`SystemError`].
    fn during(self, operation: &'static str) -> Result<T, SystemError>;
}

impl<T, E: Into<io::Error>> SystemCall<T> for Result<T, E> {
    fn during(self, operation: &'static str) -> Result<T, SystemError> {
        self.map_err(|source| SystemError { operation, source: source.into() })
    }
}

/// An error with all its causes, in one line: for a log line, a message to another process, or the last line of a
/// program. A cause whose text is already in the text before it, at its end or in front of its own cause, is not
/// repeated.
///
/// ```
/// # use mscclpp_os::Report;
/// use std::io::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::AddrInUse, "port 7 is taken");
/// assert_eq!(Report(&error).to_string(), "port 7 is taken");
/// ```
pub struct Report<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let cause = error.to_string();
            if !(last.ends_with(&cause) || last.contains(&format!(": {cause}: "))) {
                write!(f, ": {cause}")?;
                last = cause;
            }
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Implements `Debug` for an error, as [`Report`] shows it: a `main` that returns the error then prints its message
/// with its causes.
#[macro_export]
macro_rules! debug_as_report {
    ($error:ty) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&$crate::Report(self), f)
            }
        }
    };
}

/// Implements `Debug` for a struct by the given fields and expressions. With `..` at the end, the output says that
/// there are other fields.
///
/// ```
/// struct Buffer(Vec<u8>);
/// struct Secret(Vec<u8>);
/// mscclpp_os::debug_fields!(Buffer, |this| len: this.0.len(), ..);
/// mscclpp_os::debug_fields!(Secret, ..);
/// assert_eq!(format!("{:?}", Buffer(vec![0; 7])), "Buffer { len: 7, .. }");
/// assert_eq!(format!("{:?}", Secret(vec![0; 7])), "Secret { .. }");
/// ```
#[macro_export]
macro_rules! debug_fields {
    ($what:ty, ..) => {
        $crate::debug_fields!(@ $what, _this, finish_non_exhaustive,);
    };
    ($what:ty, |$this:ident| $($field:ident: $value:expr,)+ ..) => {
        $crate::debug_fields!(@ $what, $this, finish_non_exhaustive, $($field: $value),+);
    };
    ($what:ty, |$this:ident| $($field:ident: $value:expr),+) => {
        $crate::debug_fields!(@ $what, $this, finish, $($field: $value),+);
    };
    (@ $what:ty, $this:ident, $finish:ident, $($field:ident: $value:expr),*) => {
        impl ::std::fmt::Debug for $what {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $this = self;
                f.debug_struct(stringify!($what))$(.field(stringify!($field), &$value))*.$finish()
            }
        }
    };
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
        assert_eq!(Report(&outer).to_string(), "outer: wrapped: inner");
        let with_all = layer("failed: outer: inner", layer("outer", Layer { text: "inner", source: None }));
        assert_eq!(Report(&with_all).to_string(), "failed: outer: inner");
    }
}
