//! Streaming clients that cost next to nothing: one thread, one read per wake-up, no parsing while the clock
//! runs. Bytes and the times they came are recorded; [`crate::sse`] makes sense of them afterwards.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any stream lasts.
const PATIENCE: Duration = Duration::from_secs(600);

/// One response as it came.
#[derive(Clone, Debug)]
pub struct Recording {
    pub sent: Instant,
    pub bytes: Vec<u8>,
    /// When each read returned, and how many bytes there were then.
    pub reads: Vec<(Instant, usize)>,
}

/// A moment of a batch of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Every stream has brought text.
    AllStarted,
    /// The first stream has ended.
    FirstEnded,
}

/// Sends all requests at once and records the responses; tells `on` of the moments.
pub fn stream_all(
    addr: SocketAddr,
    bodies: &[String],
    on: impl Fn(Moment) + 'static,
) -> Result<Vec<Recording>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    let crowd = Rc::new(Crowd {
        waiting: Cell::new(bodies.len()),
        ended: Cell::new(false),
        on,
    });
    local.block_on(&runtime, async {
        let mut connections = Vec::with_capacity(bodies.len());
        for body in bodies {
            let stream = TcpStream::connect(addr).await.context("connecting")?;
            stream.set_nodelay(true)?;
            connections.push((stream, request(body)));
        }
        let tasks: Vec<_> = connections
            .into_iter()
            .map(|(stream, request)| {
                tokio::task::spawn_local(record(stream, request, Rc::clone(&crowd)))
            })
            .collect();
        let mut recordings = Vec::with_capacity(tasks.len());
        for task in tasks {
            recordings.push(tokio::time::timeout(PATIENCE, task).await???);
        }
        Ok(recordings)
    })
}

struct Crowd<F> {
    waiting: Cell<usize>,
    ended: Cell<bool>,
    on: F,
}

fn request(body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

async fn record<F: Fn(Moment)>(
    mut stream: TcpStream,
    request: String,
    crowd: Rc<Crowd<F>>,
) -> Result<Recording> {
    let sent = Instant::now();
    stream.write_all(request.as_bytes()).await?;
    let mut recording = Recording {
        sent,
        bytes: Vec::with_capacity(64 << 10),
        reads: Vec::with_capacity(1024),
    };
    let mut started = false;
    while stream.read_buf(&mut recording.bytes).await? > 0 {
        recording
            .reads
            .push((Instant::now(), recording.bytes.len()));
        if !started && events(&recording.bytes) >= 2 {
            started = true;
            crowd.waiting.set(crowd.waiting.get() - 1);
            if crowd.waiting.get() == 0 {
                (crowd.on)(Moment::AllStarted);
            }
        }
    }
    if !crowd.ended.replace(true) {
        (crowd.on)(Moment::FirstEnded);
    }
    Ok(recording)
}

/// Events so far: the first is the role, the second brings text.
fn events(bytes: &[u8]) -> usize {
    bytes.windows(6).filter(|w| w == b"data: ").count()
}
