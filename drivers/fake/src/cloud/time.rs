//! Times as OpenStack writes them.

use nodeyard_model::Timestamp;

/// To the microsecond, so that images made in one second have an order.
pub(super) fn iso(time: Timestamp) -> String {
    let micros = (time.as_secs() * 1e6) as i64;
    jiff::Timestamp::from_microsecond(micros)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}
