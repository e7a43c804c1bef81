//! The header by which a request identifies its sender, and the check whether the sender is a member.

use authority::{Proof, Secrets, Token};
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, Method};
use pbox_core::control::RefusalCode;

use crate::registry::{Because, Refusal, Registry};

/// The header `Authorization` of a request, which identifies the client.
#[derive(Clone, Debug)]
pub(super) enum Shown {
    Token(Token),
    /// The proof, which also covers the request's body. It is checked after the body has arrived.
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

    /// Returns the client's token, if one of the secrets made it.
    pub fn token(&self, secrets: &Secrets, method: &Method, path: &str) -> Option<Token> {
        match self {
            Shown::Token(token) => Some(token.clone()).filter(|token| secrets.made(token)),
            Shown::Proof(proof) => secrets.proved(proof, method.as_str(), path),
            Shown::Member(_) => None,
        }
    }
}

/// Returns the token of a member's request; empty if the request shows no token.
pub(super) fn member_of(request: &Request) -> String {
    match request.extensions().get() {
        Some(Shown::Member(token)) => token.clone(),
        _ => String::new(),
    }
}

/// Checks that a member's request shows a token of its job, before its body is read. A body may have megabytes, and
/// strangers could use up all room for bodies.
pub(super) fn check_member(shown: Option<&Shown>, job: &str, registry: &Registry) -> Result<(), Refusal> {
    match shown {
        Some(Shown::Member(token)) => registry.check_member(job, token),
        _ => {
            let why = "the request needs the token that the worker's join gave, in the header `Authorization: \
                       Phub-Member TOKEN`";
            Err(RefusalCode::TokenMissing.because(why))
        }
    }
}

/// Whether only a member may send the request. The request then needs the token of a join, even if the hub
/// accepts everybody.
pub(super) fn is_of_a_member(method: &Method, page: &str) -> bool {
    let verb = page.strip_prefix("/v1/jobs/{job}/");
    let verbs = [
        "heartbeat",
        "relink",
        "learning-rate",
        "optimizer",
        "priorities",
        "compare",
        "offer",
        "state",
        "ready",
        "leave",
    ];
    method == Method::POST && verb.is_some_and(|verb| verbs.contains(&verb))
}

/// Returns a header as text.
pub(super) fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
