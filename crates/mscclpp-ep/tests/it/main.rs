//! The tests of experts, whose ranks are threads of this process.

mod beside;
mod calls;
mod checked;
mod choices;
mod errors;
mod fused;
mod lives;
mod oracle;
mod rounds;
mod support;
