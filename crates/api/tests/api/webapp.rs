//! What the pages say; that it is what Python's say is tested beside a real one.

use nodeyard_model::now;
use std::time::{Duration, SystemTime};

use crate::http::{ask, get};
use crate::testbed::{StoreFixture, TestServer, embedded, until};

const JSON: &[(&str, &str)] = &[("Accept", "application/json")];

#[tokio::test]
async fn lists_come_in_both_forms() {
    let (registry, _store, _directory) = embedded();
    let fleet = StoreFixture::create(&registry).await;
    let served = TestServer::start(&registry).await;
    let address = served.address;

    let nodes = get(address, "/node-list", JSON).await;
    assert_eq!(nodes.status, 200);
    let list = nodes.json();
    assert_eq!(list.as_array().unwrap().len(), 3);
    assert_eq!(list[0]["server_id"], "server-1");
    assert_eq!(list[0]["locked"], "unlocked");
    assert_eq!(list[1]["locked"], "locked");
    assert_eq!(list[1]["connection_port"], "redacted");
    assert!(!nodes.body.contains("hush"));
    assert_eq!(list[0].as_object().unwrap().len(), 21);

    // With node_id there is one, which shows its lock as well; fields are for people only.
    let path = format!("/node-list?fields=id&node_id={}", fleet.nodes[1]);
    let one = get(address, &path, JSON).await.json();
    assert_eq!(one.as_array().unwrap().len(), 1);
    assert_eq!(one[0]["locked"], "locked");
    assert_eq!(one[0].as_object().unwrap().len(), 21);
    for nobody in ["0000000099", "seven", "%2e%2e%2f"] {
        let none = get(address, &format!("/node-list?node_id={nobody}"), JSON).await;
        assert_eq!((none.status, &*none.body), (200, "[]"), "{nobody}");
    }

    let text = get(address, "/node-list?fields=locked,nonsense,id", &[]).await;
    assert_eq!(
        text.body,
        "\
+------------+----------+
| ID         | Locked   |
+------------+----------+
| 0000000000 | unlocked |
| 0000000001 | locked   |
| 0000000002 | unlocked |
+------------+----------+"
    );
    assert_eq!(
        get(address, "/label-list", JSON).await.json(),
        serde_json::json!([{"label": "large"}, {"label": "small"}])
    );
    let status = get(
        address,
        "/image-status?fields=image,paused,build_request",
        &[],
    )
    .await;
    assert_eq!(
        status.body,
        "\
+-----------+--------+---------------+
| Image     | Paused | Build Request |
+-----------+--------+---------------+
| asked     | False  | pending       |
| debian    | False  |               |
| quiet     | True   |               |
| under-way | False  | building      |
+-----------+--------+---------------+"
    );
}

#[tokio::test]
async fn lists_follow_changes_and_show_pauses() {
    let (registry, _store, _directory) = embedded();
    let _fleet = StoreFixture::create(&registry).await;
    let served = TestServer::start(&registry).await;
    let state = async || {
        let builds = get(served.address, "/dib-image-list", JSON).await.json();
        builds[0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state().await, "ready");
    let debian = "debian".parse().unwrap();
    registry.images().pause(&debian).await.unwrap();
    until("the build is paused", async || state().await == "paused").await;
    registry.images().unpause(&debian).await.unwrap();
    until("the build is back", async || state().await == "ready").await;
}

#[tokio::test]
async fn pages_may_be_cached_for_a_second() {
    let (registry, _store, _directory) = embedded();
    let _fleet = StoreFixture::create(&registry).await;
    let served = TestServer::start(&registry).await;
    let first = get(served.address, "/request-list", JSON).await;
    assert_eq!(first.header("content-type"), "application/json");
    assert_eq!(first.header("access-control-allow-origin"), "*");
    assert_eq!(first.header("cache-control"), "max-age=1, public");
    let date = |name| httpdate::parse_http_date(first.header(name)).unwrap();
    assert_eq!(
        date("expires"),
        date("last-modified") + Duration::from_secs(1)
    );

    let since = async |moment: SystemTime| {
        let moment = httpdate::fmt_http_date(moment);
        let headers = [
            ("Accept", "application/json"),
            ("If-Modified-Since", &moment),
        ];
        get(served.address, "/request-list", &headers).await
    };
    let kept = since((now() + Duration::from_secs(1000)).into()).await;
    assert_eq!((kept.status, &*kept.body), (304, ""));
    assert_eq!(kept.header("cache-control"), "max-age=1, public");
    assert_eq!(kept.header("access-control-allow-origin"), "*");
    let old = since((now() - Duration::from_secs(1000)).into()).await;
    assert_eq!((old.status, old.json()), (200, first.json()));
    let nonsense = [("If-Modified-Since", "yesterday")];
    assert_eq!(
        get(served.address, "/request-list", &nonsense).await.status,
        200
    );
}

#[tokio::test]
async fn methods_do_not_matter_and_unknown_pages_are_not_found() {
    let (registry, _store, _directory) = embedded();
    let served = TestServer::start(&registry).await;
    for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let answer = ask(served.address, method, "/label-list", JSON)
            .await
            .unwrap();
        assert_eq!((answer.status, &*answer.body), (200, "[]"), "{method}");
    }
    let head = ask(served.address, "HEAD", "/label-list", JSON)
        .await
        .unwrap();
    assert_eq!(
        (head.status, head.header("content-length"), &*head.body),
        (200, "2", "")
    );
    for path in [
        "/nodes",
        "/node-list/",
        "/node-list/x",
        "/favicon.ico",
        "//",
    ] {
        assert_eq!(get(served.address, path, &[]).await.status, 404, "{path}");
    }
    let picky = [("Accept", "image/png")];
    assert_eq!(get(served.address, "/label-list", &picky).await.status, 406);
    assert_eq!(get(served.address, "/live", &picky).await.status, 200);
}

#[tokio::test]
async fn readiness_follows_the_launcher() {
    let (registry, _store, _directory) = embedded();
    let served = TestServer::start(&registry).await;
    assert_eq!(get(served.address, "/ready", &[]).await.status, 503);
    assert_eq!(get(served.address, "/live", &[]).await.body, "OK");
    served.ready.send_replace(true);
    let ready = get(served.address, "/ready", &[]).await;
    assert_eq!((ready.status, &*ready.body), (200, "OK"));
}

#[tokio::test]
async fn a_request_is_explained_in_both_forms() {
    let (registry, _store, _directory) = embedded();
    let served = TestServer::start(&registry).await;
    let page = "/explain/200-0000000007";
    let text = get(served.address, page, &[]).await;
    assert_eq!((text.status, &*text.body), (200, "it waits for room\n"));
    assert_eq!(get(served.address, page, JSON).await.json()["next"], "room");
    assert_eq!(
        get(served.address, "/explain/200-0000000008", &[])
            .await
            .status,
        404
    );
    assert_eq!(
        get(served.address, "/explain/nonsense", &[]).await.status,
        400
    );
}

/// Asserts that `page` is HTML that a browser loads and runs nothing for, and returns what it links to.
pub(crate) fn links_of(page: &crate::http::HttpResponse) -> Vec<String> {
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert!(!page.body.contains("<script"), "{}", page.body);
    let links = page.body.split("href=\"").skip(1);
    links
        .map(|rest| rest.split('"').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn the_root_links_to_every_page() {
    let (registry, _store, _directory) = embedded();
    let served = TestServer::start(&registry).await;
    let index = get(served.address, "/", &[]).await;
    let links = links_of(&index);
    assert_eq!(links.len(), 9, "{links:?}");
    for path in links {
        let page = get(served.address, &path, &[]).await;
        assert!(matches!(page.status, 200 | 503), "{path}: {page:?}");
    }
}
