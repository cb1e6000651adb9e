//! Builds the tree from parser events, within limits.
//!
//! The tree is built with an explicit stack and is never deeper than [`MAX_DEPTH`], so neither parsing nor walking it
//! can overflow the call stack. Aliases share their node; their size is counted as if they were expanded, which
//! prevents alias bombs.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::offsets::Offsets;
use super::{Map, Scalar, ScalarType, YamlEntry, YamlNode, YamlValue, scalar};
use crate::source::Span;

/// The maximum depth of a document.
const MAX_DEPTH: usize = 100;
/// The maximum number of nodes; a file of the maximum size has fewer without aliases.
const MAX_NODES: usize = 10_000_000;
/// The maximum number of nodes that aliases add.
const MAX_ALIASED_NODES: usize = 1_000_000;

/// The maximum number of reported duplicate keys.
const MAX_WARNINGS: usize = 10_000;

/// A syntax error, or (for `duplicate-key`) a warning.
#[derive(Debug)]
pub(crate) struct YamlProblem {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) span: Span,
    pub(crate) related: Option<(Span, &'static str)>,
    pub(crate) help: Option<&'static str>,
}

impl YamlProblem {
    fn new(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            span,
            related: None,
            help: None,
        }
    }

    /// Returns a problem of the whole file.
    pub(crate) fn of_file(code: &'static str, span: Span, message: String) -> Self {
        Self::new(code, span, message)
    }

    fn help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }
}

/// Parses one document. Returns `Ok(None)` for an empty one. Duplicate keys are added to `warnings`.
pub(crate) fn parse(
    text: &str,
    file: u8,
    warnings: &mut Vec<YamlProblem>,
) -> Result<Option<Rc<YamlNode>>, YamlProblem> {
    let offsets = Offsets::new(text, file);
    let mut builder = TreeBuilder {
        offsets: &offsets,
        warnings,
        stack: Vec::new(),
        anchors: HashMap::new(),
        root: None,
        nodes: 0,
        aliased: 0,
    };
    let mut documents = 0;
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let span = offsets.point(error.marker().index());
            syntax_problem(text, span, error.info())
        })?;
        let span = offsets.span(&span);
        match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(YamlProblem::new(
                        "several-documents",
                        span,
                        "a second document starts here, but only one is read",
                    )
                    .help("remove the `---` line, or put the second part in a file of its own"));
                }
            }
            Event::StreamEnd => break,
            event => builder.event(event, span)?,
        }
    }
    Ok(builder.root.take().map(|built| built.node))
}

fn syntax_problem(text: &str, span: Span, info: &str) -> YamlProblem {
    let line_start = text
        .get(..span.start as usize)
        .and_then(|before| before.rfind('\n'))
        .map_or(0, |at| at + 1);
    let indented_by_tab = text
        .get(line_start..)
        .and_then(|line| line.find(|c: char| c != ' ').and_then(|at| line.get(at..)))
        .is_some_and(|rest| rest.starts_with('\t'));
    let problem = YamlProblem::new(
        "yaml-syntax",
        span,
        format!("this is not valid YAML: {info}"),
    );
    if indented_by_tab {
        problem.help("the line is indented with a tab; YAML allows only spaces there")
    } else {
        problem
    }
}

/// A finished node with its size when walked and its depth.
#[derive(Clone)]
struct FinishedNode {
    node: Rc<YamlNode>,
    weight: usize,
    height: usize,
}

enum Anchor {
    /// The node is not complete yet.
    Open,
    Done(FinishedNode),
}

struct OpenNode {
    span: Span,
    anchor: usize,
    weight: usize,
    height: usize,
    content: OpenContent,
}

enum OpenContent {
    List(Vec<Rc<YamlNode>>),
    Map {
        pairs: Vec<(Rc<YamlNode>, Rc<YamlNode>)>,
        key: Option<Rc<YamlNode>>,
    },
}

struct TreeBuilder<'b> {
    offsets: &'b Offsets<'b>,
    warnings: &'b mut Vec<YamlProblem>,
    stack: Vec<OpenNode>,
    anchors: HashMap<usize, Anchor>,
    root: Option<FinishedNode>,
    nodes: usize,
    aliased: usize,
}

impl TreeBuilder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlProblem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let kind = scalar_kind(&text, style, tag.as_deref(), span)?;
                let value = YamlValue::Scalar(Scalar {
                    text: text.into_owned(),
                    kind,
                });
                let built = FinishedNode {
                    node: Rc::new(YamlNode { span, value }),
                    weight: 1,
                    height: 1,
                };
                self.finish(built, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                collection_tag(tag.as_deref(), "seq", span)?;
                self.open(span, anchor, OpenContent::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                collection_tag(tag.as_deref(), "map", span)?;
                self.open(
                    span,
                    anchor,
                    OpenContent::Map {
                        pairs: Vec::new(),
                        key: None,
                    },
                )
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span),
            Event::Alias(id) => self.alias(id, span),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn open(&mut self, span: Span, anchor: usize, content: OpenContent) -> Result<(), YamlProblem> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(YamlProblem::new(
                "too-deep",
                span,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, Anchor::Open);
        }
        self.stack.push(OpenNode {
            span,
            anchor,
            weight: 1,
            height: 1,
            content,
        });
        Ok(())
    }

    fn close(&mut self, end: Span) -> Result<(), YamlProblem> {
        let Some(frame) = self.stack.pop() else {
            return Ok(());
        };
        let span = Span {
            end: end.end.max(frame.span.end),
            ..frame.span
        };
        let value = match frame.content {
            OpenContent::List(items) => YamlValue::List(items),
            OpenContent::Map { pairs, .. } => YamlValue::Map(self.map(span, pairs)?),
        };
        let built = FinishedNode {
            node: Rc::new(YamlNode { span, value }),
            weight: frame.weight,
            height: frame.height,
        };
        self.finish(built, frame.anchor)
    }

    fn alias(&mut self, id: usize, span: Span) -> Result<(), YamlProblem> {
        match self.anchors.get(&id) {
            Some(Anchor::Done(built)) => {
                self.aliased = self.aliased.saturating_add(built.weight);
                if self.aliased > MAX_ALIASED_NODES {
                    return Err(YamlProblem::new("alias-bomb", span, format!("aliases make this document larger than {MAX_ALIASED_NODES} nodes"))
                        .help("anchors that hold aliases of anchors multiply; write the parts out or use `parent`"));
                }
                if self.stack.len() + built.height > MAX_DEPTH {
                    return Err(YamlProblem::new(
                        "too-deep",
                        span,
                        format!("this alias nests more than {MAX_DEPTH} levels deep"),
                    ));
                }
                let built = built.clone();
                self.finish(built, 0)
            }
            Some(Anchor::Open) => Err(YamlProblem::new(
                "recursive-alias",
                span,
                "this alias is inside the node it refers to",
            )),
            None => Err(YamlProblem::new(
                "yaml-syntax",
                span,
                "this alias refers to an anchor that does not exist",
            )),
        }
    }

    fn finish(&mut self, built: FinishedNode, anchor: usize) -> Result<(), YamlProblem> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > MAX_NODES {
            return Err(YamlProblem::new(
                "too-large",
                built.node.span,
                format!("the document has more than {MAX_NODES} nodes"),
            ));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, Anchor::Done(built.clone()));
        }
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(built);
            return Ok(());
        };
        frame.weight = frame.weight.saturating_add(built.weight);
        frame.height = frame.height.max(built.height + 1);
        match &mut frame.content {
            OpenContent::List(items) => items.push(built.node),
            OpenContent::Map { pairs, key } => match key.take() {
                None => *key = Some(built.node),
                Some(key) => pairs.push((key, built.node)),
            },
        }
        Ok(())
    }

    fn map(
        &mut self,
        span: Span,
        pairs: Vec<(Rc<YamlNode>, Rc<YamlNode>)>,
    ) -> Result<Map, YamlProblem> {
        let mut entries: Vec<YamlEntry> = Vec::with_capacity(pairs.len());
        let mut index: HashMap<String, usize> = HashMap::with_capacity(pairs.len());
        let mut merged: Vec<Rc<YamlNode>> = Vec::new();
        for (key, value) in pairs {
            let YamlValue::Scalar(text) = &key.value else {
                return Err(YamlProblem::new(
                    "yaml-syntax",
                    key.span,
                    "a list or mapping cannot be a key",
                ));
            };
            if is_merge(&key, text, self.offsets.text) {
                merge_sources(&value, &mut merged)?;
                continue;
            }
            let entry = YamlEntry {
                key: text.text.clone(),
                key_span: key.span,
                value,
            };
            match index.get(&text.text).and_then(|at| entries.get_mut(*at)) {
                Some(earlier) => {
                    let mut warning = YamlProblem::new(
                        "duplicate-key",
                        key.span,
                        "this key was already given in the same mapping",
                    );
                    warning.related =
                        Some((earlier.key_span, "first given here; this value is ignored"));
                    warning.help = Some("keep one of the two");
                    if self.warnings.len() < MAX_WARNINGS {
                        self.warnings.push(warning);
                    }
                    *earlier = entry;
                }
                None => {
                    index.insert(text.text.clone(), entries.len());
                    entries.push(entry);
                }
            }
        }
        // A mapping's own keys win over merged ones; of several merged mappings, the first wins.
        for source in merged {
            let YamlValue::Map(map) = &source.value else {
                continue;
            };
            self.aliased = self.aliased.saturating_add(map.entries.len());
            if self.aliased > MAX_ALIASED_NODES {
                return Err(YamlProblem::new(
                    "alias-bomb",
                    span,
                    format!("merge keys make this document larger than {MAX_ALIASED_NODES} nodes"),
                ));
            }
            for entry in &map.entries {
                if !index.contains_key(&entry.key) {
                    index.insert(entry.key.clone(), entries.len());
                    entries.push(entry.clone());
                }
            }
        }
        Ok(Map { span, entries })
    }
}

/// Returns whether a key is an unquoted `<<`.
fn is_merge(key: &YamlNode, scalar: &Scalar, text: &str) -> bool {
    scalar.text == "<<"
        && text
            .get(key.span.start as usize..)
            .is_some_and(|rest| rest.starts_with("<<"))
}

fn merge_sources(value: &Rc<YamlNode>, merged: &mut Vec<Rc<YamlNode>>) -> Result<(), YamlProblem> {
    let wrong = |span| {
        YamlProblem::new(
            "yaml-syntax",
            span,
            "`<<` takes a mapping or a list of mappings",
        )
    };
    match &value.value {
        YamlValue::Map(_) => merged.push(Rc::clone(value)),
        YamlValue::List(items) => {
            for item in items {
                match &item.value {
                    YamlValue::Map(_) => merged.push(Rc::clone(item)),
                    _ => return Err(wrong(item.span)),
                }
            }
        }
        YamlValue::Scalar(_) => return Err(wrong(value.span)),
    }
    Ok(())
}

fn collection_tag(tag: Option<&Tag>, expected: &str, span: Span) -> Result<(), YamlProblem> {
    match tag {
        None => Ok(()),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == expected => Ok(()),
        Some(_) => Err(unknown_tag(span)),
    }
}

fn unknown_tag(span: Span) -> YamlProblem {
    YamlProblem::new("unknown-tag", span, "this tag is not understood here").help(
        "remove it; only !!str, !!int, !!float, !!bool, !!null, !!map and !!seq have a meaning",
    )
}

fn scalar_kind(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    span: Span,
) -> Result<ScalarType, YamlProblem> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain {
            scalar::resolve(text)
        } else {
            ScalarType::Text
        });
    };
    if !tag.is_yaml_core_schema() {
        let non_specific = tag.handle.is_empty() && matches!(tag.suffix.as_str(), "" | "!");
        return if non_specific {
            Ok(ScalarType::Text)
        } else {
            Err(unknown_tag(span))
        };
    }
    let kind = match tag.suffix.as_str() {
        "str" => Some(ScalarType::Text),
        "null" => Some(ScalarType::Null),
        "bool" => scalar::bool(text).map(ScalarType::Bool),
        "int" => scalar::int(text).map(ScalarType::Int),
        "float" => scalar::float(text)
            .or_else(|| scalar::int(text).map(|whole| whole as f64))
            .map(ScalarType::Float),
        _ => return Err(unknown_tag(span)),
    };
    kind.ok_or_else(|| YamlProblem::new("yaml-syntax", span, "the value does not fit its tag"))
}
