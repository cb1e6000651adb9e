//! Nodes in clusters: pods, namespaces and projects of Kubernetes and OpenShift.
//!
//! Three providers are one driver. What differs is the *holder*: the object that stands for a node, carries its tags
//! and takes everything else with it when it goes ([`HolderKind`]): a namespace, a project, or a pod in a project that
//! exists already. Everything else is made inside the holder under names that are the same at every try, so that a
//! step can be taken twice: what is there already was made by the step before.
//!
//! ```text
//! options   what the configuration says                    verdict   what the state of a pod means
//! body      the objects that are sent                      feed      what the cluster tells by itself
//! api       calls, with a time limit and classed errors    holder    how holders are made, found and removed
//! driver    the steps                                      exec      commands and logs, for people and for git
//! buildset  who belongs together                           forward   tunnels to pods
//! ```

mod api;
mod body;
mod buildset;
mod connection;
mod driver;
pub mod exec;
mod failure;
mod feed;
mod forward;
mod holder;
mod names;
mod options;
#[cfg(test)]
mod testing;
mod verdict;

pub use connection::{Connect, Connection, Kubeconfig};
pub use driver::KubernetesDriver;
pub use holder::HolderKind;
pub use options::{Options, PoolOptions};
