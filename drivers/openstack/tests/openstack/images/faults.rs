//! Uploads while the cloud fails, and while somebody else does the same.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nodeyard_driver::{ErrorClass, Progress};
use nodeyard_testbeds::openstack::{Answer, Calls, Fault, Service};
use serde_json::{Value, json};

use crate::images::bed::{Bed, interrupted_upload, upload, upload_reporting};

fn data() -> Calls {
    Calls::of(Service::Image).method("PUT").path("/file")
}

/// One image, active, with everything; nothing else.
fn assert_one(bed: &Bed, id: &str) {
    let images = bed.images();
    assert_eq!(images.len(), 1, "{images:#?}");
    assert_eq!(images[0]["id"], id);
    assert_eq!(images[0]["status"], "active");
    assert_eq!(images[0]["os"], "jammy");
    assert!(images[0].get("nodeyard_unverified").is_none());
}

#[tokio::test]
async fn whatever_happens_to_a_call_there_is_one_image_in_the_end() {
    let Some(bed) = Bed::new("faults") else {
        return;
    };
    let image = Service::Image;
    let create = Calls::of(image).method("POST").path("/images");
    let change = Calls::of(image).method("PATCH");
    let look = Calls::of(image).method("GET").path("/images/{id}");
    let faults = [
        (
            "the upload is cut",
            data().nth(0),
            Fault::CutUpload(1 << 20),
        ),
        (
            "the upload is cut at once",
            data().nth(0),
            Fault::CutUpload(0),
        ),
        (
            "the answer to the upload is lost",
            data().nth(0),
            Fault::AnswerLost,
        ),
        (
            "nobody knows us in the middle",
            data().nth(0),
            Fault::status(image, 401),
        ),
        (
            "the upload meets a broken service",
            data().nth(0),
            Fault::status(image, 500),
        ),
        (
            "the upload comes too often",
            data().nth(0),
            Fault::too_many(image, 1),
        ),
        (
            "the service is away",
            data().times(2),
            Fault::status(image, 503),
        ),
        ("creation is cut", create.clone().nth(0), Fault::CutBefore),
        (
            "the answer to creation is lost",
            create.clone().nth(0),
            Fault::AnswerLost,
        ),
        ("the change is cut", change.clone().nth(0), Fault::CutBefore),
        (
            "the answer to the change is lost",
            change.nth(0),
            Fault::AnswerLost,
        ),
        ("looking fails", look.times(2), Fault::status(image, 502)),
    ];
    for (number, (what, calls, fault)) in (1..).zip(faults) {
        let driver = bed.driver();
        bed.gateway.fail(calls, fault);
        let before = bed.gateway.failures();
        let order = bed.order(number, bed.file("disk.raw", 2));
        let done = upload(&driver, &order).await;
        let done = done.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert!(
            bed.gateway.failures() > before,
            "{what}: nothing has happened"
        );
        bed.gateway.heal();
        assert_one(&bed, &done.external_id.to_string());
        bed.project.empty().unwrap();
    }
}

#[tokio::test]
async fn tokens_that_end_during_an_upload_are_replaced() {
    let Some(bed) = Bed::new("tokens") else {
        return;
    };
    let driver = bed.driver();
    let order = bed.order(1, bed.file("disk.raw", 1));
    let progress = Progress::default();
    let mut reported = progress.subscribe();
    // Not for ever: a slow upload might never get to use a token before it ends.
    let expiry = async {
        for _ in 0..4 {
            bed.gateway.expire_tokens();
            reported.changed().await.unwrap();
        }
        pending::<()>().await;
    };
    let done = tokio::select! {
        () = expiry => unreachable!(),
        done = upload_reporting(&driver, &order, &progress) => done.unwrap(),
    };
    assert_one(&bed, &done.external_id.to_string());
}

#[tokio::test]
async fn what_arrives_otherwise_than_it_was_sent_is_sent_again() {
    let Some(bed) = Bed::new("corrupt") else {
        return;
    };
    let driver = bed.driver();
    for key in ["os_hash_value", "checksum"] {
        let lied = AtomicBool::new(false);
        // At the first look at the complete image.
        let lie = move |answer: &mut Value| {
            if answer["status"] == "active" && !lied.swap(true, Ordering::SeqCst) {
                answer[key] = json!("00".repeat(16));
            }
        };
        let look = Calls::of(Service::Image).method("GET").path("/images/{id}");
        bed.gateway.fail(look, Fault::Altered(Arc::new(lie)));
        let order = bed.order(1, bed.file("disk.raw", 1));
        let done = upload(&driver, &order).await.unwrap();
        bed.gateway.heal();
        assert_one(&bed, &done.external_id.to_string());
        bed.project.empty().unwrap();
    }
    let counts = bed.gateway.counts();
    assert_eq!(counts["image PUT /v2/images/{id}/file"], 4, "{counts:?}");
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_told() {
    let Some(bed) = Bed::new("quota") else { return };
    let driver = bed.driver();
    bed.gateway.fail(data(), Fault::over_quota(Service::Image));
    let mut order = bed.order(1, bed.file("disk.raw", 1));
    let error = upload(&driver, &order).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Quota, "{error}");
    assert!(error.to_string().contains("storage quota"), "{error}");
    bed.gateway.heal();
    bed.gateway.fail(
        Calls::of(Service::Image).method("POST"),
        Fault::Answer(Answer::of(
            Service::Image,
            403,
            "You are not authorized to complete this action.",
        )),
    );
    order.first_attempt = false;
    let error = upload(&driver, &order).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials, "{error}");
}

/// A worker is killed at several points; another one begins with nothing but the order.
#[tokio::test]
async fn a_worker_that_takes_over_finds_what_was_begun() {
    let Some(bed) = Bed::new("killed") else {
        return;
    };
    for reports in 0..5 {
        let mut order = bed.order(1, bed.file("disk.raw", 3));
        interrupted_upload(&bed.driver(), &order, reports).await;
        order.first_attempt = false;
        let done = upload(&bed.driver(), &order).await;
        assert_one(&bed, &done.unwrap().external_id.to_string());
        // And one that asks for what is done is told so, and sends nothing.
        let sent = || bed.gateway.counts()["image PUT /v2/images/{id}/file"];
        let before = sent();
        let again = upload(&bed.driver(), &order).await;
        assert_one(&bed, &again.unwrap().external_id.to_string());
        assert_eq!(sent(), before);
        bed.project.empty().unwrap();
    }
}

#[tokio::test]
async fn two_workers_with_one_upload_make_one_image() {
    let Some(bed) = Bed::new("two") else { return };
    let order = bed.order(1, bed.file("disk.raw", 4));
    let mut repeated = order.clone();
    repeated.first_attempt = false;
    let (first, second) = (bed.driver(), bed.driver());
    let (first, second) = tokio::join!(upload(&first, &order), upload(&second, &repeated));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.external_id, second.external_id);
    assert_one(&bed, &first.external_id.to_string());
}
