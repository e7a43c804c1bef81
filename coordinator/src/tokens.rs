//! The tokens of members, and the use of each.
//!
//! | state of the token | a member's request with it | a leave with it | a connection with it |
//! | --- | --- | --- | --- |
//! | it serves a member | is that member's | ends the membership | gets links, if the member's state allows |
//! | its member has left | `token_unknown` | succeeds, and changes nothing | is refused |
//! | its member was lost | `worker_lost`, with the reason | `worker_lost`, with the reason | is refused |
//! | it was withdrawn, or never given | `token_unknown` | `token_unknown` | is refused |
//!
//! After [`KEEP_FAILED`] a sweep forgets the members that have left or were lost, and the tokens of jobs that no longer
//! exist.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use authority::{hex, unhex};
use pbox_core::JobId;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A secret that a member shows with its requests: random bytes. Debug output does not show them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token")
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = unhex(&String::deserialize(deserializer)?);
        digits.map(Token).ok_or_else(|| D::Error::custom("expected a token of 32 hexadecimal digits"))
    }
}

/// The time for which a hub keeps a failed job and the end of each membership. Members that ask within this time get the
/// reason.
pub const KEEP_FAILED: Duration = Duration::from_secs(60);

/// A member: its job, and its rank there.
type Owner = (JobId, u32);

/// The tokens of all members of a hub.
#[derive(Debug, Default)]
pub struct Tokens {
    all: HashMap<Token, State>,
    /// The tokens that serve a member. The key is the name of the token in a hello, the first message of a connection.
    shown: HashMap<[u8; 16], Token>,
}

/// The state of a token.
#[derive(Debug)]
enum State {
    Serves(Owner),
    /// The token is no longer valid. The hub keeps the reason until this time.
    Served(Unserved, Instant),
}

/// The reason why a token serves no member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The member has left.
    Left,
    /// The member was lost, for this reason.
    Lost(String),
    /// The token was withdrawn, or was never given.
    Unknown,
}

impl Tokens {
    /// Gives a new token to a member. The member may have other tokens.
    pub(crate) fn give(&mut self, token: Token, owner: Owner) {
        self.all.insert(token, State::Serves(owner));
        self.shown.insert(fabric::name_of(token.0), token);
    }

    /// Returns the member that a token serves.
    ///
    /// # Errors
    /// Returns an error if the token serves no member.
    pub fn owner(&self, token: Token) -> Result<Owner, Unserved> {
        match self.all.get(&token) {
            Some(&State::Serves(owner)) => Ok(owner),
            Some(State::Served(why, _)) => Err(why.clone()),
            None => Err(Unserved::Unknown),
        }
    }

    /// Returns the member that a token serves. The token is given in digits.
    ///
    /// # Errors
    /// Returns an error if the token serves no member.
    pub fn owner_by_digits(&self, digits: &str) -> Result<Owner, Unserved> {
        unhex(digits).map_or(Err(Unserved::Unknown), |token| self.owner(Token(token)))
    }

    /// Returns the token that has this name in a hello, the first message of a connection.
    pub fn named(&self, name: [u8; 16]) -> Option<Token> {
        self.shown.get(&name).copied()
    }

    /// Withdraws a token from its member. The member may have other tokens.
    pub(crate) fn withdraw(&mut self, token: Token) {
        if self.owner(token).is_ok() {
            self.all.remove(&token);
            self.shown.remove(&fabric::name_of(token.0));
        }
    }

    /// Notes that a member has left by a request with this token. Withdraws the member's other tokens.
    pub(crate) fn note_left(&mut self, owner: Owner, by: Token, now: Instant) {
        self.withdraw_all(owner);
        self.all.insert(by, State::Served(Unserved::Left, now + KEEP_FAILED));
    }

    /// Notes that a member was lost, for this reason.
    pub(crate) fn note_lost(&mut self, owner: Owner, why: &str, now: Instant) {
        for token in self.withdraw_all(owner) {
            self.all.insert(token, State::Served(Unserved::Lost(why.to_owned()), now + KEEP_FAILED));
        }
    }

    fn withdraw_all(&mut self, owner: Owner) -> Vec<Token> {
        let all = self.shown.values().copied();
        let its: Vec<Token> = all.filter(|&token| self.owner(token) == Ok(owner)).collect();
        its.iter().for_each(|&token| self.withdraw(token));
        its
    }

    /// Forgets entries whose time is over, and the tokens of jobs that no longer exist.
    pub(crate) fn sweep(&mut self, has_job: impl Fn(JobId) -> bool, now: Instant) {
        self.all.retain(|_, state| match state {
            State::Serves((job, _)) => has_job(*job),
            State::Served(_, until) => now < *until,
        });
        self.shown.retain(|_, token| self.all.contains_key(token));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEMBER: Owner = (JobId(1), 0);
    const OTHER: Owner = (JobId(1), 1);

    /// Returns tokens of two members: one has tokens 1 and 2, and the other has token 3.
    fn of_two() -> Tokens {
        let mut tokens = Tokens::default();
        for (token, owner) in [(1, MEMBER), (2, MEMBER), (3, OTHER)] {
            tokens.give(Token([token; 16]), owner);
        }
        tokens
    }

    fn owner(tokens: &Tokens, token: u8) -> Result<Owner, Unserved> {
        let owner = tokens.owner(Token([token; 16]));
        let named = tokens.named(fabric::name_of([token; 16]));
        assert_eq!(named, owner.is_ok().then_some(Token([token; 16])), "a hello finds what serves a member");
        assert_eq!(tokens.owner_by_digits(&hex(&[token; 16])), owner);
        owner
    }

    #[test]
    fn a_token_serves_one_member_until_it_is_withdrawn() {
        let mut tokens = of_two();
        assert_eq!([1, 2, 3].map(|token| owner(&tokens, token)), [Ok(MEMBER), Ok(MEMBER), Ok(OTHER)]);
        tokens.withdraw(Token([2; 16]));
        assert_eq!([1, 2].map(|token| owner(&tokens, token)), [Ok(MEMBER), Err(Unserved::Unknown)]);
        assert_eq!(tokens.owner_by_digits("0"), Err(Unserved::Unknown));
    }

    #[test]
    fn a_lost_member_hears_why_with_each_token_until_the_time_is_over() {
        let (mut tokens, now) = (of_two(), Instant::now());
        let why = || Err(Unserved::Lost("it died".into()));
        tokens.note_lost(MEMBER, "it died", now);
        tokens.withdraw(Token([1; 16]));
        tokens.sweep(|_| true, now + KEEP_FAILED / 2);
        assert_eq!([1, 2, 3].map(|token| owner(&tokens, token)), [why(), why(), Ok(OTHER)]);
        tokens.sweep(|_| true, now + KEEP_FAILED);
        assert_eq!(
            [1, 2].map(|token| owner(&tokens, token)),
            [Err(Unserved::Unknown), Err(Unserved::Unknown)]
        );
    }

    #[test]
    fn a_member_leaves_by_one_token() {
        let (mut tokens, now) = (of_two(), Instant::now());
        tokens.note_left(MEMBER, Token([1; 16]), now);
        assert_eq!([1, 2].map(|token| owner(&tokens, token)), [Err(Unserved::Left), Err(Unserved::Unknown)]);
        tokens.sweep(|job| job != JobId(1), now + KEEP_FAILED);
        assert_eq!(
            [1, 3].map(|token| owner(&tokens, token)),
            [Err(Unserved::Unknown), Err(Unserved::Unknown)]
        );
        assert!(tokens.all.is_empty() && tokens.shown.is_empty(), "nothing is kept for ever");
    }

    proptest! {
        /// A member keeps its token, whatever happens to another member and in whatever order. A hello finds exactly the
        /// tokens that serve a member.
        #[test]
        fn members_do_not_lose_each_others_tokens(
            events in proptest::collection::vec((0u8..5, 1u8..8, 0u64..90), 1..60),
        ) {
            let (mut tokens, mut now) = (of_two(), Instant::now());
            for (what, token, seconds) in events {
                match what {
                    // A hub draws no token twice.
                    0 if token != 3 && tokens.owner(Token([token; 16])) == Err(Unserved::Unknown) => {
                        tokens.give(Token([token; 16]), MEMBER);
                    }
                    1 if token != 3 => tokens.withdraw(Token([token; 16])),
                    2 => tokens.note_lost(MEMBER, "it died", now),
                    3 if tokens.owner(Token([token; 16])) == Ok(MEMBER) => tokens.note_left(MEMBER, Token([token; 16]), now),
                    _ => {
                        now += Duration::from_secs(seconds);
                        tokens.sweep(|_| true, now);
                    }
                }
                let known = (1..8).filter(|&token| owner(&tokens, token) != Err(Unserved::Unknown)).count();
                prop_assert_eq!(owner(&tokens, 3), Ok(OTHER));
                prop_assert_eq!(known, tokens.all.len());
            }
            tokens.sweep(|_| false, now + KEEP_FAILED);
            prop_assert!(tokens.all.is_empty() && tokens.shown.is_empty());
        }
    }
}
