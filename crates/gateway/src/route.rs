//! What one route is: the row from which the router, the rule of who may use it, and its part of the OpenAPI document are
//! made.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::call::Call;
use crate::problem::Problem;

/// What a handler answers.
pub type Answered = Result<Response, Problem>;

/// What answers a route.
pub type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, Answered> + Send + Sync>;

/// What a caller must be to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Anybody.
    Nothing,
    /// `operator.read`.
    Read,
    /// `operator.write`.
    Write,
    /// `operator.admin`.
    Admin,
    /// The user who runs the gateway, by the private socket.
    Owner,
}

/// What a key that is bound to some sessions may do with a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Use it for its sessions: the path names one as `{session}`, and one that is not among them is not there.
    Session,
    /// Use it: it answers with what the key sees, and nothing else.
    Filtered,
    /// Nothing: it is about more than some sessions.
    Never,
}

/// Who may use a route. There is none without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What a caller must be.
    pub need: Need,
    /// What a bound key may do.
    pub bound: Bound,
}

impl Rule {
    /// Anybody may.
    pub const OPEN: Self = Self { need: Need::Nothing, bound: Bound::Filtered };
    /// Who runs the gateway may.
    pub const OWNER: Self = Self { need: Need::Owner, bound: Bound::Never };

    /// Whoever may look.
    pub const fn read(bound: Bound) -> Self {
        Self { need: Need::Read, bound }
    }

    /// Whoever may run commands.
    pub const fn write(bound: Bound) -> Self {
        Self { need: Need::Write, bound }
    }

    /// Whoever may do everything.
    pub const fn admin(bound: Bound) -> Self {
        Self { need: Need::Admin, bound }
    }
}

/// Where a parameter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A part of the path.
    Path,
    /// In the query.
    Query,
    /// A header.
    Header,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// Where it stands.
    pub place: Place,
    /// What it is for.
    pub about: &'static str,
    /// Whether it must be there.
    pub required: bool,
    /// What it may be.
    pub schema: Value,
}

/// A part of the query that need not be there.
pub fn query(name: &'static str, about: &'static str, schema: Value) -> Param {
    Param { name, place: Place::Query, about, required: false, schema }
}

/// A part of the query that must be there.
pub fn needed(name: &'static str, about: &'static str, schema: Value) -> Param {
    Param { required: true, ..query(name, about, schema) }
}

/// A header that need not be there.
pub fn header(name: &'static str, about: &'static str, schema: Value) -> Param {
    Param { place: Place::Header, ..query(name, about, schema) }
}

/// What a request carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Carries {
    /// Nothing.
    Nothing,
    /// JSON of this schema, in at most so many bytes.
    Json(Value, usize),
    /// Bytes of this media type, as they come.
    Bytes(&'static str),
}

/// A form that an answer can have.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// What it means.
    pub about: &'static str,
    /// Media types, each with the schema of what it carries, where that has one.
    pub forms: Vec<(&'static str, Value)>,
    /// Headers that it has, and what they say.
    pub headers: Vec<(&'static str, &'static str)>,
}

/// A route.
#[derive(Clone)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path, with parts in braces.
    pub path: &'static str,
    /// Its name, such as `listSessions`.
    pub id: &'static str,
    /// Who may use it.
    pub rule: Rule,
    /// Under which heading it is listed.
    pub tag: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// What else is to be known.
    pub about: &'static str,
    /// Its parameters, those of the path too.
    pub params: Vec<Param>,
    /// What a request carries.
    pub carries: Carries,
    /// Whether a request may carry nothing.
    pub may_be_empty: bool,
    /// What it answers when all is well.
    pub answers: Vec<Answer>,
    /// Statuses of problems.
    pub fails: Vec<u16>,
    /// Whether the answer goes on for as long as the caller listens: then a cookie alone is not enough.
    pub streams: bool,
    /// What answers it.
    pub handler: Handler,
}

impl Route {
    /// A route, its rule, and what answers it.
    pub fn new<F, Fut>(method: Method, path: &'static str, id: &'static str, rule: Rule, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answered> + Send + 'static,
    {
        let mut route = Self {
            method,
            path,
            id,
            rule,
            tag: "",
            summary: "",
            about: "",
            params: Vec::new(),
            carries: Carries::Nothing,
            may_be_empty: false,
            answers: Vec::new(),
            fails: vec![400, 403, 429, 500, 503],
            streams: false,
            handler: Arc::new(move |call| Box::pin(handler(call))),
        };
        if rule.need != Need::Nothing {
            route.fails.push(401);
        }
        route
    }

    /// Under which heading, and what it does.
    #[must_use]
    pub fn about(mut self, tag: &'static str, summary: &'static str) -> Self {
        (self.tag, self.summary) = (tag, summary);
        self
    }

    /// What else is to be known.
    #[must_use]
    pub fn more(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// With these parameters.
    #[must_use]
    pub fn with(mut self, params: impl IntoIterator<Item = Param>) -> Self {
        self.params.extend(params);
        self
    }

    /// With this part of the path.
    #[must_use]
    pub fn part(mut self, name: &'static str, about: &'static str, schema: Value) -> Self {
        self.params.push(Param { name, place: Place::Path, about, required: true, schema });
        self.fails.push(404);
        self
    }

    /// A request carries JSON of this schema, at most 1 MiB.
    #[must_use]
    pub fn json(mut self, schema: Value) -> Self {
        self.carries = Carries::Json(schema, 1 << 20);
        self.fails.extend([413, 415]);
        self
    }

    /// It may carry as many bytes of JSON.
    #[must_use]
    pub fn at_most(mut self, bytes: usize) -> Self {
        if let Carries::Json(_, most) = &mut self.carries {
            *most = bytes;
        }
        self
    }

    /// A request may carry nothing, which stands for an empty object.
    #[must_use]
    pub fn or_nothing(mut self) -> Self {
        self.may_be_empty = true;
        self
    }

    /// A request carries bytes.
    #[must_use]
    pub fn bytes(mut self, kind: &'static str) -> Self {
        self.carries = Carries::Bytes(kind);
        self.fails.push(413);
        self
    }

    /// It answers with JSON of this schema.
    #[must_use]
    pub fn answers(self, status: u16, about: &'static str, schema: Value) -> Self {
        self.answers_in(status, about, vec![("application/json", schema)])
    }

    /// It answers without a body.
    #[must_use]
    pub fn answers_nothing(self, status: u16, about: &'static str) -> Self {
        self.answers_in(status, about, Vec::new())
    }

    /// It answers in one of these forms.
    #[must_use]
    pub fn answers_in(mut self, status: u16, about: &'static str, forms: Vec<(&'static str, Value)>) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        self.answers.push(Answer { status, about, forms, headers: Vec::new() });
        self
    }

    /// The last of its answers has this header.
    #[must_use]
    pub fn telling(mut self, name: &'static str, about: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push((name, about));
        }
        self
    }

    /// It fails with these statuses too.
    #[must_use]
    pub fn fails(mut self, statuses: &[u16]) -> Self {
        self.fails.extend(statuses);
        self
    }

    /// It fails with whatever sandboxes, their engines and the store fail with.
    #[must_use]
    pub fn runs(self) -> Self {
        self.fails(&[404, 409, 413, 422, 502, 507])
    }

    /// Its answer goes on for as long as the caller listens.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.streams = true;
        self
    }
}
