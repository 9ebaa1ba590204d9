//! What travels with a request through the twin's daemon.

use std::sync::Arc;

use cadenced::ids::TokenId;
use cadenced::logic::capacity::Reservation;
use cadenced::logic::request::{Lane, RequestSpec};
use cadenced::logic::turn::Payload;

use super::admission::Admitted;
use super::text::Text;

/// See the module's text.
pub struct Job {
    /// Without tokens where nobody would look at them.
    text: Option<Text>,
    prompt: Arc<[TokenId]>,
    /// Tokens of the reply so far.
    pub generated: u32,
    /// Tokens that the model samples before the answer ends by itself, the end token included.
    pub answer_tokens: u32,
    /// Prompt tokens that came out of the prefix cache when it first started.
    pub cached_tokens: Option<u32>,
    /// `None` where nobody decides by a bound.
    pub admitted: Option<Admitted>,
    reservation: Reservation,
}

impl Job {
    /// A request that has had nothing yet.
    pub fn new(
        spec: &RequestSpec,
        text: Option<Text>,
        answer_tokens: u32,
        reservation: Reservation,
    ) -> Self {
        Self {
            text,
            prompt: text.map_or_else(Arc::default, |text| text.tokens(spec.prompt_tokens, 0)),
            generated: 0,
            answer_tokens,
            cached_tokens: None,
            admitted: None,
            reservation,
        }
    }

    /// Takes its seat to the best-effort lane. False if there is no room.
    pub fn moves_to_best_effort(&mut self) -> bool {
        self.reservation.move_to(Lane::BestEffort).is_ok()
    }

    /// Its prompt's tokens; none where nobody would look at them.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// Tokens that its next start has to compute, as far as admission could tell.
    pub fn prefill_tokens(&self, spec: &RequestSpec) -> u64 {
        let admitted = self.admitted.as_ref();
        let prompt = admitted.map_or(spec.prompt_tokens, |a| a.prefill_tokens);
        u64::from(prompt) + u64::from(self.generated)
    }
}

impl Payload for Job {
    fn context(&self) -> Arc<[TokenId]> {
        match self.text {
            Some(text) if self.generated > 0 => {
                text.tokens(self.prompt.len() as u32, self.generated)
            }
            _ => Arc::clone(&self.prompt),
        }
    }

    fn generated(&self) -> u32 {
        self.generated
    }

    /// Who leaves is cancelled at once, wherever it is.
    fn is_abandoned(&self) -> bool {
        false
    }

    fn cacheable(&self) -> bool {
        true
    }

    fn started(&mut self, cached: u32) {
        self.cached_tokens.get_or_insert(cached);
    }
}
