//! What travels with a request through the engine: its prompt, how to sample it, its reply's text so far and
//! its way back to the client. One owner at a time; it ends exactly once, through [`Job::end`] or `Drop`.

use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;

use crate::error::ServeError;
use crate::ids::TokenId;
use crate::logic::conformal::calibration::Alpha;
use crate::logic::conformal::policy::{Fallback, Verdict};
use crate::logic::conformal::receipt::{Answer, Receipt};
use crate::logic::output::TextAssembler;
use crate::logic::prefix::Beginnings;
use crate::logic::request::{FinishReason, Lane, Outcome, RequestSpec};
use crate::logic::time::Timestamp;
use crate::logic::turn::Payload;
use crate::messages::RequestEnded;
use crate::model::sampling::SamplingParams;
use crate::model::transcripts::Transcripts;
use crate::model::vocab::Vocab;
use crate::reply::{Frame, ReplySender, SendFailure, Timings, Usage};
use crate::telemetry::accounts::Ticket;

/// What a request wants of admission.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Wish {
    /// Messages of its conversation.
    pub messages: u32,
    /// From its arrival to its last token.
    pub slo: Option<Duration>,
    /// The level of the promise, if not the configured one.
    pub alpha: Option<Alpha>,
    /// It asks for no promise, and yields to those that have one.
    pub best_effort: bool,
}

/// What became of a decision before its request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    #[default]
    AsDecided,
    /// Its promise looked lost when it was taken from the queue: it runs in the best-effort lane.
    Demoted,
    /// The same, and it is not to run at all.
    Revoked,
}

/// When a request first came to something; `None` before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Taken from the queue, for the last time before its first token.
    pub taken: Option<Timestamp>,
    pub first_token: Option<Timestamp>,
    pub first_text: Option<Timestamp>,
}

impl Marks {
    /// What lies between them, for a request of this arrival.
    #[must_use]
    pub fn timings(&self, arrival: Timestamp) -> Timings {
        let between = |from: Option<Timestamp>, to: Option<Timestamp>| {
            Some(to?.since(from?).as_micros() as f64 * 1e-3)
        };
        Timings {
            queue_ms: between(Some(arrival), self.taken),
            prefill_ms: between(self.taken, self.first_token),
            first_decode_ms: between(self.first_token, self.first_text),
        }
    }
}

/// What admission decided. It goes back there with the outcome.
pub struct Admitted {
    pub answer: Answer,
    pub wish: Wish,
    /// When it was decided.
    pub at: Timestamp,
    pub beginnings: Beginnings,
    /// Prompt tokens that were to be computed then.
    pub prefill_tokens: u32,
    /// Whether the client hears of it.
    pub told: bool,
    pub standing: Standing,
    pub report: Recipient<RequestEnded>,
}

impl Admitted {
    /// Whether something was promised.
    #[must_use]
    pub fn is_promised(&self) -> bool {
        self.answer.decision.verdict == Verdict::Promised
    }
}

/// See the module's text.
pub struct Job {
    pub prompt: Arc<[TokenId]>,
    pub sampling: SamplingParams,
    /// Goes on past the model's own end, up to `max_tokens`.
    pub ignore_eos: bool,
    pub text: TextAssembler,
    pub reply: ReplySender,
    pub ticket: Ticket,
    pub vocab: Arc<Vocab>,
    /// The reply so far.
    pub generated: Vec<TokenId>,
    /// Whether its tokens may be shared with other requests.
    pub cacheable: bool,
    /// Where the reply is remembered for the next turn of its conversation.
    pub transcripts: Option<Arc<Transcripts>>,
    /// Prompt tokens that came out of the prefix cache when it started; `None` before.
    pub cached_tokens: Option<u32>,
    pub marks: Marks,
    /// `None` before admission, and for the warm-up, which does not pass through it.
    pub admitted: Option<Admitted>,
}

impl Job {
    /// A request that asks for nothing but the most likely tokens, to which admission has not come.
    #[must_use]
    pub fn greedy(
        prompt: Arc<[TokenId]>,
        reply: ReplySender,
        ticket: Ticket,
        vocab: Arc<Vocab>,
    ) -> Self {
        Self {
            prompt,
            sampling: SamplingParams::GREEDY,
            ignore_eos: false,
            text: TextAssembler::new(Vec::new()),
            reply,
            ticket,
            vocab,
            generated: Vec::new(),
            cacheable: true,
            transcripts: None,
            cached_tokens: None,
            marks: Marks::default(),
            admitted: None,
        }
    }

    /// It leaves the queue to run.
    pub fn take(&mut self, now: Timestamp) {
        if self.generated.is_empty() {
            self.marks.taken = Some(now);
        }
    }

    /// Takes a token of the reply and passes on what text it completes. `Some` when the reply ends with it.
    pub fn deliver(&mut self, token: TokenId, now: Timestamp) -> Option<Outcome> {
        self.marks.first_token.get_or_insert(now);
        self.generated.push(token);
        if self.vocab.is_eog(token) && !self.ignore_eos {
            return Some(Outcome::Finished(FinishReason::Stop));
        }
        let mut out = String::new();
        let stopped = self.text.push(self.vocab.piece(token), &mut out);
        if !out.is_empty() {
            self.marks.first_text.get_or_insert(now);
            if let Err(failure) = self.reply.text(out) {
                return Some(lost(failure));
            }
        }
        if self.reply.is_abandoned() {
            return Some(Outcome::Cancelled);
        }
        stopped.then_some(Outcome::Finished(FinishReason::Stop))
    }

    /// Ends the request: the last text, the end of the reply, the account.
    pub fn end(self, spec: &RequestSpec, outcome: Outcome, now: Timestamp) {
        self.end_with(spec, outcome, None, now);
    }

    /// Ends a request that got nothing, with an error to tell its client.
    pub fn refuse(self, spec: &RequestSpec, outcome: Outcome, error: ServeError, now: Timestamp) {
        self.end_with(spec, outcome, Some(error), now);
    }

    /// Either of these. `retry_after_s` is asked for only if it is to be told.
    pub fn end_or_refuse(
        self,
        spec: &RequestSpec,
        outcome: Outcome,
        now: Timestamp,
        retry_after_s: impl FnOnce() -> u64,
    ) {
        if outcome != Outcome::Expired {
            return self.end(spec, outcome, now);
        }
        let retry_after = retry_after_s();
        let standing = self.admitted.as_ref().map(|a| a.standing);
        if standing == Some(Standing::Revoked) {
            let error = ServeError::Revoked { retry_after };
            self.refuse(spec, Outcome::Refused, error, now);
        } else {
            let error = ServeError::Expired { retry_after };
            self.refuse(spec, Outcome::Expired, error, now);
        }
    }

    /// Its promise is not expected to be kept: what happens instead. Who has begun to get a reply gets it.
    pub fn lose_promise(&mut self, spec: &mut RequestSpec, instead: Fallback) {
        let Some(admitted) = &mut self.admitted else {
            return;
        };
        match instead {
            Fallback::BestEffort => {
                admitted.standing = Standing::Demoted;
                spec.terms.lane = Lane::BestEffort;
                if let Some(reservation) = &mut self.ticket.reservation {
                    // Where the lane is full it keeps the seat that it has.
                    let _ = reservation.move_to(Lane::BestEffort);
                }
            }
            Fallback::Refuse if self.generated.is_empty() => {
                admitted.standing = Standing::Revoked;
                spec.terms.drop_at = Timestamp(0);
            }
            Fallback::Refuse => {}
        }
    }

    fn end_with(
        mut self,
        spec: &RequestSpec,
        outcome: Outcome,
        error: Option<ServeError>,
        now: Timestamp,
    ) {
        let usage = Usage {
            prompt_tokens: spec.prompt_tokens,
            completion_tokens: self.generated.len() as u32,
            cached_tokens: self.cached_tokens.unwrap_or(0),
        };
        let receipt = self.admitted.as_ref().filter(|a| a.told).map(|a| {
            let slo_ms = a.wish.slo.map(|slo| slo.as_millis() as u64);
            let actual_ms = now.since(spec.arrival).as_secs_f64() * 1e3;
            Receipt {
                demoted: a.standing == Standing::Demoted,
                ..a.answer.receipt(actual_ms, slo_ms)
            }
        });
        if let Some(admitted) = self.admitted.take() {
            let report = admitted.report.clone();
            report.do_send(RequestEnded {
                spec: *spec,
                admitted,
                outcome,
                usage,
                at: now,
            });
        }
        // The seat first: a client that has its reply may send the next request at once.
        drop(self.ticket.reservation.take());
        if let (Outcome::Finished(_), Some(transcripts)) = (outcome, &self.transcripts) {
            transcripts.remember(&self.prompt, &self.generated, &self.vocab);
        }
        let sent = match outcome {
            _ if error.is_some() => error.map_or(Ok(()), |e| self.reply.end(Frame::Failed(e))),
            Outcome::Finished(reason) => self.flush(now).and_then(|stopped| {
                let reason = if stopped { FinishReason::Stop } else { reason };
                self.reply.end(Frame::Finished {
                    reason,
                    usage,
                    timings: self.marks.timings(spec.arrival),
                    receipt,
                })
            }),
            Outcome::SlowReader => self.reply.end(Frame::Failed(ServeError::SlowReader)),
            Outcome::Failed => self.reply.end(Frame::Failed(ServeError::Engine {
                message: "the model failed on this request".into(),
            })),
            // Nobody is there to be told.
            Outcome::Cancelled
            | Outcome::Invalid
            | Outcome::Refused
            | Outcome::Expired
            | Outcome::Drained => Ok(()),
        };
        // A client that left just before the end did not get it.
        let outcome = match (outcome, sent) {
            (Outcome::Finished(_), Err(failure)) => lost(failure),
            (outcome, _) => outcome,
        };
        self.ticket
            .end(outcome, spec, usage, self.marks.first_token, now);
    }

    /// Tokens that its next start has to compute, as far as admission could tell.
    #[must_use]
    pub fn prefill_tokens(&self, spec: &RequestSpec) -> u64 {
        let prompt = self
            .admitted
            .as_ref()
            .map_or(spec.prompt_tokens, |a| a.prefill_tokens);
        u64::from(prompt) + self.generated.len() as u64
    }

    /// Whether the client has gone away.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.reply.is_abandoned()
    }

    /// Sends the text that was held back; whether a stop string turned out to be in it.
    fn flush(&mut self, now: Timestamp) -> Result<bool, SendFailure> {
        let mut rest = String::new();
        let stopped = self.text.finish(&mut rest);
        if !rest.is_empty() {
            self.marks.first_text.get_or_insert(now);
            self.reply.text(rest)?;
        }
        Ok(stopped)
    }
}

impl Payload for Job {
    fn context(&self) -> Arc<[TokenId]> {
        if self.generated.is_empty() {
            return Arc::clone(&self.prompt);
        }
        self.prompt.iter().chain(&self.generated).copied().collect()
    }

    fn generated(&self) -> u32 {
        self.generated.len() as u32
    }

    fn is_abandoned(&self) -> bool {
        Self::is_abandoned(self)
    }

    fn cacheable(&self) -> bool {
        self.cacheable
    }

    fn started(&mut self, cached: u32) {
        // What a preempted request finds of itself was not saved for anybody.
        self.cached_tokens.get_or_insert(cached);
    }
}

fn lost(failure: SendFailure) -> Outcome {
    match failure {
        SendFailure::Gone => Outcome::Cancelled,
        SendFailure::Slow => Outcome::SlowReader,
    }
}
