//! Failing downloads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nodeyard_image::{ChecksumPolicy, DiskLimits};
use nodeyard_testbeds::web_server::{Asked, Body, Reply};
use nodeyard_testbeds::{SmallDisk, WebServer};

use super::*;

fn serve(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> WebServer {
    WebServer::start(answer).unwrap()
}

async fn fails(
    server: &WebServer,
    change: impl FnOnce(&mut Download),
) -> (DownloadFixture, DownloadError) {
    let fixture = DownloadFixture::new();
    let mut order = order(&server.url("/image.raw.gz?sig=geheim"));
    order.packing = Packing::None;
    order.retries = 2;
    change(&mut order);
    let error = fixture.fetch(&order).await.unwrap_err();
    assert!(!fixture.target().exists() || order.packing != Packing::None);
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text.push_str(&error.to_string());
        cause = error.source();
    }
    assert!(
        !text.contains("geheim") && !format!("{error:?}").contains("geheim"),
        "{text}"
    );
    (fixture, error)
}

#[tokio::test]
async fn not_found_is_permanent_and_forbidden_is_not() {
    for (status, permanent) in [
        (404, true),
        (410, true),
        (401, false),
        (403, false),
        (500, false),
    ] {
        let server = serve(move |_| Reply::new(status, "<html>no</html>"));
        let (_, error) = fails(&server, |_| {}).await;
        assert_eq!(error.is_permanent(), permanent, "{status}: {error:?}");
    }
}

#[tokio::test]
async fn transient_errors_are_retried_with_a_limit() {
    let plain = content(300_000);
    let sent = plain.clone();
    let count = AtomicUsize::new(0);
    let server = serve(
        move |asked| match count.fetch_add(1, Ordering::SeqCst) % 3 {
            0 if asked.range().is_some() => Reply::new(503, "").with("Retry-After", "0"),
            1 if asked.range().is_some() => {
                let Reply {
                    status,
                    headers,
                    body,
                } = Reply::file(asked, &sent, "\"1\"");
                let Body::Bytes(bytes) = body else {
                    panic!("a file has bytes")
                };
                let half = bytes[..bytes.len() / 2].to_vec();
                Reply {
                    status,
                    headers,
                    body: Body::Cut(bytes.len() as u64, half),
                }
            }
            _ => Reply::file(asked, &sent, "\"1\""),
        },
    );
    let fixture = DownloadFixture::new();
    let mut order = order(&server.url("/image.raw"));
    order.retries = 50;
    fixture.fetch(&order).await.unwrap();
    assert_eq!(fixture.fetched(), plain);

    let server = serve(|asked| match asked.method.as_str() {
        "HEAD" => Reply::new(200, vec![0; 100_000]).with("ETag", "\"1\""),
        _ => Reply::new(503, ""),
    });
    let (_, error) = fails(&server, |_| {}).await;
    assert!(
        matches!(error, DownloadError::GaveUp { failures: 9, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_changed_file_is_fetched_from_the_start() {
    let (old, new) = (content(500_000), content(400_000));
    let expected = new.clone();
    let count = AtomicUsize::new(0);
    let server = serve(move |asked| {
        if count.fetch_add(1, Ordering::SeqCst) < 4 {
            Reply::file(asked, &old, "\"old\"")
        } else {
            Reply::file(asked, &new, "\"new\"")
        }
    });
    let fixture = DownloadFixture::new();
    fixture
        .fetch(&order(&server.url("/image.raw")))
        .await
        .unwrap();
    assert_eq!(fixture.fetched(), expected);
}

#[tokio::test]
async fn a_constantly_changing_file_fails() {
    let count = AtomicUsize::new(0);
    let server = serve(move |asked| {
        let mark = format!("\"{}\"", count.fetch_add(1, Ordering::SeqCst));
        Reply::file(asked, &[7; 300_000], &mark)
    });
    let (_, error) = fails(&server, |_| {}).await;
    assert!(matches!(error, DownloadError::Changing { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_ignores_ranges_does_not_corrupt_the_file() {
    let plain = content(300_000);
    let sent = plain.clone();
    let server = serve(move |_| {
        Reply::new(200, sent.clone())
            .with("ETag", "\"1\"")
            .with("Accept-Ranges", "bytes")
    });
    let fixture = DownloadFixture::new();
    fixture
        .fetch(&order(&server.url("/image.raw")))
        .await
        .unwrap();
    assert_eq!(fixture.fetched(), plain);
}

#[tokio::test]
async fn digest_mismatches_are_detected() {
    let plain = content(100_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let (fixture, error) = fails(&server, |order| {
        order.promised.sha256 = Some("0".repeat(64).into());
    })
    .await;
    assert!(matches!(error, DownloadError::Digest { .. }), "{error:?}");
    assert!(error.is_permanent() && !fixture.part().exists());
    let (_, error) = fails(&server, |order| {
        order.promised.md5 = Some("0".repeat(32).into());
    })
    .await;
    assert!(matches!(error, DownloadError::Digest { .. }), "{error:?}");
    let (_, error) = fails(&server, |order| order.promised.sha256 = Some("abc".into())).await;
    assert!(
        matches!(error, DownloadError::InvalidDigest { .. }),
        "{error:?}"
    );
    let (_, error) = fails(&server, |order| order.checksum = ChecksumPolicy::Required).await;
    assert!(matches!(error, DownloadError::MissingDigest), "{error:?}");
}

#[tokio::test]
async fn unverified_digests_are_not_reported() {
    let plain = content(100_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let mut order = order(&server.url("/image.raw"));
    order.promised.sha256 = Some("0".repeat(64).into());
    order.promised.md5 = Some("none at all".into());
    order.checksum = ChecksumPolicy::Off;
    let fetched = DownloadFixture::new().fetch(&order).await.unwrap();
    assert!(fetched.promised.is_empty(), "{fetched:?}");
}

/// A server with a file that replies to requests for its checksum file with `first`, then `later`.
fn serve_beside(plain: &[u8], first: Reply, later: Reply) -> WebServer {
    let (plain, count) = (plain.to_vec(), AtomicUsize::new(0));
    serve(move |asked| {
        if !asked.target.ends_with(".sha256") {
            return Reply::file(asked, &plain, "\"1\"");
        }
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => first.clone(),
            _ => later.clone(),
        }
    })
}

async fn fetch_beside(
    fixture: &DownloadFixture,
    server: &WebServer,
    checksum: ChecksumPolicy,
) -> Result<Downloaded, DownloadError> {
    let mut order = order(&server.url("/image.raw"));
    order.checksum = checksum;
    order.retries = 2;
    fixture.fetch(&order).await
}

#[tokio::test]
async fn an_error_fetching_the_checksum_file_does_not_skip_verification() {
    let plain = content(100_000);
    let cut = Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Cut(
            90,
            digests(&plain).sha256.unwrap().as_bytes()[..20].to_vec(),
        ),
    };
    let unclear = [500, 503, 429, 401, 400].map(|status| Reply::new(status, "no"));
    for unclear in unclear.into_iter().chain([cut]) {
        let server = serve_beside(&plain, unclear.clone(), unclear.clone());
        for checksum in [ChecksumPolicy::IfAvailable, ChecksumPolicy::Required] {
            let fixture = DownloadFixture::new();
            let fetched = fetch_beside(&fixture, &server, checksum).await;
            let error = fetched.expect_err("it would be admitted unchecked");
            assert!(!error.is_permanent(), "{unclear:?}: {error:?}");
            assert!(!fixture.target().exists());
        }
    }
}

#[tokio::test]
async fn a_digest_fetched_on_retry_is_verified() {
    let plain = content(100_000);
    let busy = || Reply::new(503, "").with("Retry-After", "0");
    let right = digests(&plain).sha256.unwrap();
    let line = format!("{right}  image.raw\n");
    let server = serve_beside(&plain, busy(), Reply::new(200, line));
    let fetched = fetch_beside(&DownloadFixture::new(), &server, ChecksumPolicy::Required).await;
    assert_eq!(fetched.unwrap().promised.sha256, Some(right));
    let server = serve_beside(&plain, busy(), Reply::new(200, "0".repeat(64)));
    let fetched = fetch_beside(
        &DownloadFixture::new(),
        &server,
        ChecksumPolicy::IfAvailable,
    )
    .await;
    assert!(
        matches!(fetched, Err(DownloadError::Digest { .. })),
        "{fetched:?}"
    );
}

#[tokio::test]
async fn three_statuses_mean_that_there_is_no_checksum_file() {
    let plain = content(100_000);
    for status in [404, 410, 403] {
        let absent = Reply::new(status, "<html>no</html>");
        let server = serve_beside(&plain, absent.clone(), absent);
        let fetched = fetch_beside(
            &DownloadFixture::new(),
            &server,
            ChecksumPolicy::IfAvailable,
        )
        .await;
        assert!(fetched.unwrap().promised.is_empty(), "{status}");
        let fetched =
            fetch_beside(&DownloadFixture::new(), &server, ChecksumPolicy::Required).await;
        assert!(
            matches!(fetched, Err(DownloadError::MissingDigest)),
            "{status}: {fetched:?}"
        );
    }
}

#[tokio::test]
async fn truncated_and_invalid_compressed_data_is_rejected() {
    for packing in [Packing::Gzip, Packing::Xz, Packing::Zstd, Packing::Bzip2] {
        let mut packed = pack(packing, &content(200_000));
        packed.truncate(packed.len() - 20);
        let server = serve(move |asked| Reply::file(asked, &packed, "\"1\""));
        let (_, error) = fails(&server, |order| order.packing = packing).await;
        assert!(
            matches!(error, DownloadError::InvalidCompressedData { .. }),
            "{packing}: {error:?}"
        );
        let server = serve(move |asked| Reply::file(asked, b"<html>no image</html>", "\"1\""));
        let (_, error) = fails(&server, |order| order.packing = packing).await;
        assert!(error.is_permanent(), "{packing}: {error:?}");
    }
}

#[tokio::test]
async fn too_large_files_are_rejected_before_or_during_the_download() {
    let server = serve(|asked| Reply::file(asked, &[1; 100_000], "\"1\""));
    let (_, error) = fails(&server, |order| order.max_size = Some(99_999)).await;
    assert!(matches!(error, DownloadError::TooLarge { .. }), "{error:?}");
    assert!(server.asked().iter().all(|asked| asked.method == "HEAD"));

    let endless = serve(|_| Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Endless(vec![1; 10_000]),
    });
    let (_, error) = fails(&endless, |order| order.max_size = Some(1 << 20)).await;
    assert!(matches!(error, DownloadError::TooLarge { .. }), "{error:?}");
}

#[tokio::test]
async fn decompression_is_limited() {
    for packing in [Packing::Gzip, Packing::Xz, Packing::Zstd, Packing::Bzip2] {
        let bomb = pack(packing, &vec![0; 32 << 20]);
        assert!(bomb.len() < 1 << 20);
        let server = serve(move |asked| Reply::file(asked, &bomb, "\"1\""));
        let (_, error) = fails(&server, |order| {
            order.packing = packing;
            order.max_size = Some(1 << 20);
        })
        .await;
        assert!(
            matches!(error, DownloadError::UnpacksTooLarge { .. }),
            "{packing}: {error:?}"
        );
    }
}

#[tokio::test]
async fn wrong_content_lengths_are_detected() {
    let longer = serve(|asked| {
        let mut reply = Reply::file(asked, &[1; 100_000], "\"1\"");
        if let Body::Bytes(bytes) = reply.body {
            reply.body = Body::Cut(1 << 40, bytes);
        }
        reply
    });
    let (_, error) = fails(&longer, |_| {}).await;
    assert!(!error.is_permanent(), "{error:?}");
}

#[tokio::test]
async fn unresponsive_servers_time_out() {
    let server = serve(|_| Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Silence,
    });
    let mut fixture = DownloadFixture::new();
    fixture.client = client_with_timeout(Duration::from_secs(1));
    let mut order = order(&server.url("/image.raw"));
    order.retries = 0;
    let error = fixture.fetch(&order).await.unwrap_err();
    assert!(matches!(error, DownloadError::GaveUp { .. }), "{error:?}");
}

#[tokio::test]
async fn a_staging_path_is_locked_by_one_download() {
    let plain = content(200_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let fixture = DownloadFixture::new();
    let mut slow = order(&server.url("/image.raw"));
    slow.throttle = Throttle::new(1000);
    let mut first = std::pin::pin!(fixture.fetch(&slow));
    while !fixture.part().exists() {
        tokio::select! {
            ended = &mut first => panic!("{ended:?}"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    let second = fixture.fetch(&slow).await;
    assert!(
        matches!(second, Err(DownloadError::InProgress { .. })),
        "{second:?}"
    );
}

#[tokio::test]
async fn without_disk_space_no_data_is_kept() {
    let server = serve(|asked| Reply::file(asked, &[1; 100_000], "\"1\""));
    let fixture = DownloadFixture::new();
    let repository = repository(
        &fixture,
        DiskLimits {
            keep_free: u64::MAX,
            ..DiskLimits::default()
        },
    );
    let order = order(&server.url("/image.raw"));
    let error = fixture.fetch_within(&order, Some(&repository)).await;
    assert!(
        matches!(error, Err(DownloadError::Repository(_))),
        "{error:?}"
    );
    assert!(!fixture.part().exists() && !fixture.target().exists());
}

#[tokio::test]
async fn a_refusal_for_lack_of_space_does_not_discard_received_data() {
    const HALF: usize = 200_000;
    let plain = content(2 * HALF);
    let is_stuck = Arc::new(AtomicBool::new(true));
    let (sent, stuck) = (plain.clone(), Arc::clone(&is_stuck));
    let server = serve(move |asked| {
        let is_second = asked.range().is_some_and(|(first, _)| first >= HALF);
        if is_second && stuck.load(Ordering::SeqCst) {
            return Reply::new(500, "").with("Retry-After", "0");
        }
        Reply::file(asked, &sent, "\"1\"")
    });
    let fixture = DownloadFixture::new();
    let mut order = order(&server.url("/image.raw"));
    order.connections = 1;
    order.piece = HALF as u64;
    order.retries = 0;
    let error = fixture.fetch(&order).await.unwrap_err();
    assert!(matches!(error, DownloadError::GaveUp { .. }), "{error:?}");
    let full = DiskLimits {
        keep_free: u64::MAX,
        ..DiskLimits::default()
    };
    let repository = repository(&fixture, full);
    let refused = fixture.fetch_within(&order, Some(&repository)).await;
    assert!(
        matches!(refused, Err(DownloadError::Repository(_))),
        "{refused:?}"
    );
    is_stuck.store(false, Ordering::SeqCst);
    let before = server.asked().len();
    fixture.fetch(&order).await.unwrap();
    assert!(fixture.fetched() == plain);
    let asked = server.asked().split_off(before);
    let first = asked.iter().filter_map(Asked::range);
    assert_eq!(first.map(|(first, _)| first).min(), Some(HALF));
}

fn repository(fixture: &DownloadFixture, limits: DiskLimits) -> Repository {
    Repository::open(nodeyard_image::Options {
        dir: fixture.dir.path().join("images"),
        builder: "b".into(),
        limits,
    })
    .unwrap()
}

#[tokio::test]
async fn concurrent_downloads_reserve_separate_space() {
    let plain = content(400_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let fixture = DownloadFixture::new();
    let limits = DiskLimits {
        keep_free: 0,
        max_used: Some(700_000),
        ..DiskLimits::default()
    };
    let repository = repository(&fixture, limits);
    let downloads = fixture.dir.path().join("images/.zuul-downloads/image");
    let meter: ProgressFn = Arc::new(|_, _| {});
    let fetch = async |name: &str, throttle: Throttle| {
        let mut order = order(&server.url("/image.raw"));
        order.throttle = throttle;
        let (place, target) = (downloads.join(name), fixture.dir.path().join(name));
        download(
            &fixture.client,
            &order,
            &place,
            &target,
            Some(&repository),
            &meter,
        )
        .await
    };
    {
        let mut first = std::pin::pin!(fetch("first", Throttle::new(1000)));
        while !server.asked().iter().any(|asked| asked.range().is_some()) {
            tokio::select! {
                ended = &mut first => panic!("{ended:?}"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        let second = fetch("second", Throttle::default()).await;
        assert!(
            matches!(second, Err(DownloadError::Repository(_))),
            "{second:?}"
        );
    }
    // Dropping a download releases its reservation.
    fetch("second", Throttle::default()).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_leaves_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path(), 4) else {
        return;
    };
    let plain = content(16 << 20);
    for packing in [Packing::None, Packing::Zstd] {
        let packed = pack(packing, &plain);
        let server = serve(move |asked| Reply::file(asked, &packed, "\"1\""));
        let mut order = order(&server.url("/image"));
        order.packing = packing;
        let meter: ProgressFn = Arc::new(|_, _| {});
        let (place, target) = (dir.path().join("d/x"), dir.path().join("target"));
        let full = download(&client(), &order, &place, &target, None, &meter).await;
        assert!(
            matches!(full, Err(DownloadError::File(_))),
            "{packing}: {full:?}"
        );
        assert!(!full.unwrap_err().is_permanent());
        let left = std::fs::read_dir(dir.path().join("d")).unwrap().count();
        assert_eq!(left, 0, "{packing}");
        // The target is in the caller's directory, which the caller clears.
        let _none = std::fs::remove_file(&target);
    }
}
