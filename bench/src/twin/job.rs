//! What travels with a request through the twin's daemon.

use std::sync::Arc;

use cadenced::ids::TokenId;
use cadenced::logic::capacity::Reservation;
use cadenced::logic::request::RequestSpec;
use cadenced::logic::turn::Payload;

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
    _reservation: Reservation,
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
            _reservation: reservation,
        }
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

    fn started(&mut self, _: u32) {}
}
