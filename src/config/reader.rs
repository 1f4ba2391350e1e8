//! Reads typed values out of layered JSON and collects every problem.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::duration;
use super::hub_url::HubUrl;
use super::keys::{KEYS, PER_PROJECT, nearest};
use super::proxy::{Proxies, ProxyChoice};
use crate::domain::SessionId;

/// One thing that is wrong, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key; empty if it is about the whole file.
    pub key: String,
    /// The file, variable or flag that it came from.
    pub source: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{} {}; hint: {}", self.source, self.what, self.hint)
        } else {
            write!(
                f,
                "`{}` ({}) {}; hint: {}",
                self.key, self.source, self.what, self.hint
            )
        }
    }
}

/// The leaves of all layers by key, each with where it came from.
#[derive(Debug, Default)]
pub(super) struct Reader {
    leaves: BTreeMap<String, (Value, String)>,
    pub(super) problems: Vec<Problem>,
}

impl Reader {
    /// Adds the values of a file.
    pub(super) fn file(&mut self, value: Value, source: &str) {
        self.flatten("", value, source);
    }

    fn flatten(&mut self, at: &str, value: Value, source: &str) {
        match value {
            Value::Object(map) if !is_key(at) => {
                for (name, value) in map {
                    // `\0` stands for a dot inside a name, so that a project's name stays one level.
                    let name = name.replace('.', "\0");
                    let path = if at.is_empty() {
                        name
                    } else {
                        format!("{at}.{name}")
                    };
                    self.flatten(&path, value, source);
                }
            }
            Value::Null => {}
            value => self.set(at, value, source),
        }
    }

    /// Sets one value, over whatever an earlier layer said.
    pub(super) fn set(&mut self, key: &str, value: Value, source: &str) {
        self.leaves
            .insert(key.to_owned(), (value, source.to_owned()));
    }

    /// Every value that some layer set, with its source, by key.
    pub(super) fn leaves(&self) -> impl Iterator<Item = (String, &Value, &str)> {
        self.leaves
            .iter()
            .map(|(key, (value, source))| (shown(key), value, source.as_str()))
    }

    /// Reports keys that nothing reads.
    pub(super) fn check_names(&mut self) {
        let unknown: Vec<_> = self
            .leaves
            .iter()
            .filter(|(key, _)| !is_known(key))
            .map(|(key, (_, source))| (shown(key), source.clone()))
            .collect();
        for (key, source) in unknown {
            let hint = nearest(&key).map_or_else(
                || "remove it; the README lists the keys".to_owned(),
                |near| format!("perhaps `{near}` was meant"),
            );
            self.problems.push(Problem {
                key,
                source,
                what: "is not a key".into(),
                hint,
            });
        }
    }

    /// The names below a level, as with `projects`.
    pub(super) fn names(&self, level: &str) -> Vec<String> {
        let start = format!("{level}.");
        let mut names: Vec<String> = self
            .leaves
            .keys()
            .filter_map(|k| k.strip_prefix(&start)?.split('.').next())
            .map(shown)
            .collect();
        names.dedup();
        names
    }

    fn get<T>(
        &mut self,
        key: &str,
        hint: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let (value, source) = self.leaves.get(&hidden(key))?;
        let found = read(value);
        if found.is_none() {
            let problem = Problem {
                key: key.to_owned(),
                source: source.clone(),
                what: format!("cannot be `{}`", brief(value)),
                hint: hint.to_owned(),
            };
            self.problems.push(problem);
        }
        found
    }

    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        self.get(key, "a text that is not empty", |v| {
            v.as_str()
                .filter(|s| !s.trim().is_empty())
                .map(str::to_owned)
        })
    }

    pub(super) fn texts(&mut self, key: &str, default: &[String]) -> Vec<String> {
        let read = |v: &Value| match v {
            Value::Array(items) => items
                .iter()
                .map(|i| i.as_str().map(str::to_owned))
                .collect(),
            Value::String(s) => Some(
                s.split(',')
                    .map(str::trim)
                    .filter(|s| !s.is_empty())
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => None,
        };
        self.get(key, "a list of texts", read)
            .unwrap_or_else(|| default.to_vec())
    }

    pub(super) fn flag(&mut self, key: &str, default: bool) -> bool {
        let read = |v: &Value| match v {
            Value::Bool(b) => Some(*b),
            Value::String(s) if matches!(s.as_str(), "true" | "1") => Some(true),
            Value::String(s) if matches!(s.as_str(), "false" | "0") => Some(false),
            _ => None,
        };
        self.get(key, "true or false", read).unwrap_or(default)
    }

    pub(super) fn number<T>(&mut self, key: &str, default: T, range: RangeInclusive<u64>) -> T
    where
        T: TryFrom<u64>,
    {
        let hint = format!("a whole number from {} to {}", range.start(), range.end());
        let read = |v: &Value| {
            let n = match v {
                Value::String(s) => s.trim().parse().ok(),
                v => v.as_u64(),
            };
            n.filter(|n| range.contains(n))
                .and_then(|n| T::try_from(n).ok())
        };
        self.get(key, &hint, read).unwrap_or(default)
    }

    pub(super) fn amount(&mut self, key: &str, default: f64) -> f64 {
        let read = |v: &Value| {
            let n = match v {
                Value::String(s) => s.trim().parse().ok(),
                v => v.as_f64(),
            };
            n.filter(|n| (0.01..=10_000.0).contains(n))
        };
        self.get(key, "US dollars from 0.01 to 10000", read)
            .unwrap_or(default)
    }

    pub(super) fn duration(
        &mut self,
        key: &str,
        default_s: u64,
        range_s: RangeInclusive<u64>,
    ) -> Duration {
        let (least, most) = (*range_s.start(), *range_s.end());
        let hint = format!("a time like \"90s\" or \"5m\", from {least} s to {most} s");
        let read = |v: &Value| {
            let time = match v {
                Value::String(s) => duration::parse(s),
                v => v.as_u64().map(Duration::from_secs),
            };
            time.filter(|d| (Duration::from_secs(least)..=Duration::from_secs(most)).contains(d))
        };
        self.get(key, &hint, read)
            .unwrap_or(Duration::from_secs(default_s))
    }

    pub(super) fn one_of<T: Copy>(&mut self, key: &str, default: T, words: &[(&str, T)]) -> T {
        let names: Vec<_> = words.iter().map(|(w, _)| *w).collect();
        let hint = format!("one of: {}", names.join(", "));
        let read = |v: &Value| {
            let word = v.as_str()?;
            words.iter().find(|(w, _)| *w == word).map(|(_, t)| *t)
        };
        self.get(key, &hint, read).unwrap_or(default)
    }

    pub(super) fn path(&mut self, key: &str) -> Option<PathBuf> {
        self.get(key, "an absolute path", |v| {
            v.as_str().map(PathBuf::from).filter(|p| p.is_absolute())
        })
    }

    pub(super) fn session(&mut self, key: &str) -> Option<SessionId> {
        let read = |v: &Value| match v.as_str()? {
            "auto" => Some(None),
            id => id.parse().ok().map(Some),
        };
        self.get(key, "`auto`, or a session's UUID", read).flatten()
    }

    pub(super) fn hub_url(&mut self, key: &str) -> Option<HubUrl> {
        let hint = "https://HOST, or http:// on this machine alone, without credentials in it";
        self.get(key, hint, |v| v.as_str()?.parse().ok())
    }

    /// The proxy; what cannot be one is not repeated, as there may be a password in it.
    pub(super) fn proxy(&mut self, key: &str) -> Option<ProxyChoice> {
        let (value, source) = self.leaves.get(key)?;
        let why = match value.as_str().map(str::parse) {
            Some(Ok(choice)) => return Some(choice),
            Some(Err(e)) => format!("{e}"),
            None => "is not a text".to_owned(),
        };
        self.problems.push(Problem {
            key: key.to_owned(),
            source: source.clone(),
            what: why,
            hint: "`none`, or http(s)://USER:PASSWORD@HOST:PORT, the user and password only if it wants them".to_owned(),
        });
        None
    }

    /// Reports a file that others can read and that holds the proxy's password.
    #[cfg_attr(not(unix), expect(unused_variables, reason = "modes are Unix's"))]
    pub(super) fn check_proxy_secret(&mut self, path: &Path, proxies: &Proxies) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            let source = path.display().to_string();
            let ours = self.leaves.get("proxy").is_some_and(|(_, s)| *s == source);
            let mode = std::fs::metadata(path).map_or(0, |m| m.mode() & 0o777);
            if ours && proxies.has_secret() && mode & 0o077 != 0 {
                self.problems.push(Problem {
                    key: "proxy".to_owned(),
                    source,
                    what: format!(
                        "holds a password in a file that others can read (mode {mode:o})"
                    ),
                    hint: "run `chmod 600` on the file".to_owned(),
                });
            }
        }
    }

    pub(super) fn loopback(&mut self, key: &str, default: SocketAddr) -> SocketAddr {
        let read = |v: &Value| {
            let text = v.as_str()?;
            let text = text.strip_prefix("http://").unwrap_or(text);
            let address: SocketAddr = text
                .trim_end_matches('/')
                .replace("localhost:", "127.0.0.1:")
                .parse()
                .ok()?;
            address.ip().is_loopback().then_some(address)
        };
        self.get(
            key,
            "a loopback address with a port, like 127.0.0.1:9988",
            read,
        )
        .unwrap_or(default)
    }
}

fn is_key(path: &str) -> bool {
    KEYS.iter().any(|k| k.path == path)
}

fn is_known(path: &str) -> bool {
    if let Some((_, rest)) = path
        .strip_prefix("projects.")
        .and_then(|p| p.split_once('.'))
    {
        return is_key(rest) && PER_PROJECT.iter().any(|p| rest.starts_with(p));
    }
    is_key(path)
}

/// `projects.a.b/c.runs.model` with the dots of the name hidden, as the leaves are kept.
fn hidden(key: &str) -> String {
    let Some(rest) = key.strip_prefix("projects.") else {
        return key.to_owned();
    };
    for tail in KEYS.iter().map(|k| k.path) {
        if let Some(name) = rest.strip_suffix(tail).and_then(|n| n.strip_suffix('.')) {
            return format!("projects.{}.{tail}", name.replace('.', "\0"));
        }
    }
    key.to_owned()
}

fn shown(key: &str) -> String {
    key.replace('\0', ".")
}

fn brief(value: &Value) -> String {
    let text = match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    // A URL may hold a password.
    let shown = match text.rsplit_once('@') {
        Some((_, host)) if text.contains("://") => format!("…@{host}"),
        _ => text,
    };
    shown.chars().take(80).collect()
}
