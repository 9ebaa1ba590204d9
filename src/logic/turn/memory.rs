//! Memory for those that run and for newcomers: out of the pool, out of the cache, or from who can best wait.

use super::{After, Ask, BookEntry, Candidate, Evict, Given, Payload, Reserve, Reserved, Turn};
use crate::logic::kv::{Demand, SharedPrefix, Shortfall};
use crate::logic::request::Outcome;
use crate::logic::scheduler::step::MemoryOp;
use crate::logic::scheduler::{Sequence, Start};

impl<P: Payload> Turn<P> {
    pub(super) fn reserve(&mut self) -> Ask {
        self.scheduler.weigh(self.now);
        self.scheduler.growth(&mut self.growth);
        let demand = |c: &Candidate<P>| Demand {
            prefix: c.hit.map(|h| SharedPrefix {
                seq: h.seq,
                tokens: h.tokens,
            }),
            prompt_tokens: c.spec.prompt_tokens + c.payload.generated(),
            total_max: c.spec.cells_max(),
        };
        let demands: Vec<Demand> = self.candidates.iter().map(demand).collect();
        if self.growth.is_empty() && demands.is_empty() {
            return self.run();
        }
        let growth = std::mem::take(&mut self.growth);
        Ask::Reserve(Reserve { growth, demands })
    }

    /// The books' answer.
    pub fn reserved(&mut self, answer: Reserved) -> Ask {
        for &growth in &answer.growth[..answer.grown] {
            self.scheduler.grown(growth);
        }
        self.growth = answer.growth;
        if let Some(short) = answer.growth_short {
            // Nobody joins while those who run can't go on.
            self.postpone();
            return if self.caching && short.attainable {
                self.evict(short)
            } else {
                self.preempt()
            };
        }
        let rest = self.candidates.split_off(answer.leases.len());
        for (mut c, lease) in std::mem::replace(&mut self.candidates, rest)
            .into_iter()
            .zip(&answer.leases)
        {
            if let Some(hit) = c.hit {
                self.scheduler.push_op(MemoryOp::Copy {
                    from: hit.seq,
                    to: lease.seq,
                    tokens: hit.tokens,
                });
            }
            let start = Start {
                lease: *lease,
                cached: c.cached(),
                lock: c.hit.map(|h| h.node),
                generated: c.payload.generated(),
            };
            if self.caching && c.payload.cacheable() && !c.spec.preempted {
                self.effects.lookup_tokens += u64::from(c.spec.prompt_tokens);
                self.effects.hit_tokens += u64::from(start.cached);
            }
            c.payload.started(start.cached);
            let (id, abandoned) = (c.spec.id, c.payload.is_abandoned());
            self.scheduler.admit(c.spec, start, c.payload);
            if abandoned {
                // Its client left while this turn was under way.
                self.scheduler.end(id, Outcome::Cancelled);
            }
        }
        match answer.short {
            None => self.run(),
            // An id is on its way back, and comes with the step.
            Some(short) if short.is_a_matter_of_time() => {
                self.give_up();
                self.run()
            }
            Some(short) if self.caching && short.attainable => self.evict(short),
            Some(_) => self.make_room(),
        }
    }

    /// Newcomers find no memory and the cache has none to give: the best-effort lane yields its own to the others.
    fn make_room(&mut self) -> Ask {
        let yields = |c: &Candidate<P>| c.spec.yields();
        let first = self.candidates.first();
        if first.is_some_and(|c| !yields(c)) && self.preempt_best_effort() {
            // What the cache takes in may change which sequence holds what they were matched with.
            let hits = self.candidates.iter_mut().filter_map(|c| c.hit.take());
            self.effects.unlock.extend(hits.map(|h| h.node));
            return self.insert(After::Match);
        }
        self.give_up_some()
    }

    /// One of the best-effort lane yields its seat and its memory. False if none runs.
    pub(super) fn preempt_best_effort(&mut self) -> bool {
        let victim = self.scheduler.preempt_best_effort(self.now);
        let any = victim.is_some();
        if let Some(s) = victim {
            self.let_yield(s);
        }
        any
    }

    fn let_yield(&mut self, s: Sequence<P>) {
        self.depart(&s);
        self.effects.preempted += 1;
        self.effects.put_back.push((s.spec, s.payload));
    }

    /// Newcomers find no memory and nothing more can be had. While others run that is a matter of time; if
    /// nothing runs, what the newcomers themselves have locked is in the way.
    fn give_up_some(&mut self) -> Ask {
        if self.scheduler.running().is_empty() {
            let mut rest = self.candidates.split_off(1.min(self.candidates.len()));
            if !rest.is_empty() {
                std::mem::swap(&mut self.candidates, &mut rest);
                self.give_up();
                self.candidates = rest;
                return self.reserve();
            }
            if let Some(hit) = self.candidates.first_mut().and_then(|c| c.hit.take()) {
                self.effects.unlock.push(hit.node);
                return self.reserve();
            }
        }
        self.give_up();
        self.run()
    }

    /// Candidates that find no memory go back to where they came from.
    fn give_up(&mut self) {
        self.starved |= self.candidates.iter().any(|c| !c.spec.yields());
        self.lane_starved |= self.candidates.iter().any(|c| c.spec.yields());
        self.postpone();
    }

    fn postpone(&mut self) {
        for c in self.candidates.drain(..) {
            self.effects.unlock.extend(c.hit.map(|h| h.node));
            self.effects.put_back.push((c.spec, c.payload));
        }
    }

    fn evict(&self, short: Shortfall) -> Ask {
        let hits = self.candidates.iter().filter_map(|c| c.hit);
        Ask::Evict(Evict {
            blocks: short.blocks,
            sequences: short.sequences,
            held: hits.map(|h| h.node).collect(),
        })
    }

    /// The cache's answer: what it gave up.
    pub fn evicted(&mut self, given: &Given) -> Ask {
        let hits = self.candidates.iter_mut().filter_map(|c| c.hit.as_mut());
        for (hit, seq) in hits.zip(&given.held) {
            hit.seq = *seq;
        }
        for e in &given.evicted {
            if e.keep_tokens == 0 {
                self.give_back(e.seq);
            } else {
                let (seq, from) = (e.seq, e.keep_tokens);
                self.scheduler.push_op(MemoryOp::Remove { seq, from });
                let tokens = from;
                self.effects.books.push(BookEntry::Truncate { seq, tokens });
            }
        }
        if !given.evicted.is_empty() {
            self.reserve()
        } else if self.candidates.is_empty() {
            self.preempt()
        } else {
            self.make_room()
        }
    }

    /// Takes the memory of who has ended meanwhile, or else of the running request that can best wait.
    fn preempt(&mut self) -> Ask {
        if self.sweep() {
            return self.insert(After::Reserve);
        }
        let Some(s) = self.scheduler.preempt(self.now) else {
            return self.let_go();
        };
        self.let_yield(s);
        self.insert(After::Reserve)
    }

    /// The oldest request is alone and still short of memory: others have computed the same path beside it, and the
    /// cache holds it twice as long as it is locked. Its own cells stay its own without the lock.
    fn let_go(&mut self) -> Ask {
        let Some(oldest) = self.scheduler.running_mut().first_mut() else {
            return self.run();
        };
        if let Some(lock) = oldest.lock.take() {
            self.effects.unlock.push(lock);
            return self.reserve();
        }
        // It fits the pool by itself, so this can't be. Rather a request that fails than one that writes where it
        // has no room.
        let id = oldest.spec.id;
        self.scheduler.end(id, Outcome::Failed);
        self.run()
    }

    /// The end of a turn. Whoever has ended since its beginning leaves before the step is planned: else a step
    /// with nobody in it would be no step, and they would stay.
    fn run(&mut self) -> Ask {
        if self.sweep() {
            self.insert(After::Take)
        } else {
            Ask::Run
        }
    }
}
