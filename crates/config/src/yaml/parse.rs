//! Events to a tree, within limits.
//!
//! The tree is built with an explicit stack, so nesting cannot overflow ours, and it is never
//! deeper than `MAX_DEPTH`, so neither can dropping or walking it. An alias shares its node; what
//! it would cost to walk is counted as if it were written out, which is what defuses alias bombs.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::offsets::Offsets;
use super::{Entry, Kind, Map, Node, Scalar, Value, scalar};
use crate::source::Span;

/// Deeper than any sensible file, shallower than any stack.
const MAX_DEPTH: usize = 100;
/// A file of the largest accepted size has fewer nodes than this without aliases.
const MAX_NODES: usize = 10_000_000;
/// How much larger aliases may make a document.
const MAX_ALIASED_NODES: usize = 1_000_000;

/// More duplicate keys than this are not worth remembering.
const MAX_DOUBTS: usize = 10_000;

/// Why there is no tree, or (for `duplicate-key`) what is doubtful about it.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) span: Span,
    pub(crate) related: Option<(Span, &'static str)>,
    pub(crate) help: Option<&'static str>,
}

impl Problem {
    fn new(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            span,
            related: None,
            help: None,
        }
    }

    /// A problem of a file as a whole.
    pub(crate) fn of_file(code: &'static str, span: Span, message: String) -> Self {
        Self::new(code, span, message)
    }

    fn help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }
}

/// Reads one document. `Ok(None)` is an empty one. Duplicate keys go to `doubts`.
pub(crate) fn parse(
    text: &str,
    file: u8,
    doubts: &mut Vec<Problem>,
) -> Result<Option<Rc<Node>>, Problem> {
    let offsets = Offsets::new(text, file);
    let mut builder = Builder {
        offsets: &offsets,
        doubts,
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
                    return Err(Problem::new(
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

fn syntax_problem(text: &str, span: Span, info: &str) -> Problem {
    let line_start = text
        .get(..span.start as usize)
        .and_then(|before| before.rfind('\n'))
        .map_or(0, |at| at + 1);
    let indented_by_tab = text
        .get(line_start..)
        .and_then(|line| line.find(|c: char| c != ' ').and_then(|at| line.get(at..)))
        .is_some_and(|rest| rest.starts_with('\t'));
    let problem = Problem::new(
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

/// A finished node with what it costs to walk and how deep it is.
#[derive(Clone)]
struct Built {
    node: Rc<Node>,
    weight: usize,
    height: usize,
}

enum Anchor {
    /// Its node is still being read.
    Open,
    Done(Built),
}

struct Frame {
    span: Span,
    anchor: usize,
    weight: usize,
    height: usize,
    content: Content,
}

enum Content {
    List(Vec<Rc<Node>>),
    Map {
        pairs: Vec<(Rc<Node>, Rc<Node>)>,
        key: Option<Rc<Node>>,
    },
}

struct Builder<'b> {
    offsets: &'b Offsets<'b>,
    doubts: &'b mut Vec<Problem>,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Anchor>,
    root: Option<Built>,
    nodes: usize,
    aliased: usize,
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let kind = scalar_kind(&text, style, tag.as_deref(), span)?;
                let value = Value::Scalar(Scalar {
                    text: text.into_owned(),
                    kind,
                });
                let built = Built {
                    node: Rc::new(Node { span, value }),
                    weight: 1,
                    height: 1,
                };
                self.finish(built, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                collection_tag(tag.as_deref(), "seq", span)?;
                self.open(span, anchor, Content::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                collection_tag(tag.as_deref(), "map", span)?;
                self.open(
                    span,
                    anchor,
                    Content::Map {
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

    fn open(&mut self, span: Span, anchor: usize, content: Content) -> Result<(), Problem> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(Problem::new(
                "too-deep",
                span,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, Anchor::Open);
        }
        self.stack.push(Frame {
            span,
            anchor,
            weight: 1,
            height: 1,
            content,
        });
        Ok(())
    }

    fn close(&mut self, end: Span) -> Result<(), Problem> {
        let Some(frame) = self.stack.pop() else {
            return Ok(());
        };
        let span = Span {
            end: end.end.max(frame.span.end),
            ..frame.span
        };
        let value = match frame.content {
            Content::List(items) => Value::List(items),
            Content::Map { pairs, .. } => Value::Map(self.map(span, pairs)?),
        };
        let built = Built {
            node: Rc::new(Node { span, value }),
            weight: frame.weight,
            height: frame.height,
        };
        self.finish(built, frame.anchor)
    }

    fn alias(&mut self, id: usize, span: Span) -> Result<(), Problem> {
        match self.anchors.get(&id) {
            Some(Anchor::Done(built)) => {
                self.aliased = self.aliased.saturating_add(built.weight);
                if self.aliased > MAX_ALIASED_NODES {
                    return Err(Problem::new("alias-bomb", span, format!("aliases make this document larger than {MAX_ALIASED_NODES} nodes"))
                        .help("anchors that hold aliases of anchors multiply; write the parts out or use `parent`"));
                }
                if self.stack.len() + built.height > MAX_DEPTH {
                    return Err(Problem::new(
                        "too-deep",
                        span,
                        format!("this alias nests more than {MAX_DEPTH} levels deep"),
                    ));
                }
                let built = built.clone();
                self.finish(built, 0)
            }
            Some(Anchor::Open) => Err(Problem::new(
                "recursive-alias",
                span,
                "this alias stands inside the node it refers to",
            )),
            None => Err(Problem::new(
                "yaml-syntax",
                span,
                "this alias refers to an anchor that does not exist",
            )),
        }
    }

    fn finish(&mut self, built: Built, anchor: usize) -> Result<(), Problem> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > MAX_NODES {
            return Err(Problem::new(
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
            Content::List(items) => items.push(built.node),
            Content::Map { pairs, key } => match key.take() {
                None => *key = Some(built.node),
                Some(key) => pairs.push((key, built.node)),
            },
        }
        Ok(())
    }

    fn map(&mut self, span: Span, pairs: Vec<(Rc<Node>, Rc<Node>)>) -> Result<Map, Problem> {
        let mut entries: Vec<Entry> = Vec::with_capacity(pairs.len());
        let mut index: HashMap<String, usize> = HashMap::with_capacity(pairs.len());
        let mut merged: Vec<Rc<Node>> = Vec::new();
        for (key, value) in pairs {
            let Value::Scalar(text) = &key.value else {
                return Err(Problem::new(
                    "yaml-syntax",
                    key.span,
                    "a list or mapping cannot be a key",
                ));
            };
            if is_merge(&key, text, self.offsets.text) {
                merge_sources(&value, &mut merged)?;
                continue;
            }
            let entry = Entry {
                key: text.text.clone(),
                key_span: key.span,
                value,
            };
            match index.get(&text.text).and_then(|at| entries.get_mut(*at)) {
                Some(earlier) => {
                    let mut doubt = Problem::new(
                        "duplicate-key",
                        key.span,
                        "this key was already given in the same mapping",
                    );
                    doubt.related =
                        Some((earlier.key_span, "first given here; this value is ignored"));
                    doubt.help = Some("keep one of the two");
                    if self.doubts.len() < MAX_DOUBTS {
                        self.doubts.push(doubt);
                    }
                    *earlier = entry;
                }
                None => {
                    index.insert(text.text.clone(), entries.len());
                    entries.push(entry);
                }
            }
        }
        // What a mapping says itself wins over what it merges; of several, the first one wins.
        for source in merged {
            let Value::Map(map) = &source.value else {
                continue;
            };
            self.aliased = self.aliased.saturating_add(map.entries.len());
            if self.aliased > MAX_ALIASED_NODES {
                return Err(Problem::new(
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

/// `<<` merges only when written plainly.
fn is_merge(key: &Node, scalar: &Scalar, text: &str) -> bool {
    scalar.text == "<<"
        && text
            .get(key.span.start as usize..)
            .is_some_and(|rest| rest.starts_with("<<"))
}

fn merge_sources(value: &Rc<Node>, merged: &mut Vec<Rc<Node>>) -> Result<(), Problem> {
    let wrong = |span| {
        Problem::new(
            "yaml-syntax",
            span,
            "`<<` takes a mapping or a list of mappings",
        )
    };
    match &value.value {
        Value::Map(_) => merged.push(Rc::clone(value)),
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Map(_) => merged.push(Rc::clone(item)),
                    _ => return Err(wrong(item.span)),
                }
            }
        }
        Value::Scalar(_) => return Err(wrong(value.span)),
    }
    Ok(())
}

fn collection_tag(tag: Option<&Tag>, expected: &str, span: Span) -> Result<(), Problem> {
    match tag {
        None => Ok(()),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == expected => Ok(()),
        Some(_) => Err(unknown_tag(span)),
    }
}

fn unknown_tag(span: Span) -> Problem {
    Problem::new("unknown-tag", span, "this tag is not understood here").help(
        "remove it; only !!str, !!int, !!float, !!bool, !!null, !!map and !!seq have a meaning",
    )
}

fn scalar_kind(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    span: Span,
) -> Result<Kind, Problem> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain {
            scalar::resolve(text)
        } else {
            Kind::Text
        });
    };
    if !tag.is_yaml_core_schema() {
        let non_specific = tag.handle.is_empty() && matches!(tag.suffix.as_str(), "" | "!");
        return if non_specific {
            Ok(Kind::Text)
        } else {
            Err(unknown_tag(span))
        };
    }
    let kind = match tag.suffix.as_str() {
        "str" => Some(Kind::Text),
        "null" => Some(Kind::Null),
        "bool" => scalar::bool(text).map(Kind::Bool),
        "int" => scalar::int(text).map(Kind::Int),
        "float" => scalar::float(text)
            .or_else(|| scalar::int(text).map(|whole| whole as f64))
            .map(Kind::Float),
        _ => return Err(unknown_tag(span)),
    };
    kind.ok_or_else(|| Problem::new("yaml-syntax", span, "the value does not fit its tag"))
}
