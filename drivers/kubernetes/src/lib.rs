//! Nodes in clusters: pods, namespaces and projects of Kubernetes and OpenShift.
//!
//! Three providers are one driver. They differ in the *holder*: the object that represents a node, carries its tags and
//! owns its other objects ([`HolderKind`]): a namespace, a project, or a pod in a project that exists already. The other
//! objects are created in the holder under fixed names, so that an operation can be repeated: what exists already was
//! created by an earlier attempt.
//!
//! ```text
//! options   the configuration                              pod_state the meaning of a pod's status
//! body      the objects that are sent                      feed      watches of the cluster's objects
//! api       calls, with a timeout and classified errors    holder    creating, finding and deleting holders
//! driver    the operations                                 exec      commands and logs, for people and for git
//! buildset  nodes that belong together                     forward   tunnels to pods
//! names     names of objects                               ports     the order of ports
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
mod kind;
mod names;
mod options;
mod pod_state;
mod ports;
#[cfg(test)]
mod testing;

pub use connection::{Connect, Connection, Kubeconfig};
pub use driver::KubernetesDriver;
pub use holder::HolderKind;
pub use kind::{KubernetesKind, OpenShiftKind, OpenShiftPodsKind};
pub use options::{Options, PoolOptions};
