//! Tests of the FIFO and of proxies. The suite over a transport and the layouts are programs of their own, which list
//! their trials themselves.

mod fifo;
#[path = "../kernels/mod.rs"]
mod kernels;
mod proxy;
