//! Waiting for machines and keeping them: a lease lives as long as its owner gives signs of life.

use std::time::Duration;

use anstream::eprintln;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::api_client::{ApiClient, Lease, refused};

/// How long the API is asked to wait for a change, the first time and from then on.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(5);
/// Before an API that does not answer is tried again.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct Explanation {
    text: String,
    reasons: Value,
}

/// Returns when the lease has its machines, or will not get any; says meanwhile what it waits for.
pub(in crate::commands) async fn until_ready(
    client: &ApiClient,
    lease: &Lease,
) -> anyhow::Result<Lease> {
    let path = format!("/leases/{}", lease.id);
    let mut renewed = Instant::now();
    let mut look = FIRST_LOOK;
    let mut said = Value::Null;
    loop {
        let patience = look.min(interval(lease));
        match client.wait::<Lease>(&path, patience).await {
            Ok(lease) if !lease.waits() => return Ok(lease),
            Ok(_) => {}
            Err(error) if refused(&error).is_some() => return Err(error),
            Err(error) => {
                warn!("{error:#}");
                sleep(RETRY).await;
            }
        }
        look = LOOK;
        if renewed.elapsed() >= interval(lease) {
            renewed = Instant::now();
            renew_once(client, lease).await?;
        }
        let explained = client.get(&format!("{path}/explanation")).await;
        if let Ok(Explanation { text, reasons }) = explained {
            // How long it has waited changes all the time.
            let mut matter = json!([
                reasons.get("pools"),
                reasons.get("next"),
                reasons.get("ahead")
            ]);
            round_progress(&mut matter);
            if matter != said {
                eprintln!("{}", text.trim_end());
                said = matter;
            }
        }
    }
}

/// Leaves of how far an image is only every tenth percent, so that not every step is told.
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

/// Renews the lease for as long as it is wanted; returns why that is not possible any more.
pub(super) async fn renew(client: &ApiClient, lease: &Lease) -> anyhow::Error {
    loop {
        sleep(interval(lease)).await;
        if let Err(error) = renew_once(client, lease).await {
            return error;
        }
    }
}

/// An API that does not answer may be there again before the lease ends.
async fn renew_once(client: &ApiClient, lease: &Lease) -> anyhow::Result<()> {
    let path = format!("/leases/{}/renew", lease.id);
    loop {
        match client.post::<Lease>(&path, &json!({}), None).await {
            Ok(_) => return Ok(()),
            Err(error) if refused(&error).is_some_and(|status| !status.is_server_error()) => {
                return Err(error);
            }
            Err(error) => {
                warn!("the lease cannot be renewed: {error:#}");
                sleep(RETRY.min(interval(lease))).await;
            }
        }
    }
}

/// Between two renewals: one may fail.
fn interval(lease: &Lease) -> Duration {
    Duration::from_secs((lease.duration / 3).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_steps_are_not_told() {
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
