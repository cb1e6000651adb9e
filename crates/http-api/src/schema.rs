//! OpenAPI schemas of strings that several objects share: ids, names and states.

use std::borrow::Cow;

use nodeyard_lease::MAX_TEXT;
use nodeyard_model::{BuildState, ComponentState, NodeState, RequestState, UploadState};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(Type::String))
}

macro_rules! string_schemas {
    ($($(#[doc = $doc:literal])+ $name:ident = $schema:expr;)*) => {$(
        $(#[doc = $doc])+
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let doc = concat!($($doc),+).trim();
                RefOr::T(Schema::Object($schema.description(Some(doc)).build()))
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).trim_end_matches("Schema").into()
            }
        }
    )*};
}

fn id(pattern: &str, example: &str) -> ObjectBuilder {
    let example = serde_json::Value::from(example);
    text().pattern(Some(pattern)).examples([example])
}

fn short_text(max: usize) -> ObjectBuilder {
    text()
        .min_length(Some(1))
        .max_length(Some(max))
        .pattern(Some("^[^\\x00-\\x1f\\x7f-\\x9f]*$"))
}

fn one_of<'a>(values: impl IntoIterator<Item = &'a str>) -> ObjectBuilder {
    text().enum_values(Some(values))
}

string_schemas! {
    /// The id of a request.
    RequestIdSchema = id("^[0-9]{3}-[0-9]{10}$", "200-0000000042");
    /// The id of a node.
    NodeIdSchema = id("^[0-9]{10}$", "0000000042");
    /// The id of a build: its image and 32 digits.
    BuildIdSchema = id("^.+-[0-9a-f]{32}$", "debian-0123456789abcdef0123456789abcdef");
    /// The id of an upload, unique per build and provider.
    UploadIdSchema = id("^[0-9]{10}$", "0000000001");
    /// The position of a page in a list; opaque to clients.
    CursorSchema = id("^([0-9a-f]{2})+$", "30303030303030303432");
    /// The id of a lease.
    LeaseIdSchema = id("^[0-9a-f]{32}$", "0123456789abcdef0123456789abcdef");
    /// The name of a scope, unique within its tenant. `.` and `..` are not allowed.
    ScopeNameSchema = id("^(?!\\.{1,2}$)[A-Za-z0-9._:@+-]{1,128}$", "debugging");
    /// A label or a tenant: any text without control characters.
    LabelNameSchema = short_text(MAX_TEXT);
    /// The name of a provider, which is part of paths.
    PathTextSchema = id(
        "^(?!\\.{1,2}$)[^/\\x00-\\x1f\\x7f-\\x9f\\ue000-\\uf8ff\\ufff0-\\uffff]+$",
        "cloud",
    );
    /// Any id chosen by the client, such as a UUID.
    IdempotencyKeySchema = id("^[!-~]{1,128}$", "6f0a2f0e-7d0b-4a5e-9d5c-0f8a4f6a1c11");
    /// The phase of a lease. `waiting` and `taking` end by themselves; an `active` lease has its nodes.
    LeasePhaseSchema = one_of(["waiting", "taking", "active", "dropping", "ending", "ended"]);
    /// The state of a node of a lease.
    PartStateSchema = one_of(["leased", "held", "returned", "lost"]);
    /// Why a lease has ended.
    EndCauseSchema = one_of(["released", "cancelled", "expired", "failed", "scope-ended", "withdrawn", "lost"]);
    /// The kinds of drains other than those of pools.
    DrainedSchema = one_of(["launcher", "provider", "label"]);
    /// The state of a node.
    NodeStateSchema = one_of(NodeState::ALL.iter().map(|state| state.as_str()));
    /// The state of a request.
    RequestStateSchema = one_of(RequestState::ALL.iter().map(|state| state.as_str()));
    /// The state of a build.
    BuildStateSchema = one_of(BuildState::ALL.iter().map(|state| state.as_str()));
    /// The state of an upload.
    UploadStateSchema = one_of(UploadState::ALL.iter().map(|state| state.as_str()));
    /// The state of a component.
    ComponentStateSchema = one_of(ComponentState::ALL.iter().map(|state| state.as_str()));
}
