//! `proto/openapi.json` is what the hub serves, says nothing that does not hold together, and leaves nothing out.
//!
//! `UPDATE_PROTO=1 cargo test --test contract openapi` writes it anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use remote_collab::hub;
use serde_json::{Value, json};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_document_is_current() {
    let path = root().join("proto/openapi.json");
    let text = serde_json::to_string_pretty(&hub::openapi()).unwrap() + "\n";
    if std::env::var_os("UPDATE_PROTO").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "proto/openapi.json is not what the routes say: run with UPDATE_PROTO=1"
    );
}

/// Routes are declared in `hub/router.rs` and given to axum in `hub/route.rs`: nobody else hands a path to the router.
#[test]
fn no_route_is_served_beside_the_declared_ones() {
    let mut found = Vec::new();
    let mut folders = vec![root().join("src/hub")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            if text.contains("axum::routing") || text.contains("Router::new") {
                found.push(name(&path));
            }
        }
    }
    assert_eq!(found, ["route.rs"], "declare routes in hub/router.rs");
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn operations(document: &Value) -> Vec<(String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap();
        methods
            .iter()
            .map(move |(method, o)| (format!("{method} {path}"), o))
    });
    all.collect()
}

/// axum's own refusal of a path is not problem+json: `hub::api::Path` says it in our words.
#[test]
fn no_handler_takes_a_path_that_axum_refuses_in_its_own_words() {
    for entry in std::fs::read_dir(root().join("src/hub/api")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let lines = text.lines().filter(|l| l.starts_with("use axum::extract"));
        let taken: Vec<&str> = lines.filter(|l| l.contains("Path")).collect();
        assert!(taken.is_empty(), "{}: {taken:?}", path.display());
    }
}

#[test]
fn every_operation_says_who_may_call_what_it_answers_and_how_it_refuses() {
    let document = hub::openapi();
    let mut ids = BTreeSet::new();
    for (name, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap();
        assert!(ids.insert(id), "two operations are called {id}");
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{name}");
        let responses = operation["responses"].as_object().unwrap();
        let (good, bad): (Vec<_>, Vec<_>) = responses.iter().partition(|(s, _)| s.as_str() < "400");
        assert!(!good.is_empty(), "{name} never succeeds");
        for (status, answer) in bad {
            let problem = &answer["content"]["application/problem+json"];
            assert!(problem.is_object(), "{name} {status}: no problem+json");
        }
        let open = operation["security"].as_array().unwrap().is_empty();
        assert_eq!(open, !responses.contains_key("401"), "{name}");
        if responses.contains_key("202") {
            assert!(
                responses["202"]["headers"]["Location"].is_object(),
                "{name}"
            );
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["schema"].is_object(), "{name}: {parameter}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_used() {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(o) => {
                if let Some(Value::String(to)) = o.get("$ref") {
                    found.insert(to.clone());
                }
                o.values().for_each(|v| collect(v, found));
            }
            Value::Array(a) => a.iter().for_each(|v| collect(v, found)),
            _ => {}
        }
    }
    let document = hub::openapi();
    let mut found = BTreeSet::new();
    collect(&document, &mut found);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let known: BTreeSet<String> = schemas
        .keys()
        .map(|name| format!("#/components/schemas/{name}"))
        .collect();
    assert_eq!(found, known);
}

#[test]
fn every_example_follows_its_schema() {
    let document = hub::openapi();
    let mut seen = 0;
    for (name, operation) in operations(&document) {
        let bodies = std::iter::once(&operation["requestBody"])
            .chain(operation["responses"].as_object().unwrap().values());
        for media in bodies.filter_map(|b| b["content"].as_object()).flatten() {
            let (kind, media) = media;
            let Some(example) = media.get("example") else {
                continue;
            };
            let schema = json!({
                "$ref": "#/schema", "schema": media["schema"], "components": document["components"],
            });
            let validator = jsonschema::validator_for(&schema).unwrap();
            if let Err(e) = validator.validate(example) {
                panic!("{name}, {kind}: {e}");
            }
            seen += 1;
        }
        if let Some(body) = operation.get("requestBody") {
            assert!(
                !body["content"]["application/json"]["example"].is_null(),
                "{name}"
            );
        }
    }
    assert!(seen > 20, "{seen} examples");
}
