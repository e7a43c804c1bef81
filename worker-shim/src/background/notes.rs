//! The callers' actions in order: which keys callers have pushed, sent ahead, asked for, and received.
//!
//! The callers' lock protects the notes until the session's thread takes them. Must not depend on sessions.
//!
//! Without pulls in batches, only pushes are noted. Between two pushes of a key there is at most one note of
//! each kind. So callers that poll cannot fill the memory.

use std::collections::HashSet;
use std::time::Instant;

use pbox_core::KeyId;

use crate::session::Pushed;

/// An action of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Pushed(KeyId, Pushed),
    /// The caller has written the gradient of a key, and will push it later.
    Ahead(KeyId),
    /// The caller asks for the weights of a key that it has pushed.
    Asked(KeyId, Instant),
    /// The caller has received the weights of a key.
    Used(KeyId, Instant),
}

/// The notes that the session's thread has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: Vec<Note>,
    /// The keys whose gradients the thread must send ahead.
    ahead: HashSet<KeyId>,
    /// The actions since the last push of each key, by key. Empty if only pushes are noted.
    since_push: Vec<SincePush>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SincePush {
    /// Whether a caller has asked for the key since the key's last push. Also true before the first push, because such
    /// a request is not noted.
    is_asked: bool,
    is_used: bool,
}

impl Notes {
    /// Creates notes of pushes only.
    pub fn of_pushes() -> Self {
        Notes::default()
    }

    /// Creates notes of pushes, and of the times at which callers ask for keys and receive them. The job has `keys`
    /// keys.
    pub fn of_times(keys: usize) -> Self {
        let done = SincePush { is_asked: true, is_used: true };
        Notes { since_push: vec![done; keys], ..Notes::default() }
    }

    /// Notes that a key's gradient must be sent ahead. The thread sends the values that the gradient has at the time
    /// when the thread takes the note.
    pub fn ahead(&mut self, key: KeyId) {
        if self.ahead.insert(key) {
            self.notes.push(Note::Ahead(key));
        }
    }

    pub fn pushed(&mut self, key: KeyId, what: Pushed) {
        self.notes.push(Note::Pushed(key, what));
        if let Some(since_push) = self.since_push.get_mut(key.index()) {
            *since_push = SincePush::default();
        }
    }

    pub fn asked(&mut self, key: KeyId) {
        let noted = self.since_push.get_mut(key.index()).map(|since_push| &mut since_push.is_asked);
        if noted.is_some_and(|is_asked| !std::mem::replace(is_asked, true)) {
            self.notes.push(Note::Asked(key, Instant::now()));
        }
    }

    pub fn used(&mut self, key: KeyId) {
        let noted = self.since_push.get_mut(key.index()).map(|since_push| &mut since_push.is_used);
        if noted.is_some_and(|is_used| !std::mem::replace(is_used, true)) {
            self.notes.push(Note::Used(key, Instant::now()));
        }
    }

    /// Returns the keys with pushes that the thread has not taken yet.
    pub fn pushes(&self) -> impl Iterator<Item = KeyId> {
        self.notes.iter().filter_map(|note| match note {
            Note::Pushed(key, _) => Some(*key),
            _ => None,
        })
    }

    pub fn take(&mut self) -> Vec<Note> {
        self.ahead.clear();
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [KeyId; 2] = [KeyId(0), KeyId(1)];

    /// Returns the kind and the key of each note, without the time.
    fn taken(notes: &mut Notes) -> Vec<(&'static str, u32)> {
        let words = |note| match note {
            Note::Pushed(key, _) => ("pushed", key.0),
            Note::Ahead(key) => ("ahead", key.0),
            Note::Asked(key, _) => ("asked", key.0),
            Note::Used(key, _) => ("used", key.0),
        };
        notes.take().into_iter().map(words).collect()
    }

    #[test]
    fn each_is_noted_once_between_two_pushes_and_in_order() {
        let mut notes = Notes::of_times(2);
        for key in KEYS {
            notes.asked(key); // the key was not pushed
            notes.used(key);
        }
        assert_eq!(taken(&mut notes), []);
        for _round in 0..2 {
            for key in KEYS {
                notes.pushed(key, Pushed::Gradient);
            }
            for _look in 0..3 {
                notes.asked(KEYS[1]);
            }
            for _look in 0..3 {
                notes.used(KEYS[1]);
            }
            notes.asked(KEYS[0]);
            assert_eq!(notes.pushes().collect::<Vec<_>>(), KEYS);
            let expected = [("pushed", 0), ("pushed", 1), ("asked", 1), ("used", 1), ("asked", 0)];
            assert_eq!(taken(&mut notes), expected);
            assert_eq!(notes.pushes().next(), None);
            notes.used(KEYS[0]);
            notes.asked(KEYS[0]);
            assert_eq!(taken(&mut notes), [("used", 0)]);
        }
    }

    #[test]
    fn a_key_is_noted_once_to_be_sent_ahead_until_the_note_is_taken() {
        let mut notes = Notes::of_pushes();
        for _ in 0..2 {
            (0..3).for_each(|_| notes.ahead(KEYS[1]));
            notes.pushed(KEYS[1], Pushed::Rewritten);
            assert_eq!(taken(&mut notes), [("ahead", 1), ("pushed", 1)]);
        }
    }

    #[test]
    fn times_are_not_noted_where_nobody_plans() {
        let mut notes = Notes::of_pushes();
        notes.pushed(KEYS[0], Pushed::Gradient);
        notes.asked(KEYS[0]);
        notes.used(KEYS[0]);
        assert_eq!(taken(&mut notes), [("pushed", 0)]);
    }
}
