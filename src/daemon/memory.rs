//! The hub's memory as the daemon gives it to sessions: asked with a deadline, else the last good copy with its age.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::memory_block::{Block, Knowledge, Told, Wanted};
use crate::auth::crypto;
use crate::delivery::fence;
use crate::domain::{ProjectName, SessionId, WallMs, limits};
use crate::local::write_private;

/// The wait for the hub at a session's start; the hook itself has [`limits::HOOK_START_DEADLINE_MS`].
const HUB_DEADLINE: Duration = Duration::from_millis(900);
/// Projects whose last good copy is kept in memory.
const KEPT: usize = 256;

/// Asks the hub for `{memory, index}` of a session in a project.
pub trait AskHub: Send + Sync + std::fmt::Debug {
    /// The hub's answer.
    ///
    /// # Errors
    /// In words, when there is none.
    fn memory(
        &self,
        session: SessionId,
        project: &ProjectName,
    ) -> futures::future::BoxFuture<'_, Result<(Value, Value), String>>;
}

/// The last good answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Copy {
    memory: Value,
    index: Value,
    at: WallMs,
}

/// What a session can be told, and how fresh it is.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    knowledge: Knowledge,
    age: Option<String>,
}

impl Known {
    /// The block for a session that was told `told`, or that starts afresh.
    pub(crate) fn block(&self, told: Option<&Told>, tokens: usize) -> Option<Block> {
        let wanted = told.map_or(Wanted::Whole, Wanted::Changes);
        let (chars, age) = (limits::HOOK_OUTPUT_CHARS, self.age.as_deref());
        self.knowledge
            .block(wanted, tokens, chars, digest, clean, age)
    }
}

/// Where memory comes from; cheap to clone.
#[derive(Debug, Clone)]
pub struct MemorySource {
    hub: Option<Arc<dyn AskHub>>,
    dir: PathBuf,
    copies: Arc<Mutex<BTreeMap<ProjectName, Copy>>>,
    now: fn() -> WallMs,
}

impl MemorySource {
    /// Memory from this hub, with last good copies kept in `dir`.
    #[must_use]
    pub fn new(hub: Option<Arc<dyn AskHub>>, dir: PathBuf, now: fn() -> WallMs) -> Self {
        Self {
            hub,
            dir,
            copies: Arc::default(),
            now,
        }
    }

    /// What is known for a session of this project, within a deadline; nothing if nothing was ever known.
    pub(crate) async fn knowledge(&self, session: SessionId, project: &ProjectName) -> Known {
        let (copy, fresh) = self.ask(session, project).await;
        let old = (self.now)().0.saturating_sub(copy.at.0);
        Known {
            knowledge: Knowledge::read(Some(&copy.memory), Some(&copy.index)),
            age: (!fresh).then(|| age(old)),
        }
    }

    /// The hub's `{summary, context[]}` and `{files, symbols, recent_changes}`, or their last good copies; `null` for none.
    pub(crate) async fn documents(
        &self,
        session: SessionId,
        project: &ProjectName,
    ) -> (Value, Value) {
        let (copy, _) = self.ask(session, project).await;
        (copy.memory, copy.index)
    }

    async fn ask(&self, session: SessionId, project: &ProjectName) -> (Copy, bool) {
        let now = (self.now)();
        let asked = match &self.hub {
            None => Err("no hub".to_owned()),
            Some(hub) => tokio::time::timeout(HUB_DEADLINE, hub.memory(session, project))
                .await
                .unwrap_or_else(|_| Err("the hub did not answer in time".to_owned())),
        };
        let asked = asked.and_then(|(memory, index)| {
            let ours = is_ours(&memory) && is_ours(&index);
            ours.then_some((memory, index))
                .ok_or_else(|| "what answered for the hub sent something else".to_owned())
        });
        match asked {
            Ok((memory, index)) => {
                let copy = Copy {
                    memory,
                    index,
                    at: now,
                };
                self.keep(project, &copy);
                (copy, true)
            }
            Err(error) => {
                tracing::info!(%project, %error, "memory comes from the last good copy");
                match self.kept(project) {
                    Some(copy) => (copy, false),
                    None => (
                        Copy {
                            memory: Value::Null,
                            index: Value::Null,
                            at: now,
                        },
                        true,
                    ),
                }
            }
        }
    }

    fn path(&self, project: &ProjectName) -> PathBuf {
        let mut name = digest(project.as_str());
        name.truncate(32);
        self.dir.join(format!("{name}.json"))
    }

    fn keep(&self, project: &ProjectName, copy: &Copy) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let same = copies
            .get(project)
            .is_some_and(|c| c.memory == copy.memory && c.index == copy.index);
        if copies.len() >= KEPT && !copies.contains_key(project) {
            copies.pop_first();
        }
        copies.insert(project.clone(), copy.clone());
        drop(copies);
        if same {
            return;
        }
        let written = serde_json::to_vec(copy)
            .map_err(std::io::Error::from)
            .and_then(|bytes| {
                crate::auth::keys::make_private_dir(&self.dir)?;
                write_private(&self.path(project), &bytes)
            });
        if let Err(error) = written {
            tracing::warn!(%project, %error, "the last good copy of the memory cannot be kept");
        }
    }

    fn kept(&self, project: &ProjectName) -> Option<Copy> {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = copies.get(project) {
            return Some(copy.clone());
        }
        drop(copies);
        serde_json::from_slice(&std::fs::read(self.path(project)).ok()?).ok()
    }
}

/// Whether a document is a memory, an index, or none; anything else must not replace a good copy.
fn is_ours(document: &Value) -> bool {
    const KEYS: [&str; 5] = ["summary", "context", "files", "symbols", "recent_changes"];
    document.is_null() || KEYS.iter().any(|key| document.get(key).is_some())
}

fn digest(text: &str) -> String {
    crypto::sha256(text.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn clean(text: &str) -> String {
    fence::quote(text, None)
}

/// An age in words, coarse: the block should not change with every minute.
fn age(ms: i64) -> String {
    let hours = ms / 3_600_000;
    match hours {
        ..1 => "less than an hour".to_owned(),
        1..48 => format!("about {hours} h"),
        _ => format!("about {} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use serde_json::json;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug, Default)]
    struct Hub {
        down: AtomicBool,
        garbage: AtomicBool,
    }

    impl AskHub for Hub {
        fn memory(
            &self,
            _: SessionId,
            _: &ProjectName,
        ) -> futures::future::BoxFuture<'_, Result<(Value, Value), String>> {
            let answer = if self.down.load(Ordering::Relaxed) {
                Err("down".to_owned())
            } else if self.garbage.load(Ordering::Relaxed) {
                Ok((json!({"portal": "please log in"}), json!(["x"])))
            } else {
                Ok((json!({"summary": "a shop", "context": []}), Value::Null))
            };
            async move { answer }.boxed()
        }
    }

    #[tokio::test]
    async fn what_is_no_memory_does_not_replace_the_last_good_copy() {
        let dir = tempfile::tempdir().unwrap();
        let hub = Arc::new(Hub::default());
        let (project, session) = (ProjectName::new("p").unwrap(), SessionId::from_u128(1));
        let source = MemorySource::new(Some(Arc::clone(&hub) as _), dir.path().join("m"), || {
            WallMs(0)
        });
        source.knowledge(session, &project).await;
        hub.garbage.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let known = source.knowledge(session, &project).await;
            let kept = known.block(None, 2_000).unwrap();
            assert!(kept.text.contains("a shop") && kept.text.contains("last good copy"));
        }
    }

    #[tokio::test]
    async fn a_hub_that_is_down_costs_nothing_but_freshness() {
        let dir = tempfile::tempdir().unwrap();
        let hub = Arc::new(Hub::default());
        let project = ProjectName::new("p").unwrap();
        let session = SessionId::from_u128(1);
        let source = |hub: &Arc<Hub>| {
            MemorySource::new(Some(Arc::clone(hub) as _), dir.path().join("m"), || {
                WallMs(7_200_000)
            })
        };
        let known = source(&hub).knowledge(session, &project).await;
        let fresh = known.block(None, 2_000).unwrap();
        assert!(fresh.text.contains("a shop") && !fresh.text.contains("last good copy"));
        hub.down.store(true, Ordering::Relaxed);
        // A new source: the copy is on disk.
        let known = source(&hub).knowledge(session, &project).await;
        let old = known.block(None, 2_000).unwrap();
        assert!(old.text.contains("a shop") && old.text.contains("last good copy"));
        let other = ProjectName::new("other").unwrap();
        assert!(
            source(&hub)
                .knowledge(session, &other)
                .await
                .block(None, 2_000)
                .is_none()
        );
    }
}
