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
    /// The kernels by [`Form`] and [`WORDS`]: those that [`has`] names.
    kernels: [[Option<Kernel>; 8]; 11],
    /// The kernel of [`Protocol::Direct`] that moves.
    direct: Kernel,
    /// The kernel of [`Protocol::Bulk`], where the device has bulk copies.
    bulk: Option<Kernel>,
    /// The kernels of several calls that move, by LL16, LL128 and Simple.
    moves: [Kernel; 3],
    /// With more than two ranks, the kernels of two, for a part of the ranks that is set up while these are used.
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
    /// Several small calls that reduce.
    ReduceGroup,
    /// Several calls that reduce, whatever their sizes.
    ReducesLl128,
    ReducesSimple,
    /// Several `all_reduce`s in two steps.
    AllReducesSimple,
    /// [`Protocol::SimpleByBulk`]. Two ranks with `overlap` have it, where the device has bulk copies.
    ExchangeLanes,
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

const FORMS: [&str; 11] = [
    "exchange_ll16",
    "exchange_ll128",
    "exchange_simple",
    "all_reduce_ll128",
    "all_reduce_simple",
    "all_reduce_direct",
    "reduce_group",
    "reduces_ll128",
    "reduces_simple",
    "all_reduces_simple",
    "exchange_lanes",
];
/// The names of [`WordOperation`]s, and of averages [`AVERAGES`] behind the sums of their types.
const WORDS: [&str; 8] = ["move", "any", "f16_sum", "bf16_sum", "f32_sum", "f16_avg", "bf16_avg", "f32_avg"];
const AVERAGES: usize = 3;

/// Whether the source of two ranks, or that of more, has a kernel. Two ranks have none in two steps. Where there is none for
/// averages, that for sums averages.
fn has(form: &str, words: &str, of_two: bool) -> bool {
    match (form, words) {
        ("exchange_simple", _) if of_two => true,
        ("reduces_simple", _) if of_two => words != "move",
        ("exchange_lanes", _) | (_, "f16_avg" | "bf16_avg" | "f32_avg") => false,
        ("reduce_group" | "reduces_ll128" | "reduces_simple", _) => words != "move",
        _ => !form.starts_with("all_reduce") || !(of_two || words == "move"),
    }
}

/// The kernels that are loaded. The key: platform and number of the device, whether they are for two ranks, and whether they
/// overlap with other kernels.
///
/// Loading waits for kernels that run on the device. A communicator that is set up while calls of another one wait for
/// their peers must not do that, so communicators with the same key share their kernels. [`Module::load_once`] has no such key:
/// `overlap` changes the functions of a module, so it needs a module of its own.
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
                for (words, kernel) in WORDS.iter().zip(&mut kernels.kernels[Form::ExchangeLanes as usize]) {
                    *kernel = Some(module.kernel(&format!("exchange_lanes_{words}"))?);
                }
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
        let mut kernels: [[Option<Kernel>; 8]; 11] = Default::default();
        for (form, kernels) in FORMS.iter().zip(&mut kernels) {
            for (words, kernel) in WORDS.iter().zip(kernels).filter(|(words, _)| has(form, words, of_two)) {
                *kernel = Some(module.kernel(&format!("{form}_{words}"))?);
            }
        }
        let moves =
            [module.kernel("moves_ll16")?, module.kernel("moves_ll128")?, module.kernel("moves_simple")?];
        Ok(Self {
            kernels,
            direct: module.kernel("exchange_direct_move")?,
            bulk: None,
            moves,
            _of_two: None,
            messages: module.kernel("move_messages")?,
            many_messages: module.kernel("move_many_messages")?,
        })
    }

    /// Changes all kernels but those of bulk copies.
    fn prefer_shared_memory(&self) -> Result<()> {
        let kernels = self.kernels[..Form::ExchangeLanes as usize].iter().flatten().flatten();
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
        let no_bulk = || Error::InvalidArgument("this device has no bulk copies".to_owned());
        let form = match (selection.protocol, selection.two_steps) {
            (Protocol::Ll16, _) => Form::ExchangeLl16,
            (Protocol::Ll128, false) => Form::ExchangeLl128,
            (Protocol::Ll128, true) => Form::AllReduceLl128,
            (Protocol::Simple, false) => Form::ExchangeSimple,
            (Protocol::Simple, true) => Form::AllReduceSimple,
            (Protocol::Direct, false) => return Ok(&self.direct),
            (Protocol::Direct, true) => Form::AllReduceDirect,
            (Protocol::SimpleByBulk, _) => Form::ExchangeLanes,
            (Protocol::Bulk, _) => return self.bulk.as_ref().ok_or_else(no_bulk),
            (Protocol::CopyEngine, _) => {
                return Err(Error::InvalidArgument("the copy engines need no kernel".to_owned()));
            }
        };
        self.get(form, op, data_type).ok_or_else(|| match form {
            Form::ExchangeLanes => no_bulk(),
            _ => Error::InvalidArgument(format!("nothing is moved in two steps: {selection:?}")),
        })
    }

    /// The kernel of several calls that reduce. By LL16, they are small.
    pub(crate) fn of_several(
        &self,
        (protocol, two_steps): (Protocol, bool),
        op: Option<ReduceOp>,
        data_type: DataType,
    ) -> Result<&Kernel> {
        let form = match (protocol, two_steps) {
            (Protocol::Ll16, _) => Form::ReduceGroup,
            (Protocol::Ll128, _) => Form::ReducesLl128,
            (_, true) => Form::AllReducesSimple,
            (_, false) => Form::ReducesSimple,
        };
        let kernel = self.get(form, op, data_type);
        kernel.ok_or_else(|| {
            let form = FORMS[form as usize];
            Error::InvalidArgument(format!("there is no kernel {form} for {op:?} of {data_type:?}"))
        })
    }

    fn get(&self, form: Form, op: Option<ReduceOp>, data_type: DataType) -> Option<&Kernel> {
        let (kernels, words) = (&self.kernels[form as usize], WordOperation::of(op, data_type) as usize);
        let is_average = op == Some(ReduceOp::Avg) && words >= WordOperation::F16Sum as usize;
        let average = if is_average { kernels[words + AVERAGES].as_ref() } else { None };
        average.or(kernels[words].as_ref())
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
