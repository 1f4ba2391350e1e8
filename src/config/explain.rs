//! Where each value of the configuration comes from.

use serde_json::Value;

use super::{DaemonConfig, KEYS, Sources};

/// A key with the value in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The key, with dots between the levels.
    pub key: String,
    /// The value as the layer wrote it, its credentials blanked; not checked.
    pub value: Value,
    /// The file, variable or flag that set it; `None` for the default.
    pub source: Option<String>,
}

/// Every key with the value in force and where it was set; keys that nothing reads and those of single projects stand at
/// the end.
#[must_use]
pub fn explain(sources: Sources<'_>) -> Vec<Explained> {
    let reader = DaemonConfig::layers(sources);
    let mut set: Vec<Explained> = reader
        .leaves()
        .map(|(key, value, source)| Explained {
            value: blanked(&key, value),
            key,
            source: Some(source.to_owned()),
        })
        .collect();
    let mut all = Vec::new();
    for key in KEYS {
        let own = set.iter().position(|e| e.key == key.path);
        all.push(match own {
            Some(at) => set.remove(at),
            None => Explained {
                key: key.path.to_owned(),
                value: serde_json::from_str(key.default).unwrap_or(Value::Null),
                source: None,
            },
        });
    }
    all.extend(set);
    all
}

/// The value without the user and password of a URL in it.
fn blanked(key: &str, value: &Value) -> Value {
    let Some(text) = value.as_str() else {
        return value.clone();
    };
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            let (start, rest) = (scheme + "://".len(), at + 1);
            Value::String(format!("{}***@{}", &text[..start], &text[rest..]))
        }
        // A proxy's scheme can be left out.
        (None, Some(at)) if key == "proxy" => Value::String(format!("***@{}", &text[at + 1..])),
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_names_the_layer_that_set_it_and_no_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.json");
        let text = r#"{"runs": {"max_turns": 7, "model": "m"}, "projects": {"a.b": {"approval": "always"}}, "typo": "https://u:secret@h/"}"#;
        std::fs::write(&file, text).unwrap();
        let all = explain(Sources {
            file: Some(&file),
            env: &|name| (name == "REMOTE_COLLAB_RUNS_MAX_TURNS").then(|| "9".into()),
            flags: &[("proxy", "u:secret@p:3128".to_owned(), "--flag")],
        });
        assert_eq!(
            all.iter().find(|e| e.key == "proxy").unwrap().value,
            json!("***@p:3128")
        );
        let of = |key: &str| all.iter().find(|e| e.key == key).unwrap();
        assert_eq!(of("runs.max_turns").value, json!("9"));
        let source = of("runs.max_turns").source.as_deref();
        assert_eq!(source, Some("REMOTE_COLLAB_RUNS_MAX_TURNS"));
        let path = file.display().to_string();
        assert_eq!(of("runs.model").source.as_deref(), Some(path.as_str()));
        assert_eq!(of("runs.timeout").value, json!("30m"));
        assert_eq!(of("runs.timeout").source, None);
        assert_eq!(of("projects.a.b.approval").value, json!("always"));
        assert_eq!(of("typo").value, json!("https://***@h/"));
        assert!(KEYS.iter().all(|k| all.iter().any(|e| e.key == k.path)));
    }
}
