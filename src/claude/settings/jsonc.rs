//! JSON with comments as a tree of spans, and the two edits on it: put an item first, cut items out.
//!
//! Reading is the work of the `jsonc-parser` crate, which this file alone names. Its own editing layer reformats the
//! containers it touches; ours inserts and cuts ranges of the text and nothing else.

use std::ops::Range;

use jsonc_parser::ast::{ObjectPropName, Value};
use jsonc_parser::common::Ranged as _;
use jsonc_parser::tokens::Token;
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, parse_to_ast};

/// A place in the text, bytes.
pub(super) type Span = Range<usize>;

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) kind: Kind,
}

/// What a value is, as far as we look.
#[derive(Debug)]
pub(super) enum Kind {
    Object(Vec<Prop>),
    Array(Vec<Node>),
    Text(String),
    Other,
}

/// A property; its span runs from the key to the end of the value.
#[derive(Debug)]
pub(super) struct Prop {
    pub(super) key: String,
    pub(super) span: Span,
    pub(super) value: Node,
}

impl Node {
    /// The value of the first property of this name.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match &self.kind {
            Kind::Object(props) => props.iter().find(|p| p.key == key).map(|p| &p.value),
            _ => None,
        }
    }

    /// The elements of an array; none of anything else.
    pub(super) fn elements(&self) -> &[Self] {
        match &self.kind {
            Kind::Array(elements) => elements,
            _ => &[],
        }
    }

    /// The text of a string.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is a container without content.
    pub(super) fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Object(props) => props.is_empty(),
            Kind::Array(elements) => elements.is_empty(),
            Kind::Text(_) | Kind::Other => false,
        }
    }

    fn items(&self) -> Vec<Span> {
        match &self.kind {
            Kind::Object(props) => props.iter().map(|p| p.span.clone()).collect(),
            Kind::Array(elements) => elements.iter().map(|e| e.span.clone()).collect(),
            Kind::Text(_) | Kind::Other => Vec::new(),
        }
    }
}

/// A text and what stands in it.
#[derive(Debug)]
pub(super) struct Doc<'a> {
    pub(super) text: &'a str,
    /// The one value; none in a blank text.
    pub(super) root: Option<Node>,
    commas: Vec<usize>,
    comments: Vec<Span>,
    line_comment_ends: Vec<usize>,
}

impl<'a> Doc<'a> {
    /// Reads a text without BOM.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        let collect = CollectOptions {
            comments: CommentCollectionStrategy::AsTokens,
            tokens: true,
        };
        let parsed = parse_to_ast(text, &collect, &strict()).map_err(|e| e.to_string())?;
        let mut doc = Self {
            text,
            root: parsed.value.as_ref().map(node),
            commas: Vec::new(),
            comments: Vec::new(),
            line_comment_ends: Vec::new(),
        };
        for token in parsed.tokens.unwrap_or_default() {
            let span = token.start()..token.end();
            match token.token {
                Token::Comma => doc.commas.push(span.start),
                Token::CommentLine(_) => {
                    doc.line_comment_ends.push(span.end);
                    doc.comments.push(span);
                }
                Token::CommentBlock(_) => doc.comments.push(span),
                _ => {}
            }
        }
        Ok(doc)
    }

    /// Whether comments stand in `span` outside of `except`.
    pub(super) fn has_comments(&self, span: &Span, except: &[Span]) -> bool {
        let inside = |outer: &Span, c: &Span| outer.start <= c.start && c.end <= outer.end;
        self.comments
            .iter()
            .any(|c| inside(span, c) && !except.iter().any(|e| inside(e, c)))
    }

    /// The ranges to cut so that these items (by index) of the container are gone and the rest is a list as before.
    pub(super) fn cuts(&self, container: &Node, gone: &[usize]) -> Vec<Span> {
        let items = container.items();
        let comma_after = |index: usize| {
            let from = items.get(index)?.end;
            let to = items.get(index + 1).map_or(container.span.end, |n| n.start);
            self.commas.iter().copied().find(|c| (from..to).contains(c))
        };
        let mut cuts = Vec::new();
        for &index in gone {
            let Some(item) = items.get(index) else {
                continue;
            };
            cuts.push(self.before(item.start)..item.end);
            if let Some(comma) = comma_after(index) {
                cuts.push(comma..comma + 1);
            }
        }
        let last = items.len().saturating_sub(1);
        if gone.contains(&last) && comma_after(last).is_none() {
            // The list ended without a comma and shall do so again.
            let kept = (0..items.len()).rev().find(|i| !gone.contains(i));
            if let Some(comma) = kept.and_then(comma_after) {
                cuts.push(comma..comma + 1);
            }
        }
        cuts
    }

    /// Where the white space before `at` begins; the line break that ends a line comment is not part of it.
    fn before(&self, at: usize) -> usize {
        let head = self.text.get(..at).unwrap_or_default();
        let start = head.trim_end_matches([' ', '\t', '\r', '\n']).len();
        if !self.line_comment_ends.contains(&start) {
            return start;
        }
        let space = head.get(start..).unwrap_or_default();
        start + space.find('\n').map_or(space.len(), |i| i + 1)
    }
}

/// What the CLI itself would not take is not taken here, but for comments and trailing commas.
fn strict() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

fn node(value: &Value<'_>) -> Node {
    let kind = match value {
        Value::Object(object) => Kind::Object(
            object
                .properties
                .iter()
                .map(|p| Prop {
                    key: match &p.name {
                        ObjectPropName::String(s) => s.value.clone().into_owned(),
                        ObjectPropName::Word(w) => w.value.to_owned(),
                    },
                    span: p.start()..p.end(),
                    value: node(&p.value),
                })
                .collect(),
        ),
        Value::Array(array) => Kind::Array(array.elements.iter().map(node).collect()),
        Value::StringLit(s) => Kind::Text(s.value.clone().into_owned()),
        Value::NumberLit(_) | Value::BooleanLit(_) | Value::NullKeyword(_) => Kind::Other,
    };
    Node {
        span: value.start()..value.end(),
        kind,
    }
}

/// The text without these ranges, which may touch but not overlap.
pub(super) fn cut(text: &str, mut spans: Vec<Span>) -> String {
    spans.sort_by_key(|s| (s.start, s.end));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for span in spans {
        out.push_str(text.get(at..span.start).unwrap_or_default());
        at = at.max(span.end);
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

/// The text with these pieces put in at their places.
pub(super) fn insert(text: &str, mut pieces: Vec<(usize, String)>) -> String {
    pieces.sort_by_key(|(at, _)| *at);
    let mut out =
        String::with_capacity(text.len() + pieces.iter().map(|(_, p)| p.len()).sum::<usize>());
    let mut from = 0;
    for (at, piece) in pieces {
        out.push_str(text.get(from..at).unwrap_or_default());
        out.push_str(&piece);
        from = at;
    }
    out.push_str(text.get(from..).unwrap_or_default());
    out
}
