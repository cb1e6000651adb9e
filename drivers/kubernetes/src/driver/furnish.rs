//! What a namespace gets before the pod: limits, secrets, and who may do what.
//!
//! Everything has a fixed name, so whatever an earlier try has made is found and left as it is.

use futures_util::future::try_join_all;
use nodeyard_config::{ClusterLabel, NodeKind, RegistryAccess};
use nodeyard_driver::{CreateOrder, Error};
use serde_json::Value;

use super::{KubernetesDriver, Link};
use crate::body::ssh::SshPlan;
use crate::body::{rights, space};
use crate::holder::HolderKind;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces";

impl KubernetesDriver {
    pub(super) async fn furnish(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        namespace: &str,
    ) -> Result<(), Error> {
        let api = &link.api;
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
        if let Some(ssh) = &label.ssh {
            let plan = SshPlan {
                pod: label.name.as_str(),
                node: order.node.to_string(),
                ssh,
                owner_uid: None,
            };
            objects.extend(ssh_objects(&plan, namespace));
        }
        if has_account(label) {
            // The cluster removes tokens of accounts that it does not know.
            let account = rights::account();
            api.ensure(
                "make a service account",
                &format!("{core}/serviceaccounts"),
                &account,
            )
            .await?;
            if hardening.token_ttl.is_none() {
                let secret = rights::token_secret();
                objects.push(("make a token", format!("{core}/secrets"), secret));
            }
            objects.extend(self.rights(label, namespace));
        }
        let calls = objects
            .iter()
            .map(|(what, path, body)| api.ensure(what, path, body));
        try_join_all(calls).await?;
        Ok(())
    }

    fn rights(&self, label: &ClusterLabel, namespace: &str) -> Vec<(&'static str, String, Value)> {
        let bindings = format!("{ROLES}/{namespace}/rolebindings");
        let bind = |name: &str, kind: &str, role: &str| {
            let binding = rights::binding(name, namespace, kind, role);
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
        let (name, role) = match label.node_kind() {
            NodeKind::Pod => ("zuul-restricted", rights::role_of_pod()),
            NodeKind::Namespace | NodeKind::Project => {
                ("zuul", rights::role_of_space(&label.hardening.extra_rules))
            }
        };
        vec![
            ("make a role", format!("{ROLES}/{namespace}/roles"), role),
            bind("zuul-role", "Role", name),
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
) -> Vec<(&'static str, String, Value)> {
    let core = format!("/api/v1/namespaces/{namespace}");
    let mut objects = vec![("make a service", format!("{core}/services"), plan.service())];
    if let Some(keys) = plan.keys() {
        objects.push(("store public keys", format!("{core}/configmaps"), keys));
    }
    if let Some(policy) = plan.policy() {
        let path = format!("{POLICIES}/{namespace}/networkpolicies");
        objects.push(("make a network policy", path, policy));
    }
    objects
}
