//! The OpenStack client, against openstacksdk and real services.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod openstacksdk;
mod services;
mod session;
