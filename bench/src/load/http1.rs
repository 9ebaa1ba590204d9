//! The response side of HTTP/1.1, fed with whatever a read returned: head, framing, and the body's bytes handed
//! on without a copy. No sockets, no clock.

use anyhow::{Context, Result, bail, ensure};

/// Longer heads and chunk sizes are no HTTP.
const HEAD_BYTES_MAX: usize = 64 << 10;
const LINE_BYTES_MAX: usize = 4 << 10;

/// Status line and headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Head {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Whether the connection may carry another request afterwards.
    pub keep_alive: bool,
    /// Whether the body is server-sent events.
    pub is_event_stream: bool,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Head,
    /// So many bytes of a body of known length are missing.
    Length(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    UntilClose,
    Done,
}

/// See the module's text.
#[derive(Debug)]
pub struct ResponseReader {
    state: State,
    head: Head,
    /// A head or a line that has not ended yet.
    partial: Vec<u8>,
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            state: State::Head,
            head: Head::default(),
            partial: Vec::new(),
        }
    }
}

impl ResponseReader {
    /// The head, once it is complete.
    pub fn head(&self) -> Option<&Head> {
        (self.state != State::Head).then_some(&self.head)
    }

    /// The response has ended, and not because the connection did.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes what was read; gives the body's bytes to `body`, with the head.
    ///
    /// # Errors
    /// When this is no HTTP/1.1 response.
    pub fn feed(&mut self, mut bytes: &[u8], mut body: impl FnMut(&Head, &[u8])) -> Result<()> {
        while !bytes.is_empty() {
            match self.state {
                State::Head => bytes = self.take_head(bytes)?,
                State::Length(left) | State::Chunk(left) => {
                    let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    body(&self.head, &bytes[..n]);
                    bytes = &bytes[n..];
                    let left = left - n as u64;
                    self.state = match self.state {
                        State::Length(_) if left == 0 => State::Done,
                        State::Length(_) => State::Length(left),
                        _ if left == 0 => State::ChunkEnd,
                        _ => State::Chunk(left),
                    };
                }
                State::UntilClose => {
                    body(&self.head, bytes);
                    return Ok(());
                }
                State::ChunkSize | State::ChunkEnd | State::Trailer => {
                    let Some(end) = memchr::memchr(b'\n', bytes) else {
                        self.partial.extend_from_slice(bytes);
                        ensure!(
                            self.partial.len() <= LINE_BYTES_MAX,
                            "a line without an end"
                        );
                        return Ok(());
                    };
                    let (line, rest) = bytes.split_at(end + 1);
                    bytes = rest;
                    self.state = if self.partial.is_empty() {
                        after_line(self.state, line)?
                    } else {
                        self.partial.extend_from_slice(line);
                        let next = after_line(self.state, &self.partial)?;
                        self.partial.clear();
                        next
                    };
                }
                State::Done => bail!("bytes after the end of the response"),
            }
        }
        Ok(())
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// When the response had not.
    pub fn end(&mut self) -> Result<()> {
        match self.state {
            State::Done => Ok(()),
            State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            State::Head if self.partial.is_empty() => bail!("closed without a response"),
            _ => bail!("the response was cut off"),
        }
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let had = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let from = had.saturating_sub(3);
        let Some(end) = memchr::memmem::find(&self.partial[from..], b"\r\n\r\n") else {
            ensure!(
                self.partial.len() <= HEAD_BYTES_MAX,
                "a head without an end"
            );
            return Ok(&[]);
        };
        let end = from + end + 4;
        let (head, state) = parse_head(&self.partial[..end])?;
        self.partial.clear();
        // 100 Continue and its like are not the response.
        if head.status >= 200 {
            self.head = head;
            self.state = state;
        }
        Ok(&bytes[end - had..])
    }
}

fn after_line(state: State, line: &[u8]) -> Result<State> {
    let line = line.trim_ascii_end();
    Ok(match state {
        State::ChunkEnd => {
            ensure!(line.is_empty(), "a chunk is longer than its size");
            State::ChunkSize
        }
        State::Trailer if line.is_empty() => State::Done,
        State::Trailer => State::Trailer,
        _ => match chunk_size(line)? {
            0 => State::Trailer,
            size => State::Chunk(size),
        },
    })
}

fn chunk_size(line: &[u8]) -> Result<u64> {
    let digits = line
        .split(|b| *b == b';')
        .next()
        .unwrap_or(line)
        .trim_ascii();
    ensure!((1..=15).contains(&digits.len()), "no chunk size");
    digits.iter().try_fold(0, |size, b| {
        let digit = char::from(*b).to_digit(16).context("no chunk size")?;
        Ok(size * 16 + u64::from(digit))
    })
}

fn parse_head(bytes: &[u8]) -> Result<(Head, State)> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|status| status.parse().ok())
        .with_context(|| format!("no HTTP response: {status_line:?}"))?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|l| l.split_once(':'))
        .map(|(n, v)| (n.trim().to_ascii_lowercase(), v.trim().to_owned()))
        .collect();
    let mut head = Head {
        status,
        headers,
        keep_alive: false,
        is_event_stream: false,
    };
    let says = |name: &str, word: &str| {
        head.header(name)
            .is_some_and(|v| v.to_ascii_lowercase().contains(word))
    };
    let state = if says("transfer-encoding", "chunked") {
        State::ChunkSize
    } else if matches!(status, 204 | 304) {
        State::Done
    } else {
        match head.header("content-length") {
            Some(length) => match length.parse().context("no Content-Length")? {
                0 => State::Done,
                length => State::Length(length),
            },
            None => State::UntilClose,
        }
    };
    let keep_alive = state != State::UntilClose
        && !says("connection", "close")
        && (status_line.starts_with("HTTP/1.1") || says("connection", "keep-alive"));
    let is_event_stream = says("content-type", "text/event-stream");
    head.keep_alive = keep_alive;
    head.is_event_stream = is_event_stream;
    Ok((head, state))
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
