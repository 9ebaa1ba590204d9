//! Standard output, whose reader may leave: `cadenced check-config | head` is no failure.

use std::io::{self, ErrorKind, Write as _};

/// Writes `text`. A reader that has left wants no more of it, so that is no error.
///
/// # Errors
/// When it can't be written for another reason, such as a full disk.
pub fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
