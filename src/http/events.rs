//! A reply as server-sent events: the role first, the reply's text, the reason it ended, the SLO receipt where
//! admission makes promises, the usage if asked for, `[DONE]`; or an error, and no `[DONE]`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use actix_web_lab::sse;
use futures_util::Stream;

use super::openai::ChunkWriter;
use super::reply::Reply;
use crate::logic::conformal::receipt::Receipt;
use crate::reply::{Frame, Timings, Usage};

/// What the stream sends next.
enum Next {
    Role,
    Text,
    /// What is known once the reply has ended.
    Rest(vec::IntoIter<String>),
}

/// See the module's text.
pub struct Events {
    reply: Reply,
    chunks: ChunkWriter,
    include_usage: bool,
    next: Next,
}

impl Events {
    /// The events of a reply that has just been admitted.
    #[must_use]
    pub fn new(reply: Reply, chunks: ChunkWriter, include_usage: bool) -> Self {
        Self {
            reply,
            chunks,
            include_usage,
            next: Next::Role,
        }
    }

    /// What follows the end of a reply that is complete.
    fn rest(&self, usage: Usage, timings: Timings, receipt: Option<Receipt>) -> Vec<String> {
        let receipt = receipt.map(|r| self.chunks.receipt_chunk(&r));
        let usage = self
            .include_usage
            .then(|| self.chunks.usage_chunk(usage, timings));
        let done = Some("[DONE]".to_owned());
        [receipt, usage, done].into_iter().flatten().collect()
    }
}

impl Stream for Events {
    type Item = sse::Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<sse::Event>> {
        let this = self.get_mut();
        let data = match &mut this.next {
            Next::Role => {
                this.next = Next::Text;
                Some(this.chunks.role_chunk())
            }
            Next::Text => match std::task::ready!(this.reply.poll_next(cx)) {
                Some(Frame::Text(text)) => Some(this.chunks.content_chunk(&text)),
                Some(Frame::Finished {
                    reason,
                    usage,
                    timings,
                    receipt,
                }) => {
                    this.next = Next::Rest(this.rest(usage, timings, receipt).into_iter());
                    Some(this.chunks.finish_chunk(reason))
                }
                Some(Frame::Failed(error)) => {
                    this.next = Next::Rest(Vec::new().into_iter());
                    Some(this.chunks.error_event(&error))
                }
                None => None,
            },
            Next::Rest(rest) => rest.next(),
        };
        Poll::Ready(data.map(|data| sse::Event::Data(sse::Data::new(data))))
    }
}
