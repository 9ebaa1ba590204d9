//! The server that is measured: its address by URL, and what it says of itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::http1::ResponseReader;

const ROUTE: &str = "/chat/completions";
/// For what is asked beside the measurement.
const PATIENCE: Duration = Duration::from_secs(10);

/// An OpenAI-compatible server.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub addr: SocketAddr,
    host: String,
    /// What comes before `/v1`.
    base: String,
    api_key: Option<String>,
}

impl Target {
    /// From `http://host:port`, with or without a path up to `/v1` or the route itself.
    ///
    /// # Errors
    /// For anything but plain HTTP, and for a host without an address.
    pub fn parse(url: &str, api_key: Option<String>) -> Result<Self> {
        let (host, base) = split(url)?;
        let with_port = if has_port(&host) {
            host.clone()
        } else {
            format!("{host}:80")
        };
        let addr = with_port
            .to_socket_addrs()
            .with_context(|| format!("looking {host} up"))?
            .next()
            .with_context(|| format!("{host} has no address"))?;
        Ok(Self {
            addr,
            host,
            base,
            api_key,
        })
    }

    /// # Errors
    /// When nothing listens there.
    pub fn reach(&self) -> Result<()> {
        self.connect().map(drop)
    }

    fn connect(&self) -> Result<TcpStream> {
        TcpStream::connect_timeout(&self.addr, PATIENCE)
            .with_context(|| format!("nothing listens at {} ({})", self.host, self.addr))
    }

    /// The head of a request, complete with the blank line.
    pub fn head(&self, method: &str, path: &str, body_bytes: usize, extra: &str) -> String {
        let key = self.api_key.as_ref();
        let key = key.map_or_else(String::new, |k| format!("authorization: Bearer {k}\r\n"));
        let body = match body_bytes {
            0 => String::new(),
            n => format!("content-type: application/json\r\ncontent-length: {n}\r\n"),
        };
        format!(
            "{method} {}{path} HTTP/1.1\r\nhost: {}\r\n{key}{extra}{body}\r\n",
            self.base, self.host
        )
    }

    /// The head of a chat completion.
    pub fn chat_head(&self, body_bytes: usize, slo_ms: Option<u64>) -> String {
        let slo = slo_ms.map_or_else(String::new, |ms| format!("x-slo-e2e-ms: {ms}\r\n"));
        self.head("POST", &format!("/v1{ROUTE}"), body_bytes, &slo)
    }

    /// Asks for JSON, outside any measurement.
    ///
    /// # Errors
    /// When the server does not answer 200 with JSON.
    pub fn get(&self, path: &str) -> Result<Value> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(
            self.head("GET", path, 0, "connection: close\r\n")
                .as_bytes(),
        )?;
        let (mut reader, mut body) = (ResponseReader::default(), Vec::new());
        let mut buffer = vec![0; 16 << 10];
        while !reader.is_done() {
            match stream.read(&mut buffer)? {
                0 => {
                    reader.end()?;
                    break;
                }
                n => reader.feed(&buffer[..n], |_, bytes| body.extend_from_slice(bytes))?,
            }
        }
        let status = reader.head().map_or(0, |h| h.status);
        ensure!(status == 200, "{path} answers {status}");
        serde_json::from_slice(&body).with_context(|| format!("{path} is no JSON"))
    }

    /// The first model that the server lists.
    pub fn first_model(&self) -> Option<String> {
        let models = self.get("/v1/models").ok()?;
        models["data"][0]["id"].as_str().map(str::to_owned)
    }
}

fn split(url: &str) -> Result<(String, String)> {
    let Some(rest) = url.strip_prefix("http://") else {
        match url.split_once("://") {
            Some((scheme, _)) => bail!("only http:// can be measured, and no {scheme}:// ({url})"),
            None => bail!("no http:// before {url:?}"),
        }
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    ensure!(
        !host.is_empty() && !host.contains(char::is_whitespace),
        "no host in {url:?}"
    );
    let path = path.trim_end_matches('/');
    let path = path.strip_suffix(ROUTE).unwrap_or(path);
    let base = path.strip_suffix("/v1").unwrap_or(path);
    ensure!(!base.contains(char::is_whitespace), "no path: {path:?}");
    Ok((host.to_owned(), base.to_owned()))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_end_anywhere_before_the_route() {
        for url in [
            "http://127.0.0.1:8000",
            "http://127.0.0.1:8000/",
            "http://127.0.0.1:8000/v1",
            "http://127.0.0.1:8000/v1/chat/completions",
        ] {
            let target = Target::parse(url, None).unwrap();
            assert_eq!(target.addr.port(), 8000);
            assert!(target.chat_head(2, Some(900)).starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8000\r\nx-slo-e2e-ms: 900\r\n"));
        }
        let target = Target::parse("http://127.0.0.1/api/v1", Some("k".into())).unwrap();
        assert_eq!(target.addr.port(), 80);
        let head = target.chat_head(2, None);
        assert!(
            head.starts_with("POST /api/v1/chat") && head.contains("authorization: Bearer k\r\n")
        );
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for url in [
            "https://example.org",
            "127.0.0.1:8000",
            "http://",
            "http://a b/",
        ] {
            let error = Target::parse(url, None).unwrap_err().to_string();
            assert!(
                error.contains("http://") || error.contains("host"),
                "{error}"
            );
        }
    }
}
