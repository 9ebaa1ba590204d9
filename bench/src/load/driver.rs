//! Sends what is planned when it is due, or one after the other for contrast, and records what comes back.
//!
//! **Open loop**: the plan is the clock. A thread that does nothing else sleeps until each request is due and
//! hands it over; every request is a task of its own with a connection of its own, and no limit of any kind
//! stands between them, because a limit is backpressure and backpressure makes it a closed loop. The channel is
//! unbounded for the same reason: its bound is the plan.
//!
//! **Closed loop**: `n` clients, each of which sends its next request when its last one has ended.
//!
//! All sockets live on one thread. Bodies are made before they are due. A frame costs one read and about 0.2 µs
//! of reading it; its time is taken when the read returns.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet};

use super::answer::Answer;
use super::descriptors;
use super::mix::Ask;
use super::prompts::{Prompts, Style};
use super::record::Record;
use super::target::Target;

/// Idle connections are given up before servers of the usual kind close them.
const IDLE: Duration = Duration::from_secs(4);
const READ_BYTES: usize = 64 << 10;

/// A request of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Due {
    pub at_us: u64,
    pub ask: Ask,
    pub measured: bool,
}

/// Who decides when the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loop {
    Open,
    /// So many clients.
    Closed(usize),
}

/// How a plan is carried out.
#[derive(Clone, Debug)]
pub struct Drive {
    pub mode: Loop,
    /// From the intended arrival.
    pub timeout: Duration,
    /// Sent with each request as its SLO.
    pub slo_ms: Option<u64>,
    pub style: Style,
    /// A closed loop sends nothing after this.
    pub closed_until: Option<Duration>,
}

/// Carries the plan out; the records are in its order.
///
/// # Errors
/// When the driver itself fails. What happens to a request is in its record.
pub fn drive(target: &Target, plan: &[Due], drive: &Drive) -> Result<Vec<Record>> {
    descriptors::prepare(plan.len());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let shared = Rc::new(Shared {
        target: target.clone(),
        drive: drive.clone(),
        // A little ahead, so that the first request is not late because the clock's thread has to start.
        start: Instant::now() + Duration::from_millis(20),
        idle: RefCell::default(),
        buffer: RefCell::new(vec![0; READ_BYTES].into()),
        next: Cell::new(0),
    });
    let local = LocalSet::new();
    let mut records = match drive.mode {
        Loop::Open => local.block_on(&runtime, open(shared, plan))?,
        Loop::Closed(clients) => local.block_on(&runtime, closed(shared, plan, clients))?,
    };
    records.sort_by_key(|r| r.index);
    Ok(records)
}

struct Shared {
    target: Target,
    drive: Drive,
    start: Instant,
    /// Connections that may be used again, the latest last.
    idle: RefCell<Vec<(TcpStream, Instant)>>,
    /// One for all reads: they are never two at a time on one thread.
    buffer: RefCell<Box<[u8]>>,
    /// Where a closed loop is in the plan.
    next: Cell<usize>,
}

impl Shared {
    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn idle(&self) -> Option<TcpStream> {
        let (stream, since) = self.idle.borrow_mut().pop()?;
        // The ones below have been idle for longer.
        if since.elapsed() > IDLE {
            self.idle.borrow_mut().clear();
            return None;
        }
        Some(stream)
    }

    fn record(&self, index: usize, due: &Due) -> Record {
        Record {
            index: index as u32,
            class: due.ask.class,
            group: due.ask.group,
            turn: due.ask.turn,
            max_tokens: due.ask.max_tokens,
            slo_ms: self.drive.slo_ms,
            measured: due.measured,
            intended_us: due.at_us,
            ..Record::default()
        }
    }
}

async fn open(shared: Rc<Shared>, plan: &[Due]) -> Result<Vec<Record>> {
    let (sender, mut due) = mpsc::unbounded_channel();
    let (plan, style, start) = (
        Arc::<[Due]>::from(plan),
        shared.drive.style.clone(),
        shared.start,
    );
    let planned = Arc::clone(&plan);
    let clock = std::thread::Builder::new()
        .name("clock".into())
        .spawn(move || {
            let prompts = Prompts::default();
            for (i, due) in planned.iter().enumerate() {
                let body = prompts.body(&due.ask, &style);
                let at = start + Duration::from_micros(due.at_us);
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                if sender.send((i, body)).is_err() {
                    return;
                }
            }
        })
        .context("starting the clock")?;
    let (mut tasks, mut records) = (JoinSet::new(), Vec::with_capacity(plan.len()));
    let mut more = true;
    while more || !tasks.is_empty() {
        tokio::select! {
            biased;
            next = due.recv(), if more => match next {
                Some((i, body)) => {
                    let record = shared.record(i, &plan[i]);
                    let mut request = Box::pin(one(Rc::clone(&shared), record, body));
                    // Sent here and now: in the queue of tasks it would wait behind every reader that is ready.
                    match poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await {
                        Poll::Ready(record) => records.push(record),
                        Poll::Pending => drop(tasks.spawn_local(request)),
                    }
                }
                None => more = false,
            },
            Some(record) = tasks.join_next(), if !tasks.is_empty() => records.push(record?),
        }
    }
    clock.join().ok().context("the clock failed")?;
    Ok(records)
}

async fn closed(shared: Rc<Shared>, plan: &[Due], clients: usize) -> Result<Vec<Record>> {
    let (plan, prompts) = (Rc::<[Due]>::from(plan), Rc::new(Prompts::default()));
    let until = shared.drive.closed_until.map(|t| shared.start + t);
    let mut tasks = JoinSet::new();
    tokio::time::sleep_until(shared.start.into()).await;
    for _ in 0..clients.min(plan.len()) {
        let (shared, plan, prompts) = (Rc::clone(&shared), Rc::clone(&plan), Rc::clone(&prompts));
        tasks.spawn_local(async move {
            let mut records = Vec::new();
            while until.is_none_or(|t| Instant::now() < t) {
                let i = shared.next.replace(shared.next.get() + 1);
                let Some(due) = plan.get(i) else { break };
                let body = prompts.body(&due.ask, &shared.drive.style);
                let mut record = shared.record(i, due);
                record.intended_us = shared.now_us();
                records.push(one(Rc::clone(&shared), record, body).await);
            }
            records
        });
    }
    let mut records = Vec::with_capacity(plan.len());
    while let Some(done) = tasks.join_next().await {
        records.extend(done?);
    }
    Ok(records)
}

async fn one(shared: Rc<Shared>, mut record: Record, body: String) -> Record {
    record.dispatched_us = Some(shared.now_us());
    let deadline = shared.start + Duration::from_micros(record.intended_us) + shared.drive.timeout;
    let exchange = exchange(&shared, &body, &mut record);
    let done = tokio::time::timeout_at(deadline.into(), exchange).await;
    match done {
        Ok(Ok(())) => return record,
        Ok(Err(e)) => record.error = Some(format!("{e:#}")),
        Err(_) => {
            record.error = Some("timeout".into());
            record.censored = true;
        }
    }
    record.finish_us = shared.now_us();
    record
}

async fn exchange(shared: &Shared, body: &str, record: &mut Record) -> Result<()> {
    let mut request = shared.target.chat_head(body.len(), shared.drive.slo_ms);
    request.push_str(body);
    loop {
        let idle = shared.idle();
        record.reused = idle.is_some();
        let mut stream = match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(shared.target.addr)
                    .await
                    .context("connecting")?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        match talk(shared, &mut stream, request.as_bytes(), record).await {
            Ok(keeps_alive) => {
                if keeps_alive {
                    shared.idle.borrow_mut().push((stream, Instant::now()));
                }
                return Ok(());
            }
            // The server had closed it meanwhile, so this request has not been read.
            Err(_) if record.reused && record.first_byte_us.is_none() => {}
            Err(e) => return Err(e),
        }
    }
}

/// Says whether the connection may be used again.
async fn talk(
    shared: &Shared,
    stream: &mut TcpStream,
    request: &[u8],
    record: &mut Record,
) -> Result<bool> {
    stream.write_all(request).await.context("sending")?;
    record.sent_us = Some(shared.now_us());
    let mut answer = Answer::default();
    poll_fn(|cx| {
        loop {
            let mut buffer = shared.buffer.borrow_mut();
            let mut buffer = ReadBuf::new(&mut buffer);
            std::task::ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer))
                .context("reading")?;
            let at_us = shared.now_us();
            if buffer.filled().is_empty() {
                answer.end(at_us, record)?;
                return Poll::Ready(Ok(false));
            }
            if answer.take(buffer.filled(), at_us, record)? {
                return Poll::Ready(Ok(answer.keeps_alive()));
            }
        }
    })
    .await
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
