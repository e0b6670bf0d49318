//! Raw GPU driver entry points, resolved at run time
