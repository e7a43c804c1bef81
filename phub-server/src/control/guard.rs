//! The rights of clients. This file has the only table of rights, and checks each request before its body is read.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use authority::{ALL_JOBS, Credential, CredentialError, Right, Secrets, Token};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pbox_core::control::{RefusalCode, check_job_name};

use super::crowd::{ClientAddress, Newcomer};
use super::shown::{Shown, check_member, is_of_a_member, text};
use crate::refusals::Refusals;
use crate::registry::{Because, Refusal, Registry};
use crate::settings::HubSettings;

/// Returns the right that a request needs. Returns `None` for a page without data of jobs, and for the
/// request of a member.
fn needed(method: &Method, page: &str) -> Option<Right> {
    match (method.as_str(), page) {
        (_, "/" | "/v1/health") => None,
        _ if is_of_a_member(method, page) => None,
        ("POST", "/v1/jobs/{job}/peers/{verb}") => Some(Right::Peer),
        ("POST", "/v1/drain" | "/v1/jobs/{job}/stop") => Some(Right::Operate),
        ("GET" | "HEAD", _) => Some(Right::Read),
        _ => Some(Right::Join),
    }
}

/// Content types that a form of any web page can make a browser send, without a preflight request.
const FORMS: [&str; 3] = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];

/// The guard that admits requests or refuses them.
#[derive(Debug)]
pub(crate) struct Guard {
    /// The settings, to read the secret again.
    settings: HubSettings,
    /// The secrets of the tokens that the hub accepts; `None` if it accepts everybody.
    accepted: RwLock<Option<Secrets>>,
    credential: Option<Credential>,
    /// Whether only this machine can reach the hub. An attacker on another machine then needs a web page in this
    /// machine's browser.
    local: bool,
    /// The requests that the guard refused.
    pub refusals: Arc<Refusals>,
}

/// The jobs that a request may see.
#[derive(Clone, Debug)]
pub(super) struct Sees(Option<Token>);

impl Sees {
    /// Whether the client may see this job.
    pub fn job(&self, job: &str) -> bool {
        self.0.as_ref().is_none_or(|token| token.covers(job))
    }

    /// Whether the client may see this job, or a page that is not about a job.
    pub fn job_or_all(&self, job: Option<&str>) -> bool {
        self.job(job.unwrap_or(ALL_JOBS))
    }
}

impl Guard {
    /// Creates the guard of a hub with these settings.
    ///
    /// # Errors
    /// Returns an error if there is no secret, and the settings do not say that the hub serves everybody.
    pub fn new(settings: &HubSettings) -> Result<Self, CredentialError> {
        let credential = settings.credential();
        let (accepted, credential) = if settings.insecure {
            tracing::warn!(
                "--insecure: everybody who reaches {} may read all weights, take part in all jobs and end them",
                settings.listen
            );
            (None, credential.ok())
        } else {
            let credential = credential?;
            tracing::info!(secret = credential.source(), "requests need a token");
            warn_of_readers(settings.token_file.as_deref());
            (Some(credential.secrets()?.clone()), Some(credential))
        };
        let (accepted, local) = (RwLock::new(accepted), settings.listen.ip().is_loopback());
        Ok(Guard { settings: settings.clone(), accepted, credential, local, refusals: Arc::default() })
    }

    /// Returns the credential that this hub shows to other hubs.
    pub fn credential(&self) -> Option<Credential> {
        self.credential.clone()
    }

    /// Reads the secrets again.
    ///
    /// # Errors
    /// Returns an error if there is no valid secret; the old secrets remain in use.
    pub fn reload(&self) -> Result<(), CredentialError> {
        let read = self.settings.credential()?.secrets()?.clone();
        let mut accepted = self.accepted.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *accepted = accepted.take().map(|_| read);
        Ok(())
    }

    fn check(
        &self,
        (page, job): (&str, Option<&str>),
        (method, path): (&Method, &str),
        headers: &HeaderMap,
    ) -> Result<Sees, Refusal> {
        self.check_browser(headers)?;
        let Some(right) = needed(method, page) else { return Ok(Sees(None)) };
        let accepted = self.accepted.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(secrets) = accepted.as_ref() else { return Ok(Sees(None)) };
        if !headers.contains_key(AUTHORIZATION) {
            return Err(RefusalCode::TokenMissing.because(
                "the hub wants a token: set PHUB_TOKEN or PHUB_TOKEN_FILE to the hub's secret, \
                 or send the header `Authorization: Bearer TOKEN` with what `phub-server token` prints",
            ));
        }
        let shown = Shown::of(headers).and_then(|shown| shown.token(secrets, method, path));
        let token = shown.ok_or_else(|| {
            RefusalCode::TokenForeign.because(
                "the token was not made with the hub's secret; set PHUB_TOKEN or PHUB_TOKEN_FILE to the same secret \
                 for hubs and workers (without them each user of each machine has a secret of its own)",
            )
        })?;
        if token.has_expired(SystemTime::now()) {
            let why = "the token has expired; make another one with `phub-server token`";
            return Err(RefusalCode::TokenExpired.because(why));
        }
        // A page that is not about one job shows each client the jobs that its token covers.
        let allows = match (job, right) {
            (Some(job), _) => token.allows(right, job),
            (None, Right::Operate) => token.allows(right, ALL_JOBS),
            (None, _) => token.right.contains(right),
        };
        if !allows {
            let (of, job) = (&token.job, job.unwrap_or(ALL_JOBS));
            let why = format!(
                "the token allows to {} job {of:?}, and this request needs a token that allows to {right} job {job:?}",
                token.right
            );
            return Err(RefusalCode::NotAllowed.because(why));
        }
        Ok(Sees(Some(token)))
    }

    /// Whether a request shows a token or a proof made by this hub's secret, or the token of a member. The
    /// right that its page needs does not matter.
    fn knows(&self, shown: Option<&Shown>, method: &Method, path: &str, registry: &Registry) -> bool {
        let accepted = self.accepted.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(secrets) = accepted.as_ref() else { return true };
        match shown {
            None => false,
            Some(Shown::Member(token)) => registry.has_member(token),
            Some(shown) => shown.token(secrets, method, path).is_some(),
        }
    }

    /// Refuses requests that a browser sends for a web page of another site.
    fn check_browser(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = text(headers, HOST).unwrap_or_default();
        if let Some(origin) = text(headers, ORIGIN)
            && origin.split_once("://").is_none_or(|(_, from)| from != host)
        {
            let why = format!(
                "a web page of {origin:?} may not ask this hub, whose name in the request is {host:?}"
            );
            return Err(RefusalCode::WebPage.because(why));
        }
        // The owner of a web page may let the page's host name resolve to this machine's address.
        if self.local && self.settings.insecure && !names_this_machine(host) {
            let why = format!(
                "this hub listens only on this machine, and {host:?} is no name of this machine; ask 127.0.0.1 or localhost"
            );
            return Err(RefusalCode::WebPage.because(why));
        }
        let kind = text(headers, CONTENT_TYPE).map(|kind| kind.split(';').next().unwrap_or_default().trim());
        if let Some(form) = kind.filter(|kind| FORMS.iter().any(|form| kind.eq_ignore_ascii_case(form))) {
            let why = format!("the request's content is {form:?}; send `Content-Type: application/json`");
            return Err(RefusalCode::WebForm.because(why));
        }
        Ok(())
    }
}

/// Logs a warning if other users can read the secret's file. The hub still starts: Kubernetes mounts secrets
/// with mode 644 in containers without other users.
fn warn_of_readers(file: Option<&Path>) {
    let Some((file, about)) = file.and_then(|file| Some((file, file.metadata().ok()?))) else { return };
    let mode = about.mode() & 0o777;
    if mode & 0o044 != 0 {
        let file = file.display();
        tracing::warn!(
            "other users can read the secret in {file}, which has mode {mode:03o}: chmod 600 {file}"
        );
    }
}

/// Whether a `Host` names this machine, by an address or by `localhost`.
fn names_this_machine(host: &str) -> bool {
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || bare.parse::<IpAddr>().is_ok()
}

/// Asks the guard before each request.
pub(super) async fn admit(
    State((guard, registry)): State<(Arc<Guard>, Arc<Registry>)>,
    page: MatchedPath,
    parts: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let bad = |why: String| Refusal::bad(why).into_response();
    let parts = match parts {
        Ok(parts) => parts,
        Err(rejection) => {
            return bad(format!("the path: {}; see docs/protocol/control-port.md", rejection.body_text()));
        }
    };
    let job = parts.iter().find(|(name, _)| *name == "job").map(|(_, job)| job);
    if let Some(Err(error)) = job.map(check_job_name) {
        return bad(error.to_string());
    }
    let (method, headers) = (request.method(), request.headers());
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    match guard.check((page.as_str(), job), (method, path), headers) {
        Ok(sees) => {
            let shown = Shown::of(headers);
            if let Some(newcomer) = request.extensions().get::<Newcomer>()
                && guard.knows(shown.as_ref(), method, path, &registry)
            {
                newcomer.mark_known();
            }
            if is_of_a_member(method, page.as_str())
                && let Err(refusal) = check_member(shown.as_ref(), job.unwrap_or_default(), &registry)
            {
                return refusal.into_response();
            }
            request.extensions_mut().insert(sees);
            shown.into_iter().for_each(|shown| drop(request.extensions_mut().insert(shown)));
            next.run(request).await
        }
        Err(denied) => {
            let from = request.extensions().get::<ClientAddress>().map(|from| from.asker(request.headers()));
            let what = format!("{} {}: {}", request.method(), page.as_str(), denied.why);
            guard.refusals.add(from.as_ref(), job, &what);
            denied.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use authority::Secret;
    use axum::http::HeaderName;

    use super::*;

    const JOIN: &str = "/v1/jobs/{job}/join";

    fn headers(each: &[(HeaderName, &str)]) -> HeaderMap {
        each.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    fn guard(change: impl FnOnce(&mut HubSettings)) -> (Secret, Guard) {
        let secret = Secret::random().unwrap();
        let mut settings = HubSettings { token: Some(secret.clone().into()), ..HubSettings::default() };
        change(&mut settings);
        (secret, Guard::new(&settings).unwrap())
    }

    fn status(guard: &Guard, page: &str, method: Method, headers: &HeaderMap) -> u16 {
        guard
            .check((page, page.contains("{job}").then_some("job")), (&method, page), headers)
            .map_or_else(|no| no.code.status(), |_| 200)
    }

    #[test]
    fn a_request_needs_a_token_of_its_right_and_its_job() {
        let (secret, guard) = guard(|_| {});
        let bearer = |token: Token| headers(&[(AUTHORIZATION, &format!("Bearer {token}"))]);
        let (read, join) =
            (bearer(secret.token(Right::Read, "job")), bearer(secret.token(Right::Join, "job")));
        let operate = bearer(secret.token(Right::Operate, "job"));
        let foreign = bearer(Secret::random().unwrap().token(Right::Operate, ALL_JOBS));
        let other = bearer(secret.token(Right::Join, "other"));
        let state = "/v1/jobs/{job}/state";
        for (page, method, shown, expected) in [
            (JOIN, Method::POST, &HeaderMap::new(), 401),
            (JOIN, Method::POST, &foreign, 401),
            (JOIN, Method::POST, &read, 403),
            (JOIN, Method::POST, &other, 403),
            (JOIN, Method::POST, &join, 200),
            (state, Method::GET, &HeaderMap::new(), 401),
            (state, Method::GET, &read, 200),
            (state, Method::GET, &join, 200),
            (state, Method::POST, &HeaderMap::new(), 200),
            ("/v1/hub", Method::GET, &HeaderMap::new(), 401),
            ("/v1/hub", Method::HEAD, &HeaderMap::new(), 401),
            ("/v1/hub", Method::GET, &read, 200),
            ("/v1/health", Method::GET, &HeaderMap::new(), 200),
            ("/v1/jobs/{job}/checkpoint", Method::POST, &read, 403),
            ("/v1/jobs/{job}/stop", Method::POST, &join, 403),
            ("/v1/jobs/{job}/stop", Method::POST, &operate, 200),
            ("/v1/drain", Method::POST, &operate, 403),
            ("/v1/drain", Method::POST, &bearer(secret.token(Right::Operate, ALL_JOBS)), 200),
            ("/v1/jobs/{job}/meet", Method::POST, &HeaderMap::new(), 401),
            ("/v1/jobs/{job}/parts/{hub}/{hubs}", Method::GET, &HeaderMap::new(), 401),
        ] {
            assert_eq!(status(&guard, page, method.clone(), shown), expected, "{method} {page} {shown:?}");
        }
    }

    #[test]
    fn a_proof_is_of_its_request_alone() {
        let (secret, guard) = guard(|_| {});
        let shown = |token: Token, method: &str, path: &str| {
            let proof = token.prove(method, path, b"{}").unwrap();
            headers(&[(AUTHORIZATION, &format!("Phub-Proof {proof}"))])
        };
        let join = || secret.token(Right::Join, "job");
        let good = shown(join(), "POST", JOIN);
        assert_eq!(status(&guard, JOIN, Method::POST, &good), 200);
        let peers = "/v1/jobs/{job}/peers/{verb}";
        for (page, method, shown, expected) in [
            ("/v1/jobs/{job}/meet", Method::POST, good.clone(), 401),
            ("/v1/hub", Method::GET, good, 401),
            (JOIN, Method::POST, shown(secret.token(Right::Join, "other"), "POST", JOIN), 403),
            (
                JOIN,
                Method::POST,
                shown(Secret::random().unwrap().token(Right::Join, "job"), "POST", JOIN),
                401,
            ),
            (peers, Method::POST, shown(join(), "POST", peers), 403),
            (peers, Method::POST, shown(secret.token(Right::Operate, ALL_JOBS), "POST", peers), 403),
            (peers, Method::POST, shown(secret.token(Right::Peer, "job"), "POST", peers), 200),
            ("/v1/hub", Method::GET, shown(secret.token(Right::Peer, "job"), "GET", "/v1/hub"), 403),
        ] {
            assert_eq!(status(&guard, page, method.clone(), &shown), expected, "{method} {page}");
        }
    }

    #[test]
    fn a_token_that_has_expired_opens_nothing() {
        let (secret, guard) = guard(|_| {});
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        for (expires, expected) in [(now + 3600, 200), (now - 1, 401)] {
            let token = secret.token_until(Right::Join, "job", Some(expires));
            let proof = token.prove("POST", JOIN, b"").unwrap();
            for shown in [format!("Bearer {token}"), format!("Phub-Proof {proof}")] {
                assert_eq!(
                    status(&guard, JOIN, Method::POST, &headers(&[(AUTHORIZATION, &shown)])),
                    expected
                );
            }
        }
    }

    #[test]
    fn a_token_of_a_job_sees_that_job_alone() {
        let (secret, guard) = guard(|_| {});
        let shown = headers(&[(AUTHORIZATION, &format!("Bearer {}", secret.token(Right::Read, "job")))]);
        let sees = guard.check(("/v1/hub", None), (&Method::GET, "/v1/hub"), &shown).unwrap();
        assert!(sees.job("job") && !sees.job("other"));
    }

    #[test]
    fn no_web_page_drives_a_hub() {
        for insecure in [false, true] {
            let (secret, guard) = guard(|settings| settings.insecure = insecure);
            let bearer = format!("Bearer {}", secret.token(Right::Join, "job"));
            let with = |more: &[(HeaderName, &str)]| {
                let mut all = headers(&[(AUTHORIZATION, &bearer), (HOST, "127.0.0.1:7077")]);
                all.extend(headers(more));
                status(&guard, JOIN, Method::POST, &all)
            };
            assert_eq!(with(&[]), 200);
            assert_eq!(with(&[(ORIGIN, "http://127.0.0.1:7077")]), 200);
            assert_eq!(with(&[(ORIGIN, "http://elsewhere.example")]), 403);
            assert_eq!(with(&[(ORIGIN, "null")]), 403);
            assert_eq!(with(&[(CONTENT_TYPE, "text/plain; charset=utf-8")]), 415);
            assert_eq!(with(&[(CONTENT_TYPE, "application/json")]), 200);
            // With a token, any host name is accepted, because no web page of another site has a token.
            assert_eq!(with(&[(HOST, "elsewhere.example")]), if insecure { 403 } else { 200 });
            assert_eq!(with(&[(HOST, "localhost:7077")]), 200);
            assert_eq!(with(&[(HOST, "[::1]:7077")]), 200);
        }
    }

    #[test]
    fn a_secret_changes_without_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("secret");
        let (old, new) = (Secret::random().unwrap(), Secret::random().unwrap());
        let allows = |guard: &Guard, secret: &Secret| {
            let shown = headers(&[(AUTHORIZATION, &format!("Bearer {}", secret.token(Right::Join, "job")))]);
            status(guard, JOIN, Method::POST, &shown) == 200
        };
        std::fs::write(&file, old.reveal()).unwrap();
        let guard =
            Guard::new(&HubSettings { token_file: Some(file.clone()), ..HubSettings::default() }).unwrap();
        assert!(allows(&guard, &old) && !allows(&guard, &new));
        std::fs::write(&file, format!("{}\n{}\n", new.reveal(), old.reveal())).unwrap();
        guard.reload().unwrap();
        assert!(allows(&guard, &old) && allows(&guard, &new));
        std::fs::write(&file, "").unwrap();
        assert!(guard.reload().unwrap_err().to_string().contains("secret"));
        assert!(allows(&guard, &old) && allows(&guard, &new), "the hub keeps what it has");
        std::fs::write(&file, new.reveal()).unwrap();
        guard.reload().unwrap();
        assert!(!allows(&guard, &old) && allows(&guard, &new));
    }
}
