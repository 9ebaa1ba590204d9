//! The clients of a collection. In an open loop the schedule is the clock, whatever the daemon does; in a closed
//! one each client sends its next request when its last one has ended.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Failure;
use super::prompts::Asking;

/// How requests ended, as their clients saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    pub finished: usize,
    /// 503: the daemon holds as much as it may.
    pub refused: usize,
    /// Their clients' patience was over.
    pub given_up: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    Refused,
    GivenUp,
}

/// Clients of one daemon that ask from the same source.
pub struct Clients<'a> {
    http: reqwest::Client,
    route: String,
    asking: RefCell<Asking<'a>>,
    patience: Duration,
    ends: Cell<Ends>,
}

impl<'a> Clients<'a> {
    pub fn new(
        (http, url): (reqwest::Client, String),
        asking: Asking<'a>,
        patience: Duration,
    ) -> Self {
        Self {
            http,
            route: format!("{url}/v1/chat/completions"),
            asking: RefCell::new(asking),
            patience,
            ends: Cell::default(),
        }
    }

    /// Sends a request at each of `arrivals`, in seconds from now, and waits for all of them to end.
    ///
    /// # Errors
    /// At the first that fails in a way that no load explains.
    pub async fn open(self, arrivals: &[f64]) -> Result<Ends, Failure> {
        let start = Instant::now();
        let one = async |at: &f64| {
            sleep_until(start + Duration::from_secs_f64(*at)).await;
            self.send().await
        };
        try_join_all(arrivals.iter().map(one)).await?;
        Ok(self.ends.get())
    }

    /// So many clients send for `seconds`, with what `pause` draws between a reply and the next request, and wait
    /// for their last replies. The replies that were complete in the second half of that time are counted apart.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub async fn closed(
        self,
        clients: usize,
        seconds: f64,
        pause: impl Fn() -> f64,
    ) -> Result<(Ends, usize), Failure> {
        let start = Instant::now();
        let (half, end) = (seconds / 2.0, seconds);
        let late = Cell::new(0);
        let one = async |_| {
            while start.elapsed().as_secs_f64() < end {
                let ended = self.send().await?;
                let at = start.elapsed().as_secs_f64();
                if ended == End::Finished && at >= half && at < end {
                    late.set(late.get() + 1);
                }
                let pause = pause();
                if pause > 0.0 {
                    sleep(Duration::from_secs_f64(pause)).await;
                }
            }
            Ok::<(), Failure>(())
        };
        try_join_all((0..clients).map(one)).await?;
        Ok((self.ends.get(), late.get()))
    }

    async fn send(&self) -> Result<End, Failure> {
        let body = self.asking.borrow_mut().next();
        // Dropped when the time is over: the connection closes, which is how a client leaves.
        let end = match timeout(self.patience, self.reply(body)).await {
            Ok(end) => end?,
            Err(_) => End::GivenUp,
        };
        let mut ends = self.ends.get();
        match end {
            End::Finished => ends.finished += 1,
            End::Refused => ends.refused += 1,
            End::GivenUp => ends.given_up += 1,
        }
        self.ends.set(ends);
        Ok(end)
    }

    async fn reply(&self, body: String) -> Result<End, Failure> {
        let lost = |e: reqwest::Error| Failure::Internal(format!("a request failed: {e}"));
        let request = self.http.post(&self.route).body(body);
        let request = request.header("content-type", "application/json");
        let response = request.send().await.map_err(lost)?;
        let status = response.status().as_u16();
        let text = response.text().await.map_err(lost)?;
        match status {
            200 if text.trim_end().ends_with("[DONE]") => Ok(End::Finished),
            503 => Ok(End::Refused),
            // What was asked can't be answered, by this model or at all.
            400..500 => Err(Failure::Usage(format!(
                "a request was refused with {status}: {text}"
            ))),
            _ => {
                let last = text.trim_end().lines().next_back().unwrap_or_default();
                Err(Failure::Internal(format!(
                    "a request failed with {status}: {last}"
                )))
            }
        }
    }
}
