//! Declares the sections of the file.
//!
//! `section!` generates from one declaration the struct, its decoder, the list of known keys, and the description that
//! the JSON schema and the reference page are generated from, so these always agree.
//!
//! A field reads `"key" | "alias" [flags] name: Type = rule;`. The rules are
//!
//! * `required`: its absence is an error;
//! * `optional`: for `Option<T>`;
//! * `default(value)`: a constant;
//! * `inherit("where from", expression)`: the expression may use the section's outer value and any
//!   field declared before it;
//! * `merge("where from", expression)`: the same for mappings, of which the section's own keys win;
//!
//! and `in (expression)` hands an outer value on to a nested section. Flags: `ours` (not in
//! Nodepool), `secret` (the value is never shown), `private` (it is handed on as it is and may hold a
//! secret, so no message shows it, and `Mode::Show` only what the file itself says), `deprecated` (a warning).

use serde_json::Value as Json;

use crate::decode::Decoder;
use crate::yaml::Map;

/// A mapping with known keys. `Outer` provides inherited defaults.
pub(crate) trait Section<Outer>: Sized {
    fn keys() -> Vec<KeyInfo>;
    fn knows(key: &str) -> bool;
    fn fields(map: &Map, outer: &Outer, decoder: &mut Decoder<'_>) -> Self;
}

/// The description of a key.
#[derive(Debug)]
pub(crate) struct KeyInfo {
    pub(crate) key: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) doc: String,
    pub(crate) type_info: TypeInfo,
    pub(crate) fallback: DefaultValue,
    pub(crate) ours: bool,
    pub(crate) secret: bool,
    pub(crate) deprecated: bool,
}

/// The value of an absent key.
#[derive(Debug)]
pub(crate) enum DefaultValue {
    Required,
    Optional,
    Value(Json),
    Inherited(&'static str),
}

/// The description of a type for the schema and the reference.
#[derive(Debug)]
pub(crate) struct TypeInfo {
    /// The name in the reference.
    pub(crate) text: String,
    /// The JSON schema; sections are references into `$defs`.
    pub(crate) schema: Json,
    /// The section that the type contains, if any.
    pub(crate) section: Option<fn() -> SectionInfo>,
}

/// The description of a section for the schema and the reference.
#[derive(Debug)]
pub(crate) struct SectionInfo {
    pub(crate) name: &'static str,
    pub(crate) doc: String,
    pub(crate) keys: Vec<KeyInfo>,
    /// The schema of the values of other keys, where these are allowed.
    pub(crate) other_keys: Option<Json>,
}

/// A type that has a [`TypeInfo`].
pub(crate) trait Describe {
    fn type_info() -> TypeInfo;
}

/// Joins the lines of a doc comment.
pub(crate) fn doc(lines: &[&str]) -> String {
    lines
        .iter()
        .map(|line| line.trim())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns a reference to a section in the schema.
pub(crate) fn reference(name: &str) -> Json {
    serde_json::json!({ "$ref": format!("#/$defs/{name}") })
}

macro_rules! section {
    (
        $(#[doc = $doc:literal])+
        $(#[derive($extra:ident)])?
        $visibility:vis struct $name:ident ( $outer:ident : $outer_type:ty )
        $(including $part:ident : $part_type:ident ( $part_outer:expr ))*
        $(forbidding $forbidden:ident)?
        $(checked by $check:ident)?
        {
            $(
                $(#[doc = $key_doc:literal])+
                $key:literal $(| $alias:literal)* $([$($flag:ident)+])? $field:ident : $type:ty = $rule:ident $(( $($argument:tt)* ))? $(in ($inner:expr))? ;
            )+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, $($extra,)? serde::Serialize)]
        $visibility struct $name {
            $(#[serde(flatten)] $visibility $part: $part_type,)*
            $(
                $(#[doc = $key_doc])+
                #[serde(rename = $key)]
                $visibility $field: $type,
            )+
        }

        impl $crate::section::Section<$outer_type> for $name {
            fn keys() -> Vec<$crate::section::KeyInfo> {
                let own = [$(
                    $crate::section::KeyInfo {
                        key: $key,
                        aliases: &[$($alias),*],
                        doc: $crate::section::doc(&[$($key_doc),+]),
                        type_info: <$type as $crate::section::Describe>::type_info(),
                        fallback: $crate::section::section!(@fallback $rule $(($($argument)*))?),
                        ours: $crate::section::section!(@has ours $($($flag)+)?),
                        secret: $crate::section::section!(@has secret $($($flag)+)?),
                        deprecated: $crate::section::section!(@has deprecated $($($flag)+)?),
                    }
                ),+];
                std::iter::empty()
                    $(.chain(<$part_type as $crate::section::Section<_>>::keys()))*
                    .chain(own)
                    .collect()
            }

            fn knows(key: &str) -> bool {
                matches!(key, $($key $(| $alias)*)|+)
                    $(|| <$part_type as $crate::section::Section<_>>::knows(key))*
                    $(|| $forbidden.iter().any(|(forbidden, _)| *forbidden == key))?
            }

            fn fields(map: &$crate::yaml::Map, $outer: &$outer_type, decoder: &mut $crate::decode::Decoder<'_>) -> Self {
                $(let $part = <$part_type as $crate::section::Section<_>>::fields(map, &$part_outer, decoder);)*
                $(
                    let $field: $type = {
                        let keys = $crate::decode::KeySpec {
                            key: $key,
                            aliases: &[$($alias),*],
                            secret: $crate::section::section!(@has secret $($($flag)+)?),
                            private: $crate::section::section!(@has private $($($flag)+)?),
                            deprecated: $crate::section::section!(@has deprecated $($($flag)+)?),
                        };
                        let inner = $crate::section::section!(@inner $($inner)?);
                        $crate::section::section!(@read (decoder, map, keys, &inner) $rule $(($($argument)*))?)
                    };
                )+
                $($crate::section::report_forbidden_keys(map, $forbidden, decoder);)?
                let section = Self { $($part,)* $($field),+ };
                $($check(&section, map, decoder);)?
                section
            }
        }

        impl $crate::decode::Decode<$outer_type> for $name {
            fn decode(node: &std::rc::Rc<$crate::yaml::YamlNode>, outer: &$outer_type, decoder: &mut $crate::decode::Decoder<'_>) -> Option<Self> {
                decoder.section(node, outer)
            }
        }

        impl $crate::section::Describe for $name {
            fn type_info() -> $crate::section::TypeInfo {
                $crate::section::TypeInfo {
                    text: "mapping".into(),
                    schema: $crate::section::reference(stringify!($name)),
                    section: Some(|| $crate::section::SectionInfo {
                        name: stringify!($name),
                        doc: $crate::section::doc(&[$($doc),+]),
                        keys: <Self as $crate::section::Section<$outer_type>>::keys(),
                        other_keys: None,
                    }),
                }
            }
        }
    };

    (@inner) => { () };
    (@inner $inner:expr) => { $inner };

    (@read ($decoder:ident, $map:ident, $keys:ident, $inner:expr) required) => { $decoder.required($map, $keys, $inner) };
    (@read ($decoder:ident, $map:ident, $keys:ident, $inner:expr) optional) => { $decoder.field($map, $keys, $inner) };
    (@read ($decoder:ident, $map:ident, $keys:ident, $inner:expr) default($value:expr)) => {
        $decoder.field($map, $keys, $inner).unwrap_or_else(|| $value)
    };
    (@read ($decoder:ident, $map:ident, $keys:ident, $inner:expr) inherit($text:literal, $value:expr)) => {
        $decoder.field($map, $keys, $inner).unwrap_or_else(|| $value)
    };

    (@read ($decoder:ident, $map:ident, $keys:ident, $inner:expr) merge($text:literal, $value:expr)) => {{
        let mut merged = $value;
        merged.extend($decoder.field::<$crate::values::Table<_>, _>($map, $keys, $inner).unwrap_or_default());
        merged
    }};

    (@fallback required) => { $crate::section::DefaultValue::Required };
    (@fallback optional) => { $crate::section::DefaultValue::Optional };
    (@fallback default($value:expr)) => {
        $crate::section::DefaultValue::Value(serde_json::to_value(&$value).unwrap_or_default())
    };
    (@fallback inherit($text:literal, $value:expr)) => { $crate::section::DefaultValue::Inherited($text) };

    (@fallback merge($text:literal, $value:expr)) => { $crate::section::DefaultValue::Inherited($text) };

    (@has ours) => { false };
    (@has ours ours $($rest:ident)*) => { true };
    (@has ours $other:ident $($rest:ident)*) => { $crate::section::section!(@has ours $($rest)*) };
    (@has secret) => { false };
    (@has secret secret $($rest:ident)*) => { true };
    (@has secret $other:ident $($rest:ident)*) => { $crate::section::section!(@has secret $($rest)*) };
    (@has private) => { false };
    (@has private private $($rest:ident)*) => { true };
    (@has private $other:ident $($rest:ident)*) => { $crate::section::section!(@has private $($rest)*) };
    (@has deprecated) => { false };
    (@has deprecated deprecated $($rest:ident)*) => { true };
    (@has deprecated $other:ident $($rest:ident)*) => { $crate::section::section!(@has deprecated $($rest)*) };
}
pub(crate) use section;

/// Reports keys that are valid elsewhere but not in this section, with the reason.
pub(crate) fn report_forbidden_keys(
    map: &Map,
    forbidden: &[(&'static str, &'static str)],
    decoder: &mut Decoder<'_>,
) {
    for (key, reason) in forbidden {
        if let Some(entry) = map.entry(key) {
            decoder.error(
                "forbidden-key",
                entry.key_span,
                format!("`{key}` is not allowed here: {reason}"),
            );
        }
    }
}
