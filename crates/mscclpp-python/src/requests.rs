//! The requests of collectives, as the Python layer gives them.

use mscclpp::DevicePtr;
use mscclpp_collectives::{DataType, Kind, ReduceOp, Request};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyString, PyTuple},
};

use crate::{data_types::of_collectives, error, tensors::Tensors};

/// A request from Python, which owns its lists of counts.
#[derive(Clone)]
pub(crate) struct Asked {
    kind: What,
    send: DevicePtr,
    recv: DevicePtr,
    count: u64,
    data_type: DataType,
}

#[derive(Clone)]
enum What {
    Plain(Kind<'static>),
    AllGatherV(Vec<u64>),
    AllToAllV(Vec<u64>, Vec<u64>),
}

impl Asked {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn all_gather(send: DevicePtr, recv: DevicePtr, count: u64, data_type: DataType) -> Self {
        Self { kind: What::Plain(Kind::AllGather), send, recv, count, data_type }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        let kind = match &self.kind {
            What::Plain(kind) => *kind,
            What::AllGatherV(counts) => Kind::AllGatherV(counts),
            What::AllToAllV(send, recv) => Kind::AllToAllV { send, recv },
        };
        Request { kind, send: self.send, recv: self.recv, count: self.count, data_type: self.data_type }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Asked {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let parts = given.cast::<PyTuple>()?;
        let item = |at: usize| parts.get_item(at);
        let kind = item(0)?;
        let kind = kind.extract::<&str>()?;
        let (mut count, dtype) = (0, item(4)?);
        let dtype = dtype.extract::<&str>()?;
        let what = match kind {
            "all_gather_v" => What::AllGatherV(item(3)?.extract()?),
            "all_to_all_v" => {
                let (send, recv) = item(3)?.extract()?;
                What::AllToAllV(send, recv)
            }
            _ => {
                count = item(3)?.extract()?;
                What::Plain(plain(kind, || operation(&item(5)?, dtype), || item(6)?.extract())?)
            }
        };
        Ok(Self {
            kind: what,
            send: DevicePtr(item(1)?.extract()?),
            recv: DevicePtr(item(2)?.extract()?),
            count,
            data_type: of_collectives(dtype)?,
        })
    }
}

/// Requests of one kind, made of tensors.
#[pyclass(name = "_Requests", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRequests(Vec<Asked>);

#[pymethods]
impl PyRequests {
    /// Makes a request for each input and output, which are tensors of PyTorch, and may be the same one. The input has
    /// `parts[0]` times as many elements as the request's count, the output `parts[1]` times as many. `numbers` says what an
    /// element is sent as: the type of the numbers, how many they are, and the operation. A complex64 is two float32.
    ///
    /// Returns None unless all tensors are of one type, on one device, and have their numbers in memory in their order and with
    /// their signs. Without PyTorch's table for DLPack, which older versions lack, that is not known.
    #[staticmethod]
    #[pyo3(signature = (kind, given, taken, parts, numbers, /))]
    fn of_tensors(
        py: Python<'_>,
        kind: &str,
        given: Vec<Bound<'_, PyAny>>,
        taken: Vec<Bound<'_, PyAny>>,
        parts: (u64, u64),
        numbers: Numbers<'_>,
    ) -> PyResult<Option<Self>> {
        let Some(mut maker) = Maker::new(py, kind, parts, numbers, 0)? else { return Ok(None) };
        if given.len() != taken.len() {
            return Ok(None);
        }
        let mut requests = Vec::with_capacity(given.len());
        for (given, taken) in given.iter().zip(&taken) {
            let Some(request) = maker.request(given, taken)? else { return Ok(None) };
            if !request.is_empty() {
                requests.push(request);
            }
        }
        Ok((!requests.is_empty()).then_some(Self(requests)))
    }
}

/// The numbers that an element of a tensor is sent as: their type, how many they are, and the operation on them.
pub(crate) type Numbers<'py> = (Bound<'py, PyString>, u64, Bound<'py, PyAny>);

/// Makes requests of one kind from tensors, as [`PyRequests::of_tensors`] says.
pub(crate) struct Maker {
    kind: What,
    data_type: DataType,
    times: u64,
    parts: (u64, u64),
    tensors: Tensors,
}

impl Maker {
    /// Returns None without PyTorch's table for DLPack.
    pub(crate) fn new(
        py: Python<'_>,
        kind: &str,
        parts: (u64, u64),
        (data_type, times, op): Numbers<'_>,
        root: usize,
    ) -> PyResult<Option<Self>> {
        let Some(tensors) = Tensors::of(py)? else { return Ok(None) };
        let data_type = data_type.to_cow()?;
        let kind = What::Plain(plain(kind, || operation(&op, &data_type), || Ok(root))?);
        Ok(Some(Self { kind, data_type: of_collectives(&data_type)?, times, parts, tensors }))
    }

    /// Returns None if a tensor is not plain, or unlike those before.
    pub(crate) fn request(
        &mut self,
        given: &Bound<'_, PyAny>,
        taken: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Asked>> {
        let Some((send, n_given)) = self.tensors.look(given)? else { return Ok(None) };
        let (recv, n_taken) = match given.is(taken) {
            true => (send, n_given),
            false => match self.tensors.look(taken)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let count = n_given / self.parts.0;
        let fits = n_given == count * self.parts.0 && n_taken == count * self.parts.1;
        let (kind, data_type) = (self.kind.clone(), self.data_type);
        Ok(fits.then(|| Asked { kind, send, recv, count: self.times * count, data_type }))
    }
}

/// The requests of a call: a list of tuples, or of what was made of tensors.
pub(crate) struct AllAsked(pub(crate) Vec<Asked>);

impl<'a, 'py> FromPyObject<'a, 'py> for AllAsked {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let mut all = Vec::new();
        for item in given.try_iter()? {
            let item = item?;
            match item.cast::<PyRequests>() {
                Ok(requests) => all.extend_from_slice(&requests.get().0),
                Err(_) => all.push(item.extract()?),
            }
        }
        Ok(Self(all))
    }
}

/// Returns the kind with a name, without lists of counts.
fn plain(
    kind: &str,
    op: impl FnOnce() -> PyResult<ReduceOp>,
    root: impl FnOnce() -> PyResult<usize>,
) -> PyResult<Kind<'static>> {
    Ok(match kind {
        "all_reduce" => Kind::AllReduce(op()?),
        "all_gather" => Kind::AllGather,
        "reduce_scatter" => Kind::ReduceScatter(op()?),
        "all_to_all" => Kind::AllToAll,
        "broadcast" => Kind::Broadcast { root: root()? },
        "reduce" => Kind::Reduce { root: root()?, op: op()? },
        "gather" => Kind::Gather { root: root()? },
        "scatter" => Kind::Scatter { root: root()? },
        "barrier" => Kind::Barrier,
        "send" => Kind::Send { peer: root()? },
        "recv" => Kind::Recv { peer: root()? },
        _ => return Err(error::misuse(format!("there is no collective {kind:?}"))),
    })
}

/// Converts an operation on numbers of a type: a name such as "sum", or ("premul_sum", factor).
fn operation(given: &Bound<'_, PyAny>, dtype: &str) -> PyResult<ReduceOp> {
    // Most are names, for which no error need be made first.
    if !given.is_instance_of::<PyString>()
        && let Ok((name, factor)) = given.extract::<(String, f64)>()
    {
        return match name.as_str() {
            // A fraction would be cut off.
            "premul_sum" if factor.fract() != 0.0 && !of_collectives(dtype)?.is_float() => {
                Err(PyValueError::new_err(format!(
                    "argument 'op': numbers of type {dtype} cannot be multiplied by {factor}"
                )))
            }
            "premul_sum" => Ok(ReduceOp::PreMulSum(factor)),
            _ => Err(error::misuse(format!("there is no operation {name:?} with a factor"))),
        };
    }
    let name = given.str()?;
    Ok(match &*name.to_cow()? {
        "sum" => ReduceOp::Sum,
        "prod" => ReduceOp::Prod,
        "max" => ReduceOp::Max,
        "min" => ReduceOp::Min,
        "avg" => ReduceOp::Avg,
        name => {
            let given = if given.is_instance_of::<PyString>() {
                format!("{name:?}")
            } else {
                given.repr()?.to_string()
            };
            return Err(error::misuse(format!(
                "there is no operation {given}; there are \"sum\", \"prod\", \"max\", \"min\", \"avg\", and (\"premul_sum\", factor)"
            )));
        }
    })
}
