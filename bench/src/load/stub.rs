//! A server without a model, to test the generator and the claims about loops: `capacity` requests at a time,
//! each of which waits a fixed time and then gets a fixed number of tokens at a fixed pace. The rest queue
//! without a limit, or are refused beyond one. It reads no more of a request than it must.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::numbers::{at_least_one, not_negative};
use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// `cadenced-bench stub`: a model-free server that answers like OpenAI's.
#[derive(Clone, Debug, clap::Args)]
pub struct StubArgs {
    #[arg(long, default_value = "127.0.0.1:9000")]
    pub listen: SocketAddr,
    /// Requests that are served at once.
    #[arg(long, default_value_t = 16, value_parser = at_least_one::<usize>())]
    pub capacity: usize,
    /// Before the first token.
    #[arg(long, default_value_t = 100.0, value_parser = not_negative)]
    pub sleep_ms: f64,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 50, value_parser = at_least_one::<usize>())]
    pub tokens: usize,
    /// Between tokens.
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub token_ms: f64,
    /// Requests that may wait; any more get 503. None = all of them.
    #[arg(long)]
    pub queue: Option<usize>,
}

impl Default for StubArgs {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            capacity: 16,
            sleep_ms: 0.0,
            tokens: 50,
            token_ms: 0.0,
            queue: None,
        }
    }
}

/// Serves until the process ends.
///
/// # Errors
/// When the address can't be listened on.
pub fn run(args: &StubArgs) -> Result<()> {
    serve(args.clone(), |addr| println!("listening on http://{addr}"))
}

/// Serves on a thread of its own until the process ends; returns the address.
///
/// # Errors
/// When the address can't be listened on.
pub fn spawn(args: StubArgs) -> Result<SocketAddr> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("stub".into())
        .spawn(move || {
            let ready = sender.clone();
            if let Err(e) = serve(args, |addr| drop(ready.send(Ok(addr)))) {
                drop(sender.send(Err(e)));
            }
        })?;
    receiver.recv()?
}

fn serve(args: StubArgs, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.with_context(|| format!("--listen {}", args.listen))?;
        ready(listener.local_addr()?);
        let stub = Rc::new(Stub::new(args));
        loop {
            let (stream, _) = listener.accept().await?;
            let stub = Rc::clone(&stub);
            tokio::task::spawn_local(async move {
                // A client that leaves is no event for a stub.
                let _ = stub.connection(stream).await;
            });
        }
    })
}

struct Stub {
    args: StubArgs,
    seats: Semaphore,
    waiting: std::cell::Cell<usize>,
    head: Vec<u8>,
    token: Vec<u8>,
}

const FINISH: &str = "data: {\"id\":\"chatcmpl-stub\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"stub\",\
    \"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}],\"usage\":null}\n\n";

fn chunked(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

fn delta(delta: &str) -> Vec<u8> {
    chunked(&format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
         \"created\":1700000000,\"model\":\"stub\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
         \"finish_reason\":null}}],\"usage\":null}}\n\n"
    ))
}

impl Stub {
    fn new(args: StubArgs) -> Self {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        Self {
            seats: Semaphore::new(args.capacity),
            waiting: std::cell::Cell::new(0),
            head: [
                &head[..],
                &delta("{\"role\":\"assistant\",\"content\":\"\"}"),
            ]
            .concat(),
            token: delta("{\"content\":\" word\"}"),
            args,
        }
    }

    async fn connection(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut input = Vec::with_capacity(8 << 10);
        loop {
            let Some(request) = read_request(&mut stream, &mut input).await? else {
                return Ok(());
            };
            if !request.is_chat {
                let none = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(none).await?;
            } else if self
                .args
                .queue
                .is_some_and(|most| self.waiting.get() >= most)
                && self.seats.available_permits() == 0
            {
                stream.write_all(refusal().as_bytes()).await?;
            } else {
                self.answer(&mut stream, request.max_tokens).await?;
            }
        }
    }

    async fn answer(&self, stream: &mut TcpStream, max_tokens: usize) -> Result<()> {
        self.waiting.set(self.waiting.get() + 1);
        let seat = self.seats.acquire().await;
        self.waiting.set(self.waiting.get() - 1);
        let _seat = seat?;
        let pace = Duration::from_secs_f64(self.args.token_ms / 1e3);
        let mut at = Instant::now() + Duration::from_secs_f64(self.args.sleep_ms / 1e3);
        tokio::time::sleep_until(at).await;
        stream.write_all(&self.head).await?;
        let tokens = self.args.tokens.min(max_tokens);
        for i in 0..tokens {
            if i > 0 && !pace.is_zero() {
                at += pace;
                tokio::time::sleep_until(at).await;
            }
            stream.write_all(&self.token).await?;
        }
        let usage = format!(
            "data: {{\"id\":\"chatcmpl-stub\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"stub\",\
             \"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{tokens},\"total_tokens\":{},\
             \"prompt_tokens_details\":{{\"cached_tokens\":0}}}}}}\n\n",
            tokens + 1
        );
        let mut end = chunked(FINISH);
        end.extend(chunked(&usage));
        end.extend(chunked("data: [DONE]\n\n"));
        end.extend_from_slice(b"0\r\n\r\n");
        stream.write_all(&end).await?;
        Ok(())
    }
}

fn refusal() -> String {
    let body =
        r#"{"error":{"message":"full","type":"server_error","param":null,"code":"queue_full"}}"#;
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

struct Request {
    is_chat: bool,
    max_tokens: usize,
}

/// The next request, or none if the client has closed; `input` keeps what came after it.
async fn read_request(stream: &mut TcpStream, input: &mut Vec<u8>) -> Result<Option<Request>> {
    let head_end = loop {
        if let Some(end) = memchr::memmem::find(input, b"\r\n\r\n") {
            break end + 4;
        }
        ensure!(input.len() < 64 << 10, "a head without an end");
        if stream.read_buf(input).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&input[..head_end]).to_ascii_lowercase();
    let length = head
        .split("\r\n")
        .find_map(|l| l.strip_prefix("content-length:"))
        .map_or(Ok(0), |n| n.trim().parse::<usize>())?;
    let is_chat = head.starts_with("post ") && head.contains("/chat/completions ");
    ensure!(length <= 16 << 20, "a body of {length} bytes");
    while input.len() < head_end + length {
        ensure!(stream.read_buf(input).await? > 0, "cut off");
    }
    let max_tokens = max_tokens(&input[head_end..head_end + length]);
    input.drain(..head_end + length);
    Ok(Some(Request {
        is_chat,
        max_tokens,
    }))
}

/// The cap that the body names, without reading the JSON: no text of a message can hold a raw quote.
fn max_tokens(body: &[u8]) -> usize {
    const KEY: &[u8] = b"\"max_tokens\":";
    let Some(at) = memchr::memmem::find(body, KEY) else {
        return usize::MAX;
    };
    let digits = body[at + KEY.len()..].trim_ascii_start();
    let digits = digits.iter().take_while(|b| b.is_ascii_digit());
    digits.fold(0, |n: usize, b| {
        n.saturating_mul(10).saturating_add(usize::from(b - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_is_found_in_the_body() {
        assert_eq!(
            max_tokens(br#"{"messages":[{"content":"\"max_tokens\":7"}],"max_tokens": 31,"a":1}"#),
            31
        );
        assert_eq!(max_tokens(b"{}"), usize::MAX);
    }
}
