//! How a route is declared: once, for the router and for the OpenAPI document.
//!
//! A declaration holds the handler and everything a client has to know: who may call, what is read, what is answered.
//! [`mod@super::router`] is a list of them, [`mod@super::openapi`] turns the list into a document; so nothing is served that is
//! not described, and nothing is described that is not served. Types are named, never described: their schemas come
//! from the structs that are read and written.
//!
//! What many routes share is not said at each of them: a route that takes a token can refuse it, one with a body can
//! refuse the body, and every one can fail. [`Route::codes`] adds that up.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::state::Hub;
use crate::auth::Scope;
use crate::domain::Code;
use crate::wire::SUBPROTOCOL;

/// The schema of a type, as a generator refers to it.
pub(crate) type Shape = fn(&mut SchemaGenerator) -> Schema;

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anybody: no token is looked at.
    Open,
    /// The bearer of a token with this scope.
    Scope(Scope),
    /// The bearer of any token but a join token.
    AnyToken,
    /// A device, by a connect JWT that it signs for this one call.
    Device,
}

/// A successful answer.
#[derive(Debug, Clone)]
pub(crate) struct Success {
    pub(crate) status: u16,
    pub(crate) what: &'static str,
    /// Media type and schema; none for an answer without a body.
    pub(crate) body: Option<(&'static str, Shape)>,
    /// Names of headers it always carries, with what they say.
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    /// One such body, as JSON text.
    pub(crate) example: Option<&'static str>,
    /// Operations whose path's `id` is the `id` of this body.
    pub(crate) leads: Vec<&'static str>,
}

/// One method of one path.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// Names the operation: generated clients call their functions so.
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) access: Access,
    /// Types of path parameters that are more than text.
    pub(crate) path_types: Vec<(&'static str, Shape)>,
    /// A struct whose fields are the query's parameters.
    pub(crate) query: Option<Shape>,
    /// Request headers: name, schema, whether required, what they say.
    pub(crate) headers: Vec<(&'static str, Schema, bool, &'static str)>,
    /// A struct that is the body, and one such body as JSON text.
    pub(crate) body: Option<(Shape, &'static str)>,
    /// Whether an empty body means an empty object.
    pub(crate) body_optional: bool,
    pub(crate) success: Vec<Success>,
    refuses: BTreeSet<Code>,
    handler: MethodRouter<Arc<Hub>>,
}

macro_rules! methods {
    ($($name:ident = $filter:ident, $text:literal;)*) => { $(
        /// A route of this method: its path, the operation's name, what it does, and its handler.
        #[allow(dead_code, reason = "each method has its word, used or not")]
        pub(crate) fn $name<H, T>(path: &'static str, id: &'static str, what: &'static str, handler: H) -> Route
        where
            H: Handler<T, Arc<Hub>>,
            T: 'static,
        {
            Route::new($text, path, id, what, on(MethodFilter::$filter, handler))
        }
    )* };
}

methods! {
    get = GET, "get";
    post = POST, "post";
    put = PUT, "put";
    delete = DELETE, "delete";
}

impl Route {
    fn new(
        method: &'static str,
        path: &'static str,
        id: &'static str,
        what: &'static str,
        handler: MethodRouter<Arc<Hub>>,
    ) -> Self {
        Self {
            method,
            path,
            id,
            what,
            access: Access::Open,
            path_types: Vec::new(),
            query: None,
            headers: Vec::new(),
            body: None,
            body_optional: false,
            success: Vec::new(),
            refuses: BTreeSet::new(),
            handler,
        }
    }

    /// Needs a token with this scope.
    pub(crate) fn needs(mut self, scope: Scope) -> Self {
        self.access = Access::Scope(scope);
        self
    }

    /// Needs some token, but not a join token.
    pub(crate) fn needs_token(mut self) -> Self {
        self.access = Access::AnyToken;
        self
    }

    /// Needs a device's connect JWT.
    pub(crate) fn needs_device(mut self) -> Self {
        self.access = Access::Device;
        self
    }

    /// The path parameter `name` is a `T` and refused with `invalid_field` otherwise; those not named are any text.
    pub(crate) fn path<T: JsonSchema>(mut self, name: &'static str) -> Self {
        self.path_types.push((name, |g| g.subschema_for::<T>()));
        self.refuses.insert(Code::InvalidField);
        self
    }

    /// Reads the fields of `T` from the query.
    pub(crate) fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(T::json_schema);
        self.refuses.insert(Code::InvalidField);
        self
    }

    /// Reads this header.
    pub(crate) fn header(
        mut self,
        name: &'static str,
        schema: Schema,
        required: bool,
        what: &'static str,
    ) -> Self {
        self.headers.push((name, schema, required, what));
        self
    }

    /// Reads a JSON body; `example` is one.
    pub(crate) fn body<T: JsonSchema>(mut self, example: &'static str) -> Self {
        self.body = Some((|g| g.subschema_for::<T>(), example));
        self.refuses.extend([
            Code::MalformedJson,
            Code::InvalidField,
            Code::TooLarge,
            Code::UnsupportedMediaType,
        ]);
        self
    }

    /// The body may be left out.
    pub(crate) fn or_nothing(mut self) -> Self {
        self.body_optional = true;
        self
    }

    /// Honours an `Idempotency-Key`.
    pub(crate) fn once(mut self) -> Self {
        self.refuses
            .extend([Code::InvalidField, Code::IdempotencyMismatch]);
        let key = schemars::json_schema!({"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$"});
        self.header(
            "Idempotency-Key",
            key,
            false,
            "A repetition with the same key and body is answered as the first time, for 24 h",
        )
    }

    /// Goes on after the event that the reader has, as `EventSource` asks.
    pub(crate) fn resumes(self) -> Self {
        let id = schemars::json_schema!({"type": "string", "pattern": "^[0-9a-f]{32}-[0-9]{1,18}-[0-9]{1,18}$"});
        self.header(
            "Last-Event-ID",
            id,
            false,
            "The `id` of the last event that the reader has; wins over `after`",
        )
    }

    /// Answers with JSON of this type.
    pub(crate) fn answers<T: JsonSchema>(self, status: u16, what: &'static str) -> Self {
        self.answers_as::<T>(status, what, "application/json")
    }

    /// Answers with a text of this media type, of which `T` is the schema.
    pub(crate) fn answers_as<T: JsonSchema>(
        self,
        status: u16,
        what: &'static str,
        media: &'static str,
    ) -> Self {
        self.success(status, what, Some((media, |g| g.subschema_for::<T>())))
    }

    /// Answers without a body.
    pub(crate) fn answers_empty(self, status: u16, what: &'static str) -> Self {
        self.success(status, what, None)
    }

    fn success(
        mut self,
        status: u16,
        what: &'static str,
        body: Option<(&'static str, Shape)>,
    ) -> Self {
        self.success.push(Success {
            status,
            what,
            body,
            headers: Vec::new(),
            example: None,
            leads: Vec::new(),
        });
        self
    }

    /// An example of the answer named last, as JSON text.
    pub(crate) fn like(mut self, example: &'static str) -> Self {
        if let Some(last) = self.success.last_mut() {
            last.example = Some(example);
        }
        self
    }

    /// The `id` of the answer named last is that of these operations' paths.
    pub(crate) fn leads_to(mut self, operations: &[&'static str]) -> Self {
        if let Some(last) = self.success.last_mut() {
            last.leads.extend(operations);
        }
        self
    }

    /// The answer named last carries this header.
    pub(crate) fn with(mut self, header: &'static str, what: &'static str) -> Self {
        if let Some(last) = self.success.last_mut() {
            last.headers.push((header, what));
        }
        self
    }

    /// The answer named last carries an ETag, and is answered 304 to a reader that has it.
    pub(crate) fn tagged(self) -> Self {
        const WHAT: &str = "The tag of the whole answer";
        let tags = schemars::json_schema!({"type": "string"});
        self.with("ETag", WHAT)
            .answers_empty(304, "The reader has it already")
            .with("ETag", WHAT)
            .header(
                "If-None-Match",
                tags,
                false,
                "Tags that the reader has, with commas between them",
            )
    }

    /// Becomes a WebSocket of the link.
    pub(crate) fn upgrades(self) -> Self {
        let is = |text: &str| schemars::json_schema!({"type": "string", "const": text});
        let key =
            schemars::json_schema!({"type": "string", "pattern": "^[A-Za-z0-9+/]{21}[AQgw]==$"});
        self.header("Connection", is("Upgrade"), true, "As RFC 6455 says")
            .header("Upgrade", is("websocket"), true, "As RFC 6455 says")
            .header("Sec-WebSocket-Version", is("13"), true, "As RFC 6455 says")
            .header("Sec-WebSocket-Key", key, true, "As RFC 6455 says")
            .header(
                "Sec-WebSocket-Protocol",
                is(SUBPROTOCOL),
                true,
                "The link's version",
            )
            .answers_empty(101, "The link is open")
            .with("Sec-WebSocket-Protocol", "The link's version")
    }

    /// Can refuse with these codes beside those that its kind implies.
    pub(crate) fn refuses(mut self, codes: &[Code]) -> Self {
        self.refuses.extend(codes);
        self
    }

    /// Every code that an answer of this route can carry.
    pub(crate) fn codes(&self) -> BTreeSet<Code> {
        let mut codes = self.refuses.clone();
        codes.extend([Code::Internal]);
        let token = [
            Code::TokenMissing,
            Code::TokenInvalid,
            Code::TokenExpired,
            Code::ClockSkew,
            Code::TokenUsed,
            Code::DeviceRevoked,
            Code::RateLimited,
            Code::StoreUnavailable,
            Code::GoingAway,
        ];
        match self.access {
            Access::Open => {}
            Access::Scope(_) | Access::AnyToken | Access::Device => {
                codes.extend(token);
                codes.extend([Code::TokenRevoked, Code::ScopeMissing]);
            }
        }
        if !self.path_types.is_empty() || self.path.contains('{') {
            codes.insert(Code::InvalidField);
        }
        if self.method != "get" {
            codes.insert(Code::DiskFull);
        }
        codes
    }
}

/// The routes' handlers under their paths.
pub(crate) fn serve(routes: Vec<Route>) -> Router<Arc<Hub>> {
    routes
        .into_iter()
        .fold(Router::new(), |router, r| router.route(r.path, r.handler))
}
