//! Schemas of texts that several things share: ids and states. The types stand only for their schemas.

use nodeyard_lease::MAX_TEXT;
use nodeyard_model::{
    BuildState as Build, ComponentState as Component, NodeState as Node, RequestState as Request,
    UploadState as Upload,
};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(Type::String))
}

macro_rules! texts {
    ($($(#[doc = $doc:literal])+ $name:ident = $schema:expr;)*) => {$(
        $(#[doc = $doc])+
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let doc = concat!($($doc),+).trim();
                RefOr::T(Schema::Object($schema.description(Some(doc)).build()))
            }
        }

        impl ToSchema for $name {}
    )*};
}

fn id(pattern: &str, example: &str) -> ObjectBuilder {
    let example = serde_json::Value::from(example);
    text().pattern(Some(pattern)).examples([example])
}

fn plain(most: usize) -> ObjectBuilder {
    text()
        .min_length(Some(1))
        .max_length(Some(most))
        .pattern(Some("^[^\\x00-\\x1f\\x7f-\\x9f]*$"))
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> ObjectBuilder {
    text().enum_values(Some(words))
}

texts! {
    /// The id of a request.
    RequestId = id("^[0-9]{3}-[0-9]{10}$", "200-0000000042");
    /// The id of a node.
    NodeId = id("^[0-9]{10}$", "0000000042");
    /// The id of a build: its image and 32 digits.
    BuildId = id("^.+-[0-9a-f]{32}$", "debian-0123456789abcdef0123456789abcdef");
    /// The id of an upload, counted per build and provider.
    UploadId = id("^[0-9]{10}$", "0000000001");
    /// Where a page begins; nothing else can be read from it.
    Cursor = id("^([0-9a-f]{2})+$", "30303030303030303432");
    /// The id of a lease.
    LeaseId = id("^[0-9a-f]{32}$", "0123456789abcdef0123456789abcdef");
    /// The name of a scope, unique within its tenant. A point or two points alone are none.
    ScopeName = id("^(?!\\.{1,2}$)[A-Za-z0-9._:@+-]{1,128}$", "debugging");
    /// A label or a tenant: any text without control characters.
    LabelName = plain(MAX_TEXT);
    /// The name of a provider, which is a part of paths.
    PathText = id(
        "^(?!\\.{1,2}$)[^/\\x00-\\x1f\\x7f-\\x9f\\ue000-\\uf8ff\\ufff0-\\uffff]+$",
        "cloud",
    );
    /// Any id that the client makes up, such as a UUID.
    IdempotencyKey = id("^[!-~]{1,128}$", "6f0a2f0e-7d0b-4a5e-9d5c-0f8a4f6a1c11");
    /// How far a lease is. Waiting and taking end by themselves; an active one has its nodes.
    LeasePhase = words(["waiting", "taking", "active", "dropping", "ending", "ended"]);
    /// What became of a node of a lease.
    PartState = words(["leased", "held", "returned", "lost"]);
    /// Why a lease has ended.
    EndCause = words(["released", "cancelled", "expired", "failed", "scope-ended", "withdrawn", "lost"]);
    /// What a drain can be of, beside a pool.
    Drained = words(["launcher", "provider", "label"]);
    /// Where a node is in its life.
    NodeState = words(Node::ALL.iter().map(|state| state.as_str()));
    /// How far a request is.
    RequestState = words(Request::ALL.iter().map(|state| state.as_str()));
    /// How far a build is.
    BuildState = words(Build::ALL.iter().map(|state| state.as_str()));
    /// How far an upload is.
    UploadState = words(Upload::ALL.iter().map(|state| state.as_str()));
    /// What a component says of itself.
    ComponentState = words(Component::ALL.iter().map(|state| state.as_str()));
}
