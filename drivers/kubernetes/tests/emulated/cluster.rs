//! A cluster in memory, as far as the driver needs one. It takes its time with tokens, pods and namespaces, reports nothing
//! to watches, and can be made to behave badly.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use nodeyard_driver::kit::{Faults, Injected};
use nodeyard_driver::{Error, ErrorClass};
use nodeyard_driver_kubernetes::{Connect, Connection};
use serde_json::{Value, json};
use tower::BoxError;

const PROJECTS: &str = "/apis/project.openshift.io/v1";

/// What the driver hears.
type Answer = Result<Response<Body>, BoxError>;

#[derive(Default)]
pub(crate) struct EmulatedCluster {
    /// By path.
    objects: Mutex<BTreeMap<String, Value>>,
    /// Projects that no list has shown yet.
    unlisted: Mutex<BTreeSet<String>>,
    behaviour: Mutex<Behaviour>,
}

/// What a test makes of it.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// What pods are in when they are looked at; they run if this is null.
    pub(crate) pod_status: Value,
    /// Events that are told of pods.
    pub(crate) events: Vec<Value>,
    /// Why namespaces never go.
    pub(crate) hindrance: Option<&'static str>,
    /// Routes stay until this is false again.
    pub(crate) routes_stay: bool,
    /// Code and reason with which each call is refused once.
    pub(crate) reluctance: Option<(u16, &'static str)>,
    /// Projects are in lists a moment after they were made.
    pub(crate) late_lists: bool,
    /// Watches are permitted but half-open: they begin with a list, and no change is ever reported.
    pub(crate) half_open_watches: bool,
    /// How many lists watches have begun with.
    pub(crate) watches: usize,
    refused: HashSet<String>,
}

impl EmulatedCluster {
    pub(crate) fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    pub(crate) fn watches(&self) -> usize {
        self.behaviour.lock().unwrap().watches
    }

    pub(crate) fn add(&self, collection: &str, body: Value) {
        let made = self.post(collection, body);
        assert_eq!(made.unwrap().status(), 201, "{collection}");
    }

    pub(crate) fn add_namespace(&self, name: &str, labels: &Value) {
        self.add(
            "/api/v1/namespaces",
            json!({"metadata": {"name": name, "labels": labels}}),
        );
    }

    /// Everything there is, one line each.
    pub(crate) fn exists(&self) -> BTreeSet<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }

    pub(crate) fn object(&self, path: &str) -> Value {
        self.objects
            .lock()
            .unwrap()
            .get(path)
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn remove(&self, path: &str) {
        self.objects.lock().unwrap().remove(path);
    }

    fn post(&self, path: &str, mut body: Value) -> Answer {
        if let Some(account) = path.strip_suffix("/token") {
            if !self.objects.lock().unwrap().contains_key(account) {
                return missing(account);
            }
            body["status"] =
                json!({"token": "short", "expirationTimestamp": "2030-01-01T00:00:00Z"});
            return answer(201, &body);
        }
        let mut objects = self.objects.lock().unwrap();
        if let Some(space) = space_of(path) {
            match objects.get(&space) {
                None => return missing(&space),
                Some(space) if is_leaving(space) => {
                    return refusal(403, "Forbidden", "unable to create: it is being terminated");
                }
                Some(_) => {}
            }
        }
        let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
        if objects.contains_key(&path) {
            return refusal(409, "AlreadyExists", "it exists already");
        }
        let number = objects.len() + 1;
        body["metadata"]["uid"] = format!("{path}:{number}").into();
        body["metadata"]["resourceVersion"] = "1".into();
        match space_of(&path) {
            Some(space) => body["metadata"]["namespace"] = space.rsplit('/').next().unwrap().into(),
            None => {
                let authority =
                    json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "ca"}});
                objects.insert(format!("{path}/configmaps/kube-root-ca.crt"), authority);
            }
        }
        if path.contains("/pods/") {
            body["status"] = json!({"phase": "Pending"});
        }
        if path.contains("/services/") {
            body["spec"]["clusterIP"] = "10.0.0.7".into();
            body["spec"]["ports"][0]["nodePort"] = 30022.into();
        }
        objects.insert(path, body.clone());
        answer(201, &body)
    }

    /// A look at something lets it come further.
    fn get(&self, path: &str) -> Answer {
        let behaviour = self.behaviour.lock().unwrap();
        let mut objects = self.objects.lock().unwrap();
        let Some(object) = objects.get(path).cloned() else {
            return missing(path);
        };
        if is_leaving(&object) && behaviour.hindrance.is_none() {
            let uid = &object["metadata"]["uid"];
            objects.retain(|other, thing| {
                other != path
                    && space_of(other).as_deref() != Some(path)
                    && (thing["metadata"]["ownerReferences"][0]["uid"] != *uid
                        || behaviour.routes_stay && other.contains("/tcproutes/"))
            });
        } else if let Some(later) = objects.get_mut(path) {
            if let Some(hindrance) = behaviour.hindrance.filter(|_| is_leaving(&object)) {
                later["status"] = json!({"conditions": [{"status": "True", "message": hindrance}]});
            }
            if object["type"] == "kubernetes.io/service-account-token" {
                later["data"] = json!({"token": "dG9rZW4=", "ca.crt": "Y2E="});
            }
            if path.contains("/serviceaccounts/") {
                later["imagePullSecrets"] = json!([{"name": "dockercfg"}]);
            }
            if object["spec"]["type"] == "LoadBalancer" {
                let address = json!({"ingress": [{"hostname": "balancer.example"}]});
                later["status"] = json!({"loadBalancer": address});
            }
            if path.contains("/pods/") {
                later["spec"]["nodeName"] = "node".into();
                let status = match &behaviour.pod_status {
                    Value::Null => running(),
                    status => status.clone(),
                };
                if later["status"] != status {
                    later["status"] = status;
                    let version = object["metadata"]["resourceVersion"].as_str().unwrap();
                    later["metadata"]["resourceVersion"] = format!("{version}1").into();
                }
            }
        }
        answer(200, &object)
    }

    fn list(&self, path: &str, query: &str) -> Answer {
        self.list_but(path, query, &BTreeSet::new())
    }

    fn list_but(&self, path: &str, query: &str, hidden: &BTreeSet<String>) -> Answer {
        if path.ends_with("/events") {
            let events = &self.behaviour.lock().unwrap().events;
            return answer(200, &json!({"metadata": {}, "items": events}));
        }
        let fits = selected(query);
        let objects = self.objects.lock().unwrap();
        let items = objects.iter().filter(|(place, object)| {
            is_in(place, path) && fits(object) && !hidden.contains(*place)
        });
        let items: Vec<_> = items.map(|(_, object)| object).collect();
        answer(
            200,
            &json!({"metadata": {"resourceVersion": "1"}, "items": items}),
        )
    }

    async fn watch(&self, uri: Uri) -> Answer {
        let query = uri.query().unwrap_or_default();
        if !self.behaviour.lock().unwrap().half_open_watches {
            return refusal(403, "Forbidden", "nobody may watch");
        }
        if query.contains("watch=") {
            return pending().await;
        }
        self.behaviour.lock().unwrap().watches += 1;
        self.list(uri.path(), query)
    }

    fn delete(&self, path: &str, query: &str, options: &Value) -> Answer {
        let stays = path.contains("/tcproutes/") && self.behaviour.lock().unwrap().routes_stay;
        let mut objects = self.objects.lock().unwrap();
        if path.ends_with("/pods") {
            let fits = selected(query);
            objects.retain(|place, object| !is_in(place, path) || !fits(object));
            return answer(200, &json!({}));
        }
        let Some(object) = objects.get_mut(path) else {
            return missing(path);
        };
        let uid = &options["preconditions"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return refusal(409, "Conflict", "the uid in the precondition is another");
        }
        let version = &options["preconditions"]["resourceVersion"];
        if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
            return refusal(409, "Conflict", "it has changed");
        }
        let foreground = options["propagationPolicy"] == "Foreground";
        if space_of(path).is_none() || path.contains("/pods/") || foreground {
            // These take their time.
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        } else if !stays {
            objects.remove(path);
        }
        answer(200, &json!({}))
    }

    /// Adds annotations.
    fn patch(&self, path: &str, change: &Value) -> Answer {
        let mut objects = self.objects.lock().unwrap();
        let Some(object) = objects.get_mut(path) else {
            return missing(path);
        };
        let metadata = &mut object["metadata"];
        let version = metadata["resourceVersion"].as_str().unwrap();
        metadata["resourceVersion"] = format!("{version}1").into();
        let added = change["metadata"]["annotations"].as_object().unwrap();
        for (key, value) in added {
            metadata["annotations"][key] = value.clone();
        }
        answer(200, object)
    }

    /// A project is a namespace that is asked for with a request, which keeps a description and no labels. Only those who
    /// have a part in it may look at it.
    fn call_project(
        &self,
        method: &Method,
        of_group: &str,
        query: Option<&str>,
        body: &Value,
    ) -> Answer {
        if of_group == "/projectrequests" {
            return self.request_project(body);
        }
        let path = format!(
            "/api/v1/namespaces{}",
            of_group.strip_prefix("/projects").unwrap()
        );
        match (method, query) {
            (&Method::DELETE, _) => self.delete(&path, "", body),
            (_, Some(query)) => {
                let unlisted = std::mem::take(&mut *self.unlisted.lock().unwrap());
                self.list_but(&path, query, &unlisted)
            }
            (_, None) => {
                let before = self.object(&path);
                let found = self.get(&path);
                if before.is_null() || is_leaving(&before) {
                    return refusal(403, "Forbidden", "cannot get resource \"projects\"");
                }
                found
            }
        }
    }

    fn request_project(&self, wanted: &Value) -> Answer {
        let name = wanted["metadata"]["name"].as_str().unwrap();
        if name.starts_with("openshift-") || name.starts_with("kube-") {
            let message = format!("cannot request a project with the name \"{name}\"");
            return refusal(403, "Forbidden", &message);
        }
        let described = json!({"openshift.io/description": wanted["description"]});
        let namespace = json!({"metadata": {"name": name, "annotations": described}});
        let made = self.post("/api/v1/namespaces", namespace)?;
        if made.status() == 201 && self.behaviour.lock().unwrap().late_lists {
            let path = format!("/api/v1/namespaces/{name}");
            self.unlisted.lock().unwrap().insert(path);
        }
        Ok(made)
    }

    async fn call(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        {
            let mut behaviour = self.behaviour.lock().unwrap();
            let name = format!("{} {path}", parts.method);
            if let Some((code, reason)) = behaviour.reluctance
                && behaviour.refused.insert(name)
            {
                return refusal(code, reason, "not now");
            }
        }
        if let Some(of_group) = path.strip_prefix(PROJECTS) {
            return self.call_project(&parts.method, of_group, parts.uri.query(), &body);
        }
        match parts.method {
            Method::POST => self.post(&path, body),
            Method::PATCH => self.patch(&path, &body),
            Method::DELETE => self.delete(&path, parts.uri.query().unwrap_or_default(), &body),
            _ => match parts.uri.query() {
                Some(query) => self.list(&path, query),
                None => self.get(&path),
            },
        }
    }
}

fn running() -> Value {
    json!({"phase": "Running", "podIP": "10.1.0.9", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}},
        }],
    })
}

/// The status of a pod whose container waits for the reason.
pub(crate) fn waiting(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{
        "name": "small", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
    }]})
}

fn is_leaving(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Whether a thing is one of a collection, which may be that of all namespaces.
fn is_in(place: &str, collection: &str) -> bool {
    let Some((above, _)) = place.rsplit_once('/') else {
        return false;
    };
    let everywhere = collection
        .strip_prefix("/api/v1/")
        .filter(|kind| !kind.contains('/'));
    match everywhere {
        Some(kind) if kind != "namespaces" => above.ends_with(&format!("/{kind}")),
        _ => above == collection,
    }
}

/// What the selector of a query chooses.
fn selected(query: &str) -> impl Fn(&Value) -> bool + use<> {
    let selector = query
        .split('&')
        .find_map(|part| part.strip_prefix("labelSelector="));
    let selector = selector
        .unwrap_or_default()
        .replace("%2C", ",")
        .replace("%3D", "=");
    move |object| {
        let mut parts = selector.split(',').filter(|part| !part.is_empty());
        parts.all(|part| match part.split_once('=') {
            Some((key, value)) => object["metadata"]["labels"][key] == value,
            None => !object["metadata"]["labels"][part].is_null(),
        })
    }
}

/// The namespace that a path is in.
fn space_of(path: &str) -> Option<String> {
    let (_, rest) = path.split_once("/namespaces/")?;
    let (space, _) = rest.split_once('/')?;
    Some(format!("/api/v1/namespaces/{space}"))
}

fn answer(code: u16, body: &Value) -> Answer {
    let status = StatusCode::from_u16(code).unwrap();
    let body = Body::from(body.to_string().into_bytes());
    Ok(Response::builder().status(status).body(body).unwrap())
}

/// As API servers say no.
fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    answer(code, &status)
}

fn missing(path: &str) -> Answer {
    refusal(404, "NotFound", &format!("{path} not found"))
}

/// How clusters tell an error of a class.
fn say(class: ErrorClass) -> Answer {
    match class {
        ErrorClass::Retry => refusal(429, "TooManyRequests", "try again"),
        ErrorClass::Failed => refusal(500, "InternalError", "Internal error occurred"),
        ErrorClass::Quota => refusal(403, "Forbidden", "exceeded quota: q"),
        ErrorClass::Capacity => refusal(
            500,
            "InternalError",
            "etcdserver: mvcc: database space exceeded",
        ),
        ErrorClass::Permanent => refusal(422, "Invalid", "it is invalid"),
        ErrorClass::Credentials => refusal(403, "Forbidden", "you may not"),
    }
}

/// A way to the cluster in memory, on which the kit may strike.
pub(crate) struct ConnectEmulated {
    pub(crate) cluster: Arc<EmulatedCluster>,
    pub(crate) faults: Faults,
}

impl fmt::Debug for ConnectEmulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectEmulated")
    }
}

#[async_trait]
impl Connect for ConnectEmulated {
    async fn connect(&self) -> Result<Connection, Error> {
        let (cluster, faults) = (Arc::clone(&self.cluster), self.faults.clone());
        let calls = tower::service_fn(move |request: Request<Body>| {
            let (cluster, faults) = (Arc::clone(&cluster), faults.clone());
            async move {
                let name = format!("{} {}", request.method(), request.uri().path());
                match faults.call(&name, cluster.call(request)).await {
                    Ok(answer) => answer,
                    Err(Injected::Lost) => Err("the connection broke".into()),
                    Err(Injected::Refused(class)) => say(class),
                }
            }
        });
        let cluster = Arc::clone(&self.cluster);
        let watches = tower::service_fn(move |request: Request<Body>| {
            let cluster = Arc::clone(&cluster);
            async move { cluster.watch(request.uri().clone()).await }
        });
        Ok(Connection {
            client: Client::new(calls, "default"),
            watching: Client::new(watches, "default"),
            host: "https://emulated".to_owned(),
            skip_tls: false,
            ca: Some("Y2E=".to_owned()),
            token: Some("ours".to_owned()),
        })
    }
}
