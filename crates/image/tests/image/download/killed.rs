//! A process that is killed during a download.

use std::io::Read as _;
use std::process::{Command, Stdio};

use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::{Asked, Reply};

use super::*;

const DIR: &str = "NODEYARD_TEST_DOWNLOAD_IN";
const URL: &str = "NODEYARD_TEST_DOWNLOAD_FROM";

/// The process that the other test kills. Does nothing when run as a test.
#[tokio::test]
async fn fetches_until_it_is_killed() {
    let (Ok(dir), Ok(url)) = (std::env::var(DIR), std::env::var(URL)) else {
        return;
    };
    let mut order = order(&url);
    order.throttle = Throttle::new(1 << 19);
    let meter: ProgressFn = Arc::new(|_, _| {});
    let place = std::path::Path::new(&dir).join("downloads/image/uuid.raw");
    let target = std::path::Path::new(&dir).join("target.raw");
    let _never = download(&client(), &order, &place, &target, None, &meter).await;
}

fn bytes_asked(asked: &[Asked]) -> usize {
    let pieces = asked.iter().filter_map(Asked::range);
    pieces.map(|(first, last)| last - first + 1).sum()
}

#[tokio::test]
async fn a_killed_download_is_resumed() {
    let plain = content(4 << 20);
    for etag in ["\"same\"", "\"other\""] {
        let sent = plain.clone();
        let mark = Arc::new(std::sync::Mutex::new("\"same\""));
        let said = Arc::clone(&mark);
        let server =
            WebServer::start(move |asked| Reply::file(asked, &sent, &said.lock().unwrap()))
                .unwrap();
        let fixture = DownloadFixture::new();
        let url = server.url("/image.raw");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "download::killed::fetches_until_it_is_killed"])
            .env(DIR, fixture.dir.path())
            .env(URL, &url)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let record = fixture
            .dir
            .path()
            .join("downloads/image/uuid.raw.part.json");
        let is_half = || {
            let mut text = String::new();
            let file = std::fs::File::open(&record);
            let _none = file.and_then(|mut file| file.read_to_string(&mut text));
            let record: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let end = record["done"][0]["end"].as_u64();
            end.is_some_and(|end| end > 1 << 20)
        };
        while !is_half() {
            assert!(child.try_wait().unwrap().is_none(), "it ended early");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();

        *mark.lock().unwrap() = etag;
        let before = bytes_asked(&server.asked());
        fixture.fetch(&order(&url)).await.unwrap();
        assert_eq!(fixture.fetched(), plain);
        let asked = bytes_asked(&server.asked()) - before;
        // Only the unchanged file is resumed.
        assert_eq!(asked < 3 << 20, etag == "\"same\"", "{asked}");
    }
}

#[tokio::test]
async fn corrupt_staging_data_is_discarded() {
    let plain = content(300_000);
    let sent = plain.clone();
    let server = WebServer::start(move |asked| Reply::file(asked, &sent, "\"1\"")).unwrap();
    let fixture = DownloadFixture::new();
    let mut order = order(&server.url("/image.raw"));
    order.promised = digests(&plain);
    order.throttle = Throttle::new(200_000);
    let record = fixture
        .dir
        .path()
        .join("downloads/image/uuid.raw.part.json");
    let mut first = Box::pin(fixture.fetch(&order));
    while !record.exists() {
        tokio::select! {
            ended = &mut first => panic!("{ended:?}"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    drop(first);
    let length = std::fs::metadata(fixture.part()).unwrap().len();
    std::fs::write(fixture.part(), vec![9; length as usize]).unwrap();
    order.throttle = Throttle::default();
    fixture.fetch(&order).await.unwrap();
    assert_eq!(fixture.fetched(), plain);
}
