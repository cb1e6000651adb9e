//! The client against servers with temporary errors, proxies and moving lists.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use nodeyard_fetch::{HttpClient, Options};
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::Reply;
use nodeyard_zuul_api::{BuildList, BuildsResponse, Error, ZuulApi, ZuulBuildQuery};
use serde_json::{Value, json};

fn query() -> ZuulBuildQuery {
    ZuulBuildQuery {
        project: "p".to_owned(),
        job: "j".to_owned(),
        ..ZuulBuildQuery::default()
    }
}

fn entry(uuid: &str) -> Value {
    json!({"uuid": uuid, "job_name": "j", "project": "p", "result": "SUCCESS"})
}

fn reply(value: &Value) -> Reply {
    Reply::new(200, value.to_string()).with("Content-Type", "application/json")
}

/// A client without a tenant, which the root reports.
fn api(server: &WebServer) -> ZuulApi {
    let root = server.url("/api");
    let options = Options {
        allow_insecure: true,
        allow_private: true,
        ..Options::default()
    };
    ZuulApi::new(HttpClient::new(options).unwrap(), &root, None).unwrap()
}

async fn builds(api: &ZuulApi) -> Result<BuildList, Error> {
    match api.builds(&query(), false).await? {
        BuildsResponse::Builds(listing) => Ok(listing),
        BuildsResponse::NotModified => Ok(BuildList::default()),
    }
}

/// Starts a server of one tenant whose own build list returns this status, and which also serves the whole API.
fn root(status: &Arc<AtomicU16>) -> WebServer {
    let status = Arc::clone(status);
    WebServer::start(move |asked| {
        let path = asked.target.split('?').next().unwrap();
        match (path, status.load(Ordering::SeqCst)) {
            ("/api/info", _) => reply(&json!({"info": {"tenant": "t"}})),
            ("/api/builds", 200) => reply(&json!([entry("own")])),
            ("/api/builds", status) => Reply::new(status, ""),
            ("/api/tenant/t/builds", _) => reply(&json!([entry("whole")])),
            _ => Reply::new(404, ""),
        }
    })
    .unwrap()
}

#[tokio::test]
async fn a_proxy_that_serves_the_whole_api_is_detected() {
    let status = Arc::new(AtomicU16::new(404));
    let api = api(&root(&status));
    assert!(builds(&api).await.unwrap().build("whole").is_some());
    // The result is remembered.
    status.store(200, Ordering::SeqCst);
    assert!(builds(&api).await.unwrap().build("whole").is_some());
}

#[tokio::test]
async fn temporary_errors_do_not_determine_the_builds_url() {
    for first in [502, 500, 401] {
        for later in [404, 200] {
            let status = Arc::new(AtomicU16::new(first));
            let api = api(&root(&status));
            let error = builds(&api).await.unwrap_err();
            assert!(error.to_string().contains(&first.to_string()), "{error}");
            status.store(later, Ordering::SeqCst);
            let expected = if later == 404 { "whole" } else { "own" };
            assert!(builds(&api).await.unwrap().build(expected).is_some());
        }
    }
}

#[tokio::test]
async fn builds_that_move_to_the_next_page_are_listed_once() {
    // A new build appears at the top between requests.
    let server = WebServer::start(|asked| {
        let path = asked.target.split('?').next().unwrap();
        if path == "/api/info" {
            return reply(&json!({"info": {"tenant": "t"}}));
        }
        let ids: Vec<u32> = match asked.target.split("&skip=").nth(1) {
            None => (0..20).collect(),
            Some("20") => (19..39).collect(),
            Some("40") => (39..45).collect(),
            Some(_) => Vec::new(),
        };
        reply(&ids.iter().map(|id| entry(&format!("b{id}"))).collect())
    });
    let server = server.unwrap();
    let api = api(&server);
    let mut listing = builds(&api).await.unwrap();
    assert_eq!((listing.builds.len(), listing.has_more), (20, true));
    api.fetch_more(&query(), &mut listing).await.unwrap();
    assert_eq!((listing.builds.len(), listing.has_more), (39, true));
    api.fetch_more(&query(), &mut listing).await.unwrap();
    assert_eq!((listing.builds.len(), listing.has_more), (45, false));
}
