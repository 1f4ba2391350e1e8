//! The OpenAPI 3.1 document of the hub: the routes of [`super::router`], told in OpenAPI's words.
//!
//! Schemas are those of schemars, draft 2020-12, which is the dialect of OpenAPI 3.1: nothing is translated. What is
//! read and what is written are generated apart, because a field with a default may be absent in a request and never
//! is in an answer; a type that differs so is called `…Request` where it is read.
//!
//! A refusal is described by its status: a [`Problem`] whose `code` is one of those that the route can answer with.
//! 405 is not listed: it belongs to methods that are not in the document.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::http::HeaderMap;
use axum::response::Response;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::api::memory::tagged;
use super::route::{Access, Route, Success};
use super::router::routes;
use crate::domain::{Code, Problem};

/// Where schemas stand in the document.
const SCHEMAS: &str = "/components/schemas";

/// `GET /openapi.json`.
pub(crate) async fn serve(headers: HeaderMap) -> Response {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    tagged(&headers, DOCUMENT.get_or_init(document))
}

/// The document, as the hub serves it at `/openapi.json` and `proto/openapi.json` holds it.
#[must_use]
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut tags = Vec::new();
    for route in routes() {
        let operation = operation(&route, &mut schemas);
        let tag = json!({ "name": tag(route.path) });
        if !tags.contains(&tag) {
            tags.push(tag);
        }
        paths
            .entry(route.path)
            .or_default()
            .insert(route.method.to_owned(), operation);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "remote-collab hub",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Tasks and messages for Claude Code on developers' machines",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                    "description": "A token of `remote-collab hub token create`; an operation names the scope it needs",
                },
                "device": {
                    "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                    "description": "A connect JWT, signed by the device for this one call",
                },
            },
        },
    });
    document["components"]["schemas"] = schemas.finish(&mut document);
    bound_integers(&mut document);
    document
}

/// Gives every integer of a known width its limits, which schemars leaves to `format`.
fn bound_integers(schema: &mut Value) {
    match schema {
        Value::Object(o) => {
            let limits: Option<(Value, Value)> = match o.get("format").and_then(Value::as_str) {
                Some("uint8") => Some((0.into(), u8::MAX.into())),
                Some("uint32") => Some((0.into(), u32::MAX.into())),
                Some("uint64" | "uint") => Some((0.into(), u64::MAX.into())),
                Some("int64") => Some((i64::MIN.into(), i64::MAX.into())),
                _ => None,
            };
            if let Some((low, high)) = limits {
                o.entry("minimum").or_insert(low);
                o.entry("maximum").or_insert(high);
            }
            o.values_mut().for_each(bound_integers);
        }
        Value::Array(a) => a.iter_mut().for_each(bound_integers),
        _ => {}
    }
}

/// What an operation belongs to: the first part of its path.
fn tag(path: &str) -> &str {
    match path.split('/').nth(1).unwrap_or_default() {
        "healthz" | "readyz" | "openapi.json" | ".well-known" => "hub",
        name => name,
    }
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.what,
        "tags": [tag(route.path)],
        "security": match &route.access {
            Access::Open => json!([]),
            Access::Scope(scope) => json!([{ "token": [scope.as_str()] }]),
            Access::AnyToken => json!([{ "token": [] }]),
            Access::Device => json!([{ "device": [] }]),
        },
        "responses": responses(route, schemas),
    });
    let parameters = parameters(route, schemas);
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some((shape, example)) = route.body {
        operation["requestBody"] = json!({
            "required": !route.body_optional,
            "content": {"application/json": {
                "schema": shape(&mut schemas.read), "example": text(example),
            }},
        });
    }
    operation
}

fn parameters(route: &Route, schemas: &mut Schemas) -> Vec<Value> {
    let mut all = Vec::new();
    let names = route.path.split('{').skip(1);
    for name in names.filter_map(|part| part.split('}').next()) {
        let name = name.trim_start_matches('*');
        let shape = route.path_types.iter().find(|(n, _)| *n == name);
        let schema = match shape {
            Some((_, shape)) => shape(&mut schemas.read).to_value(),
            None => json!({"type": "string", "minLength": 1}),
        };
        all.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    if let Some(query) = route.query {
        let query = query(&mut schemas.read).to_value();
        let required = |name: &str| {
            let required = query["required"].as_array().into_iter().flatten();
            required.into_iter().any(|r| r == name)
        };
        for (name, schema) in query["properties"].as_object().into_iter().flatten() {
            let mut schema = schema.clone();
            let what = schema.as_object_mut().and_then(|s| s.remove("description"));
            // In a query nothing is null: a parameter is there or not.
            not_null(&mut schema);
            all.push(json!({
                "name": name, "in": "query", "required": required(name),
                "description": what, "schema": schema,
            }));
        }
    }
    for (name, schema, required, what) in &route.headers {
        all.push(json!({
            "name": name, "in": "header", "required": required, "description": what, "schema": schema,
        }));
    }
    all
}

/// Takes `null` out of what a schema allows.
fn not_null(schema: &mut Value) {
    if let Some(types) = schema["type"].as_array_mut() {
        types.retain(|t| t != "null");
        if let [one] = types.as_slice() {
            schema["type"] = one.clone();
        }
    }
    if let Some(any) = schema["anyOf"].as_array_mut() {
        any.retain(|s| s["type"] != "null");
        if let [one] = any.as_slice() {
            *schema = one.clone();
        }
    }
    if let Some(object) = schema.as_object_mut() {
        object.retain(|_, v| !v.is_null());
    }
}

fn responses(route: &Route, schemas: &mut Schemas) -> Value {
    let mut all = Map::new();
    for success in &route.success {
        all.insert(success.status.to_string(), answer(success, schemas));
    }
    let mut refusals: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in route.codes() {
        refusals.entry(code.http_status()).or_default().push(code);
    }
    for (status, codes) in refusals {
        all.insert(status.to_string(), refusal(status, &codes, schemas));
    }
    Value::Object(all)
}

fn answer(success: &Success, schemas: &mut Schemas) -> Value {
    let mut answer = json!({ "description": success.what });
    if let Some((media, shape)) = success.body {
        answer["content"][media]["schema"] = shape(&mut schemas.written).to_value();
        if let Some(example) = success.example {
            answer["content"][media]["example"] = text(example);
        }
    }
    for id in &success.leads {
        answer["links"][id] =
            json!({"operationId": id, "parameters": {"id": "$response.body#/id"}});
    }
    for (name, what) in &success.headers {
        answer["headers"][name] =
            json!({"description": what, "required": true, "schema": {"type": "string"}});
    }
    answer
}

fn refusal(status: u16, codes: &[Code], schemas: &mut Schemas) -> Value {
    let problem = schemas.written.subschema_for::<Problem>();
    let words: Vec<&str> = codes.iter().map(|c| c.as_str()).collect();
    let mut answer = json!({
        "description": words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", "),
        "content": {"application/problem+json": {"schema": {
            "allOf": [problem, {"properties": {
                "status": {"const": status}, "code": {"enum": words},
            }}],
        }}},
    });
    if let Some(first) = codes.first() {
        answer["content"]["application/problem+json"]["example"] = json!({
            "code": first.as_str(), "status": status, "title": "what happened, to what",
            "detail": "what to do next",
        });
    }
    match status {
        401 => {
            answer["headers"]["WWW-Authenticate"] =
                json!({"required": true, "schema": {"type": "string"}, "description": "`Bearer`"});
        }
        429 | 503 | 507 => {
            answer["headers"]["Retry-After"] = json!({
                "schema": {"type": "integer", "minimum": 0}, "description": "Seconds, as `retry_after_s`",
            });
        }
        _ => {}
    }
    answer
}

/// An example, from its text.
fn text(example: &str) -> Value {
    serde_json::from_str(example).unwrap_or(Value::Null)
}

/// The schemas of what is read and of what is written.
struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|s| {
                s.definitions_path = SCHEMAS.into();
                s.meta_schema = None;
            })
        };
        Self {
            read: settings().for_deserialize().into_generator(),
            written: settings().for_serialize().into_generator(),
        }
    }

    /// All schemas under their names; where a name means two things, requests in `document` are made to say `…Request`.
    fn finish(mut self, document: &mut Value) -> Value {
        let mut all = self.written.take_definitions(true);
        let read = self.read.take_definitions(true);
        let mut differs: Vec<String> = Vec::new();
        // A type that refers to one that differs, differs.
        loop {
            let before = differs.len();
            for (name, schema) in &read {
                let other = all.get(name).is_some_and(|w| w != schema);
                if !differs.contains(name) && (other || refers(schema, &differs)) {
                    differs.push(name.clone());
                }
            }
            if differs.len() == before {
                break;
            }
        }
        for (name, mut schema) in read {
            rename(&mut schema, &differs);
            let name = if differs.contains(&name) {
                format!("{name}Request")
            } else {
                name
            };
            all.insert(name, schema);
        }
        let operations = document["paths"].as_object_mut().into_iter().flatten();
        for (_, path) in operations {
            for (_, operation) in path.as_object_mut().into_iter().flatten() {
                rename(&mut operation["parameters"], &differs);
                rename(&mut operation["requestBody"], &differs);
                let object = operation.as_object_mut();
                object
                    .into_iter()
                    .for_each(|o| o.retain(|_, v| !v.is_null()));
            }
        }
        Value::Object(all)
    }
}

fn reference(name: &str) -> String {
    format!("#{SCHEMAS}/{name}")
}

fn refers(schema: &Value, names: &[String]) -> bool {
    match schema {
        Value::Object(o) => o.iter().any(|(k, v)| {
            (k == "$ref" && names.iter().any(|n| *v == reference(n))) || refers(v, names)
        }),
        Value::Array(a) => a.iter().any(|v| refers(v, names)),
        _ => false,
    }
}

fn rename(schema: &mut Value, names: &[String]) {
    match schema {
        Value::Object(o) => {
            for (key, value) in o {
                if key == "$ref"
                    && let Some(name) = names.iter().find(|n| *value == reference(n))
                {
                    *value = Value::String(format!("{}Request", reference(name)));
                } else {
                    rename(value, names);
                }
            }
        }
        Value::Array(a) => a.iter_mut().for_each(|v| rename(v, names)),
        _ => {}
    }
}
