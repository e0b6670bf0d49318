/// Implements the conversions of an engine's error type from the errors of the layers below. The type has the variants
/// `InvalidArgument(String)`, for what the program can never give, and `Below(mscclpp::Error)`, for all else.
///
/// ```
/// #[derive(Debug)]
/// enum Error {
///     InvalidArgument(String),
///     Below(mscclpp::Error),
/// }
/// mscclpp::engine_error_from_below!(Error);
///
/// let error: Error = mscclpp::Error::InvalidArgument("capacity(0)".to_owned()).into();
/// assert!(matches!(error, Error::InvalidArgument(why) if why == "capacity(0)"));
/// ```
#[macro_export]
macro_rules! engine_error_from_below {
    ($error:ty) => {
        impl From<$crate::Error> for $error {
            fn from(error: $crate::Error) -> Self {
                match error {
                    $crate::Error::InvalidArgument(why) => Self::InvalidArgument(why),
                    error => Self::Below(error),
                }
            }
        }

        $crate::engine_error_from_below!(@ $error, GpuError CoreError BootstrapError);
    };
    (@ $error:ty, $($below:ident)+) => { $(
        impl From<$crate::errors::$below> for $error {
            fn from(error: $crate::errors::$below) -> Self {
                Self::Below(error.into())
            }
        }
    )+ };
}
