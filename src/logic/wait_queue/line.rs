//! The waiting requests of one lane, in the order in which they shall run, with the sums of their work.

use std::collections::BTreeMap;

use crate::ids::RequestId;
use crate::logic::request::RequestSpec;
use crate::logic::time::Timestamp;

/// Position in a line: (goes behind, what its class is ordered by, arrival, id); the id makes it unique.
pub(super) type Key = (bool, u64, Timestamp, RequestId);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Line<P> {
    entries: BTreeMap<Key, (RequestSpec, P)>,
    /// Sum of `max_tokens`.
    pub max_tokens: u64,
    /// Sum of the prompt tokens that they have to compute.
    pub prefill_tokens: u64,
}

impl<P> Default for Line<P> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            max_tokens: 0,
            prefill_tokens: 0,
        }
    }
}

/// Prompt tokens that a request's start has to compute.
pub(super) type Prefill<P> = fn(&RequestSpec, &P) -> u64;

impl<P> Line<P> {
    pub fn insert(&mut self, key: Key, entry: (RequestSpec, P), prefill: Prefill<P>) {
        self.max_tokens += u64::from(entry.0.max_tokens);
        self.prefill_tokens += prefill(&entry.0, &entry.1);
        self.entries.insert(key, entry);
    }

    pub fn pop(&mut self, prefill: Prefill<P>) -> Option<(RequestSpec, P)> {
        let (_, entry) = self.entries.pop_first()?;
        self.forget(&entry, prefill);
        Some(entry)
    }

    pub fn remove(&mut self, key: &Key, prefill: Prefill<P>) -> Option<(RequestSpec, P)> {
        let entry = self.entries.remove(key)?;
        self.forget(&entry, prefill);
        Some(entry)
    }

    fn forget(&mut self, (spec, payload): &(RequestSpec, P), prefill: Prefill<P>) {
        self.max_tokens -= u64::from(spec.max_tokens);
        self.prefill_tokens -= prefill(spec, payload);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many are before `key`.
    pub fn position(&self, key: &Key) -> usize {
        self.entries.range(..key).count()
    }

    pub fn specs(&self) -> impl Iterator<Item = &RequestSpec> {
        self.entries.values().map(|(spec, _)| spec)
    }
}
