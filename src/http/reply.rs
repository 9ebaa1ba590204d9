//! The client's side of a reply: frames from the engine, cut short if the daemon must, cancelled if dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::web::Data;

use super::state::{AppState, Served};
use crate::error::ServeError;
use crate::ids::RequestId;
use crate::reply::{Frame, ReplyReceiver};

/// A reply that is being received. However it is dropped — read to its end, its client gone, its handler
/// abandoned — nothing of it stays behind.
pub struct Reply {
    id: RequestId,
    receiver: ReplyReceiver,
    served: Arc<Served>,
    cut: Pin<Box<dyn Future<Output = ServeError> + Send>>,
    /// The client has been told how it ended.
    ended: bool,
    /// The engine knows that it ended.
    settled: bool,
    _in_flight: InFlight,
}

impl Reply {
    /// The receiving end of request `id`.
    #[must_use]
    pub fn new(
        id: RequestId,
        receiver: ReplyReceiver,
        served: Arc<Served>,
        in_flight: InFlight,
    ) -> Self {
        let cut = Box::pin(in_flight.0.lifecycle.when_cut());
        Self {
            id,
            receiver,
            served,
            cut,
            ended: false,
            settled: false,
            _in_flight: in_flight,
        }
    }

    /// The next frame; `None` after the one that ends the reply.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = match self.receiver.poll_recv(cx) {
            Poll::Ready(Some(frame)) => {
                self.settled = !matches!(frame, Frame::Text(_));
                frame
            }
            // An actor that dies drops the replies it owns.
            Poll::Ready(None) => Frame::Failed(ServeError::Engine {
                message: "the reply was dropped".into(),
            }),
            Poll::Pending => match self.cut.as_mut().poll(cx) {
                Poll::Ready(error) => Frame::Failed(error),
                Poll::Pending => return Poll::Pending,
            },
        };
        self.ended = !matches!(frame, Frame::Text(_));
        Poll::Ready(Some(frame))
    }

    /// The next frame.
    pub async fn next(&mut self) -> Option<Frame> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.settled {
            // Closed first: an actor that the message overtakes sees it on the channel.
            self.receiver.close();
            self.served.engine.cancel(self.id);
        }
    }
}

/// Counts a request as in flight until its reply's last byte is handed to the socket, or its client is gone.
pub struct InFlight(Data<AppState>);

impl InFlight {
    /// One more.
    #[must_use]
    pub fn new(state: &Data<AppState>) -> Self {
        state.lifecycle.request_began();
        state.shared.accounts.metrics.http_in_flight.inc();
        Self(state.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.lifecycle.request_ended();
        self.0.shared.accounts.metrics.http_in_flight.dec();
    }
}
