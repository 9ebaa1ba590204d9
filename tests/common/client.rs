//! A client that speaks bytes: what it sends is what the test says, what it reads is checked for its framing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::{PATIENCE, Response};

/// An open connection. Dropping it is what a client that goes away does.
pub struct Connection {
    stream: BufReader<TcpStream>,
    /// Of a chunked body: what is read and not yet given out.
    pending: String,
    /// Of a chunked body: its terminator has come.
    terminated: bool,
}

impl Connection {
    pub fn open(addr: SocketAddr) -> Self {
        Self::new(TcpStream::connect(addr).unwrap())
    }

    /// A client whose kernel takes little more than `bytes` that it does not read.
    pub fn open_with_small_buffer(addr: SocketAddr, bytes: usize) -> Self {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).unwrap();
        // Before the connection is made: the window's scale is fixed then.
        socket.set_recv_buffer_size(bytes).unwrap();
        socket.connect(&addr.into()).unwrap();
        Self::new(socket.into())
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
            pending: String::new(),
            terminated: false,
        }
    }

    /// Sends bytes. A server that refuses early may close before all is sent; its answer still can be read.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _ = self.stream.get_mut().write_all(bytes.as_ref());
        self
    }

    /// Reads the status line and the headers.
    pub fn head(&mut self) -> Response {
        let mut status = String::new();
        let _ = self.stream.read_line(&mut status);
        let status = status
            .split_whitespace()
            .nth(1)
            .map_or(0, |s| s.parse().unwrap_or(0));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Response {
            status,
            headers,
            body: String::new(),
            complete: true,
        }
    }

    /// Reads a response that the connection outlives.
    pub fn next_response(&mut self) -> Response {
        let mut response = self.head();
        if response.is_chunked() {
            while let Some(block) = self.block() {
                response.body.push_str(&block);
            }
            response.complete = std::mem::take(&mut self.terminated);
        } else {
            let length = response
                .header("content-length")
                .map_or(0, |n| n.parse().unwrap());
            let mut body = vec![0; length];
            response.complete = self.stream.read_exact(&mut body).is_ok();
            response.body = String::from_utf8(body).expect("a body in UTF-8");
        }
        response
    }

    /// Reads a response and the end of the connection, which must follow it.
    pub fn response(mut self) -> Response {
        let mut response = self.next_response();
        response.complete &= self.at_end();
        response
    }

    /// Reads the rest of a stream, whose head and first events have been read, and the connection's end.
    pub fn rest(mut self) -> Response {
        let headers = vec![("content-type".into(), "text/event-stream".into())];
        let mut rest = Response {
            status: 200,
            headers,
            body: String::new(),
            complete: true,
        };
        while let Some(block) = self.block() {
            rest.body.push_str(&block);
        }
        rest.complete = self.terminated && self.at_end();
        rest
    }

    /// Waits for the server to close; false if it sends something instead.
    pub fn at_end(&mut self) -> bool {
        matches!(self.stream.fill_buf(), Ok([]))
    }

    /// Waits for the server to close, by whatever means, and gives what it still sent.
    pub fn drained(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }

    /// Whether there is nothing to be read at the moment.
    pub fn silent(&mut self) -> bool {
        let buffered = !self.stream.buffer().is_empty() || !self.pending.is_empty();
        let stream = self.stream.get_mut();
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        !buffered && peeked.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Whether nothing but comments is to be read at the moment; reads those.
    pub fn says_nothing(&mut self) -> bool {
        while !self.silent() {
            if !self.block().is_some_and(|block| block.starts_with(':')) {
                return false;
            }
        }
        true
    }

    /// Half-closes: the client has said all it wants to say.
    pub fn shut_writing(&mut self) {
        self.stream
            .get_mut()
            .shutdown(std::net::Shutdown::Write)
            .unwrap();
    }

    /// The next block of a chunked SSE stream, event or comment, with its blank line; `None` at its end.
    pub fn block(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.pending.find("\n\n") {
                return Some(self.pending.drain(..at + 2).collect());
            }
            if !self.chunk() {
                let left = std::mem::take(&mut self.pending);
                return Some(left).filter(|l| !l.is_empty());
            }
        }
    }

    /// Reads one chunk; false at the end of the body.
    fn chunk(&mut self) -> bool {
        let mut size = String::new();
        if self.terminated || self.stream.read_line(&mut size).unwrap_or(0) == 0 {
            return false;
        }
        let Ok(size) = usize::from_str_radix(size.trim_end(), 16) else {
            panic!("{size:?} is no chunk's size");
        };
        let mut data = vec![0; size + 2];
        if self.stream.read_exact(&mut data).is_err() {
            return false;
        }
        assert!(
            data.ends_with(b"\r\n"),
            "a chunk that does not end where it said"
        );
        self.terminated = size == 0;
        self.pending
            .push_str(std::str::from_utf8(&data[..size]).expect("a chunk in UTF-8"));
        !self.terminated
    }

    /// The next `data:` of the stream; `None` at its end. Comments are passed over.
    pub fn event(&mut self) -> Option<String> {
        loop {
            let block = self.block()?;
            if let Some(data) = block.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
    }

    /// Reads the stream's head and `n` events with text; gives the text.
    pub fn read_text(&mut self, n: usize) -> String {
        let head = self.head();
        assert_eq!(head.status, 200, "{}", self.event().unwrap_or_default());
        self.more_text(n)
    }

    /// Reads `n` more events with text; gives the text.
    pub fn more_text(&mut self, n: usize) -> String {
        let (mut seen, mut all) = (0, String::new());
        while seen < n {
            let event = self.event().expect("the stream ended early");
            let json: Value = serde_json::from_str(&event).expect("a chunk");
            let text = json["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or_default();
            seen += usize::from(!text.is_empty());
            all.push_str(text);
        }
        all
    }
}
