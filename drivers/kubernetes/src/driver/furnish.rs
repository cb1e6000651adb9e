//! What a namespace gets before the pod: limits, secrets, keys; and, while the pod starts, who may do what.
//!
//! Everything has a fixed name, so whatever an earlier try has made is found and left as it is.

use futures_util::future::try_join_all;
use nodeyard_config::{ClusterLabel, Expose, NodeKind, RegistryAccess};
use nodeyard_driver::{CreateOrder, Error};
use serde_json::Value;

use super::peers::open_to;
use super::quarters::Quarters;
use super::{KubernetesDriver, Link};
use crate::body::ssh::{HostKeys, SshPlan};
use crate::body::{rights, space};
use crate::holder::HolderKind;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces";

/// What a node has besides the namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Furniture<'a> {
    /// The name of its pod.
    pub(super) pod: Option<&'a str>,
    pub(super) host_keys: Option<&'a HostKeys>,
}

impl KubernetesDriver {
    pub(super) async fn furnish(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        quarters: &Quarters<'_>,
        furniture: &Furniture<'_>,
    ) -> Result<(), Error> {
        let pod = furniture.pod;
        let api = &link.api;
        let namespace = quarters.namespace;
        let core = format!("/api/v1/namespaces/{namespace}");
        let hardening = &label.hardening;
        let mut objects: Vec<(&str, String, Value)> = Vec::new();
        if hardening.deny_network {
            let path = format!("{POLICIES}/{namespace}/networkpolicies");
            objects.push(("make a network policy", path, space::deny_network()));
        }
        if let Some(hard) = &hardening.namespace_quota {
            objects.push((
                "make a quota",
                format!("{core}/resourcequotas"),
                space::quota(hard),
            ));
        }
        for secret in &hardening.image_pull_secrets {
            if let Some(from) = &secret.namespace {
                let copy = self.copy_of_secret(link, from, &secret.name).await?;
                objects.push(("copy a pull secret", format!("{core}/secrets"), copy));
            }
        }
        if pod.is_some()
            && hardening.service_account_name.is_none()
            && self.options.holder == HolderKind::Namespace
        {
            // The cluster makes it by itself, but takes its time, and without it there is no pod.
            let account = rights::account("default");
            let path = format!("{core}/serviceaccounts");
            objects.push(("make a service account", path, account));
        }
        // What was there before goes with the namespace, what comes now with the node.
        let of_namespace = objects.len();
        if let (Some(ssh), Some(pod)) = (&label.ssh, pod) {
            let plan = SshPlan {
                pod,
                node: order.node.to_string(),
                ssh,
            };
            objects.extend(ssh_objects(&plan, namespace, furniture.host_keys));
        }
        for (_, _, body) in objects.iter_mut().skip(of_namespace) {
            quarters.own(body);
        }
        let calls = objects
            .iter()
            .map(|(what, path, body)| api.ensure(what, path, body));
        try_join_all(calls).await?;
        Ok(())
    }

    /// Makes the account that Zuul acts as, what it may do, and its token.
    pub(super) async fn grant(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        quarters: &Quarters<'_>,
        pod: Option<&str>,
    ) -> Result<(), Error> {
        if !has_account(label) {
            return Ok(());
        }
        let core = format!("/api/v1/namespaces/{}", quarters.namespace);
        let name = quarters.account();
        let account = rights::account(&name);
        let path = format!("{core}/serviceaccounts");
        let mut objects = vec![("make a service account", path, account)];
        objects.extend(self.rights(label, quarters, pod));
        for (_, _, body) in &mut objects {
            quarters.own(body);
        }
        let calls = objects
            .iter()
            .map(|(what, path, body)| link.api.ensure(what, path, body));
        try_join_all(calls).await?;
        if label.hardening.token_ttl.is_none() {
            // The cluster removes tokens of accounts that it does not know, so the account came first.
            let mut secret = rights::token_secret(&name);
            quarters.own(&mut secret);
            let path = format!("{core}/secrets");
            link.api.ensure("make a token", &path, &secret).await?;
        }
        if let Some(buildset) = open_to(label, order) {
            self.meet_peers(link, quarters.namespace, &buildset).await?;
        }
        Ok(())
    }

    fn rights(
        &self,
        label: &ClusterLabel,
        quarters: &Quarters<'_>,
        pod: Option<&str>,
    ) -> Vec<(&'static str, String, Value)> {
        let namespace = quarters.namespace;
        let bindings = format!("{ROLES}/{namespace}/rolebindings");
        let account = quarters.account();
        let bind = |name: &str, kind: &str, role: &str| {
            let binding = rights::binding(name, (namespace, &account), kind, role);
            ("bind a role", bindings.clone(), binding)
        };
        if self.options.holder == HolderKind::Project {
            let mut all = vec![bind("admin-0", "ClusterRole", "admin")];
            if label.node_kind() == NodeKind::Project {
                match label.registry_access {
                    RegistryAccess::None => {}
                    RegistryAccess::Pull => {
                        all.push(bind(
                            "zuul-image-puller",
                            "ClusterRole",
                            "system:image-puller",
                        ));
                    }
                    RegistryAccess::Push => {
                        all.push(bind(
                            "zuul-image-builder",
                            "ClusterRole",
                            "system:image-builder",
                        ));
                    }
                }
            }
            return all;
        }
        let (name, role) = match pod {
            Some(pod) => {
                let name = quarters.name("zuul-restricted");
                let role = match quarters.member {
                    Some(_) => rights::role_of_one_pod(&name, pod),
                    None => rights::role_of_pod(&name),
                };
                (name, role)
            }
            None => {
                let name = quarters.name("zuul");
                let role = rights::role_of_space(&name, &label.hardening.extra_rules);
                (name, role)
            }
        };
        vec![
            ("make a role", format!("{ROLES}/{namespace}/roles"), role),
            bind(&quarters.name("zuul-role"), "Role", &name),
        ]
    }

    async fn copy_of_secret(&self, link: &Link, from: &str, name: &str) -> Result<Value, Error> {
        let path = format!("/api/v1/namespaces/{from}/secrets/{name}");
        let original = link.api.get::<Value>("read a pull secret", &path).await?;
        let original = original.ok_or_else(|| {
            Error::permanent(format!(
                "there is no secret {name} in namespace {from} to copy"
            ))
        })?;
        Ok(space::copied_secret(name, &original))
    }
}

/// What is reached by SSH needs no token, unless it is asked for.
pub(super) fn has_account(label: &ClusterLabel) -> bool {
    label.ssh.as_ref().is_none_or(|ssh| ssh.kubectl_access)
}

/// With the calls that make them.
pub(super) fn ssh_objects(
    plan: &SshPlan<'_>,
    namespace: &str,
    host_keys: Option<&HostKeys>,
) -> Vec<(&'static str, String, Value)> {
    let core = format!("/api/v1/namespaces/{namespace}");
    let mut objects = Vec::new();
    if plan.ssh.expose != Expose::Forward {
        objects.push(("make a service", format!("{core}/services"), plan.service()));
    }
    if let Some(copy) = host_keys.and_then(|keys| keys.copy.clone()) {
        objects.push(("copy host keys", format!("{core}/secrets"), copy));
    }
    if let Some(keys) = plan.keys() {
        objects.push(("store public keys", format!("{core}/configmaps"), keys));
    }
    if let Some(policy) = plan.policy().filter(|_| plan.ssh.expose != Expose::Forward) {
        let path = format!("{POLICIES}/{namespace}/networkpolicies");
        objects.push(("make a network policy", path, policy));
    }
    objects
}
