//! The header by which a request says who asks, and the look whether a member asks.

use authority::{Proof, Secrets, Token};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use pbox_core::control::ErrorReply;

use super::json;
use crate::registry::{Refusal, Registry};

/// The header `Authorization` of a request, which says who asks.
#[derive(Clone, Debug)]
pub(super) enum Shown {
    Token(Token),
    /// It is about the request's body, too, which is compared when it has come.
    Proof(Proof),
    /// The token of a member.
    Member(String),
}

impl Shown {
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let (scheme, shown) = text(headers, AUTHORIZATION)?.split_once(' ')?;
        match scheme {
            "Bearer" => shown.parse().ok().map(Shown::Token),
            "Phub-Proof" => shown.parse().ok().map(Shown::Proof),
            "Phub-Member" => Some(Shown::Member(shown.to_owned())),
            _ => None,
        }
    }

    /// The token that whoever asks has, if one of the secrets made it.
    pub fn token(&self, secrets: &Secrets, method: &Method, path: &str) -> Option<Token> {
        match self {
            Shown::Token(token) => Some(token.clone()).filter(|token| secrets.made(token)),
            Shown::Proof(proof) => secrets.proved(proof, method.as_str(), path),
            Shown::Member(_) => None,
        }
    }
}

/// Returns the token by which a member asks; empty where the request shows none.
pub(super) fn member_of(request: &Request) -> String {
    match request.extensions().get() {
        Some(Shown::Member(token)) => token.clone(),
        _ => String::new(),
    }
}

/// Why a member's request is not let in.
pub(super) enum NoMember {
    /// It shows no token of a join.
    Shows(Denied),
    /// Its token is of no member of the job.
    Is(Refusal),
}

/// Looks whether a member's request shows a token of its job, before anything of its body is read: a body may have megabytes, and
/// strangers could fill with theirs all room that there is for bodies.
pub(super) fn check_member(shown: Option<&Shown>, job: &str, registry: &Registry) -> Result<(), NoMember> {
    match shown {
        Some(Shown::Member(token)) => registry.check_member(job, token).map_err(NoMember::Is),
        _ => {
            let why = "it wants the token that the worker's join gave, in the header `Authorization: Phub-Member TOKEN`";
            Err(NoMember::Shows(Denied(StatusCode::UNAUTHORIZED, why.to_owned())))
        }
    }
}

/// Whether a request is a member's: it needs the token of a join, whatever tokens and secrets the hub accepts.
pub(super) fn is_of_a_member(method: &Method, page: &str) -> bool {
    let verb = page.strip_prefix("/v1/jobs/{job}/");
    let verbs =
        ["heartbeat", "relink", "learning-rate", "optimizer", "compare", "offer", "state", "ready", "leave"];
    method == Method::POST && verb.is_some_and(|verb| verbs.contains(&verb))
}

/// Why a request is not let in.
#[derive(Debug)]
pub(super) struct Denied(pub StatusCode, pub String);

impl IntoResponse for NoMember {
    fn into_response(self) -> Response {
        match self {
            NoMember::Shows(denied) => denied.into_response(),
            NoMember::Is(refusal) => refusal.into_response(),
        }
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let Denied(status, error) = self;
        let mut response = json(status, &ErrorReply { error });
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, "Bearer".parse().expect("a header"));
        }
        response
    }
}

/// Returns a header as text.
pub(super) fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
