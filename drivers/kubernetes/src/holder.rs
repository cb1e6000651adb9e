//! Holders: the object that stands for a node, carries its tags and takes everything else with it.
//!
//! In a namespace that several nodes share this is a *member*, a small object that owns what belongs to its node.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodeyard_driver::{Error, ExternalId, Owner, Tags};
use nodeyard_model::{NodeId, ProviderName, Resources};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::{Api, Made, Removal, escape};
use crate::buildset::SHARED;
use crate::names::label_value;

/// What a node takes, as an annotation: a list of namespaces does not tell what is in them.
const TAKES: &str = "nodeyard/takes";
/// Where the tags of a project are. A user may give a project no labels, but a description.
const DESCRIPTION: &str = "openshift.io/description";
const DESCRIBED: &str = "Nodeyard ";

/// What stands for a node.
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
pub(crate) struct Holder {
    pub(crate) place: HolderRef,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) tags: Tags,
    /// A namespace that holds no node itself.
    pub(crate) shared: bool,
    pub(crate) takes: Option<Resources>,
    /// On its way out.
    pub(crate) leaving: bool,
}

/// Where a holder is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HolderRef {
    /// What the things of the node are in.
    pub(crate) namespace: String,
    /// Only where the pod is the holder.
    pub(crate) pod: Option<String>,
    /// Only where the namespace is shared.
    pub(crate) member: Option<String>,
    /// Only where something else may come to have the same name.
    pub(crate) uid: Option<String>,
}

impl HolderRef {
    /// The namespace itself.
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

/// Namespaces, projects and pods, as far as they are alike.
#[derive(Debug, Deserialize)]
pub(crate) struct Object {
    metadata: ObjectMeta,
    #[serde(default)]
    status: Value,
}

impl Object {
    /// Why a namespace that is to go is still there.
    pub(crate) fn hindrances(&self) -> Vec<String> {
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

    pub(crate) fn into_holder(self, kind: HolderKind, owner: &Owner) -> Option<Holder> {
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
        Some(Holder {
            // What is in a namespace is the pod of a node, or what stands for it there.
            place: match (kind, metadata.namespace) {
                (HolderKind::Pod, namespace) => HolderRef::pod(namespace?, name),
                (_, Some(namespace)) => HolderRef::member(namespace, name),
                (_, None) => HolderRef::namespace(name),
            },
            uid: metadata.uid,
            version: metadata.resource_version,
            tags: tags(&labels, owner),
            shared: labels.contains_key(SHARED),
            takes: takes.and_then(|text| serde_json::from_str(&text).ok()),
            leaving: metadata.deletion_timestamp.is_some(),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Described {
    labels: BTreeMap<String, String>,
    takes: Option<String>,
}

fn described(text: &str) -> Option<Described> {
    serde_json::from_str(text.strip_prefix(DESCRIBED)?).ok()
}

/// Values of labels are not always the very texts: ours are known by what they became.
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

/// Metadata of a holder to be made.
pub(crate) struct Marks {
    pub(crate) labels: Map<String, Value>,
    pub(crate) annotations: Map<String, Value>,
    pub(crate) takes: Resources,
}

impl Marks {
    /// Those of the configuration, and what the holder takes.
    pub(crate) fn annotations(&self) -> Map<String, Value> {
        let mut annotations = self.annotations.clone();
        if let Ok(takes) = serde_json::to_string(&self.takes) {
            annotations.insert(TAKES.to_owned(), takes.into());
        }
        annotations
    }

    /// For a cloud that keeps nothing but a description.
    fn description(&self) -> String {
        let labels = self
            .labels
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let described = Described {
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
    /// Whether some nodes are in namespaces of others.
    pub(crate) shares: bool,
}

impl Holders<'_> {
    fn path(&self, place: &HolderRef) -> String {
        let namespace = &place.namespace;
        if let Some(member) = &place.member {
            return format!("{NAMESPACES}/{namespace}/configmaps/{member}");
        }
        match (self.kind, &place.pod) {
            (HolderKind::Project, _) => format!("{PROJECTS}/{namespace}"),
            (HolderKind::Pod, Some(pod)) => format!("{NAMESPACES}/{namespace}/pods/{pod}"),
            _ => format!("{NAMESPACES}/{namespace}"),
        }
    }

    /// False if there is something of that name.
    pub(crate) async fn create_namespace(&self, name: &str, marks: &Marks) -> Result<bool, Error> {
        let metadata = json!({
            "name": name,
            "labels": marks.labels,
            "annotations": marks.annotations(),
        });
        let (what, path, body) = match self.kind {
            HolderKind::Project => (
                "request a project",
                PROJECT_REQUESTS,
                json!({
                    "apiVersion": "project.openshift.io/v1",
                    "kind": "ProjectRequest",
                    "metadata": metadata,
                    "description": marks.description(),
                }),
            ),
            _ => (
                "make a namespace",
                NAMESPACES,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
            ),
        };
        // OpenShift stops where it is when nobody waits for the answer any more, and what is there then is nobody's: not even
        // whoever asked for it can see or delete it. So it is waited for also when our caller gives up.
        let api = self.api.clone();
        let made = tokio::spawn(async move { api.create::<Object>(what, path, &body).await });
        let made = made
            .await
            .map_err(|_| Error::retry(format!("cannot {what}: this program is stopping")))??;
        Ok(matches!(made, Made::New(_)))
    }

    /// The right to look at a project goes with what is in it, before the project itself: what cannot be looked at has
    /// gone, or is somebody else's. That is believed when it was said twice.
    pub(crate) async fn object(&self, place: &HolderRef) -> Result<Option<Object>, Error> {
        let (what, path) = ("look at a node's place", self.path(place));
        if self.kind != HolderKind::Project {
            return self.api.get(what, &path).await;
        }
        match self.api.get_own(what, &path).await? {
            None => self.api.get_own(what, &path).await,
            found => Ok(found),
        }
    }

    pub(crate) async fn get(&self, place: &HolderRef) -> Result<Option<Holder>, Error> {
        let object = self.object(place).await?;
        Ok(object.and_then(|object| object.into_holder(self.kind, self.owner)))
    }

    /// All that belong to some provider, ours and others'. `spaces` are where pods are looked for. Projects are in the
    /// list a moment after they were made.
    pub(crate) async fn list(
        &self,
        spaces: &[&str],
        node: Option<NodeId>,
    ) -> Result<Vec<Holder>, Error> {
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
                    let members: Vec<Object> = self.api.list("list nodes", path, &query).await?;
                    objects = without_used(objects, &members);
                    objects.extend(members);
                }
            }
            // Their labels may have been left out.
            HolderKind::Project => objects = self.api.list("list projects", PROJECTS, "").await?,
            HolderKind::Pod => {
                for space in spaces {
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

    /// Labels that everything of this provider has.
    pub(crate) fn selector(&self) -> String {
        selector(self.owner)
    }

    pub(crate) async fn delete(&self, holder: &Holder) -> Result<(), Error> {
        /// What runs in a pod is given up; the default of half a minute only keeps its room occupied.
        const GRACE: Option<u32> = Some(1);
        let path = self.path(&holder.place);
        let removal = Removal {
            uid: holder.uid.as_deref(),
            ..Removal::default()
        };
        let at_once = Removal {
            grace: GRACE,
            ..Removal::default()
        };
        if holder.place.member.is_some() {
            if let Some(node) = holder.tags.node {
                let namespace = &holder.place.namespace;
                let selector = format!("{},nodepool_node_id={node}", self.selector());
                let pods = format!(
                    "{NAMESPACES}/{namespace}/pods?labelSelector={}",
                    escape(&selector)
                );
                self.api.delete("delete pods", &pods, &at_once).await?;
            }
            // It stays until all that it owns has gone.
            let removal = Removal {
                after_what_it_owns: true,
                ..removal
            };
            return self.api.delete("delete a node", &path, &removal).await;
        }
        match self.kind {
            HolderKind::Pod => {
                let removal = Removal {
                    grace: GRACE,
                    ..removal
                };
                self.api.delete("delete a pod", &path, &removal).await
            }
            HolderKind::Namespace | HolderKind::Project if holder.leaving => Ok(()),
            HolderKind::Namespace | HolderKind::Project => {
                let pods = format!("{NAMESPACES}/{}/pods", holder.place.namespace);
                self.api.delete("delete pods", &pods, &at_once).await?;
                self.api.delete("delete a namespace", &path, &removal).await
            }
        }
    }
}

/// Of shared namespaces, those that nobody is in hold a node that never came into them; the others hold none.
fn without_used(spaces: Vec<Object>, members: &[Object]) -> Vec<Object> {
    let used: HashSet<&str> = members
        .iter()
        .filter_map(|member| member.metadata.namespace.as_deref())
        .collect();
    let unused = |space: &Object| {
        let name = space.metadata.name.as_deref();
        !space.is_shared() || !name.is_some_and(|name| used.contains(name))
    };
    let mut spaces = spaces;
    spaces.retain(unused);
    spaces
}

pub(crate) fn selector(owner: &Owner) -> String {
    format!(
        "nodeyard_system_id={},nodepool_provider_name={}",
        label_value(owner.system.as_str()),
        label_value(owner.provider.as_str())
    )
}
