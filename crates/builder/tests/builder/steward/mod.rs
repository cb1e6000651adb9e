//! The steward with everything around it: the embedded store and ZooKeeper, our job server, and workers that do what
//! a test tells them to; and once with the real worker and a simulated cloud.

mod faults;
mod fixtures;
mod job_servers;
mod kill;
mod life;
mod python;
mod reports;
mod request;
mod requeue;
mod session;
mod together;
mod worker;
mod zuul;
