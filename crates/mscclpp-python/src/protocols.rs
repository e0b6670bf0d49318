//! Overrides of the protocol selection, which the algorithms of `mscclpp.ext` set for their calls.

use mscclpp_collectives::{Possible, Protocol, Query, Selection, Selector, Tuned};
use pyo3::prelude::*;

use crate::error;

/// A protocol, and whether an `all_reduce` takes two steps.
type Step = (Protocol, bool);

/// How calls are to be done instead of as [`Tuned`] selects. All ranks give the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Override {
    /// The protocols in the order of preference: the first that is possible is used, or if none is, the selected one.
    protocols: &'static [Step],
    /// The number of blocks; 0 is the selected one.
    blocks: u32,
    threads: u32,
}

impl Override {
    /// Without a protocol, calls are done as [`Tuned`] selects, whatever the numbers are.
    pub(crate) fn new(protocol: Option<&str>, blocks: u32, threads: u32) -> PyResult<Self> {
        let Some(protocol) = protocol else { return Ok(Self { protocols: &[], blocks: 0, threads: 0 }) };
        let protocols: &[Step] = match protocol {
            "any" => &[],
            "ll16" => &[(Protocol::Ll16, false)],
            "ll128" => &[(Protocol::Ll128, false)],
            "simple" => &[(Protocol::Simple, false)],
            "two_steps" => &[(Protocol::Simple, true), (Protocol::Simple, false)],
            "two_steps_ll128" => &[(Protocol::Ll128, true), (Protocol::Ll16, false)],
            _ => return Err(error::misuse(format!("there is no protocol {protocol:?} to do a collective"))),
        };
        Ok(Self { protocols, blocks, threads })
    }
}

impl Selector for Override {
    fn choose(&self, query: &Query) -> Selection {
        // The protocols that can be given need more blocks than calls beside other kernels.
        let mut asked = *query;
        asked.overlap &= self.protocols.is_empty();
        let mut selection = Tuned.choose(&asked);
        let possible = &query.possible;
        if let Some((protocol, two_steps)) = self.protocols.iter().find(|step| is_possible(**step, possible))
        {
            (selection.protocol, selection.two_steps) = (*protocol, *two_steps);
        }
        if self.blocks > 0 {
            selection.threads = selection.threads_in(self.blocks);
            selection.blocks = self.blocks;
        }
        if self.threads > 0 {
            selection.threads = self.threads;
        }
        selection
    }
}

fn is_possible(step: Step, possible: &Possible) -> bool {
    match step {
        (Protocol::Ll16, false) => possible.ll16,
        (Protocol::Ll128, false) => possible.ll128,
        (Protocol::Ll128, true) => possible.ll128_in_two_steps,
        (_, true) => possible.simple_in_two_steps,
        (_, false) => true,
    }
}
