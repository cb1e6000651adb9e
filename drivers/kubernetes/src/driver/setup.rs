//! Creates the objects in the namespace of a node: before the pod, limits, secrets and keys; while the pod starts, the
//! account of the job and its rights.
//!
//! Everything has a fixed name, so objects of an earlier attempt are found and kept.

use futures_util::future::try_join_all;
use nodeyard_config::{ClusterLabel, Expose, NodeKind, RegistryAccess};
use nodeyard_driver::{CreateOrder, Error};
use serde_json::Value;

use super::namespace::NodeNamespace;
use super::peers::open_to;
use super::{ClusterLink, KubernetesDriver};
use crate::body::ssh::{HostKeys, SshPlan};
use crate::body::{objects, rights};
use crate::holder::HolderKind;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces";

impl KubernetesDriver {
    pub(super) async fn set_up_namespace(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        space: &NodeNamespace,
        host_keys: Option<&HostKeys>,
    ) -> Result<(), Error> {
        let pod = space.pod.as_deref();
        let api = &link.api;
        let namespace = space.namespace.as_str();
        let core = format!("/api/v1/namespaces/{namespace}");
        let hardening = &label.hardening;
        let mut objects: Vec<(&str, String, Value)> = Vec::new();
        if hardening.deny_network {
            let path = format!("{POLICIES}/{namespace}/networkpolicies");
            objects.push(("create a network policy", path, objects::deny_network()));
        }
        if let Some(hard) = &hardening.namespace_quota {
            objects.push((
                "create a quota",
                format!("{core}/resourcequotas"),
                objects::quota(hard),
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
            // The cluster creates it, too, but later, and the pod needs it.
            let account = rights::account("default");
            let path = format!("{core}/serviceaccounts");
            objects.push(("create a service account", path, account));
        }
        // The objects before belong to the namespace, those after to the node.
        let of_namespace = objects.len();
        if let (Some(ssh), Some(pod)) = (&label.ssh, pod) {
            let plan = SshPlan {
                pod,
                node: order.node.to_string(),
                ssh,
            };
            objects.extend(ssh_objects(&plan, namespace, host_keys));
        }
        for (_, _, body) in objects.iter_mut().skip(of_namespace) {
            space.own(body);
        }
        let calls = objects
            .iter()
            .map(|(what, path, body)| api.ensure(what, path, body));
        try_join_all(calls).await?;
        Ok(())
    }

    /// Creates the account that Zuul acts as, its rights and its token.
    pub(super) async fn create_account(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        space: &NodeNamespace,
    ) -> Result<(), Error> {
        if !has_account(label) {
            return Ok(());
        }
        let core = format!("/api/v1/namespaces/{}", space.namespace);
        let name = space.account();
        let account = rights::account(&name);
        let path = format!("{core}/serviceaccounts");
        let mut objects = vec![("create a service account", path, account)];
        objects.extend(self.rights(label, space));
        for (_, _, body) in &mut objects {
            space.own(body);
        }
        let calls = objects
            .iter()
            .map(|(what, path, body)| link.api.ensure(what, path, body));
        try_join_all(calls).await?;
        if label.hardening.token_ttl.is_none() {
            // The cluster deletes tokens of unknown accounts, so the account is created first.
            let mut secret = rights::token_secret(&name);
            space.own(&mut secret);
            let path = format!("{core}/secrets");
            link.api.ensure("create a token", &path, &secret).await?;
        }
        if let Some(buildset) = open_to(label, order) {
            self.grant_peers(link, &space.namespace, &buildset).await?;
        }
        Ok(())
    }

    fn rights(
        &self,
        label: &ClusterLabel,
        space: &NodeNamespace,
    ) -> Vec<(&'static str, String, Value)> {
        let namespace = space.namespace.as_str();
        let bindings = format!("{ROLES}/{namespace}/rolebindings");
        let account = space.account();
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
        let (name, role) = match space.pod.as_deref() {
            Some(pod) => {
                let name = space.name("zuul-restricted");
                let role = match space.member {
                    Some(_) => rights::role_of_one_pod(&name, pod),
                    None => rights::role_of_pod(&name),
                };
                (name, role)
            }
            None => {
                let name = space.name("zuul");
                let role = rights::role_of_namespace(&name, &label.hardening.extra_rules);
                (name, role)
            }
        };
        vec![
            ("create a role", format!("{ROLES}/{namespace}/roles"), role),
            bind(&space.name("zuul-role"), "Role", &name),
        ]
    }

    async fn copy_of_secret(
        &self,
        link: &ClusterLink,
        from: &str,
        name: &str,
    ) -> Result<Value, Error> {
        let path = format!("/api/v1/namespaces/{from}/secrets/{name}");
        let original = link.api.get::<Value>("read a pull secret", &path).await?;
        let original = original.ok_or_else(|| {
            Error::permanent(format!(
                "secret {name} to copy does not exist in namespace {from}"
            ))
        })?;
        Ok(objects::copied_secret(name, &original))
    }
}

/// Whether a node needs an account: one that is reached by SSH only if the label asks for it.
pub(super) fn has_account(label: &ClusterLabel) -> bool {
    label.ssh.as_ref().is_none_or(|ssh| ssh.kubectl_access)
}

/// Returns the objects that a pod needs for SSH, each with the name and the path of the call that creates it.
pub(super) fn ssh_objects(
    plan: &SshPlan<'_>,
    namespace: &str,
    host_keys: Option<&HostKeys>,
) -> Vec<(&'static str, String, Value)> {
    let core = format!("/api/v1/namespaces/{namespace}");
    let mut objects = Vec::new();
    if plan.ssh.expose != Expose::Forward {
        objects.push((
            "create a service",
            format!("{core}/services"),
            plan.service(),
        ));
    }
    if let Some(copy) = host_keys.and_then(|keys| keys.copy.clone()) {
        objects.push(("copy host keys", format!("{core}/secrets"), copy));
    }
    if let Some(keys) = plan.keys() {
        objects.push(("store public keys", format!("{core}/configmaps"), keys));
    }
    if let Some(policy) = plan.policy().filter(|_| plan.ssh.expose != Expose::Forward) {
        let path = format!("{POLICIES}/{namespace}/networkpolicies");
        objects.push(("create a network policy", path, policy));
    }
    objects
}
