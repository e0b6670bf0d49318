//! How the processes of a job find each other and exchange bytes over TCP.
//!
//! [`TcpBootstrap`] connects processes, [`LocalBootstrap`] threads of one process; what either can do is the trait
//! [`Bootstrap`]. Of the other crates of the repository it needs `mscclpp-net` alone, which knows nothing of GPUs.
//!
//! # How a job forms
//! Every rank connects to rank 0, which it knows by [`UniqueId`] or address; both sides prove that they know the job's
//! key; rank 0 collects where everybody listens and hands the list to all. Then each rank connects to its parent in a
//! binary tree of all ranks, and the connections to rank 0 are closed again. Collectives and news of failures run
//! along the tree; messages between two ranks run over a connection that is opened when it is first needed.
//!
//! A rank that dies meanwhile is an error with its name for all others, as soon as rank 0 sees its connection end. Only one
//! that dies before it has proved who it is, in the first thing it says to rank 0, is not known to anybody, and nobody
//! hears of it before time is up: the time-out of initialisation names it, as missing. In the same way a rank that has
//! not reached rank 0 names rank 0, whether that died or never came.
//!
//! # How the code is laid out
//! `protocol` holds everything that can be said without a socket or a clock: frames, the handshake, message assembly and
//! order, flow control, the list of ranks. `tcp` moves the bytes: one thread per rank owns all its sockets. `collective`
//! is written over plain messages and serves both kinds of bootstrap. `inbox` is where callers wait.
//!
//! # Threat model
//! With a key, nobody without it who connects to a rank can join a job, stall its forming, or make it fail; what an
//! unproven connection can make a rank keep is a few kilobytes for a few seconds, for a bounded number of connections.
//! Nor can who answers at an address that a rank tries, in place of the one it looks for: what is not proved there, a
//! refusal too, is no more than a reason to try again, and silence costs five seconds before another address has its
//! turn. At the only address there is, the rank waits for as long as that one keeps its connection open. The price is
//! that a rank whose key is wrong hears so when its time is up.
//!
//! The handshake proves who opened a connection; the bytes after it are neither encrypted nor signed. So who can alter
//! traffic between the hosts, or hands a handshake on between two ranks at an address that one of them tries, is not kept
//! out. Members trust each other not to lie, but not to send well-formed bytes.
#![forbid(unsafe_code)]

mod address;
mod bootstrap;
mod collective;
mod env;
mod error;
mod host;
mod inbox;
mod launch;
mod local;
mod member;
mod protocol;
mod tcp;
mod unique_id;

#[doc(hidden)]
pub mod fuzzing;

pub use bootstrap::{Bootstrap, FailureHook};
pub use env::Env;
pub use error::{Error, Party, Result};
pub use launch::{LauncherStore, Rendezvous};
pub use local::LocalBootstrap;
pub use mscclpp_net::{dial::Attempt, interface::Family};
pub use tcp::{MeetingPlace, TcpBootstrap, TcpBootstrapBuilder};
pub use unique_id::UniqueId;

/// The target of this crate's log lines.
const LOG: &str = "mscclpp::bootstrap";

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
