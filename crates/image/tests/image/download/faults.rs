//! What goes wrong.

use std::sync::atomic::{AtomicUsize, Ordering};

use nodeyard_image::{Checksum, Limits};
use nodeyard_testbeds::web_server::{Asked, Body, Reply};
use nodeyard_testbeds::{SmallDisk, WebServer};

use super::*;

fn serve(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> WebServer {
    WebServer::start(answer).unwrap()
}

async fn fails(server: &WebServer, change: impl FnOnce(&mut Download)) -> (Bed, DownloadError) {
    let bed = Bed::new();
    let mut order = order(&server.url("/image.raw.gz?sig=geheim"));
    order.packing = Packing::None;
    order.retries = 2;
    change(&mut order);
    let error = bed.fetch(&order).await.unwrap_err();
    assert!(!bed.target().exists() || order.packing != Packing::None);
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
    (bed, error)
}

#[tokio::test]
async fn what_is_gone_is_gone_and_what_is_forbidden_may_be_allowed_later() {
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
async fn passing_trouble_passes_and_is_not_endless() {
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
    let bed = Bed::new();
    let mut order = order(&server.url("/image.raw"));
    order.retries = 50;
    bed.fetch(&order).await.unwrap();
    assert_eq!(bed.fetched(), plain);

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
async fn a_file_that_changes_between_two_pieces_is_fetched_anew() {
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
    let bed = Bed::new();
    bed.fetch(&order(&server.url("/image.raw"))).await.unwrap();
    assert_eq!(bed.fetched(), expected);
}

#[tokio::test]
async fn a_file_that_always_changes_is_given_up() {
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
    let bed = Bed::new();
    bed.fetch(&order(&server.url("/image.raw"))).await.unwrap();
    assert_eq!(bed.fetched(), plain);
}

#[tokio::test]
async fn wrong_bytes_are_refused_in_every_form() {
    let plain = content(100_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let (bed, error) = fails(&server, |order| {
        order.promised.sha256 = Some("0".repeat(64).into());
    })
    .await;
    assert!(matches!(error, DownloadError::Digest { .. }), "{error:?}");
    assert!(error.is_permanent() && !bed.part().exists());
    let (_, error) = fails(&server, |order| {
        order.promised.md5 = Some("0".repeat(32).into());
    })
    .await;
    assert!(matches!(error, DownloadError::Digest { .. }), "{error:?}");
    let (_, error) = fails(&server, |order| order.promised.sha256 = Some("abc".into())).await;
    assert!(
        matches!(error, DownloadError::BadDigest { .. }),
        "{error:?}"
    );
    let (_, error) = fails(&server, |order| order.checksum = Checksum::Required).await;
    assert!(matches!(error, DownloadError::NoDigest), "{error:?}");
}

#[tokio::test]
async fn what_nobody_looked_at_is_not_told_as_if_it_had_held() {
    let plain = content(100_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let mut order = order(&server.url("/image.raw"));
    order.promised.sha256 = Some("0".repeat(64).into());
    order.promised.md5 = Some("none at all".into());
    order.checksum = Checksum::Off;
    let fetched = Bed::new().fetch(&order).await.unwrap();
    assert!(fetched.promised.is_empty(), "{fetched:?}");
}

/// A server that has a file, and says this about its digest, the first time and later.
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
    bed: &Bed,
    server: &WebServer,
    checksum: Checksum,
) -> Result<Downloaded, DownloadError> {
    let mut order = order(&server.url("/image.raw"));
    order.checksum = checksum;
    order.retries = 2;
    bed.fetch(&order).await
}

#[tokio::test]
async fn an_unclear_answer_about_the_digest_does_not_mean_that_there_is_none() {
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
        for checksum in [Checksum::IfAvailable, Checksum::Required] {
            let bed = Bed::new();
            let fetched = fetch_beside(&bed, &server, checksum).await;
            let error = fetched.expect_err("it would be admitted unchecked");
            assert!(!error.is_permanent(), "{unclear:?}: {error:?}");
            assert!(!bed.target().exists());
        }
    }
}

#[tokio::test]
async fn a_digest_that_is_told_late_counts() {
    let plain = content(100_000);
    let busy = || Reply::new(503, "").with("Retry-After", "0");
    let right = digests(&plain).sha256.unwrap();
    let line = format!("{right}  image.raw\n");
    let server = serve_beside(&plain, busy(), Reply::new(200, line));
    let fetched = fetch_beside(&Bed::new(), &server, Checksum::Required).await;
    assert_eq!(fetched.unwrap().promised.sha256, Some(right));
    let server = serve_beside(&plain, busy(), Reply::new(200, "0".repeat(64)));
    let fetched = fetch_beside(&Bed::new(), &server, Checksum::IfAvailable).await;
    assert!(
        matches!(fetched, Err(DownloadError::Digest { .. })),
        "{fetched:?}"
    );
}

#[tokio::test]
async fn a_server_that_has_no_digest_says_so_in_one_of_three_ways() {
    let plain = content(100_000);
    for status in [404, 410, 403] {
        let absent = Reply::new(status, "<html>no</html>");
        let server = serve_beside(&plain, absent.clone(), absent);
        let fetched = fetch_beside(&Bed::new(), &server, Checksum::IfAvailable).await;
        assert!(fetched.unwrap().promised.is_empty(), "{status}");
        let fetched = fetch_beside(&Bed::new(), &server, Checksum::Required).await;
        assert!(
            matches!(fetched, Err(DownloadError::NoDigest)),
            "{status}: {fetched:?}"
        );
    }
}

#[tokio::test]
async fn packed_data_that_is_cut_or_none_is_refused() {
    for packing in [Packing::Gzip, Packing::Xz, Packing::Zstd, Packing::Bzip2] {
        let mut packed = pack(packing, &content(200_000));
        packed.truncate(packed.len() - 20);
        let server = serve(move |asked| Reply::file(asked, &packed, "\"1\""));
        let (_, error) = fails(&server, |order| order.packing = packing).await;
        assert!(
            matches!(error, DownloadError::NotPacked { .. }),
            "{packing}: {error:?}"
        );
        let server = serve(move |asked| Reply::file(asked, b"<html>no image</html>", "\"1\""));
        let (_, error) = fails(&server, |order| order.packing = packing).await;
        assert!(error.is_permanent(), "{packing}: {error:?}");
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_or_while_it_comes() {
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
async fn a_bomb_is_stopped_while_it_unpacks() {
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
            matches!(error, DownloadError::Bomb { .. }),
            "{packing}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_length_that_is_a_lie_is_found_out() {
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
async fn silence_is_not_waited_for_without_end() {
    let server = serve(|_| Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Silence,
    });
    let mut bed = Bed::new();
    bed.client = client_that_waits(Duration::from_secs(1));
    let mut order = order(&server.url("/image.raw"));
    order.retries = 0;
    let error = bed.fetch(&order).await.unwrap_err();
    assert!(matches!(error, DownloadError::GaveUp { .. }), "{error:?}");
}

#[tokio::test]
async fn a_place_is_for_one_download() {
    let plain = content(200_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let bed = Bed::new();
    let mut slow = order(&server.url("/image.raw"));
    slow.throttle = Throttle::new(1000);
    let mut first = std::pin::pin!(bed.fetch(&slow));
    while !bed.part().exists() {
        tokio::select! {
            ended = &mut first => panic!("{ended:?}"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    let second = bed.fetch(&slow).await;
    assert!(
        matches!(second, Err(DownloadError::Busy { .. })),
        "{second:?}"
    );
}

#[tokio::test]
async fn without_room_nothing_stays() {
    let server = serve(|asked| Reply::file(asked, &[1; 100_000], "\"1\""));
    let bed = Bed::new();
    let repository = repository(
        &bed,
        Limits {
            keep_free: u64::MAX,
            ..Limits::default()
        },
    );
    let order = order(&server.url("/image.raw"));
    let error = bed.fetch_within(&order, Some(&repository)).await;
    assert!(
        matches!(error, Err(DownloadError::Repository(_))),
        "{error:?}"
    );
    assert!(!bed.part().exists() && !bed.target().exists());
}

fn repository(bed: &Bed, limits: Limits) -> Repository {
    Repository::open(nodeyard_image::Options {
        dir: bed.dir.path().join("images"),
        builder: "b".into(),
        limits,
    })
    .unwrap()
}

#[tokio::test]
async fn downloads_at_the_same_time_do_not_count_on_the_same_room() {
    let plain = content(400_000);
    let server = serve(move |asked| Reply::file(asked, &plain, "\"1\""));
    let bed = Bed::new();
    let limits = Limits {
        keep_free: 0,
        most_used: Some(700_000),
        ..Limits::default()
    };
    let repository = repository(&bed, limits);
    let downloads = bed.dir.path().join("images/.zuul-downloads/image");
    let meter: Meter = Arc::new(|_, _| {});
    let fetch = async |name: &str, throttle: Throttle| {
        let mut order = order(&server.url("/image.raw"));
        order.throttle = throttle;
        let (place, target) = (downloads.join(name), bed.dir.path().join(name));
        download(
            &bed.client,
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
    // Who gives up gives back.
    fetch("second", Throttle::default()).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_leaves_nothing_behind() {
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
        let meter: Meter = Arc::new(|_, _| {});
        let (place, target) = (dir.path().join("d/x"), dir.path().join("target"));
        let full = download(&client(), &order, &place, &target, None, &meter).await;
        assert!(
            matches!(full, Err(DownloadError::File(_))),
            "{packing}: {full:?}"
        );
        assert!(!full.unwrap_err().is_permanent());
        let left = std::fs::read_dir(dir.path().join("d")).unwrap().count();
        assert_eq!(left, 0, "{packing}");
        // What was unpacked is in the caller's own place, which the caller clears.
        let _none = std::fs::remove_file(&target);
    }
}
