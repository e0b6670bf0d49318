//! The kernels of `collectives.cu`, and which of them a call takes.

use mscclpp::{Kernel, Module};

use crate::{DataType, Error, ReduceOp, Result, Way, select::Choice};

/// The kernels of `collectives.cu`.
pub(crate) struct Kernels {
    /// By [`Form`] and [`Words`].
    forms: [[Option<Kernel>; 5]; 5],
    pub(crate) messages: Kernel,
}

/// What is done, and by which way.
#[derive(Clone, Copy)]
enum Form {
    ExchangePackets,
    ExchangeLines,
    ExchangePieces,
    AllReduceLines,
    AllReducePieces,
}

/// What becomes of what comes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Words {
    Move,
    Any,
    F16Sum,
    Bf16Sum,
    F32Sum,
}

const FORMS: [&str; 5] =
    ["exchange_packets", "exchange_lines", "exchange_pieces", "all_reduce_lines", "all_reduce_pieces"];
const WORDS: [&str; 5] = ["move", "any", "f16_sum", "bf16_sum", "f32_sum"];

impl Kernels {
    pub(crate) fn load(module: &Module) -> Result<Self> {
        let mut forms: [[Option<Kernel>; 5]; 5] = Default::default();
        for (form, kernels) in FORMS.iter().zip(&mut forms) {
            for (words, kernel) in WORDS.iter().zip(kernels) {
                if !(form.starts_with("all_reduce") && *words == "move") {
                    *kernel = Some(module.kernel(&format!("{form}_{words}"))?);
                }
            }
        }
        Ok(Self { forms, messages: module.kernel("move_messages")? })
    }

    pub(crate) fn of(&self, choice: Choice, words: Words) -> Result<&Kernel> {
        let form = match (choice.way, choice.two_steps) {
            (Way::Packets, _) => Form::ExchangePackets,
            (Way::Lines, false) => Form::ExchangeLines,
            (Way::Lines, true) => Form::AllReduceLines,
            (Way::Pieces, false) => Form::ExchangePieces,
            (Way::Pieces, true) => Form::AllReducePieces,
        };
        let kernel = self.forms[form as usize][words as usize].as_ref();
        kernel.ok_or_else(|| Error::InvalidArgument(format!("nothing is moved in two steps: {choice:?}")))
    }
}

impl Words {
    pub(crate) fn of(op: Option<ReduceOp>, data_type: DataType) -> Self {
        match (op, data_type) {
            (None, _) => Self::Move,
            (Some(ReduceOp::Sum), DataType::F16) => Self::F16Sum,
            (Some(ReduceOp::Sum), DataType::Bf16) => Self::Bf16Sum,
            (Some(ReduceOp::Sum), DataType::F32) => Self::F32Sum,
            _ => Self::Any,
        }
    }
}
