//! The requests of collectives, as the Python layer gives them.

use mscclpp::DevicePtr;
use mscclpp_collectives::{DataType, Kind, ReduceOp, Request};
use pyo3::{
    prelude::*,
    types::{PyString, PyTuple},
};

use crate::{data_types::of_collectives, error};

/// A request from Python, which owns its lists of counts.
pub(crate) struct Asked {
    kind: What,
    send: DevicePtr,
    recv: DevicePtr,
    count: u64,
    data_type: DataType,
}

enum What {
    Plain(Kind<'static>),
    AllGatherV(Vec<u64>),
    AllToAllV(Vec<u64>, Vec<u64>),
}

impl Asked {
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
        let op = || operation(&item(5)?);
        let root = || item(6)?.extract::<usize>();
        let mut count = 0;
        let what = match kind {
            "all_gather_v" => What::AllGatherV(item(3)?.extract()?),
            "all_to_all_v" => {
                let (send, recv) = item(3)?.extract()?;
                What::AllToAllV(send, recv)
            }
            _ => {
                count = item(3)?.extract()?;
                What::Plain(match kind {
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
        };
        Ok(Self {
            kind: what,
            send: DevicePtr(item(1)?.extract()?),
            recv: DevicePtr(item(2)?.extract()?),
            count,
            data_type: of_collectives(item(4)?.extract()?)?,
        })
    }
}

/// Converts an operation: a name such as "sum", or ("premul_sum", factor).
fn operation(given: &Bound<'_, PyAny>) -> PyResult<ReduceOp> {
    // Most are names, for which no error need be made first.
    if !given.is_instance_of::<PyString>()
        && let Ok((name, factor)) = given.extract::<(String, f64)>()
    {
        return match name.as_str() {
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
