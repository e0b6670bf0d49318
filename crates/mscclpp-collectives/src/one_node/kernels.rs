//! The kernels of `collectives.cu` and `collectives_of_two.cu`, and which of them a call takes.

use std::sync::{Arc, Weak};

use mscclpp::{Gpu, Kernel, Module, Platform};
use parking_lot::Mutex;

use crate::{
    DataType, Error, Protocol, ReduceOp, Result,
    choice::{Selection, has_bulk_copies},
};

/// The kernels of one of the sources.
pub(crate) struct Kernels {
    /// The kernels by [`Form`] and [`WordOperation`]. Two ranks have none in two steps.
    forms: [[Option<Kernel>; 5]; 6],
    /// The kernel of [`Protocol::Direct`] that moves.
    direct: Kernel,
    /// The kernel of [`Protocol::Bulk`], where the device has bulk copies.
    bulk: Option<Kernel>,
    /// The kernels of [`Protocol::SimpleByBulk`], by [`WordOperation`], and behind them those for averages, as in
    /// `averages_of_two`. Two ranks with `overlap` have them, where the device has bulk copies.
    lanes: Option<Vec<Kernel>>,
    /// The kernels of several small calls that reduce, by [`WordOperation`] from the second on.
    groups: [Kernel; 4],
    /// The kernels of several calls that move, by LL16, LL128 and Simple.
    moves: [Kernel; 3],
    /// The kernels of several large calls that reduce, by [`WordOperation`] from the second on.
    reduces: [Kernel; 4],
    /// The kernels of several `all_reduce`s in two steps, of which two ranks have none.
    all_reduces: Option<[Kernel; 4]>,
    /// Those of two ranks for averages by [`Form::ExchangeSimple`], by [`WordOperation`] from F16 on. All others average with the
    /// kernels for sums.
    averages_of_two: Option<[Kernel; 3]>,
    /// With more than two ranks those of two, for a part of them that is set up while these are used.
    _of_two: Option<Arc<Kernels>>,
    pub(crate) messages: Kernel,
    /// The same where a peer has more than two messages in a direction.
    pub(crate) many_messages: Kernel,
}

/// The kernels, by what they do and by which protocol.
#[derive(Clone, Copy)]
enum Form {
    ExchangeLl16,
    ExchangeLl128,
    ExchangeSimple,
    AllReduceLl128,
    AllReduceSimple,
    AllReduceDirect,
}

/// The operation on each word that comes: it is moved, reduced by any operation, or summed or averaged as numbers of one type.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WordOperation {
    Move,
    Any,
    F16Sum,
    Bf16Sum,
    F32Sum,
}

const FORMS: [&str; 6] = [
    "exchange_ll16",
    "exchange_ll128",
    "exchange_simple",
    "all_reduce_ll128",
    "all_reduce_simple",
    "all_reduce_direct",
];
const WORDS: [&str; 5] = ["move", "any", "f16_sum", "bf16_sum", "f32_sum"];

/// Those that are loaded, by device, whether they are for two ranks, and whether they overlap with other kernels.
///
/// Loading waits for kernels that run on the device. A communicator that is set up while calls of another one wait for
/// their peers must not do that, so all of a device share what the first of them loaded. The first with `overlap`
/// loads again, since that is set in a module's functions, which is why this is not [`Module::load_once`]. So does the
/// first of more than two ranks if there were only some of two.
type Loaded = Vec<((Platform, usize, bool, bool), Arc<Mutex<Weak<Kernels>>>)>;
static LOADED: Mutex<Loaded> = Mutex::new(Vec::new());

impl Kernels {
    /// Those for so many ranks on a device. `overlap`: see [`CollectivesBuilder::overlap`](crate::CollectivesBuilder::overlap).
    pub(crate) fn on(gpu: &Gpu, ranks: usize, overlap: bool) -> Result<Arc<Self>> {
        let key = (gpu.platform(), gpu.id(), ranks == 2, overlap);
        let entry = {
            let mut loaded = LOADED.lock();
            let found = loaded.iter().find(|(of, _)| *of == key).map(|(_, entry)| entry.clone());
            found.unwrap_or_else(|| {
                let entry = Arc::new(Mutex::new(Weak::new()));
                loaded.push((key, entry.clone()));
                entry
            })
        };
        // Only those of the same device wait for each other.
        let mut entry = entry.lock();
        if let Some(kernels) = entry.upgrade() {
            return Ok(kernels);
        }
        let source = match ranks {
            2 => mscclpp_kernels::COLLECTIVES_OF_TWO,
            _ => mscclpp_kernels::COLLECTIVES,
        };
        let mut kernels = Self::load(&Module::load(gpu, &source)?, ranks == 2)?;
        if has_bulk_copies(gpu.platform(), gpu.properties().compute_capability) {
            let module = Module::load(gpu, &mscclpp_kernels::COLLECTIVES_BY_BULK)?;
            kernels.bulk = Some(module.kernel("exchange_bulk_move")?);
            if ranks == 2 && overlap {
                let module = Module::load(gpu, &mscclpp_kernels::COLLECTIVES_BY_LANES)?;
                let words = WORDS.iter().chain(&["f16_avg", "bf16_avg", "f32_avg"]);
                let lanes = words.map(|words| module.kernel(&format!("exchange_lanes_{words}")));
                kernels.lanes = Some(lanes.collect::<Result<_, _>>()?);
            }
        }
        if overlap {
            kernels.prefer_shared_memory()?;
        }
        // Simulated devices load beside kernels that run.
        if ranks > 2 && gpu.platform() != Platform::Sim {
            kernels._of_two = Some(Self::on(gpu, 2, overlap)?);
        }
        let kernels = Arc::new(kernels);
        *entry = Arc::downgrade(&kernels);
        Ok(kernels)
    }

    fn load(module: &Module, of_two: bool) -> Result<Self> {
        let mut forms: [[Option<Kernel>; 5]; 6] = Default::default();
        for (form, kernels) in FORMS.iter().zip(&mut forms) {
            for (words, kernel) in WORDS.iter().zip(kernels) {
                let in_two_steps = form.starts_with("all_reduce");
                if !(in_two_steps && (of_two || *words == "move")) {
                    *kernel = Some(module.kernel(&format!("{form}_{words}"))?);
                }
            }
        }
        let average = |of: &str| module.kernel(&format!("exchange_simple_{of}_avg"));
        let averages_of_two = match of_two {
            true => Some([average("f16")?, average("bf16")?, average("f32")?]),
            false => None,
        };
        let direct = module.kernel("exchange_direct_move")?;
        let reducing = |form: &str| -> Result<[Kernel; 4]> {
            let kernel = |words: &str| module.kernel(&format!("{form}_{words}"));
            Ok([kernel("any")?, kernel("f16_sum")?, kernel("bf16_sum")?, kernel("f32_sum")?])
        };
        let groups = reducing("reduce_group")?;
        let reduces = reducing("reduces_simple")?;
        let all_reduces = if of_two { None } else { Some(reducing("all_reduces_simple")?) };
        let moves =
            [module.kernel("moves_ll16")?, module.kernel("moves_ll128")?, module.kernel("moves_simple")?];
        let messages = module.kernel("move_messages")?;
        let many_messages = module.kernel("move_many_messages")?;
        Ok(Self {
            forms,
            direct,
            groups,
            moves,
            reduces,
            all_reduces,
            bulk: None,
            lanes: None,
            averages_of_two,
            messages,
            many_messages,
            _of_two: None,
        })
    }

    fn prefer_shared_memory(&self) -> Result<()> {
        let kernels = self.forms.iter().flatten().flatten().chain(&self.groups);
        let kernels = kernels.chain(self.averages_of_two.iter().flatten());
        let kernels = kernels.chain(&self.reduces).chain(self.all_reduces.iter().flatten());
        let others = [&self.direct, &self.messages, &self.many_messages];
        for kernel in kernels.chain(&self.moves).chain(others) {
            kernel.prefer_shared_memory()?;
        }
        Ok(())
    }

    /// The kernel of a call that moves, or reduces by an operation.
    pub(crate) fn of(
        &self,
        selection: Selection,
        op: Option<ReduceOp>,
        data_type: DataType,
    ) -> Result<&Kernel> {
        let words = WordOperation::of(op, data_type);
        let average = (op == Some(ReduceOp::Avg))
            .then(|| (words as usize).checked_sub(WordOperation::F16Sum as usize))
            .flatten();
        if let (Some(averages), Protocol::Simple, Some(average)) =
            (&self.averages_of_two, selection.protocol, average)
        {
            return Ok(&averages[average]);
        }
        let no_bulk = || Error::InvalidArgument("this device has no bulk copies".to_owned());
        let form = match (selection.protocol, selection.two_steps) {
            (Protocol::Ll16, _) => Form::ExchangeLl16,
            (Protocol::Ll128, false) => Form::ExchangeLl128,
            (Protocol::Ll128, true) => Form::AllReduceLl128,
            (Protocol::Simple, false) => Form::ExchangeSimple,
            (Protocol::Simple, true) => Form::AllReduceSimple,
            (Protocol::Direct, false) => return Ok(&self.direct),
            (Protocol::Direct, true) => Form::AllReduceDirect,
            (Protocol::SimpleByBulk, _) => {
                let lanes = self.lanes.as_ref().ok_or_else(no_bulk)?;
                return Ok(&lanes[average.map_or(words as usize, |average| WORDS.len() + average)]);
            }
            (Protocol::Bulk, _) => return self.bulk.as_ref().ok_or_else(no_bulk),
            (Protocol::CopyEngine, _) => {
                return Err(Error::InvalidArgument("the copy engines need no kernel".to_owned()));
            }
        };
        let kernel = self.forms[form as usize][words as usize].as_ref();
        kernel.ok_or_else(|| Error::InvalidArgument(format!("nothing is moved in two steps: {selection:?}")))
    }
}

impl Kernels {
    /// The kernel of a group of small calls that reduce.
    pub(crate) fn of_group(&self, words: WordOperation) -> &Kernel {
        &self.groups[(words as usize).max(1) - 1]
    }

    /// The kernel of several large calls that reduce.
    pub(crate) fn of_reduces(&self, words: WordOperation, two_steps: bool) -> &Kernel {
        let all_reduces = self.all_reduces.as_ref().filter(|_| two_steps);
        &all_reduces.unwrap_or(&self.reduces)[(words as usize).max(1) - 1]
    }

    /// The kernel of several calls that move, and the bytes of a unit by which it counts. There is none for calls that go
    /// directly.
    pub(crate) fn of_moves(&self, protocol: Protocol) -> Option<(&Kernel, u64)> {
        let [ll16, ll128, simple] = &self.moves;
        match protocol {
            Protocol::Ll16 => Some((ll16, 8)),
            Protocol::Ll128 => Some((ll128, 120)),
            Protocol::Simple => Some((simple, 16)),
            Protocol::SimpleByBulk | Protocol::Direct | Protocol::Bulk | Protocol::CopyEngine => None,
        }
    }
}

impl WordOperation {
    pub(crate) fn of(op: Option<ReduceOp>, data_type: DataType) -> Self {
        match (op, data_type) {
            (None, _) => Self::Move,
            (Some(ReduceOp::Sum | ReduceOp::Avg), DataType::F16) => Self::F16Sum,
            (Some(ReduceOp::Sum | ReduceOp::Avg), DataType::Bf16) => Self::Bf16Sum,
            (Some(ReduceOp::Sum | ReduceOp::Avg), DataType::F32) => Self::F32Sum,
            _ => Self::Any,
        }
    }
}
