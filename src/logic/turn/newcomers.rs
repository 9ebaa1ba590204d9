//! Who may join: taken from the wait queue, matched with what is cached, or deferred.

use super::{After, Ask, Candidate, Payload, Query, Turn};
use crate::ids::TokenId;
use crate::logic::kv::BLOCK_TOKENS;
use crate::logic::prefix::Match;
use crate::logic::request::RequestSpec;
use crate::logic::wait_queue::TakeRule;

impl<P: Payload> Turn<P> {
    pub(super) fn take(&mut self) -> Ask {
        if self.starved {
            return self.reserve();
        }
        match self.scheduler.take_rule(self.deferred.len()) {
            Some(rule) if self.lane_starved => Ask::Take(TakeRule { free: 0, ..rule }),
            Some(rule) => Ask::Take(rule),
            None => self.taken(Vec::new()),
        }
    }

    /// The wait queue's answer.
    pub fn taken(&mut self, requests: Vec<(RequestSpec, P)>) -> Ask {
        assert!(
            self.candidates.is_empty(),
            "those of the last turn are still here"
        );
        for (spec, payload) in self.deferred.drain(..).chain(requests) {
            if payload.is_abandoned() {
                self.effects.abandoned.push((spec, payload));
            } else {
                let hit = None;
                self.candidates.push(Candidate { spec, payload, hit });
            }
        }
        // Who was moved to the other lane while it was deferred goes behind.
        self.candidates.sort_by_key(|c| c.spec.terms.lane);
        if self.make_seats() {
            self.insert(After::Match)
        } else {
            self.look_up()
        }
    }

    /// The best-effort lane yields the seats that newcomers take. Whether anybody has left.
    fn make_seats(&mut self) -> bool {
        let mut any = false;
        while self.scheduler.seats_short(self.candidates.len()) > 0 {
            // Who has ended meanwhile needs no seat.
            let left = self.sweep() || self.preempt_best_effort();
            assert!(left, "more was taken than was asked for");
            any = true;
        }
        any
    }

    /// Asks the cache for what it has of the candidates.
    pub(super) fn look_up(&mut self) -> Ask {
        if self.caching && !self.candidates.is_empty() {
            let query = |c: &Candidate<P>| Query {
                tokens: c.payload.context(),
                cacheable: c.payload.cacheable(),
            };
            return Ask::Match(self.candidates.iter().map(query).collect());
        }
        self.reserve()
    }

    /// The cache's answer. Who would compute what another is computing waits for it instead.
    pub fn matched(&mut self, hits: &[Option<Match>]) -> Ask {
        let mut kept: Vec<Candidate<P>> = Vec::with_capacity(self.candidates.len());
        for (mut c, hit) in std::mem::take(&mut self.candidates).into_iter().zip(hits) {
            c.hit = *hit;
            let prompt = c.payload.context();
            // Nobody waits for the best-effort lane, which may pause.
            let lane = c.spec.terms.lane;
            let ahead = |other: &P, computed: u32| {
                let common = common_blocks(&prompt, &other.context());
                common > c.cached() && common > computed
            };
            let waits = c.payload.cacheable()
                && (self.scheduler.running().iter().any(|s| {
                    s.spec.terms.lane <= lane
                        && s.prefilling()
                        && s.payload.cacheable()
                        && ahead(&s.payload, s.num_computed)
                }) || kept
                    .iter()
                    .any(|k| k.payload.cacheable() && ahead(&k.payload, k.cached())));
            if waits {
                self.effects.unlock.extend(c.hit.map(|h| h.node));
                if c.spec.yields() {
                    self.effects.put_back.push((c.spec, c.payload));
                } else {
                    self.deferred.push((c.spec, c.payload));
                }
            } else {
                kept.push(c);
            }
        }
        self.candidates = kept;
        self.reserve()
    }
}

/// The whole blocks that `a` has in common with `b` at its beginning, in tokens, short of its last token.
fn common_blocks(a: &[TokenId], b: &[TokenId]) -> u32 {
    let n = BLOCK_TOKENS as usize;
    let usable = &a[..a.len().saturating_sub(1)];
    let same = usable
        .chunks_exact(n)
        .zip(b.chunks_exact(n))
        .take_while(|(x, y)| x == y);
    same.count() as u32 * BLOCK_TOKENS
}
