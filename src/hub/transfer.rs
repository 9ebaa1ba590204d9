//! Downloads a file of the Hugging Face Hub, resuming after a broken connection or process.
//!
//! Models are large and connections break, so what has arrived is kept and the next attempt,
//! in this process or a later one, asks for the rest. The checksum of the whole decides.

use std::fs::File;
use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::digest::{self, Sum, Summing};
use super::error::{Error, Result};
use super::huggingface::{Endpoint, Failure, Remote};
use super::name::HubFile;
use super::slot::{self, Lock, Slot};

/// Attempts in a row that bring no byte before a pull gives up.
const MAX_FRUITLESS: u32 = 5;

/// A downloaded, verified file under its temporary name, or the file that was there already.
pub enum Fetched {
    Part(PathBuf, Sum),
    Present(String),
}

/// Where to download from and how patiently.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    pub endpoint: Option<&'a str>,
    pub file: &'a HubFile,
    /// Pause after a first failure; it doubles from one to the next.
    pub retry_delay: Duration,
}

/// Downloads the file unless `slot` holds it.
pub fn fetch(source: &Source<'_>, slot: &Slot<'_>, lock: &Lock) -> Result<Fetched> {
    on_runtime(async {
        let named = |failure: Failure| Error::Hub {
            url: source.file.to_string(),
            reason: failure.reason,
        };
        let hub = Endpoint::connect(source.endpoint).map_err(named)?;
        let mut shown = hub.url(source.file).map_err(named)?;
        // An endpoint may hold a password; neither call fails on a URL that has a host.
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        let mut download = Download {
            hub,
            source,
            shown: shown.to_string(),
        };
        download.run(slot, lock).await
    })
}

struct Download<'a> {
    hub: Endpoint,
    source: &'a Source<'a>,
    /// The file's URL as messages show it.
    shown: String,
}

impl Download<'_> {
    async fn run(&mut self, slot: &Slot<'_>, lock: &Lock) -> Result<Fetched> {
        let mut fruitless = 0;
        let remote = loop {
            match self.hub.look_up(self.source.file).await {
                Ok(remote) => break remote,
                Err(failure) => self.pause(failure, &mut fruitless).await?,
            }
        };
        let part = slot.part(&remote.tag());
        slot.sweep(lock, Some(&part))?;
        if let Some(sha256) = remote.sha256()
            && slot.verified(sha256)?
        {
            slot::remove(&part)?;
            return Ok(Fetched::Present(sha256.to_owned()));
        }
        let mut out = Summing::append(&part)?;
        let resumed = out.bytes() > 0;
        self.complete(&remote, &part, &mut out).await?;
        let mut checked = self.check(&remote, &out.sum());
        if checked.is_err() && resumed {
            // What lay here may be damaged, as by a power failure. Once more, from nothing.
            out.restart(&part)?;
            self.complete(&remote, &part, &mut out).await?;
            checked = self.check(&remote, &out.sum());
        }
        if let Err(error) = checked.and_then(|()| digest::require_gguf(&self.shown, &part)) {
            slot::remove(&part)?;
            return Err(error);
        }
        Ok(Fetched::Part(part, out.sum()))
    }

    fn check(&self, remote: &Remote, sum: &Sum) -> Result<()> {
        if remote.sha256().is_none() {
            tracing::warn!(url = %self.shown, "the server gives no SHA-256: only the size is checked");
        }
        digest::require(&self.shown, sum, Some(remote.size), remote.sha256())
    }

    /// Appends to `out` until it has the whole file.
    async fn complete(&self, remote: &Remote, part: &Path, out: &mut Summing<File>) -> Result<()> {
        if out.bytes() > remote.size {
            out.restart(part)?;
        }
        tracing::info!(url = %self.shown, bytes = remote.size, from = out.bytes(), "downloading");
        let bar = progress_bar(remote.size, out.bytes(), &self.source.file.path);
        let mut fruitless = 0;
        let mut ranges = true;
        while out.bytes() < remote.size {
            if !ranges {
                out.restart(part)?;
            }
            let start = out.bytes();
            match self.stream(remote, part, out, &bar).await? {
                Ok(()) => {}
                Err(Stopped::Surplus) if start > 0 => {
                    // The server sent the file from its beginning.
                    ranges = false;
                    out.restart(part)?;
                    continue;
                }
                Err(Stopped::Surplus) => {
                    slot::remove(part)?;
                    return Err(Error::Size {
                        what: self.shown.clone(),
                        expected: remote.size,
                        actual: out.bytes(),
                    });
                }
                Err(Stopped::Failed(failure)) => {
                    // Without ranges nothing is kept, however much came.
                    if ranges && out.bytes() > start {
                        fruitless = 0;
                    }
                    self.pause(failure, &mut fruitless).await?;
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// One request for what is missing. The outer error is a local one and final.
    async fn stream(
        &self,
        remote: &Remote,
        part: &Path,
        out: &mut Summing<File>,
        bar: &ProgressBar,
    ) -> Result<Result<(), Stopped>> {
        let file = self.source.file;
        let start = out.bytes();
        let opened = self
            .hub
            .client
            .model(&file.owner, &file.repo)
            .download_file_stream()
            .filename(&file.path)
            .revision(&remote.commit)
            .maybe_range((start > 0).then_some(start..remote.size))
            .send()
            .await;
        let mut chunks = match opened {
            Ok((_, chunks)) => chunks,
            Err(error) => return Ok(Err(Stopped::Failed(error.into()))),
        };
        while let Some(chunk) = chunks.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => return Ok(Err(Stopped::Failed(error.into()))),
            };
            out.write_all(&chunk).map_err(Error::io("write", part))?;
            if out.bytes() > remote.size {
                return Ok(Err(Stopped::Surplus));
            }
            bar.set_position(out.bytes());
        }
        if out.bytes() < remote.size {
            return Ok(Err(Stopped::Failed(Failure {
                reason: format!("it ended after {} of {} bytes", out.bytes(), remote.size),
                transient: true,
            })));
        }
        Ok(Ok(()))
    }

    /// Waits before the next attempt, or gives up.
    async fn pause(&self, failure: Failure, fruitless: &mut u32) -> Result<()> {
        *fruitless += 1;
        if !failure.transient || *fruitless >= MAX_FRUITLESS {
            return Err(Error::Hub {
                url: self.shown.clone(),
                reason: failure.reason,
            });
        }
        let delay = self.source.retry_delay * 2u32.pow(*fruitless - 1);
        tracing::warn!(url = %self.shown, reason = %failure.reason, ?delay, "download failed, trying again");
        tokio::time::sleep(delay).await;
        Ok(())
    }
}

/// Why one request did not complete the file.
enum Stopped {
    Failed(Failure),
    /// More bytes came than the file has.
    Surplus,
}

/// Hidden by indicatif when standard error is not a terminal.
fn progress_bar(size: u64, from: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(size).with_position(from);
    bar.reset_eta();
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(name.to_owned());
    bar
}

/// Runs `future` on a runtime of its own thread, so that callers may be in a runtime or not.
fn on_runtime<T: Send>(future: impl Future<Output = Result<T>> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(Error::io("start a runtime for", Path::new("the download")))?;
            runtime.block_on(future)
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
