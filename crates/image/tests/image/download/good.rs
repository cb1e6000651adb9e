//! Successful downloads.

use std::os::unix::fs::MetadataExt as _;

use nodeyard_image::ChecksumPolicy;
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::Reply;

use super::*;

const ENDINGS: [(Packing, &str); 5] = [
    (Packing::None, "raw"),
    (Packing::Gzip, "raw.gz"),
    (Packing::Xz, "raw.xz"),
    (Packing::Zstd, "raw.zst"),
    (Packing::Bzip2, "raw.bz2"),
];

#[tokio::test]
async fn all_compressions_and_both_digests_are_supported() {
    let plain = content(700_000);
    for (packing, ending) in ENDINGS {
        let packed = pack(packing, &plain);
        let sent = packed.clone();
        let server = WebServer::start(move |asked| Reply::file(asked, &sent, "\"1\"")).unwrap();
        for promised in [digests(&plain), digests(&packed)] {
            let fixture = DownloadFixture::new();
            let mut order = order(&server.url(&format!("/image.{ending}?sig=geheim")));
            assert_eq!(order.packing, packing);
            order.promised = promised;
            order.checksum = ChecksumPolicy::Required;
            let fetched = fixture.fetch(&order).await.unwrap();
            assert_eq!(fixture.fetched(), plain, "{packing}");
            assert_eq!(fetched.plain.digests, digests(&plain));
            assert_eq!(fetched.sent.digests.sha256, digests(&packed).sha256);
            assert_eq!(fetched.sent.size, packed.len() as u64);
            let left: Vec<_> = std::fs::read_dir(fixture.place().parent().unwrap())
                .unwrap()
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

#[tokio::test]
async fn zeros_become_holes() {
    let mut plain = vec![0; 8 << 20];
    plain[4 << 20] = 1;
    for (packing, ending) in [ENDINGS[0], ENDINGS[3]] {
        let packed = pack(packing, &plain);
        let server = WebServer::start(move |asked| Reply::file(asked, &packed, "\"1\"")).unwrap();
        let fixture = DownloadFixture::new();
        fixture
            .fetch(&order(&server.url(&format!("/image.{ending}"))))
            .await
            .unwrap();
        let allocated = std::fs::metadata(fixture.target()).unwrap().blocks() * 512;
        assert!(allocated < 1 << 20, "{packing}: {allocated}");
        assert_eq!(fixture.fetched(), plain);
    }
}

#[tokio::test]
async fn ranges_are_fetched_over_the_configured_connections() {
    let plain = content(1 << 20);
    let sent = plain.clone();
    let server = WebServer::start(move |asked| Reply::file(asked, &sent, "\"1\"")).unwrap();
    let fixture = DownloadFixture::new();
    fixture
        .fetch(&order(&server.url("/image.raw")))
        .await
        .unwrap();
    assert_eq!(fixture.fetched(), plain);
    let pieces = server
        .asked()
        .into_iter()
        .filter(|asked| asked.range().is_some());
    assert_eq!(pieces.count(), 16);
}

#[tokio::test]
async fn digests_are_read_from_checksum_files() {
    let plain = content(10_000);
    let (good, sent) = (digests(&plain).sha256.unwrap(), plain.clone());
    let server = WebServer::start(move |asked| match asked.target.as_str() {
        "/good.raw.sha256" => Reply::new(200, format!("{good}  good.raw\n")),
        "/bad.raw.sha256" => Reply::new(200, "0".repeat(64)),
        "/page.raw.sha256" => Reply::new(200, "<html>".repeat(100)),
        path if path.ends_with(".sha256") => Reply::new(404, ""),
        _ => Reply::file(asked, &sent, "\"1\""),
    })
    .unwrap();
    for (name, promised) in [("good", true), ("none", false), ("page", false)] {
        let fetched = DownloadFixture::new()
            .fetch(&order(&server.url(&format!("/{name}.raw"))))
            .await;
        assert_eq!(!fetched.unwrap().promised.is_empty(), promised, "{name}");
    }
    let bad = DownloadFixture::new()
        .fetch(&order(&server.url("/bad.raw")))
        .await;
    assert!(matches!(bad, Err(DownloadError::Digest { .. })), "{bad:?}");
}

#[tokio::test]
async fn servers_without_head_and_ranges_are_supported() {
    let plain = content(300_000);
    let sent = plain.clone();
    let server = WebServer::start(move |asked| match asked.method.as_str() {
        "HEAD" => Reply::new(403, ""),
        _ => Reply::new(200, sent.clone()),
    })
    .unwrap();
    let fixture = DownloadFixture::new();
    fixture
        .fetch(&order(&server.url("/image.raw")))
        .await
        .unwrap();
    assert_eq!(fixture.fetched(), plain);
}

#[tokio::test]
async fn servers_with_ranges_but_without_head_are_supported() {
    let plain = content(300_000);
    let sent = plain.clone();
    let server = WebServer::start(move |asked| match asked.method.as_str() {
        "HEAD" => Reply::new(405, ""),
        _ => Reply::file(asked, &sent, "\"1\""),
    })
    .unwrap();
    let fixture = DownloadFixture::new();
    fixture
        .fetch(&order(&server.url("/image.raw")))
        .await
        .unwrap();
    assert_eq!(fixture.fetched(), plain);
}

#[tokio::test]
async fn throttled_downloads_are_slower() {
    let plain = content(200_000);
    let server = WebServer::start(move |asked| Reply::file(asked, &plain, "\"1\"")).unwrap();
    let free = order(&server.url("/image.raw"));
    let mut slow = order(&server.url("/image.raw"));
    slow.throttle = Throttle::new(1);
    let (first, second) = (DownloadFixture::new(), DownloadFixture::new());
    let mut first_fetch = std::pin::pin!(first.fetch(&slow));
    while !first.part().exists() {
        tokio::select! {
            ended = &mut first_fetch => panic!("{ended:?}"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    tokio::select! {
        ended = &mut first_fetch => panic!("{ended:?}"),
        fetched = second.fetch(&free) => drop(fetched.unwrap()),
    }
}
