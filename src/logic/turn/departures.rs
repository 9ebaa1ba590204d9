//! What has been computed goes to the prefix cache; who leaves gives the rest back.

use super::{After, Ask, BookEntry, Inserted, Insertion, Payload, Turn, whole_blocks};
use crate::ids::SeqId;
use crate::logic::scheduler::Sequence;
use crate::logic::scheduler::step::MemoryOp;

impl<P: Payload> Turn<P> {
    /// Lets a sequence go: what the cache may keep of it is asked next, the rest is given back.
    pub(super) fn depart(&mut self, s: &Sequence<P>) {
        self.memory_came_back();
        let tokens = s.payload.context();
        // Who was cancelled may have computed a token more than its payload has heard of.
        let known = s.num_computed.min(tokens.len() as u32);
        let departure = Insertion {
            seq: s.lease.seq,
            tokens,
            len: whole_blocks(known),
            computed: s.num_computed,
            lock: s.lock,
            leaves: true,
        };
        if self.caching && departure.len > 0 && s.payload.cacheable() {
            self.departing.push(departure);
        } else {
            self.effects.unlock.extend(s.lock);
            self.give_back(s.lease.seq);
        }
    }

    pub(super) fn give_back(&mut self, seq: SeqId) {
        self.scheduler.push_op(MemoryOp::Remove { seq, from: 0 });
        self.effects.books.push(BookEntry::Retire { seq });
    }

    /// Tells the cache what there is to share: also of prompts that are not complete, so that others can join.
    pub(super) fn insert(&mut self, after: After) -> Ask {
        self.after = after;
        self.progressed.clear();
        let mut insertions = Vec::new();
        if self.caching {
            for s in self.scheduler.running() {
                let len = whole_blocks(s.num_computed.min(s.spec.prompt_tokens));
                if len > s.in_cache && s.payload.cacheable() {
                    self.progressed.push(s.lease.seq);
                    insertions.push(Insertion {
                        seq: s.lease.seq,
                        tokens: s.payload.context(),
                        len,
                        computed: s.num_computed,
                        lock: s.lock,
                        leaves: false,
                    });
                }
            }
            insertions.extend(self.departing.iter().cloned());
        }
        if insertions.is_empty() {
            self.go_on()
        } else {
            Ask::Insert(insertions)
        }
    }

    fn go_on(&mut self) -> Ask {
        match self.after {
            After::Take => self.take(),
            After::Match => self.look_up(),
            After::Reserve => self.reserve(),
        }
    }

    /// The cache's answers, in the order of the insertions.
    pub fn inserted(&mut self, answers: &[Inserted]) -> Ask {
        let (progress, departures) = answers.split_at(self.progressed.len());
        let progressed = std::mem::take(&mut self.progressed);
        let departing = std::mem::take(&mut self.departing);
        for (seq, answer) in progressed.iter().zip(progress) {
            let running = self.scheduler.running_mut();
            if let Some(s) = running.iter_mut().find(|s| s.lease.seq == *seq) {
                s.in_cache = whole_blocks(s.num_computed.min(s.spec.prompt_tokens));
                s.lock = answer.lock.or(s.lock);
            }
            self.retire_redundant(answer.redundant, &departing);
        }
        for (i, (d, answer)) in departing.iter().zip(departures).enumerate() {
            if answer.owner {
                if d.computed > d.len {
                    let (seq, from) = (d.seq, d.len);
                    self.scheduler.push_op(MemoryOp::Remove { seq, from });
                }
                self.effects.books.push(BookEntry::Cache {
                    seq: d.seq,
                    computed: d.computed,
                    tokens: d.len,
                });
            } else {
                self.give_back(d.seq);
            }
            self.retire_redundant(answer.redundant, &departing[i + 1..]);
        }
        self.go_on()
    }

    /// An id whose cells a longer one holds as well. If it runs or is about to be answered for, it is no
    /// business of the cache's.
    fn retire_redundant(&mut self, seq: Option<SeqId>, departing: &[Insertion]) {
        let Some(seq) = seq else { return };
        let running = self.scheduler.running().iter().any(|s| s.lease.seq == seq);
        if !running && departing.iter().all(|d| d.seq != seq) {
            self.give_back(seq);
        }
    }
}
