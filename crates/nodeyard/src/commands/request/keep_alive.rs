//! Waits for machines and renews the lease meanwhile.

use std::time::Duration;

use anstream::eprintln;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::api_client::{ApiClient, LeaseResponse, api_error_status};

/// The `wait` of API calls: of the first call, and of later ones.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(5);
/// The pause before a retry if the API does not respond.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct ExplanationResponse {
    text: String,
    reasons: Value,
}

/// Returns when the lease has its machines or will not get any. Prints meanwhile what it waits for.
pub(in crate::commands) async fn until_ready(
    client: &ApiClient,
    lease: &LeaseResponse,
) -> anyhow::Result<LeaseResponse> {
    let path = format!("/leases/{}", lease.id);
    let mut renewed = Instant::now();
    let mut wait_time = FIRST_WAIT;
    let mut printed = Value::Null;
    loop {
        let call_wait = wait_time.min(interval(lease));
        match client.wait::<LeaseResponse>(&path, call_wait).await {
            Ok(lease) if !lease.is_waiting() => return Ok(lease),
            Ok(_) => {}
            Err(error) if api_error_status(&error).is_some() => return Err(error),
            Err(error) => {
                warn!("{error:#}");
                sleep(RETRY).await;
            }
        }
        wait_time = WAIT;
        if renewed.elapsed() >= interval(lease) {
            renewed = Instant::now();
            renew_once(client, lease).await?;
        }
        let explanation = client.get(&format!("{path}/explanation")).await;
        if let Ok(ExplanationResponse { text, reasons }) = explanation {
            // Ignores how long the request has waited, which changes all the time.
            let mut relevant = json!([
                reasons.get("pools"),
                reasons.get("next"),
                reasons.get("ahead")
            ]);
            round_progress(&mut relevant);
            if relevant != printed {
                eprintln!("{}", text.trim_end());
                printed = relevant;
            }
        }
    }
}

/// Rounds the progress of images to ten percent, so that not every change is printed.
fn round_progress(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(round_progress),
        Value::Object(values) => {
            if values.contains_key("stage") {
                values.remove("at");
                values.remove("remaining");
                let percent = values.get("percent").and_then(Value::as_u64);
                values.insert(
                    "percent".to_owned(),
                    json!(percent.map(|percent| percent / 10)),
                );
            }
            values.values_mut().for_each(round_progress);
        }
        _ => {}
    }
}

/// Renews the lease until that fails; returns the error.
pub(super) async fn renew(client: &ApiClient, lease: &LeaseResponse) -> anyhow::Error {
    loop {
        sleep(interval(lease)).await;
        if let Err(error) = renew_once(client, lease).await {
            return error;
        }
    }
}

/// Renews the lease. Retries if the API does not respond, because it may come back before the lease ends.
async fn renew_once(client: &ApiClient, lease: &LeaseResponse) -> anyhow::Result<()> {
    let path = format!("/leases/{}/renew", lease.id);
    loop {
        match client.post::<LeaseResponse>(&path, &json!({}), None).await {
            Ok(_) => return Ok(()),
            Err(error)
                if api_error_status(&error).is_some_and(|status| !status.is_server_error()) =>
            {
                return Err(error);
            }
            Err(error) => {
                warn!("failed to renew the lease; retrying: {error:#}");
                sleep(RETRY.min(interval(lease))).await;
            }
        }
    }
}

/// Returns the interval of renewals, two of which may fail.
fn interval(lease: &LeaseResponse) -> Duration {
    Duration::from_secs((lease.duration / 3).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_progress_is_not_printed() {
        let waiting = |percent: Value, remaining: i64| {
            let mut value = json!([{"says": {"ours": {"defer": {"image": {
                "stage": {"build": {"build": "1"}}, "percent": percent, "remaining": remaining, "at": remaining,
            }}}}}]);
            round_progress(&mut value);
            value
        };
        assert_eq!(waiting(json!(41), 60), waiting(json!(49), 50));
        assert_ne!(waiting(json!(49), 60), waiting(json!(50), 60));
        assert_ne!(waiting(Value::Null, 60), waiting(json!(0), 60));
    }
}
