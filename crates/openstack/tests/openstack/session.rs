//! How a session behaves towards a cloud that answers as it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_openstack::{
    Clouds, Compute, DataTarget, ErrorKind, Images, Method, NewServer, Options, ProcessEnvironment,
    Request, Response, Service, Session, StatusCode, Transport, TransportError,
};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Answers logins by itself, and everything else from a list.
#[derive(Debug, Default)]
struct Script {
    logins: Mutex<usize>,
    /// How long tokens live.
    life: Duration,
    answers: Mutex<VecDeque<Said>>,
    seen: Mutex<Vec<String>>,
    /// A token that is not good any more.
    revoked: Mutex<Option<String>>,
}

#[derive(Debug, Clone)]
enum Said {
    Answer(u16, Vec<(&'static str, String)>, String),
    Lost,
    Unreachable,
}

fn say(status: u16, body: &Value) -> Said {
    Said::Answer(status, Vec::new(), body.to_string())
}

fn servers(names: &[&str], next: Option<&str>) -> Said {
    let servers: Vec<_> = names
        .iter()
        .map(|name| json!({"id": name, "status": "ACTIVE"}))
        .collect();
    let links: Vec<_> = next
        .iter()
        .map(|href| json!({"rel": "next", "href": href}))
        .collect();
    say(200, &json!({"servers": servers, "servers_links": links}))
}

impl Script {
    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    fn login(&self) -> Response {
        let mut logins = self.logins.lock().unwrap();
        *logins += 1;
        let issued: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let expires = issued
            .checked_add(jiff::SignedDuration::try_from(self.life).unwrap())
            .unwrap();
        let endpoint = |port: u16| json!([{"interface": "public", "region": "r", "url": format!("http://c:{port}")}]);
        let body = json!({"token": {
            "issued_at": issued.to_string(), "expires_at": expires.to_string(),
            "project": {"id": "p"},
            "catalog": [
                {"type": "compute", "endpoints": endpoint(1)},
                {"type": "image", "endpoints": endpoint(2)},
            ],
        }});
        respond(
            201,
            &[("x-subject-token", format!("token-{logins}"))],
            &body.to_string(),
        )
    }
}

fn respond(status: u16, headers: &[(&'static str, String)], body: &str) -> Response {
    let mut response = Response {
        status: StatusCode::from_u16(status).unwrap(),
        headers: Default::default(),
        body: body.to_owned().into(),
    };
    for (name, value) in headers {
        response.headers.insert(*name, value.parse().unwrap());
    }
    response
}

#[async_trait]
impl Transport for Script {
    async fn send(&self, request: Request) -> Result<Response, TransportError> {
        // Answers take their time, so that callers meet; the clock of these tests is not the real one.
        if request.url.path().ends_with("/auth/tokens") {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Ok(self.login());
        }
        let token = request
            .headers
            .get("x-auth-token")
            .unwrap()
            .to_str()
            .unwrap();
        let query = request
            .url
            .query()
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        let seen = format!("{} {}{query} {token}", request.method, request.url.path());
        self.seen.lock().unwrap().push(seen);
        let revoked = self.revoked.lock().unwrap().as_deref() == Some(token);
        tokio::time::sleep(Duration::from_millis(10)).await;
        if revoked {
            return Ok(respond(401, &[], "{}"));
        }
        let said = self.answers.lock().unwrap().pop_front();
        match said.expect("an answer is left") {
            Said::Answer(status, headers, body) => Ok(respond(status, &headers, &body)),
            Said::Lost => Err(TransportError::new("the connection broke", false)),
            Said::Unreachable => Err(TransportError::new("nobody is there", true)),
        }
    }
}

fn session_of(
    life: u64,
    options: Options,
    answers: impl IntoIterator<Item = Said>,
) -> (Arc<Script>, Session) {
    let directory = tempfile::tempdir().unwrap();
    let text = "clouds:\n  c: {auth: {auth_url: 'http://k', username: u, password: very-secret, project_id: p, user_domain_id: d}}\n";
    std::fs::write(directory.path().join("clouds.yaml"), text).unwrap();
    let around = ProcessEnvironment {
        variables: BTreeMap::new(),
        directory: directory.path().to_owned(),
    };
    let settings = Clouds::find(&around)
        .unwrap()
        .cloud(Some("c"), None)
        .unwrap();
    let script = Arc::new(Script {
        life: Duration::from_secs(life),
        answers: Mutex::new(answers.into_iter().collect()),
        ..Script::default()
    });
    let session = Session::new(settings, Arc::clone(&script) as Arc<dyn Transport>, options);
    (script, session)
}

fn session(answers: impl IntoIterator<Item = Said>) -> (Arc<Script>, Session) {
    session_of(3600, Options::default(), answers)
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_refused_is_renewed_once_for_all() {
    let (script, session) = session(std::iter::repeat_n(servers(&["a"], None), 4));
    let compute = Compute::new(session);
    compute.servers().await.unwrap();
    *script.revoked.lock().unwrap() = Some("token-1".to_owned());
    let (a, b, c) = tokio::join!(compute.servers(), compute.servers(), compute.servers());
    assert_eq!([a, b, c].map(|servers| servers.unwrap().len()), [1, 1, 1]);
    assert_eq!(*script.logins.lock().unwrap(), 2);
    let with = |token: &str| {
        script
            .seen()
            .iter()
            .filter(|call| call.ends_with(token))
            .count()
    };
    assert_eq!((with("token-1"), with("token-2")), (4, 3));

    let unauthorized = say(
        401,
        &json!({"error": {"message": "requires authentication"}}),
    );
    let (script, session) = self::session([unauthorized.clone(), unauthorized]);
    let error = Compute::new(session).servers().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth);
    assert!(error.to_string().contains("clouds.yaml"), "{error}");
    assert_eq!(script.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_before_it_ends() {
    let answers = std::iter::repeat_n(servers(&[], None), 3);
    let (script, session) = session_of(3600, Options::default(), answers);
    let compute = Compute::new(session);
    compute.servers().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3200)).await;
    compute.servers().await.unwrap();
    assert_eq!(*script.logins.lock().unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(200)).await;
    compute.servers().await.unwrap();
    assert_eq!(*script.logins.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_upload_does_not_begin_with_a_token_that_soon_ends() {
    let taken = std::iter::repeat_n(say(204, &json!({})), 4);
    let (script, session) = session_of(3600, Options::default(), taken);
    let images = Images::new(session);
    let file = tempfile::NamedTempFile::new().unwrap();
    let send = || async {
        // The script answers before it has the file.
        let _malformed = images
            .send("1", file.path(), DataTarget::Image, |_, _| {})
            .await;
    };
    send().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    send().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    images.delete("2").await.unwrap();
    send().await;
    let file = "PUT /v2/images/1/file";
    assert_eq!(
        script.seen(),
        [
            format!("{file} token-1"),
            format!("{file} token-1"),
            "DELETE /v2/images/2 token-1".to_owned(),
            format!("{file} token-2"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_may_be_repeated_is_tried_again_as_the_service_asks() {
    let busy = Said::Answer(429, vec![("retry-after", "20".to_owned())], String::new());
    let down = say(503, &json!({}));
    let (script, session) = session([busy, down, Said::Lost, servers(&["a"], None)]);
    let begun = Instant::now();
    let found = Compute::new(session).servers().await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(script.seen().len(), 4);
    assert!(begun.elapsed() >= Duration::from_secs(20));

    let (script, session) = self::session(std::iter::repeat_n(say(503, &json!({})), 10));
    let error = Compute::new(session).servers().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(script.seen().len(), 4);

    // Nobody waits for an hour inside of a call.
    let later = Said::Answer(429, vec![("retry-after", "3600".to_owned())], String::new());
    let (script, session) = self::session([later]);
    let error = Compute::new(session).servers().await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(script.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_makes_something_is_sent_once_unless_nothing_was_done() {
    let made = say(202, &json!({"server": {"id": "s"}}));
    for (answer, kind) in [
        (Said::Lost, ErrorKind::Unavailable),
        (say(503, &json!({})), ErrorKind::Unavailable),
        (say(500, &json!({})), ErrorKind::Fault),
    ] {
        let (script, session) = session([answer, made.clone()]);
        let error = Compute::new(session)
            .create_server(&NewServer::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(script.seen().len(), 1);
    }
    for answer in [
        Said::Unreachable,
        say(429, &json!({})),
        say(401, &json!({})),
    ] {
        let (script, session) = session([answer, made.clone()]);
        let id = Compute::new(session)
            .create_server(&NewServer::default())
            .await
            .unwrap();
        assert_eq!(&*id, "s");
        assert_eq!(script.seen().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn pages_are_followed_and_loops_are_noticed() {
    let (script, session) = session([
        servers(
            &["a", "b"],
            Some("http://wrong.host/v2.1/servers/detail?marker=b"),
        ),
        servers(&["c"], Some("/v2.1/servers/detail?marker=c&limit=1")),
        servers(&[], Some("/v2.1/servers/detail?marker=c")),
    ]);
    let found = Compute::new(session).servers().await.unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(
        script.seen(),
        [
            "GET /v2.1/servers/detail token-1",
            "GET /v2.1/servers/detail?marker=b token-1",
            "GET /v2.1/servers/detail?marker=c&limit=1 token-1",
        ]
    );
    let looping = servers(&["a"], Some("?marker=a"));
    let (_, session) = self::session(std::iter::repeat_n(looping, 5));
    let error = Compute::new(session).servers().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Malformed);
    assert!(error.to_string().contains("loop"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn pages_of_glance_have_another_shape() {
    let page =
        |id: &str, next: Option<&str>| say(200, &json!({"images": [{"id": id}], "next": next}));
    let (script, session) = session([page("a", Some("/v2/images?marker=a")), page("b", None)]);
    let call = session
        .call(Service::Image, Method::GET, "list images")
        .path(["images"]);
    let images: Vec<Value> = call.list("images").await.unwrap();
    assert_eq!(images.len(), 2);
    assert_eq!(script.seen()[1], "GET /v2/images?marker=a token-1");
}

#[tokio::test(start_paused = true)]
async fn calls_are_spaced_by_service() {
    let options = Options {
        interval: Duration::from_secs(10),
        ..Options::default()
    };
    let (_, session) = session_of(36000, options, std::iter::repeat_n(servers(&[], None), 3));
    let compute = Compute::new(session);
    let begun = Instant::now();
    for _ in 0..3 {
        compute.servers().await.unwrap();
    }
    assert!(begun.elapsed() >= Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn answers_that_make_no_sense_and_missing_services_are_told() {
    for answer in [
        Said::Answer(200, Vec::new(), "<html>".to_owned()),
        say(200, &json!({"other": []})),
        say(200, &json!({"servers": [{"name": "without an id"}]})),
        say(300, &json!({"choices": []})),
    ] {
        let (_, session) = session([answer]);
        let error = Compute::new(session).servers().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
    }
    let (_, session) = session([]);
    assert!(!session.has(Service::Volume).await.unwrap());
    let error = nodeyard_openstack::Volumes::new(session.clone())
        .limits()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    let shown = format!("{session:?}");
    assert!(
        !shown.contains("very-secret") && !shown.contains("token-1"),
        "{shown}"
    );
}
