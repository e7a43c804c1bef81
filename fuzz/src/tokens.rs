//! The credentials of a process: secrets, and tokens of a right to a job.
//!
//! No text may open a hub unless it contains the hub's secret. A token parses to what was written, and no
//! error repeats a secret.

use std::sync::LazyLock;

use authority::{ALL_JOBS, Credential, Proof, Right, Secret, Secrets, Token};

/// The secret of the hub.
static OURS: LazyLock<Secrets> =
    LazyLock::new(|| Secret::random().expect("the kernel has random bits").into());
const RIGHTS: [Right; 3] = [Right::Read, Right::Join, Right::Operate];

const PATH: &str = "/v1/jobs/job/join";

/// Parses the bytes as a token, a proof, a file of secrets, and the parts of a token.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string(), text, "no other spelling");
        assert!(!OURS.made(&token), "somebody guessed 256 bits: {text}");
        check_rights(&token);
    }
    if let Ok(proof) = text.parse::<Proof>() {
        assert_eq!(proof.to_string(), text, "no other spelling");
        assert_eq!(OURS.proved(&proof, "POST", PATH), None, "somebody guessed 256 bits: {text}");
    }
    match Credential::parse(&text, "the fuzzer") {
        Ok(credential) => {
            let token = credential.token(Right::Join, "job");
            assert!(!OURS.made(&token));
            if let Ok(secrets) = credential.secrets() {
                assert!(secrets.made(&token));
                // The first secret is also in the text of the file.
                assert!(text.contains(secrets.first().reveal()));
                assert!(!format!("{credential:?} {secrets:?}").contains(secrets.first().reveal()));
            }
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("the fuzzer") && error.len() < 300, "{error}");
        }
    }
    altered(bytes);
}

/// Checks that a right includes the rights before it, and that a token is valid only for its own job.
fn check_rights(token: &Token) {
    for (at, right) in RIGHTS.into_iter().enumerate() {
        assert_eq!(right.to_string().parse(), Ok(right));
        assert_eq!(token.allows(right, &token.job), RIGHTS[at..].contains(&token.right));
        assert_eq!(
            token.allows(right, "another job"),
            token.job == ALL_JOBS && RIGHTS[at..].contains(&token.right)
        );
    }
}

/// Checks that one of the hub's own tokens is refused after a change of one byte.
fn altered(bytes: &[u8]) {
    let [right, at, to, job @ ..] = bytes else { return };
    let job: String = job.iter().take(64).map(|byte| char::from(b'a' + byte % 26)).collect();
    let token = OURS.first().token(RIGHTS[usize::from(*right) % 3], &job);
    assert!(OURS.made(&token));
    altered_proof(&token, *at, *to);
    let mut text = token.to_string().into_bytes();
    let place = usize::from(*at) % text.len();
    // The same letter in another case does not count as a change.
    if text[place].eq_ignore_ascii_case(to) {
        return;
    }
    text[place] = *to;
    if let Ok(token) = String::from_utf8_lossy(&text).parse::<Token>() {
        assert!(!OURS.made(&token), "{token}");
    }
}

/// Checks that a proof by one of the hub's own tokens is refused after a change of one byte.
fn altered_proof(token: &Token, at: u8, to: u8) {
    let proof = token.prove("POST", PATH, b"{}").expect("the kernel has random bits");
    assert!(OURS.proved(&proof, "POST", PATH).as_ref() == Some(token));
    let mut text = proof.to_string().into_bytes();
    let place = usize::from(at) % text.len();
    if text[place].eq_ignore_ascii_case(&to) {
        return;
    }
    text[place] = to;
    if let Ok(proof) = String::from_utf8_lossy(&text).parse::<Proof>() {
        assert_eq!(OURS.proved(&proof, "POST", PATH), None, "{proof}");
    }
}
