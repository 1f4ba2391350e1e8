//! Enable and disable, as functions from text to text.

use std::collections::BTreeSet;

use serde::Serialize;

use super::jsonc::{Doc, Kind, Node, Span, cut, insert};
use super::spec::{Entry, Spec};
use crate::claude::HookName;

const BOM: char = '\u{feff}';

/// Why settings are left as they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// It is no JSON, even with comments and trailing commas allowed.
    #[error(
        "the settings cannot be read ({0}); nothing was changed: repair the file, then try again"
    )]
    Damaged(String),
    /// Something has another shape than the CLI expects.
    #[error(
        "`{what}` in the settings is not {expected}; nothing was changed: repair the file, then try again"
    )]
    Shape {
        /// The path of keys.
        what: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// A key stands there twice, so that one of the two has no effect.
    #[error(
        "`{0}` stands twice in the settings; nothing was changed: join the two, then try again"
    )]
    Twice(String),
    /// The result failed its own check.
    #[error(
        "the settings cannot be edited without touching what is not ours; nothing was changed: please report the file's shape"
    )]
    Unsafe,
}

/// What is to be done to a settings file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Nothing.
    Unchanged,
    /// It gets this content.
    Write(String),
    /// It goes: it was made for us, and nothing else is in it.
    Remove,
}

/// An entry of ours, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The event.
    pub event: String,
    /// The program it runs; `doctor` looks whether it is still there.
    pub command: String,
    /// The installation's data folder.
    pub data_dir: String,
}

/// The settings with the installation's entries; `text` is `None` if there is no file.
///
/// # Errors
/// See [`SettingsError`]; nothing is changed then.
pub fn enable(text: Option<&str>, spec: &Spec) -> Result<Edit, SettingsError> {
    let whole = text.unwrap_or_default();
    let (bom, body) = split_bom(whole);
    let doc = parse(body)?;
    if is_as_wanted(&doc, spec)? {
        return Ok(Edit::Unchanged);
    }
    let bare = match remove(&doc, &spec.data_dir)? {
        Removal::Nothing => text.map(|_| body.to_owned()),
        Removal::Rest(rest) => Some(rest),
        Removal::All => None,
    };
    let new = add(bare.as_deref(), spec)?;
    // The promise of the module, kept at run time: what was put in can be taken out again, to the byte.
    let back = match remove(&parse(&new)?, &spec.data_dir)? {
        Removal::Nothing => return Err(SettingsError::Unsafe),
        Removal::Rest(rest) => Some(rest),
        Removal::All => None,
    };
    if back != bare || !is_as_wanted(&parse(&new)?, spec)? {
        return Err(SettingsError::Unsafe);
    }
    Ok(Edit::Write(format!("{bom}{new}")))
}

/// The settings without the entries of the installation at `data_dir`.
///
/// # Errors
/// See [`SettingsError`]; nothing is changed then.
pub fn disable(text: Option<&str>, data_dir: &str) -> Result<Edit, SettingsError> {
    let Some(whole) = text else {
        return Ok(Edit::Unchanged);
    };
    let (bom, body) = split_bom(whole);
    match remove(&parse(body)?, data_dir)? {
        Removal::Nothing => Ok(Edit::Unchanged),
        Removal::All if bom.is_empty() => Ok(Edit::Remove),
        Removal::All => Ok(Edit::Write(bom.to_owned())),
        Removal::Rest(rest) => {
            let doc = parse(&rest).map_err(|_| SettingsError::Unsafe)?;
            if entries(&doc).any(|e| e.data_dir == data_dir) {
                return Err(SettingsError::Unsafe);
            }
            Ok(Edit::Write(format!("{bom}{rest}")))
        }
    }
}

/// The entries of all installations.
///
/// # Errors
/// When the text cannot be read.
pub fn installed(text: &str) -> Result<Vec<Installed>, SettingsError> {
    let doc = parse(split_bom(text).1)?;
    Ok(entries(&doc)
        .map(|e| Installed {
            event: e.event.to_owned(),
            command: e.command.to_owned(),
            data_dir: e.data_dir.to_owned(),
        })
        .collect())
}

/// Whether the CLI would load this text at all. It was seen to take a BOM and any line ends, and to ignore the whole file for
/// one comment or trailing comma: then neither our hooks nor the user's own settings have any effect.
#[must_use]
pub fn loads(text: &str) -> bool {
    let body = split_bom(text).1;
    body.trim().is_empty() || serde_json::from_str::<serde::de::IgnoredAny>(body).is_ok()
}

fn split_bom(text: &str) -> (&str, &str) {
    text.split_at(if text.starts_with(BOM) {
        BOM.len_utf8()
    } else {
        0
    })
}

fn parse(text: &str) -> Result<Doc<'_>, SettingsError> {
    Doc::parse(text).map_err(SettingsError::Damaged)
}

/// A hook of ours in its places: event, group, hook.
#[derive(Debug)]
struct Ours<'a> {
    event: &'a str,
    group: usize,
    hook: usize,
    command: &'a str,
    data_dir: &'a str,
    made: &'a str,
    node: &'a Node,
}

impl Ours<'_> {
    fn made(&self, what: &str) -> bool {
        self.made.split(',').any(|m| m == what)
    }
}

/// Every hook of ours, whatever the installation.
fn entries<'a>(doc: &'a Doc<'_>) -> impl Iterator<Item = Ours<'a>> {
    let hooks = doc.root.as_ref().and_then(|root| root.get("hooks"));
    let events = match hooks.map(|h| &h.kind) {
        Some(Kind::Object(props)) => props.as_slice(),
        _ => &[],
    };
    events.iter().flat_map(|event| {
        let groups = event.value.elements().iter().enumerate();
        groups.flat_map(move |(group, node)| {
            let hooks = node.get("hooks").map(Node::elements).unwrap_or_default();
            hooks.iter().enumerate().filter_map(move |(hook, node)| {
                ours(node).map(|(command, data_dir, made)| Ours {
                    event: &event.key,
                    group,
                    hook,
                    command,
                    data_dir,
                    made,
                    node,
                })
            })
        })
    })
}

/// The command, data folder and marks of a hook of ours.
fn ours(hook: &Node) -> Option<(&str, &str, &str)> {
    let args: Vec<&str> = hook
        .get("args")?
        .elements()
        .iter()
        .filter_map(Node::text)
        .collect();
    let value = |flag: &str| {
        let at = args.iter().position(|a| *a == flag)?;
        args.get(at + 1).copied()
    };
    if args.first() != Some(&"hook") {
        return None;
    }
    Some((
        hook.get("command")?.text()?,
        value("--data-dir")?,
        value("--made")?,
    ))
}

/// Whether exactly the wanted entries are there already.
fn is_as_wanted(doc: &Doc<'_>, spec: &Spec) -> Result<bool, SettingsError> {
    let found: Vec<Ours<'_>> = entries(doc)
        .filter(|e| e.data_dir == spec.data_dir)
        .collect();
    let mut events: BTreeSet<&str> = spec.events().iter().map(|e| e.as_str()).collect();
    if found.len() != events.len() {
        return Ok(false);
    }
    for entry in found {
        let Some(event) = HookName::parse(entry.event).filter(|_| events.remove(entry.event))
        else {
            return Ok(false);
        };
        let wanted = json(&spec.entry(event, entry.made))?;
        let present = doc.text.get(entry.node.span.clone()).unwrap_or_default();
        let same = |a: &str, b: &str| {
            let read = |t| serde_json::from_str::<serde_json::Value>(t).ok();
            read(a).is_some_and(|a| Some(a) == read(b))
        };
        if !same(present, &wanted) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn json<T: Serialize>(value: &T) -> Result<String, SettingsError> {
    serde_json::to_string(value).map_err(|_| SettingsError::Unsafe)
}

/// What is left after our entries are taken out.
#[derive(Debug)]
enum Removal {
    Nothing,
    Rest(String),
    All,
}

/// Takes out an installation's entries, and what was made for them alone.
fn remove(doc: &Doc<'_>, data_dir: &str) -> Result<Removal, SettingsError> {
    let found: Vec<Ours<'_>> = entries(doc).filter(|e| e.data_dir == data_dir).collect();
    let Some(root) = doc.root.as_ref().filter(|_| !found.is_empty()) else {
        return Ok(Removal::Nothing);
    };
    let (hooks_at, hooks) = only(root, "hooks")?.ok_or(SettingsError::Unsafe)?;
    let Kind::Object(events) = &hooks.kind else {
        return Err(SettingsError::Unsafe);
    };
    let made = |what: &str| found.iter().any(|e| e.made(what));
    let mut cuts = Vec::new();
    let mut gone_events = Vec::new();
    for (at, event) in events.iter().enumerate() {
        let here: Vec<&Ours<'_>> = found.iter().filter(|e| e.event == event.key).collect();
        if here.is_empty() {
            continue;
        }
        let groups = event.value.elements();
        let mut gone = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let in_group: Vec<usize> = here
                .iter()
                .filter(|e| e.group == index)
                .map(|e| e.hook)
                .collect();
            let Some(list) = group.get("hooks").filter(|_| !in_group.is_empty()) else {
                continue;
            };
            let all = list.elements().len() == in_group.len();
            if all && !doc.has_comments(&group.span, &[]) {
                gone.push(index);
            } else {
                cuts.extend(doc.cuts(list, &in_group));
            }
        }
        if gone.len() == groups.len()
            && here.iter().any(|e| e.made("event"))
            && !doc.has_comments(&event.span, &spans(groups, &gone))
        {
            gone_events.push(at);
        } else {
            cuts.extend(doc.cuts(&event.value, &gone));
        }
    }
    let event_spans: Vec<Span> = gone_events
        .iter()
        .filter_map(|i| events.get(*i).map(|e| e.span.clone()))
        .collect();
    let whole_hooks = gone_events.len() == events.len()
        && made("hooks")
        && !doc.has_comments(&hooks.span, &event_spans);
    if !whole_hooks {
        cuts.extend(doc.cuts(hooks, &gone_events));
        return Ok(Removal::Rest(cut(doc.text, cuts)));
    }
    let Kind::Object(props) = &root.kind else {
        return Err(SettingsError::Unsafe);
    };
    let alone = props.len() == 1 && !doc.has_comments(&root.span, &[]);
    if alone && made("root") {
        return Ok(Removal::Rest(cut(doc.text, vec![root.span.clone()])));
    }
    if alone && made("file") {
        let rest = cut(doc.text, vec![root.span.clone()]);
        if rest.trim().is_empty() {
            return Ok(Removal::All);
        }
    }
    Ok(Removal::Rest(cut(doc.text, doc.cuts(root, &[hooks_at]))))
}

fn spans(nodes: &[Node], of: &[usize]) -> Vec<Span> {
    of.iter()
        .filter_map(|i| nodes.get(*i).map(|n| n.span.clone()))
        .collect()
}

/// The one property of this name, with its index.
fn only<'a>(object: &'a Node, key: &str) -> Result<Option<(usize, &'a Node)>, SettingsError> {
    let Kind::Object(props) = &object.kind else {
        return Ok(None);
    };
    let mut found = props.iter().enumerate().filter(|(_, p)| p.key == key);
    let first = found.next().map(|(i, p)| (i, &p.value));
    match found.next() {
        Some(_) => Err(SettingsError::Twice(key.to_owned())),
        None => Ok(first),
    }
}

/// How the file is laid out, so that what we add looks like the rest.
struct Layout {
    newline: &'static str,
    unit: String,
}

impl Layout {
    fn of(doc: &Doc<'_>) -> Self {
        let newline = match doc.text.find('\n') {
            Some(at) if doc.text.get(..at).is_some_and(|t| t.ends_with('\r')) => "\r\n",
            Some(_) => "\n",
            None => "",
        };
        let first = match doc.root.as_ref().map(|r| &r.kind) {
            Some(Kind::Object(props)) => props.first().map(|p| p.span.start),
            _ => None,
        };
        let unit = first
            .and_then(|at| doc.text.get(..at))
            .and_then(|head| head.rsplit_once('\n'))
            .map(|(_, space)| space)
            .filter(|s| !s.is_empty() && s.chars().all(|c| matches!(c, ' ' | '\t')))
            .unwrap_or("  ");
        Self {
            newline,
            unit: unit.to_owned(),
        }
    }

    /// A line break and the indentation of this depth; nothing in a file of one line.
    fn line(&self, depth: usize) -> String {
        if self.newline.is_empty() {
            String::new()
        } else {
            format!("{}{}", self.newline, self.unit.repeat(depth))
        }
    }

    fn colon(&self) -> &'static str {
        if self.newline.is_empty() { ":" } else { ": " }
    }

    /// A new event's property, without what stands before it.
    fn event(&self, name: HookName, entry: &Entry<'_>) -> Result<String, SettingsError> {
        Ok(format!(
            "\"{}\"{}[{}{}{}]",
            name.as_str(),
            self.colon(),
            self.line(3),
            group(entry)?,
            self.line(2)
        ))
    }

    /// New events' properties, each on its own line, joined by commas.
    fn events(&self, spec: &Spec, names: &[HookName], made: &str) -> Result<String, SettingsError> {
        let mut out = String::new();
        for (i, name) in names.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let event = self.event(*name, &spec.entry(*name, made))?;
            out.push_str(&format!("{comma}{}{event}", self.line(2)));
        }
        Ok(out)
    }

    /// A whole new `hooks` property.
    fn hooks(&self, spec: &Spec, made: &str) -> Result<String, SettingsError> {
        let events = self.events(spec, spec.events(), made)?;
        Ok(format!(
            "{}\"hooks\"{}{{{events}{}}}",
            self.line(1),
            self.colon(),
            self.line(1)
        ))
    }
}

fn group(entry: &Entry<'_>) -> Result<String, SettingsError> {
    Ok(format!("{{\"hooks\":[{}]}}", json(entry)?))
}

/// The marks of entries already there, which later ones take over.
fn inherited(doc: &Doc<'_>, among: impl Fn(&Ours<'_>) -> bool, what: &[&str]) -> String {
    let found: Vec<Ours<'_>> = entries(doc).filter(|e| among(e)).collect();
    what.iter()
        .filter(|w| found.iter().any(|e| e.made(w)))
        .map(|w| format!(",{w}"))
        .collect()
}

/// Puts the entries into settings that have none of this installation.
fn add(text: Option<&str>, spec: &Spec) -> Result<String, SettingsError> {
    let doc = parse(text.unwrap_or_default())?;
    let Some(root) = &doc.root else {
        let layout = Layout {
            newline: "\n",
            unit: "  ".to_owned(),
        };
        let (made, end) = match text {
            Some(_) => ("entry,event,hooks,root", ""),
            None => ("entry,event,hooks,file", "\n"),
        };
        let object = format!("{{{}\n}}{end}", layout.hooks(spec, made)?);
        return Ok(format!("{object}{}", doc.text));
    };
    if !matches!(root.kind, Kind::Object(_)) {
        return Err(SettingsError::Shape {
            what: "the root".to_owned(),
            expected: "an object",
        });
    }
    let layout = Layout::of(&doc);
    let comma = |node: &Node| if node.is_empty() { "" } else { "," };
    let Some((_, hooks)) = only(root, "hooks")? else {
        let piece = format!(
            "{}{}",
            layout.hooks(spec, "entry,event,hooks")?,
            comma(root)
        );
        return Ok(insert(doc.text, vec![(root.span.start + 1, piece)]));
    };
    if !matches!(hooks.kind, Kind::Object(_)) {
        return Err(SettingsError::Shape {
            what: "hooks".to_owned(),
            expected: "an object",
        });
    }
    let around = inherited(&doc, |_| true, &["hooks", "root", "file"]);
    let mut pieces = Vec::new();
    let mut missing = Vec::new();
    for name in spec.events() {
        let Some((_, array)) = only(hooks, name.as_str())? else {
            missing.push(*name);
            continue;
        };
        if !matches!(array.kind, Kind::Array(_)) {
            return Err(SettingsError::Shape {
                what: format!("hooks.{}", name.as_str()),
                expected: "an array",
            });
        }
        let event = inherited(&doc, |e| e.event == name.as_str(), &["event"]);
        let entry = spec.entry(*name, &format!("entry{event}{around}"));
        pieces.push((
            array.span.start + 1,
            format!("{}{}{}", layout.line(3), group(&entry)?, comma(array)),
        ));
    }
    if !missing.is_empty() {
        let events = layout.events(spec, &missing, &format!("entry,event{around}"))?;
        pieces.push((hooks.span.start + 1, format!("{events}{}", comma(hooks))));
    }
    Ok(insert(doc.text, pieces))
}
