//! The way of a reply from the engine to its client: a bounded channel of frames.
//!
//! The engine never waits for a reader. The channel has room for every frame that the request may produce, so
//! it can't fill by count; what bounds a reader who does not read is a cap in bytes. A dropped receiver is a
//! client that went away, in whatever state its request is: the channel itself is the sign of it, so no
//! message can overtake it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::ServeError;
use crate::logic::conformal::receipt::Receipt;
use crate::logic::request::FinishReason;

/// Token counts of a finished request, as OpenAI bills them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
}

/// Where the time to the first text went; `None` for what the request did not come to.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Timings {
    /// From its arrival until it was taken from the queue to get its first token.
    pub queue_ms: Option<f64>,
    /// From there to its first token, which the step samples that computes the end of the prompt.
    pub prefill_ms: Option<f64>,
    /// From there to the first text: not every token completes one.
    pub first_decode_ms: Option<f64>,
}

/// What the engine tells a client.
#[derive(Debug)]
pub enum Frame {
    /// More of the reply; never empty, always whole characters.
    Text(String),
    /// The reply is complete.
    Finished {
        reason: FinishReason,
        usage: Usage,
        timings: Timings,
        receipt: Option<Receipt>,
    },
    /// The reply ends here because something failed.
    Failed(ServeError),
}

/// Why a frame could not be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendFailure {
    /// The client went away.
    Gone,
    /// The client reads too slowly.
    Slow,
}

/// The engine's end.
#[derive(Debug)]
pub struct ReplySender {
    frames: mpsc::Sender<Frame>,
    unread_bytes: Arc<AtomicUsize>,
    bytes_max: usize,
}

/// The client's end.
#[derive(Debug)]
pub struct ReplyReceiver {
    frames: mpsc::Receiver<Frame>,
    unread_bytes: Arc<AtomicUsize>,
}

/// A channel for a reply of at most `max_tokens` tokens and `bytes_max` unread bytes.
#[must_use]
pub fn channel(max_tokens: u32, bytes_max: usize) -> (ReplySender, ReplyReceiver) {
    // One frame for each token, one for text held back until the end, one for the end. tokio's channel
    // allocates as it fills, so a large bound costs nothing.
    let (tx, rx) = mpsc::channel(max_tokens as usize + 2);
    let unread_bytes = Arc::new(AtomicUsize::new(0));
    (
        ReplySender {
            frames: tx,
            unread_bytes: Arc::clone(&unread_bytes),
            bytes_max,
        },
        ReplyReceiver {
            frames: rx,
            unread_bytes,
        },
    )
}

impl ReplySender {
    /// Sends more text.
    ///
    /// # Errors
    /// When the client is gone or too slow; nothing more should be sent then.
    pub fn text(&self, text: String) -> Result<(), SendFailure> {
        let len = text.len();
        if self.unread_bytes.fetch_add(len, Ordering::Relaxed) + len > self.bytes_max {
            return Err(SendFailure::Slow);
        }
        self.send(Frame::Text(text))
    }

    /// Sends the end of the reply.
    ///
    /// # Errors
    /// When the client is gone.
    pub fn end(&self, end: Frame) -> Result<(), SendFailure> {
        self.send(end)
    }

    fn send(&self, frame: Frame) -> Result<(), SendFailure> {
        self.frames.try_send(frame).map_err(|e| match e {
            mpsc::error::TrySendError::Closed(_) => SendFailure::Gone,
            mpsc::error::TrySendError::Full(_) => SendFailure::Slow,
        })
    }

    /// Whether the client has gone away.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.frames.is_closed()
    }
}

impl ReplyReceiver {
    /// Tells the engine that nobody listens any more.
    pub fn close(&mut self) {
        self.frames.close();
    }

    /// The next frame; `None` when the engine dropped its end without ending the reply.
    pub fn poll_recv(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Frame>> {
        self.frames.poll_recv(cx).map(|frame| {
            if let Some(Frame::Text(t)) = &frame {
                self.unread_bytes.fetch_sub(t.len(), Ordering::Relaxed);
            }
            frame
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test]
    async fn a_slow_reader_is_told_by_bytes_and_reading_makes_room() {
        let (tx, mut rx) = channel(100, 10);
        assert_eq!(tx.text("12345678".into()), Ok(()));
        assert!(
            matches!(poll_fn(|cx| rx.poll_recv(cx)).await, Some(Frame::Text(t)) if t == "12345678")
        );
        assert_eq!(tx.text("12345678".into()), Ok(()));
        assert_eq!(tx.text("123".into()), Err(SendFailure::Slow));
        assert!(!tx.is_abandoned());
        drop(rx);
        assert!(tx.is_abandoned());
        let (tx, rx) = channel(1, 10);
        drop(rx);
        assert_eq!(tx.text("1".into()), Err(SendFailure::Gone));
    }
}
