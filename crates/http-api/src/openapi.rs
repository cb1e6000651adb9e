//! The parts of the OpenAPI document that are not about single paths, and the responses that all operations have.

use utoipa::openapi::path::{Operation, Parameter, PathItem};
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::tag::{Tag, TagBuilder};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, Info, InfoBuilder, License, OpenApi, OpenApiBuilder, Ref,
    RefOr, Response, ResponseBuilder, ServerBuilder,
};
use utoipa::{PartialSchema as _, ToSchema as _};

use crate::access::Right;
use crate::events::{ChangeType, ObjectKind};
use crate::extract::BODY_BYTES;
use crate::problem::{self, ApiProblem, FieldError};
use crate::routes::events::EventData;
use crate::schema;

const TAGS: [(&str, &str); 8] = [
    ("info", "Information about the server."),
    ("requests", "Node requests, by Zuul or for a lease."),
    ("leases", "Requesting nodes, keeping and releasing them."),
    ("scopes", "Named owners of several leases."),
    ("nodes", "Machines, pods and slots."),
    ("images", "Images, their builds, and the uploads of these."),
    ("providers", "Providers, pools and labels."),
    (
        "drains",
        "Launchers, providers, pools and labels that accept no new requests.",
    ),
];

/// Returns the document without paths.
pub(crate) fn base_document() -> OpenApi {
    let tags: Vec<Tag> = TAGS
        .into_iter()
        .chain([("events", "A stream of changes.")])
        .map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build())
        .collect();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let mut components = ComponentsBuilder::new().security_scheme("token", token);
    macro_rules! describe {
        ($($schema:ty),* $(,)?) => {
            $(components = components.schema(<$schema>::name(), <$schema>::schema());)*
        };
    }
    // Schemas that only parameters and texts refer to are not collected from the paths.
    describe!(
        schema::CursorSchema,
        schema::DrainedSchema,
        schema::IdempotencyKeySchema,
        ApiProblem,
        FieldError,
        Right,
        EventData,
        ObjectKind,
        ChangeType,
    );
    OpenApiBuilder::new()
        .info(info())
        .servers(Some([ServerBuilder::new().url("/").build()]))
        .components(Some(components.build()))
        .tags(Some(tags))
        .build()
}

fn info() -> Info {
    InfoBuilder::new()
        .title("Nodeyard")
        .version("1")
        .description(Some(
            "Machines for CI, for programs that are not Zuul. A lease requests nodes and keeps them as long as it is \
             renewed. Lists are paged: `next` is the `cursor` of the next page. Errors are problems as described in RFC 9457. \
             Reading needs no token unless the configuration requires one, or has tokens with tenants and the request is for \
             requests, leases, scopes or nodes. Send a token in the header `authorization: Bearer TOKEN`.",
        ))
        .license(Some(License::new("Apache-2.0")))
        .build()
}

/// Adds the responses that every operation can return.
pub(crate) fn add_responses(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let has_parameters = path.contains('{');
        for operation in operations(item) {
            add_common_responses(operation, has_parameters);
            let parameters = operation.parameters.iter_mut().flatten();
            for parameter in parameters {
                if let RefOr::T(Parameter {
                    schema: Some(schema),
                    ..
                }) = parameter
                {
                    remove_null(schema);
                }
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ]
    .into_iter()
    .flatten()
}

fn add_common_responses(operation: &mut Operation, has_parameters: bool) {
    let mut common_responses = vec![
        (
            "400",
            "The path, the query or the body is invalid.".to_owned(),
        ),
        (
            "401",
            "A token is needed, or the token is unknown or has expired.".to_owned(),
        ),
        (
            "403",
            "The token does not have the right named by `right`.".to_owned(),
        ),
        (
            "429",
            "Too many requests; `retry-after` says when to try again.".to_owned(),
        ),
        ("500", "Internal error; the log has the cause.".to_owned()),
        (
            "503",
            "Temporarily unavailable: the store cannot be reached, or a limit is reached."
                .to_owned(),
        ),
    ];
    if has_parameters {
        common_responses.push((
            "404",
            "It does not exist, or belongs to another tenant.".to_owned(),
        ));
    }
    if operation.request_body.is_some() {
        common_responses.push(("408", "The body was not received in time.".to_owned()));
        common_responses.push((
            "413",
            format!("The body is larger than {BODY_BYTES} bytes."),
        ));
        common_responses.push(("415", "The body is not `application/json`.".to_owned()));
        common_responses.push((
            "422",
            "A field of the body is invalid; `errors` names it.".to_owned(),
        ));
    }
    for (status, text) in common_responses {
        let responses = &mut operation.responses.responses;
        responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::T(response(&text)));
    }
}

/// Removes null from the type of an optional parameter, because a parameter cannot be null.
fn remove_null(schema: &mut RefOr<Schema>) {
    let is_null = |schema: &RefOr<Schema>| match schema {
        RefOr::T(Schema::Object(object)) => object.schema_type == SchemaType::Type(Type::Null),
        _ => false,
    };
    match schema {
        RefOr::T(Schema::OneOf(either)) => {
            let other = either.items.iter().find(|item| !is_null(item)).cloned();
            if let Some(other) = other {
                *schema = other;
            }
        }
        RefOr::T(Schema::Object(object)) => {
            if let SchemaType::Array(types) = &object.schema_type
                && let [only, Type::Null] = &types[..]
            {
                object.schema_type = SchemaType::Type(only.clone());
            }
        }
        _ => {}
    }
}

fn response(text: &str) -> Response {
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .build();
    ResponseBuilder::new()
        .description(text)
        .content(problem::MEDIA_TYPE, content)
        .build()
}
