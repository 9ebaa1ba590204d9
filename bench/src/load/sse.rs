//! Server-sent events out of a stream of bytes, as they come: each event's data is handed on when its blank line
//! is there. Comments and other fields are passed over. [`crate::sse`] reads recordings instead.

/// An event that has not ended yet.
#[derive(Debug, Default)]
pub struct Events {
    /// A line that has not ended yet.
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

impl Events {
    /// Takes the next bytes; gives the data of every event that they complete to `on`.
    pub fn feed(&mut self, mut bytes: &[u8], mut on: impl FnMut(&[u8])) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.line.is_empty() {
                self.take(line, &mut on);
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.take(&whole, &mut on);
                whole.clear();
                self.line = whole;
            }
        }
        self.line.extend_from_slice(bytes);
    }

    fn take(&mut self, line: &[u8], on: &mut impl FnMut(&[u8])) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            if self.has_data {
                on(&self.data);
            }
            self.data.clear();
            self.has_data = false;
        } else if let Some(data) = line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data
                .extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            self.has_data = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8], cut: usize) -> Vec<String> {
        let mut events = Events::default();
        let mut all = Vec::new();
        let (a, b) = text.split_at(cut.min(text.len()));
        for part in [a, b] {
            events.feed(part, |data| {
                all.push(String::from_utf8_lossy(data).into_owned())
            });
        }
        all
    }

    #[test]
    fn wherever_the_bytes_are_cut_the_events_are_the_same() {
        let text = b": ping\n\ndata: {\"a\":1}\n\nevent: error\r\ndata:b\r\ndata: c\r\n\r\ndata: \n\nid: 1\n\ndata: lost";
        for cut in 0..text.len() {
            assert_eq!(read(text, cut), ["{\"a\":1}", "b\nc", ""], "{cut}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, cut: usize) {
            read(&bytes, cut);
        }
    }
}
