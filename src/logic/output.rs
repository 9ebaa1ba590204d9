//! `TextAssembler`: the incremental detokenizer of one reply. Bytes of token pieces in, text out.
//!
//! A token piece is any run of bytes: it can end in the middle of a character, and a stop string
//! can begin in one token and end in another. The assembler emits whole characters only, and
//! holds text back only while it can still be the beginning of a stop string.
//!
//! - [`TextAssembler::push`]: decodes one piece. Without stop strings it is one UTF-8 validation
//!   and one copy into `out`; with them, each byte of the text still held (less than the longest
//!   stop string) and of the new piece is looked up in a 256-bit set of first bytes, and compared
//!   with the stop strings only where it can start one.
//! - [`TextAssembler::finish`]: flushes what was held.
//!
//! However the bytes are cut into pieces, the text is `String::from_utf8_lossy` of them all, less
//! an incomplete character at the very end, cut before the leftmost stop string. So streamed and
//! whole replies are equal. That leftmost wins means: a stop string that is complete waits as long
//! as a longer one that started earlier may still complete.

/// The incomplete character at the end of the bytes so far: at most 3 bytes, and one more while
/// they are being looked at.
#[derive(Default)]
struct Incomplete {
    bytes: [u8; 4],
    len: usize,
}

impl Incomplete {
    /// Takes bytes from the front of `piece` until no character is left incomplete. Returns the
    /// rest of `piece`, or an empty slice if it did not complete the character.
    fn complete<'a>(&mut self, mut piece: &'a [u8], text: &mut String) -> &'a [u8] {
        while self.len > 0 {
            let Some((&byte, rest)) = piece.split_first() else {
                break;
            };
            piece = rest;
            self.bytes[self.len] = byte;
            self.len += 1;
            self.resolve(text);
        }
        piece
    }

    /// Moves to `text` what is decided, as `from_utf8_lossy` would decide it.
    fn resolve(&mut self, text: &mut String) {
        let mut start = 0;
        while start < self.len {
            let pending = &self.bytes[start..self.len];
            match std::str::from_utf8(pending) {
                Ok(whole) => {
                    text.push_str(whole);
                    start = self.len;
                }
                Err(error) => {
                    let Some(invalid) = error.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    start += invalid;
                }
            }
        }
        self.bytes.copy_within(start..self.len, 0);
        self.len -= start;
    }

    /// Decodes `bytes`, which start at a character boundary, and keeps an incomplete end.
    fn decode(&mut self, bytes: &[u8], text: &mut String) {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            // Bytes that could begin a character do so only at the very end: `ed` could, but not
            // in `ed a0`, half a surrogate, which are two invalid bytes.
            let last = chunks.peek().is_none();
            if last && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
            {
                self.bytes[..invalid.len()].copy_from_slice(invalid);
                self.len = invalid.len();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}

/// Assembles the text of one reply.
pub struct TextAssembler {
    stops: Vec<String>,
    /// The set of first bytes of the stop strings, one bit each.
    first_bytes: [u64; 4],
    incomplete: Incomplete,
    /// Text not emitted yet: it begins like a stop string.
    held: String,
    stopped: bool,
}

impl TextAssembler {
    /// Empty stop strings are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        let stops: Vec<String> = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        let mut first_bytes = [0; 4];
        for byte in stops.iter().filter_map(|stop| stop.bytes().next()) {
            first_bytes[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
        Self {
            stops,
            first_bytes,
            incomplete: Incomplete::default(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Appends to `out` the text that `piece` decides. True once a stop string was hit: the text
    /// before it has been emitted, and the stop string and all that follows are dropped.
    pub fn push(&mut self, piece: &[u8], out: &mut String) -> bool {
        if self.stopped {
            return true;
        }
        let text = if self.stops.is_empty() {
            &mut *out
        } else {
            &mut self.held
        };
        let rest = self.incomplete.complete(piece, text);
        if !rest.is_empty() {
            self.incomplete.decode(rest, text);
        }
        if !self.stops.is_empty() {
            self.release(out, false);
        }
        self.stopped
    }

    /// Ends the reply: flushes the text held back. An incomplete character is left behind.
    /// True if a stop string was hit, which may show only now: it was complete, but a longer one
    /// that started earlier could have been under way.
    pub fn finish(&mut self, out: &mut String) -> bool {
        if !self.stopped {
            self.release(out, true);
        }
        self.stopped
    }

    /// Emits the held text up to where a stop string starts, or may start unless this is the end.
    fn release(&mut self, out: &mut String, end: bool) {
        let held = self.held.as_bytes();
        let mut emitted = held.len();
        for (at, &byte) in held.iter().enumerate() {
            if self.first_bytes[usize::from(byte >> 6)] & (1 << (byte & 63)) == 0 {
                continue;
            }
            let here = &held[at..];
            self.stopped = self
                .stops
                .iter()
                .any(|stop| here.starts_with(stop.as_bytes()));
            if self.stopped
                || (!end
                    && self
                        .stops
                        .iter()
                        .any(|stop| stop.as_bytes().starts_with(here)))
            {
                emitted = at;
                break;
            }
        }
        // A stop string starts with a whole character, so `emitted` is a character boundary.
        out.push_str(&self.held[..emitted]);
        if self.stopped {
            self.held.clear();
        } else {
            self.held.drain(..emitted);
        }
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
