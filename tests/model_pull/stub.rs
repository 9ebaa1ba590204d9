//! A Hugging Face Hub with one file, and the CDN on another port that it redirects to.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a request for the file's bytes gets, once.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The connection closes after this many bytes.
    Truncate(usize),
    Status(u16),
}

#[derive(Debug, Clone, Default)]
pub struct State {
    pub content: Vec<u8>,
    pub etag: String,
    /// Used up from the front by requests to the CDN.
    pub faults: Vec<Fault>,
    /// What every request to the Hub itself is answered with.
    pub status: Option<u16>,
    pub ignores_ranges: bool,
    pub requests: Vec<Request>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub host: &'static str,
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

pub struct Stub {
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Stub {
    pub fn serve(content: &[u8]) -> Self {
        let state = Arc::new(Mutex::new(State {
            content: content.to_vec(),
            etag: crate::sha256(content),
            ..State::default()
        }));
        let cdn = listen("cdn", state.clone(), String::new());
        let url = listen("hub", state.clone(), cdn);
        Self { url, state }
    }

    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// The `Range` headers of the requests for bytes, in order.
    pub fn ranges(&self) -> Vec<Option<String>> {
        let requests = self.requests().into_iter();
        let bytes = requests.filter(|r| r.host == "cdn" && r.method == "GET");
        bytes.map(|r| r.range).collect()
    }
}

fn listen(host: &'static str, state: Arc<Mutex<State>>, cdn: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (state, cdn) = (state.clone(), cdn.clone());
            thread::spawn(move || answer(host, stream.unwrap(), &state, &cdn));
        }
    });
    url
}

fn answer(host: &'static str, mut stream: TcpStream, state: &Mutex<State>, cdn: &str) {
    let Some(request) = read(host, &stream) else {
        return; // A connection that was opened and not used.
    };
    let (state, fault) = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        let faulty = host == "cdn" && request.method == "GET" && !state.faults.is_empty();
        let fault = faulty.then(|| state.faults.remove(0));
        (state.clone(), fault)
    };
    let mut send = |head: String, body: &[u8]| {
        // The client may have hung up, which is its right.
        let _ =
            stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
        let _ = stream.write_all(body);
    };
    let total = state.content.len();
    if host == "hub" {
        let commit = "X-Repo-Commit: c0ffee";
        return match state.status {
            Some(status) => send(
                format!("{status} Stub\r\nX-Error-Message: says the stub\r\nContent-Length: 0"),
                b"",
            ),
            None => send(
                format!(
                    "302 Found\r\nLocation: {cdn}/blob?Signature=s\r\n{commit}\r\n\
                     X-Linked-Etag: \"{}\"\r\nX-Linked-Size: {total}\r\nContent-Length: 0",
                    state.etag
                ),
                b"",
            ),
        };
    }
    if let Some(Fault::Status(status)) = fault {
        return send(format!("{status} Stub\r\nContent-Length: 0"), b"");
    }
    let range = request.range.as_deref().filter(|_| !state.ignores_ranges);
    let start = range.map_or(0, |r| {
        let start = r.strip_prefix("bytes=").unwrap().split_once('-').unwrap().0;
        start.parse().unwrap()
    });
    let (status, rest) = if range.is_some() {
        let at = format!("Content-Range: bytes {start}-{}/{total}", total - 1);
        (
            format!("206 Partial Content\r\n{at}"),
            &state.content[start..],
        )
    } else {
        ("200 OK".to_owned(), &state.content[..])
    };
    let body = match fault {
        _ if request.method == "HEAD" => b"",
        Some(Fault::Truncate(len)) => &rest[..len.min(rest.len())],
        _ => rest,
    };
    send(format!("{status}\r\nContent-Length: {}", rest.len()), body);
}

fn read(host: &'static str, stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let mut request = Request {
        host,
        method: words.next()?,
        path: words.next()?,
        range: None,
        authorization: None,
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => {
                request.range = Some(value.to_owned());
            }
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                request.authorization = Some(value.to_owned());
            }
            _ => {}
        }
    }
    Some(request)
}
