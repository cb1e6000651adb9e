//! The document that describes the API: what goes around the paths, and the answers that all of them can give.

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
use crate::events::{Happened, Kind};
use crate::extract::BODY_BYTES;
use crate::problem::{self, FieldError, Problem};
use crate::routes::events::EventData;
use crate::schema;

const TAGS: [(&str, &str); 8] = [
    ("info", "What answers here."),
    (
        "requests",
        "What was asked for: by Zuul, or by way of a lease.",
    ),
    (
        "leases",
        "Getting nodes, keeping them and giving them back.",
    ),
    ("scopes", "Names that own several leases."),
    ("nodes", "Machines, pods and slots."),
    ("images", "Images, their builds, and the uploads of these."),
    ("providers", "Where nodes come from."),
    ("drains", "What is to accept nothing new."),
];

/// What stands around the paths.
pub(crate) fn frame() -> OpenApi {
    let tags: Vec<Tag> = TAGS
        .into_iter()
        .chain([("events", "Changes, as they happen.")])
        .map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build())
        .collect();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let mut components = ComponentsBuilder::new().security_scheme("token", token);
    macro_rules! describe {
        ($($schema:ty),* $(,)?) => {
            $(components = components.schema(<$schema>::name(), <$schema>::schema());)*
        };
    }
    // Those that only parameters and texts refer to are not collected from the paths.
    describe!(
        schema::Cursor,
        schema::Drained,
        schema::IdempotencyKey,
        Problem,
        FieldError,
        Right,
        EventData,
        Kind,
        Happened,
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
            "Machines for CI, for programs that are not Zuul. A lease gets nodes and keeps them for as long as it is \
             renewed. Lists are paged: `next` is the `cursor` of the next page. Every error is a problem as RFC 9457 \
             describes it. Reading needs no token unless the configuration says so, or has tokens of tenants and it is \
             about requests, leases, scopes or nodes. A token goes into the header `authorization: Bearer TOKEN`.",
        ))
        .license(Some(License::new("Apache-2.0")))
        .build()
}

/// Adds the answers that every operation can give.
pub(crate) fn finish(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let named = path.contains('{');
        for operation in operations(item) {
            common(operation, named);
            let parameters = operation.parameters.iter_mut().flatten();
            for parameter in parameters {
                if let RefOr::T(Parameter {
                    schema: Some(schema),
                    ..
                }) = parameter
                {
                    without_null(schema);
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

fn common(operation: &mut Operation, named: bool) {
    let mut answers = vec![
        ("400", "The address or the body cannot be read.".to_owned()),
        (
            "401",
            "A token is needed, or the one that was sent is not known or has expired.".to_owned(),
        ),
        (
            "403",
            "The token does not have the right, which `right` names.".to_owned(),
        ),
        (
            "429",
            "Too many requests; `retry-after` says when to try again.".to_owned(),
        ),
        ("500", "Our fault; the log has the reason.".to_owned()),
        (
            "503",
            "Not now: the store cannot be reached, or there are too many of something.".to_owned(),
        ),
    ];
    if named {
        answers.push((
            "404",
            "There is no such thing, or it is another tenant's.".to_owned(),
        ));
    }
    if operation.request_body.is_some() {
        answers.push(("408", "The body did not come in time.".to_owned()));
        answers.push(("413", format!("The body has more than {BODY_BYTES} bytes.")));
        answers.push(("415", "The body is not `application/json`.".to_owned()));
        answers.push((
            "422",
            "A field of the body is wrong; `errors` points at it.".to_owned(),
        ));
    }
    for (status, text) in answers {
        let responses = &mut operation.responses.responses;
        responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::T(answer(&text)));
    }
}

/// A parameter is there or not; it is never null.
fn without_null(schema: &mut RefOr<Schema>) {
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

fn answer(text: &str) -> Response {
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .build();
    ResponseBuilder::new()
        .description(text)
        .content(problem::MEDIA_TYPE, content)
        .build()
}
