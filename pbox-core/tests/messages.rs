//! Messages of the control port, as programs of earlier versions send them. They must always be readable.
//!
//! `data/protocol-11.json` has the messages by type, and the files of later versions have the new messages. A message is never
//! changed or removed. A version that adds a field adds a message. The file of a version may be removed only when the
//! version is no longer spoken (`PROTOCOL_LOWEST`).

use std::collections::BTreeMap;

use pbox_core::control::*;
use pbox_core::{KeyId, Round};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn reads<T: DeserializeOwned + Serialize>(message: &Value) -> T {
    let read = |message: &Value| -> T {
        serde_json::from_value(message.clone()).unwrap_or_else(|error| panic!("{error}: {message}"))
    };
    // This version must also read what it writes itself for the message, with the same result. The written message has no
    // token: the token is in the header.
    let said = serde_json::to_value(read(message)).unwrap();
    assert_eq!(serde_json::to_value(read(&said)).unwrap(), said);
    read(message)
}

/// `all!(messages; Type, ...)`: reads all messages of these types. Each type must have messages, and there must be no
/// messages of other types.
macro_rules! all {
    ($messages:expr; $($Type:ident),* $(,)?) => {
        $(
            let of_type = $messages.remove(stringify!($Type)).expect(stringify!($Type));
            assert!(!of_type.is_empty(), stringify!($Type));
            for message in &of_type {
                reads::<$Type>(message);
            }
        )*
        assert!($messages.is_empty(), "of no known type: {:?}", $messages.keys());
    };
}

#[test]
fn messages_of_protocol_11_are_read() {
    let mut messages: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(include_str!("data/protocol-11.json")).unwrap();
    all!(
        messages; JoinRequest, JoinReply, HeartbeatRequest, HeartbeatReply, RelinkRequest, ReadyRequest, LeaveRequest, LeaveReply,
        LearningRateRequest, OfferRequest, OfferReply, StateReply, MeetRequest, MeetReply, ErrorReply, CheckpointReply,
        StopReply, DrainReply, HubReply, PartsReply, HoldRequest, HoldReply, ReleaseRequest, WrittenRequest,
        WrittenReply, ArrivedRequest, LostRequest, CheckpointRequest, FailedRequest, FailedReply, LastRequest, LastReply, ClockReply,
    );
}

/// Only the messages that version 12 changed.
#[test]
fn messages_of_protocol_12_are_read() {
    let mut messages: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(include_str!("data/protocol-12.json")).unwrap();
    let leave: LeaveRequest = reads(&messages["LeaveRequest"][0]);
    assert_eq!(leave.behind[1], Behind { first: KeyId(7), keys: 1, round: Round(0) });
    let news: HeartbeatReply = reads(&messages["HeartbeatReply"][0]);
    assert_eq!([1, 2, 3].map(|key| news.left[0].at.round_of(KeyId(key)).0), [17, 16, 16]);
    all!(messages; LeaveRequest, HeartbeatReply);
}

/// Only the messages that version 13 added or changed.
#[test]
fn messages_of_protocol_13_are_read() {
    let mut messages: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(include_str!("data/protocol-13.json")).unwrap();
    all!(messages; HubReply, PrioritiesRequest);
}

/// Only the messages that version 14 changed.
#[test]
fn messages_of_protocol_14_are_read() {
    let mut messages: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(include_str!("data/protocol-14.json")).unwrap();
    let reply: JoinReply = reads(&messages["JoinReply"][0]);
    assert_eq!(reply.nodes.unwrap().speeds().collect::<Vec<_>>(), [8, 3]);
    all!(messages; JoinReply);
}

/// If a message leaves out a field, the field has its old meaning.
#[test]
fn what_a_message_leaves_out_has_its_old_meaning() {
    let messages: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(include_str!("data/protocol-11.json")).unwrap();
    let join: JoinRequest = reads(&messages["JoinRequest"][0]);
    assert_eq!(join.versions(), Versions { lowest: 11, highest: 11 });
    assert_eq!((join.terms.chunk_bytes, join.terms.hubs, join.terms.cores), (32768, 1, None));
    assert_eq!(join.terms.level, pbox_core::LevelTerms::default());
    let reply: JoinReply = reads(&messages["JoinReply"][0]);
    assert_eq!((reply.protocol, reply.pass, reply.above), (11, None, None));
    let news: HeartbeatReply = reads(&messages["HeartbeatReply"][2]);
    assert_eq!((news.left[0].at.round.0, news.held_up_by[0].seconds), (17, 30));
}
