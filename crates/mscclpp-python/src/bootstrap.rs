//! `Bootstrap` and `TcpBootstrap`.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use mscclpp::{
    Bootstrap, Rendezvous, TcpBootstrap, UniqueId,
    bootstrap::{MeetingPlace, TcpBootstrapBuilder},
};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};

use crate::{
    constructor::match_names,
    error::{self, OrRaise},
    owned::Owned,
    raw,
    uint::{Uint, uint},
    unique_id::PyUniqueId,
    waiting::{self, GivenUp},
};

/// A job of ranks that exchange bytes. Made by `TcpBootstrap.create`.
#[pyclass(name = "Bootstrap", module = "mscclpp._mscclpp", subclass, frozen)]
pub(crate) struct PyBootstrap {
    rank: usize,
    n_ranks: usize,
    formed: Owned<OnceLock<Formed>>,
    /// Ends the joining of the job, which has no other way to be ended.
    given_up: GivenUp,
}

#[derive(Clone)]
struct Formed {
    bootstrap: Arc<dyn Bootstrap>,
    id: Option<UniqueId>,
}

impl PyBootstrap {
    fn new(rank: usize, n_ranks: usize) -> Self {
        let formed = Owned::that_may_wait("TcpBootstrap", OnceLock::new());
        Self { rank, n_ranks, formed, given_up: GivenUp::default() }
    }

    /// Joins a job, as the builder says.
    fn join(&self, py: Python<'_>, builder: TcpBootstrapBuilder, at: MeetingPlace) -> PyResult<()> {
        let formed = self.formed.get()?;
        if formed.get().is_some() {
            return Err(error::misuse("this bootstrap is connected already; create another for another job"));
        }
        let id = match &at {
            MeetingPlace::Id(id) => Some(*id),
            MeetingPlace::Address(_) => None,
        };
        let bootstrap: Arc<dyn Bootstrap> =
            Arc::new(waiting::wait_until_given_up(py, &self.given_up, move || builder.connect(at))?);
        formed
            .set(Formed { bootstrap: Arc::clone(&bootstrap), id })
            .map_err(|_| error::misuse("another thread has connected this bootstrap meanwhile"))?;
        if let Some(reason) = self.given_up.reason() {
            py.detach(|| bootstrap.abort(&reason));
        }
        Ok(())
    }

    pub(crate) fn bootstrap(&self) -> PyResult<Arc<dyn Bootstrap>> {
        Ok(self.formed()?.bootstrap)
    }

    fn formed(&self) -> PyResult<Formed> {
        self.formed.get()?.get().cloned().ok_or_else(|| {
            error::misuse(
                "this bootstrap is not connected yet: call initialize(unique_id) on all ranks first",
            )
        })
    }
}

#[pymethods]
impl PyBootstrap {
    /// The number of this rank, counted from 0.
    fn get_rank(&self) -> PyResult<usize> {
        self.formed.get()?;
        Ok(self.rank)
    }

    /// How many ranks the job has.
    fn get_n_ranks(&self) -> PyResult<usize> {
        self.formed.get()?;
        Ok(self.n_ranks)
    }

    /// How many ranks of the job are on this rank's node.
    fn get_n_ranks_per_node(&self) -> PyResult<usize> {
        Ok(self.formed()?.bootstrap.n_ranks_per_node())
    }

    /// How many ranks of the job can map each other's GPU memory: here those of one node.
    fn get_n_ranks_per_ipc_domain(&self) -> PyResult<usize> {
        Ok(self.formed()?.bootstrap.n_ranks_per_ipc_domain())
    }

    /// `send(data, size, peer, tag)` with an address or a buffer, or `send(data, peer, tag)` with a buffer.
    #[pyo3(signature = (*args, **kwargs))]
    fn send(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let Message { data, size, peer, tag } = Message::parse("send", args, kwargs)?;
        let data = data.ok_or_else(|| PyTypeError::new_err("send() misses the argument 'data'"))?;
        let bytes = raw::locate("send", &data, size, false)?.read();
        let bootstrap = self.bootstrap()?;
        waiting::wait(py, move || bootstrap.send(&bytes, peer, tag))
    }

    /// `recv(data, size, peer, tag)` into an address or a buffer, `recv(data, peer, tag)` into a buffer, or
    /// `recv(peer, tag)`, which returns the bytes. When the time of `timeout_sec` runs out, the call has received
    /// nothing and can be repeated.
    #[pyo3(signature = (*args, timeout_sec = None, **kwargs))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        timeout_sec: Option<f64>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let timeout = timeout_sec.map(waiting::seconds).transpose()?;
        let Message { data, size, peer, tag } = Message::parse("recv", args, kwargs)?;
        // The argument is checked before anything is received.
        let place = data.map(|data| raw::locate("recv", &data, size, true)).transpose()?;
        let bootstrap = self.bootstrap()?;
        let received =
            waiting::repeat(py, Some(self.rank), timeout, |left| bootstrap.recv_timeout(peer, tag, left))?;
        match place {
            Some(place) => place.write("recv", &received).map(|()| None),
            None => Ok(Some(PyBytes::new(py, &received))),
        }
    }

    /// Exchanges `size` bytes of each rank. `allData` is an address or a buffer of `size` times the number of ranks.
    /// Before the call it holds this rank's bytes at this rank's place, after the call those of all ranks. When the
    /// time of `timeout_sec` runs out, the next collective call must be this one again; it goes on with the bytes
    /// that were given first.
    #[pyo3(signature = (allData: "int | typing_extensions.Buffer", size, timeout_sec = None))]
    #[allow(non_snake_case, reason = "the public name")]
    fn all_gather(
        &self,
        py: Python<'_>,
        allData: &Bound<'_, PyAny>,
        size: Uint<usize>,
        timeout_sec: Option<f64>,
    ) -> PyResult<()> {
        let timeout = timeout_sec.map(waiting::seconds).transpose()?;
        let Uint(size) = size;
        let Some(total) = size.checked_mul(self.n_ranks) else {
            return Err(error::misuse(format!(
                "all_gather: {size} bytes of {} ranks are too many",
                self.n_ranks
            )));
        };
        let all = raw::locate("all_gather", allData, Some(total), true)?;
        let mine = all.read()[self.rank * size..][..size].to_vec();
        let bootstrap = self.bootstrap()?;
        let gathered =
            waiting::repeat(py, Some(self.rank), timeout, |left| bootstrap.all_gather_timeout(&mine, left))?;
        if let Some((rank, part)) = gathered.iter().enumerate().find(|(_, part)| part.len() != size) {
            return Err(error::misuse(format!(
                "all_gather: rank {rank} gave {} bytes, and rank {}, this one, {size}; all must give as many",
                part.len(),
                self.rank
            )));
        }
        all.write("all_gather", &gathered.concat())
    }

    /// Returns when all ranks have called it. When the time of `timeout_sec` runs out, the next collective call must
    /// be this one again, which goes on with the same barrier.
    #[pyo3(signature = (timeout_sec = None))]
    fn barrier(&self, py: Python<'_>, timeout_sec: Option<f64>) -> PyResult<()> {
        let timeout = timeout_sec.map(waiting::seconds).transpose()?;
        let bootstrap = self.bootstrap()?;
        waiting::repeat(py, Some(self.rank), timeout, |left| bootstrap.barrier_timeout(left))
    }

    /// Gives up the job: the calls of all ranks fail from now on. Ends `initialize()`, too.
    #[pyo3(signature = (reason = "aborted by the program"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let formed = self.formed.get()?;
        self.given_up.give_up(reason);
        if let Some(Formed { bootstrap, .. }) = formed.get() {
            py.detach(|| bootstrap.abort(reason));
        }
        Ok(())
    }

    /// Leaves the job, unless a Communicator still uses it. Ends `initialize()`. Calls that other threads have begun
    /// go on, and new ones raise. A second `close()` does nothing.
    fn close(&self) {
        if self.formed.is_open() {
            self.given_up.give_up("the bootstrap was closed");
            self.formed.close();
        }
    }

    #[pyo3(signature = () -> "typing.Self")]
    fn __enter__(slf: Py<Self>) -> PyResult<Py<Self>> {
        slf.get().formed.get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception: "object"))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let Self { rank, n_ranks, .. } = self;
        self.formed.show(|formed| {
            let state = if formed.get().is_some() { "" } else { ", not connected yet" };
            format!(", rank {rank} of {n_ranks}{state}")
        })
    }
}

/// A rank of a job whose processes are connected by TCP.
#[pyclass(name = "TcpBootstrap", module = "mscclpp._mscclpp", extends = PyBootstrap, frozen)]
pub(crate) struct PyTcpBootstrap;

#[pymethods]
impl PyTcpBootstrap {
    /// Makes the bootstrap of rank `rank` out of `nRanks`, which `initialize()` then connects.
    #[staticmethod]
    #[allow(non_snake_case, reason = "the public name")]
    fn create(py: Python<'_>, rank: Uint<usize>, nRanks: Uint<usize>) -> PyResult<Py<Self>> {
        let (Uint(rank), Uint(nRanks)) = (rank, nRanks);
        if rank >= nRanks {
            return Err(error::misuse(format!(
                "rank is {rank}, and nRanks is {nRanks}: ranks are counted from 0"
            )));
        }
        Py::new(py, PyClassInitializer::from(PyBootstrap::new(rank, nRanks)).add_subclass(Self))
    }

    /// Makes the identity of a new job. One process calls it, which lives until all ranks have come.
    #[staticmethod]
    fn create_unique_id(py: Python<'_>) -> PyResult<PyUniqueId> {
        Ok(PyUniqueId(Some(py.detach(TcpBootstrap::create_unique_id).or_raise()?)))
    }

    /// The identity with which this bootstrap was initialised.
    fn get_unique_id(slf: &Bound<'_, Self>) -> PyResult<PyUniqueId> {
        let id = slf.as_super().get().formed()?.id;
        id.map(|id| PyUniqueId(Some(id)))
            .ok_or_else(|| error::misuse("this job met at an address and has no unique id"))
    }

    /// Joins the job; returns when all ranks are connected. `unique_id` is an id, or an address as `ip:port` or
    /// `interface:ip:port`, which may also be given as `if_ip_port_trio`. With an address, `job` is an id that all ranks of the
    /// job share and no other job has: `MSCCLPP_JOB_ID` if it is not given, or else the launcher's.
    #[pyo3(signature = (
        unique_id: "UniqueId | str | None" = None, timeout_sec = 30.0, *, if_ip_port_trio = None, job = None,
    ))]
    fn initialize(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        unique_id: Option<&Bound<'_, PyAny>>,
        timeout_sec: f64,
        if_ip_port_trio: Option<String>,
        job: Option<String>,
    ) -> PyResult<()> {
        let at = match (unique_id, if_ip_port_trio) {
            (Some(given), None) => rendezvous(given)?,
            (None, Some(address)) => MeetingPlace::Address(address),
            _ => {
                return Err(PyTypeError::new_err(
                    "initialize() takes one of 'unique_id' and 'if_ip_port_trio'",
                ));
            }
        };
        let this = slf.as_super().get();
        let builder = TcpBootstrap::builder(this.rank, this.n_ranks).timeout(waiting::seconds(timeout_sec)?);
        let builder = match (job, &at) {
            (Some(_), MeetingPlace::Id(_)) => {
                return Err(PyTypeError::new_err(
                    "initialize() takes 'job' with an address; a UniqueId is one",
                ));
            }
            (Some(job), MeetingPlace::Address(_)) => builder.job_id(job),
            (None, _) => builder,
        };
        this.join(py, builder, at)
    }
}

impl PyTcpBootstrap {
    /// The bootstrap of a rank that a launcher has started.
    pub(crate) fn of_launched(py: Python<'_>, rank: &Rendezvous, timeout: Duration) -> PyResult<Py<Self>> {
        let made = Self::create(py, Uint(rank.rank), Uint(rank.n_ranks))?;
        made.bind(py).as_super().get().join(
            py,
            rank.builder().timeout(timeout),
            rank.address.as_str().into(),
        )?;
        Ok(made)
    }
}

fn rendezvous(given: &Bound<'_, PyAny>) -> PyResult<MeetingPlace> {
    if let Ok(address) = given.extract::<String>() {
        return Ok(MeetingPlace::Address(address));
    }
    match given.extract::<PyUniqueId>() {
        Ok(PyUniqueId(Some(id))) => Ok(MeetingPlace::Id(id)),
        Ok(PyUniqueId(None)) => Err(error::misuse("unique_id is empty: get one from create_unique_id()")),
        Err(_) => Err(error::unexpected(
            "argument 'unique_id': expected a UniqueId or an address as \"ip:port\" or \"interface:ip:port\", got",
            given,
        )),
    }
}

/// The arguments of `send` and `recv`, of which those in front may be left out.
struct Message<'py> {
    data: Option<Bound<'py, PyAny>>,
    size: Option<usize>,
    peer: usize,
    tag: u32,
}

impl<'py> Message<'py> {
    fn parse(call: &str, args: &Bound<'py, PyTuple>, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
        let names: &[&str] = match (args.len() + kwargs.map_or(0, PyDictMethods::len), call) {
            (4, _) => &["data", "size", "peer", "tag"],
            (3, _) => &["data", "peer", "tag"],
            (2, "recv") => &["peer", "tag"],
            (n, _) => {
                return Err(PyTypeError::new_err(format!(
                    "{call}() takes (data, size, peer, tag) or (data, peer, tag), and was given {n}"
                )));
            }
        };
        let mut values = match_names(call, names, args, kwargs)?;
        let mut argument =
            |name: &str| names.iter().position(|known| *known == name).and_then(|at| values[at].take());
        let data = argument("data");
        let mut number = |name: &str| -> PyResult<Option<usize>> {
            argument(name)
                .map(|value| uint(&value))
                .transpose()
                .map_err(|e| PyTypeError::new_err(format!("argument '{name}': {}", e.value(args.py()))))
        };
        let size = number("size")?;
        let mut required = |name: &str| -> PyResult<usize> {
            number(name)?
                .ok_or_else(|| PyTypeError::new_err(format!("{call}() misses the argument '{name}'")))
        };
        let tag = u32::try_from(required("tag")?)
            .map_err(|_| PyTypeError::new_err(format!("argument 'tag': it must be at most {}", u32::MAX)))?;
        Ok(Self { data, size, peer: required("peer")?, tag })
    }
}
