//! The load: streaming clients, each of which sends its next request when it has read its last reply.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::json;

use crate::client;
use crate::sse::Reply;
use crate::workload::{SYSTEM, USER};

/// Lengths of replies in tokens: most are short, some are long.
const LENGTHS: [usize; 8] = [24, 160, 48, 96, 320, 64, 224, 128];

/// Clients at work. They end when this is dropped or the daemon is gone; nobody waits for them.
pub struct Load(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    replies: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Load {
    pub fn start(addr: SocketAddr, clients: usize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        for first in 0..clients {
            let shared = Arc::clone(&shared);
            let client = move || {
                for i in (first..).step_by(clients) {
                    if shared.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(e) = ask(addr, i) {
                        if let Ok(mut failure) = shared.failure.lock() {
                            failure.get_or_insert(format!("{e:#}"));
                        }
                        return;
                    }
                    shared.replies.fetch_add(1, Ordering::Relaxed);
                }
            };
            std::thread::Builder::new()
                .name(format!("client {first}"))
                .spawn(client)?;
        }
        Ok(Self(shared))
    }

    /// Waits until that many replies have been read.
    pub fn wait_for(&self, replies: u64, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while self.replies()? < replies {
            ensure!(Instant::now() < end, "the daemon hardly answers");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// How many replies have been read to their end.
    ///
    /// # Errors
    /// When one was not what it should have been.
    pub fn replies(&self) -> Result<u64> {
        let failure = self.0.failure.lock().ok().and_then(|f| f.clone());
        match failure {
            Some(why) => bail!("a client failed: {why}"),
            None => Ok(self.0.replies.load(Ordering::Relaxed)),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn ask(addr: SocketAddr, i: usize) -> Result<()> {
    for recording in &client::stream_all(addr, &[request(i)], |_| {})? {
        Reply::read(recording)?;
    }
    Ok(())
}

/// The `i`-th request: every pair of system prompt and user turn comes up, with every length; one in four takes
/// the most likely token, the others draw.
fn request(i: usize) -> String {
    let users: Vec<&str> = USER.lines().collect();
    let (user, round) = (i % users.len(), i / users.len());
    let sampling = if i.is_multiple_of(4) {
        json!({ "temperature": 0 })
    } else {
        json!({ "temperature": 0.7, "top_p": 0.95, "seed": i })
    };
    let mut body = json!({
        "messages": [
            { "role": "system", "content": SYSTEM[(user + round) % SYSTEM.len()] },
            { "role": "user", "content": users[user] },
        ],
        "max_tokens": LENGTHS[(user + user / LENGTHS.len() + round) % LENGTHS.len()],
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if let (Some(body), Some(sampling)) = (body.as_object_mut(), sampling.as_object()) {
        body.extend(sampling.clone());
    }
    body.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn a_round_of_requests_has_every_prompt_and_every_length() {
        let requests: Vec<Value> = (0..16 * SYSTEM.len())
            .map(|i| serde_json::from_str(&request(i)).unwrap())
            .collect();
        let texts: BTreeSet<String> = requests.iter().map(|r| r["messages"].to_string()).collect();
        assert_eq!(texts.len(), requests.len());
        let lengths: BTreeSet<u64> = requests[..16]
            .iter()
            .map(|r| r["max_tokens"].as_u64().unwrap())
            .collect();
        assert_eq!(lengths.len(), LENGTHS.len());
    }
}
