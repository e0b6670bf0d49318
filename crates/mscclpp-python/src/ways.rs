//! How a call is to be done where a program says it, as the algorithms of `mscclpp.ext` do.

use std::cell::Cell;

use mscclpp_collectives::{Choice, Possible, Question, Selector, Tuned, Way};
use pyo3::prelude::*;

use crate::error;

thread_local! {
    /// What is wished for the calls that this thread puts into a stream right now.
    static WISH: Cell<Option<Wish>> = const { Cell::new(None) };
}

/// A way of messages, and whether an `all_reduce` is done in two steps.
type Step = (Way, bool);

/// How calls are to be done. All ranks wish the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Of these, the first that is possible; if none is, as without a wish.
    ways: &'static [Step],
    /// 0 stands for what would be chosen without a wish.
    blocks: u32,
    threads: u32,
}

impl Wish {
    pub(crate) fn new(way: &str, blocks: u32, threads: u32) -> PyResult<Self> {
        let ways: &[Step] = match way {
            "any" => &[],
            "packets" => &[(Way::Packets, false)],
            "lines" => &[(Way::Lines, false)],
            "pieces" => &[(Way::Pieces, false)],
            "two_steps" => &[(Way::Pieces, true), (Way::Pieces, false)],
            "two_steps_of_lines" => &[(Way::Lines, true), (Way::Packets, false)],
            _ => return Err(error::misuse(format!("there is no way {way:?} to do a collective"))),
        };
        Ok(Self { ways, blocks, threads })
    }

    /// Does `work`, whose calls are done as it says.
    pub(crate) fn during<T>(wish: Option<Self>, work: impl FnOnce() -> T) -> T {
        /// Takes the wish back, also if `work` panics.
        struct Done;
        impl Drop for Done {
            fn drop(&mut self) {
                WISH.set(None);
            }
        }
        WISH.set(wish);
        let _done = Done;
        work()
    }

    fn choose(self, question: &Question) -> Choice {
        let mut choice = Tuned.choose(question);
        let possible = &question.possible;
        if let Some((way, two_steps)) = self.ways.iter().find(|step| is_possible(**step, possible)) {
            (choice.way, choice.two_steps) = (*way, *two_steps);
        }
        if self.blocks > 0 {
            choice.threads = choice.threads_in(self.blocks);
            choice.blocks = self.blocks;
        }
        if self.threads > 0 {
            choice.threads = self.threads;
        }
        choice
    }
}

fn is_possible(step: Step, possible: &Possible) -> bool {
    match step {
        (Way::Packets, false) => possible.packets,
        (Way::Lines, false) => possible.lines,
        (Way::Lines, true) => possible.lines_in_two_steps,
        (_, true) => possible.pieces_in_two_steps,
        (_, false) => true,
    }
}

/// Chooses as the thread wishes, and else as ever.
#[derive(Debug)]
pub(crate) struct AsWished;

impl Selector for AsWished {
    fn choose(&self, question: &Question) -> Choice {
        match WISH.get() {
            Some(wish) => wish.choose(question),
            None => Tuned.choose(question),
        }
    }
}
