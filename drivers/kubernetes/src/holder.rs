//! Holders: the object that represents a node, carries its tags and owns its other objects.
//!
//! In a namespace that several nodes share this is a *member*: a config map.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodeyard_driver::{Error, ExternalId, Owner, Tags};
use nodeyard_model::{NodeId, ProviderName, Resources};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::{Api, CreateOutcome, DeleteOptions, escape};
use crate::buildset::SHARED;
use crate::names::label_value;

/// The annotation with the resources that a node takes.
const TAKES: &str = "nodeyard/takes";
/// The annotation with the tags of a project. Users may not set labels of projects, but a description.
const DESCRIPTION: &str = "openshift.io/description";
const DESCRIBED: &str = "Nodeyard ";

/// The kind of object that represents a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderKind {
    /// `driver: kubernetes`.
    Namespace,
    /// `driver: openshift`.
    Project,
    /// `driver: openshiftpods`: a pod in a project that exists already and has the name of the pool.
    Pod,
}

/// A holder that exists.
#[derive(Debug, Clone)]
pub(crate) struct NodeHolder {
    pub(crate) reference: HolderRef,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) tags: Tags,
    /// Whether it is a namespace that several nodes share.
    pub(crate) shared: bool,
    pub(crate) takes: Option<Resources>,
    /// Whether it is being deleted.
    pub(crate) deleting: bool,
}

/// Identifies a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HolderRef {
    /// The namespace of the node's objects.
    pub(crate) namespace: String,
    /// Only if the pod is the holder.
    pub(crate) pod: Option<String>,
    /// Only if the namespace is shared.
    pub(crate) member: Option<String>,
    /// Only if another object may get the same name.
    pub(crate) uid: Option<String>,
}

impl HolderRef {
    /// A holder that is a namespace or project.
    pub(crate) fn namespace(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            pod: None,
            member: None,
            uid: None,
        }
    }

    pub(crate) fn pod(namespace: impl Into<String>, pod: impl Into<String>) -> Self {
        Self {
            pod: Some(pod.into()),
            ..Self::namespace(namespace)
        }
    }

    pub(crate) fn member(namespace: impl Into<String>, member: impl Into<String>) -> Self {
        Self {
            member: Some(member.into()),
            ..Self::namespace(namespace)
        }
    }

    pub(crate) fn external_id(&self) -> ExternalId {
        let namespace = &self.namespace;
        match (&self.pod, &self.member) {
            (Some(pod), _) => format!("{namespace}-{pod}").as_str().into(),
            (None, Some(member)) => format!("{namespace}/{member}").as_str().into(),
            (None, None) => namespace.as_str().into(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        let inside = self.pod.as_deref().or(self.member.as_deref());
        inside.unwrap_or(&self.namespace)
    }
}

/// The common part of namespaces, projects, pods and config maps.
#[derive(Debug, Deserialize)]
pub(crate) struct Object {
    metadata: ObjectMeta,
    #[serde(default)]
    status: Value,
}

impl Object {
    /// Returns why a namespace that is being deleted still exists.
    pub(crate) fn deletion_blockers(&self) -> Vec<String> {
        let conditions = self.status.get("conditions").and_then(Value::as_array);
        let conditions = conditions.into_iter().flatten();
        let mut texts: Vec<String> = conditions
            .filter(|condition| condition.get("status").and_then(Value::as_str) == Some("True"))
            .filter_map(|condition| condition.get("message")?.as_str())
            .map(ToOwned::to_owned)
            .collect();
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        if !finalizers.is_empty() {
            texts.push(format!("finalizers remain: {}", finalizers.join(", ")));
        }
        texts
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let labels = self.metadata.labels.as_ref()?;
        labels.get(name).map(String::as_str)
    }

    fn is_shared(&self) -> bool {
        self.label(SHARED).is_some()
    }

    pub(crate) fn into_holder(self, kind: HolderKind, owner: &Owner) -> Option<NodeHolder> {
        let metadata = self.metadata;
        let name = metadata.name?;
        let annotations = metadata.annotations.unwrap_or_default();
        let mut labels = metadata.labels.unwrap_or_default();
        let mut takes = annotations.get(TAKES).cloned();
        if let Some(described) = annotations
            .get(DESCRIPTION)
            .and_then(|text| described(text))
        {
            takes = takes.or(described.takes);
            for (key, value) in described.labels {
                labels.entry(key).or_insert(value);
            }
        }
        Some(NodeHolder {
            // An object in a namespace is a pod or a member.
            reference: match (kind, metadata.namespace) {
                (HolderKind::Pod, namespace) => HolderRef::pod(namespace?, name),
                (_, Some(namespace)) => HolderRef::member(namespace, name),
                (_, None) => HolderRef::namespace(name),
            },
            uid: metadata.uid,
            version: metadata.resource_version,
            tags: tags(&labels, owner),
            shared: labels.contains_key(SHARED),
            takes: takes.and_then(|text| serde_json::from_str(&text).ok()),
            deleting: metadata.deletion_timestamp.is_some(),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct ProjectDescription {
    labels: BTreeMap<String, String>,
    takes: Option<String>,
}

fn described(text: &str) -> Option<ProjectDescription> {
    serde_json::from_str(text.strip_prefix(DESCRIBED)?).ok()
}

/// Reads tags. The value of a label may be an encoded text, so the provider is compared in its encoded form.
fn tags(labels: &BTreeMap<String, String>, owner: &Owner) -> Tags {
    let read = labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    let mut tags = Tags::from_metadata(read);
    let ours = label_value(owner.provider.as_str());
    if tags.provider.as_ref().map(ProviderName::as_str) == Some(ours.as_str()) {
        tags.provider = Some(owner.provider.clone());
    }
    tags
}

/// Metadata of a holder to create.
pub(crate) struct HolderMetadata {
    pub(crate) labels: Map<String, Value>,
    pub(crate) annotations: Map<String, Value>,
    pub(crate) takes: Resources,
}

impl HolderMetadata {
    /// Returns the annotations of the configuration, and one with the resources.
    pub(crate) fn annotations(&self) -> Map<String, Value> {
        let mut annotations = self.annotations.clone();
        if let Ok(takes) = serde_json::to_string(&self.takes) {
            annotations.insert(TAKES.to_owned(), takes.into());
        }
        annotations
    }

    /// Returns labels and resources as the description of a project.
    fn description(&self) -> String {
        let labels = self
            .labels
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let described = ProjectDescription {
            labels: labels.collect(),
            takes: serde_json::to_string(&self.takes).ok(),
        };
        let text = serde_json::to_string(&described).unwrap_or_default();
        format!("{DESCRIBED}{text}")
    }
}

const NAMESPACES: &str = "/api/v1/namespaces";
const PROJECTS: &str = "/apis/project.openshift.io/v1/projects";
const PROJECT_REQUESTS: &str = "/apis/project.openshift.io/v1/projectrequests";

/// Holders of one kind in one cluster.
pub(crate) struct Holders<'a> {
    pub(crate) kind: HolderKind,
    pub(crate) owner: &'a Owner,
    pub(crate) api: &'a Api,
    /// Whether some nodes share namespaces.
    pub(crate) shares: bool,
}

impl Holders<'_> {
    fn path(&self, reference: &HolderRef) -> String {
        let namespace = &reference.namespace;
        if let Some(member) = &reference.member {
            return format!("{NAMESPACES}/{namespace}/configmaps/{member}");
        }
        match (self.kind, &reference.pod) {
            (HolderKind::Project, _) => format!("{PROJECTS}/{namespace}"),
            (HolderKind::Pod, Some(pod)) => format!("{NAMESPACES}/{namespace}/pods/{pod}"),
            _ => format!("{NAMESPACES}/{namespace}"),
        }
    }

    /// Returns false if the name is taken.
    pub(crate) async fn create_namespace(
        &self,
        name: &str,
        holder: &HolderMetadata,
    ) -> Result<bool, Error> {
        let metadata = json!({
            "name": name,
            "labels": holder.labels,
            "annotations": holder.annotations(),
        });
        let (what, path, body) = match self.kind {
            HolderKind::Project => (
                "request a project",
                PROJECT_REQUESTS,
                json!({
                    "apiVersion": "project.openshift.io/v1",
                    "kind": "ProjectRequest",
                    "metadata": metadata,
                    "description": holder.description(),
                }),
            ),
            _ => (
                "create a namespace",
                NAMESPACES,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
            ),
        };
        // When the connection ends, OpenShift aborts and leaves a project without rights, which not even its requester can
        // see or delete. So the call goes on even if this future is dropped.
        let api = self.api.clone();
        let made = tokio::spawn(async move { api.create::<Object>(what, path, &body).await });
        let made = made
            .await
            .map_err(|_| Error::retry(format!("failed to {what}: the program is stopping")))??;
        Ok(matches!(made, CreateOutcome::New(_)))
    }

    /// Reads a holder. The right to read a project is deleted before the project: one that may not be read is gone, or
    /// belongs to someone else. Only a second refusal counts.
    pub(crate) async fn object(&self, reference: &HolderRef) -> Result<Option<Object>, Error> {
        let (what, path) = ("read the holder of a node", self.path(reference));
        if self.kind != HolderKind::Project {
            return self.api.get(what, &path).await;
        }
        match self.api.get_own(what, &path).await? {
            None => self.api.get_own(what, &path).await,
            found => Ok(found),
        }
    }

    pub(crate) async fn get(&self, reference: &HolderRef) -> Result<Option<NodeHolder>, Error> {
        let object = self.object(reference).await?;
        Ok(object.and_then(|object| object.into_holder(self.kind, self.owner)))
    }

    /// Lists all holders, ours and those of other providers; pods only in `namespaces`. A new project is listed
    /// after a moment.
    pub(crate) async fn list(
        &self,
        namespaces: &[&str],
        node: Option<NodeId>,
    ) -> Result<Vec<NodeHolder>, Error> {
        let mut selector = "nodepool_provider_name".to_owned();
        if let Some(node) = node {
            selector = format!("{},nodepool_node_id={node}", self.selector());
        }
        let query = format!("labelSelector={}", escape(&selector));
        let mut objects: Vec<Object> = Vec::new();
        match self.kind {
            HolderKind::Namespace => {
                objects = self.api.list("list namespaces", NAMESPACES, &query).await?;
                let shared = |object: &Object| object.is_shared();
                if node.is_some() && self.shares || objects.iter().any(shared) {
                    let path = "/api/v1/configmaps";
                    let members: Vec<Object> = self.api.list("list members", path, &query).await?;
                    objects = without_used(objects, &members);
                    objects.extend(members);
                }
            }
            // Projects may have no labels.
            HolderKind::Project => objects = self.api.list("list projects", PROJECTS, "").await?,
            HolderKind::Pod => {
                for space in namespaces {
                    let path = format!("{NAMESPACES}/{space}/pods");
                    objects.extend(self.api.list::<Object>("list pods", &path, &query).await?);
                }
            }
        }
        let holders = objects
            .into_iter()
            .filter_map(|object| object.into_holder(self.kind, self.owner))
            .filter(|holder| holder.tags.provider.is_some())
            .filter(|holder| node.is_none_or(|node| self.owner.owns_node(&holder.tags, node)));
        Ok(holders.collect())
    }

    /// Returns a selector for all objects of this provider.
    pub(crate) fn selector(&self) -> String {
        selector(self.owner)
    }

    pub(crate) async fn delete(&self, holder: &NodeHolder) -> Result<(), Error> {
        /// Seconds. The default of half a minute only keeps the capacity occupied.
        const GRACE: Option<u32> = Some(1);
        let path = self.path(&holder.reference);
        let removal = DeleteOptions {
            uid: holder.uid.as_deref(),
            ..DeleteOptions::default()
        };
        let at_once = DeleteOptions {
            grace: GRACE,
            ..DeleteOptions::default()
        };
        if holder.reference.member.is_some() {
            if let Some(node) = holder.tags.node {
                let namespace = &holder.reference.namespace;
                let selector = format!("{},nodepool_node_id={node}", self.selector());
                let pods = format!(
                    "{NAMESPACES}/{namespace}/pods?labelSelector={}",
                    escape(&selector)
                );
                self.api.delete("delete pods", &pods, &at_once).await?;
            }
            // The member exists until all objects that it owns are deleted.
            let removal = DeleteOptions {
                foreground: true,
                ..removal
            };
            return self.api.delete("delete a member", &path, &removal).await;
        }
        match self.kind {
            HolderKind::Pod => {
                let removal = DeleteOptions {
                    grace: GRACE,
                    ..removal
                };
                self.api.delete("delete a pod", &path, &removal).await
            }
            HolderKind::Namespace | HolderKind::Project if holder.deleting => Ok(()),
            HolderKind::Namespace | HolderKind::Project => {
                let pods = format!("{NAMESPACES}/{}/pods", holder.reference.namespace);
                self.api.delete("delete pods", &pods, &at_once).await?;
                self.api.delete("delete a namespace", &path, &removal).await
            }
        }
    }
}

/// Removes shared namespaces that have members: an empty one counts as the holder of the node that created it.
fn without_used(namespaces: Vec<Object>, members: &[Object]) -> Vec<Object> {
    let used: HashSet<&str> = members
        .iter()
        .filter_map(|member| member.metadata.namespace.as_deref())
        .collect();
    let unused = |space: &Object| {
        let name = space.metadata.name.as_deref();
        !space.is_shared() || !name.is_some_and(|name| used.contains(name))
    };
    let mut namespaces = namespaces;
    namespaces.retain(unused);
    namespaces
}

pub(crate) fn selector(owner: &Owner) -> String {
    format!(
        "nodeyard_system_id={},nodepool_provider_name={}",
        label_value(owner.system.as_str()),
        label_value(owner.provider.as_str())
    )
}
