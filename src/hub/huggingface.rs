//! What the Hugging Face Hub says about a file (commit, size, checksum), and a client to it.
//!
//! `hf-hub` transfers the file, but cannot tell its checksum: 1.0.0 follows the Hub's
//! redirect to the CDN, where the headers that carry it are gone, and reads the API's
//! `lfs.oid` under another name. So the one `HEAD` request that stops at the redirect is
//! made here.

use std::env;
use std::error::Error as _;
use std::fs;
use std::time::Duration;

use hf_hub::{HFClient, HFError};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, StatusCode, Url};

use super::name::HubFile;

/// A server silent for this long has gone away; without a limit a pull would wait for ever.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(20);
const MAX_REDIRECTS: usize = 10;
const USER_AGENT: &str = concat!("cadenced/", env!("CARGO_PKG_VERSION"));

/// A failed request, and whether the same request may succeed later.
#[derive(Debug)]
pub struct Failure {
    pub reason: String,
    pub transient: bool,
}

/// What the Hub says about a file.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Downloads are pinned to it, so that a resumed one cannot mix two versions.
    pub commit: String,
    pub size: u64,
    /// Names the content.
    pub etag: String,
}

/// Access to the Hub at `HF_ENDPOINT`, with the token of `HF_TOKEN` or `hf auth login`.
pub struct Endpoint {
    pub client: HFClient,
    head: Client,
    token: Option<String>,
}

impl Endpoint {
    /// A client to `endpoint`, or else to `HF_ENDPOINT` or the public Hub.
    pub fn connect(endpoint: Option<&str>) -> Result<Self, Failure> {
        let http = || {
            Client::builder()
                .user_agent(USER_AGENT)
                .connect_timeout(CONNECT)
                .read_timeout(SILENCE)
        };
        let body = http().build().map_err(|e| Failure::request(e, false))?;
        let head = http()
            .redirect(Policy::custom(stay_on_host))
            .build()
            .map_err(|e| Failure::request(e, false))?;
        let token = token();
        let mut builder = HFClient::builder()
            .client(body)
            .cache_enabled(false)
            // The caller retries, and resumes.
            .retry_max_attempts(0);
        if let Some(endpoint) = endpoint {
            builder = builder.endpoint(endpoint);
        }
        if let Some(token) = &token {
            builder = builder.token(token);
        }
        let client = builder.build().map_err(Failure::from)?;
        Ok(Self {
            client,
            head,
            token,
        })
    }

    /// The file's address, for requests and, without credentials, for messages.
    pub fn url(&self, file: &HubFile) -> Result<Url, Failure> {
        let unusable = |reason: &dyn std::fmt::Display| Failure {
            reason: format!("the endpoint is not a usable URL: {reason}"),
            transient: false,
        };
        let mut url = Url::parse(self.client.endpoint()).map_err(|e| unusable(&e))?;
        url.path_segments_mut()
            .map_err(|()| unusable(&"it has no path"))?
            .pop_if_empty()
            .extend([&file.owner, &file.repo, "resolve"])
            .push(file.revision.as_deref().unwrap_or("main"))
            .extend(file.path.split('/'));
        Ok(url)
    }

    /// Asks for the file's commit, size and checksum.
    pub async fn look_up(&self, file: &HubFile) -> Result<Remote, Failure> {
        // A compressed answer would tell the compressed length.
        let mut request = self
            .head
            .head(self.url(file)?)
            .header(ACCEPT_ENCODING, "identity");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request
            .send()
            .await
            .map_err(|e| Failure::request(e, true))?;
        let (status, headers) = (response.status(), response.headers());
        if !status.is_success() && !status.is_redirection() {
            return Err(Failure::status(status, header(headers, "x-error-message")));
        }
        let required = |value: Option<String>, name: &str| {
            value.ok_or_else(|| Failure {
                reason: format!("the server's answer has no {name} header: is it a Hub?"),
                transient: false,
            })
        };
        let etag = header(headers, "x-linked-etag").or_else(|| header(headers, ETAG.as_str()));
        let etag = required(etag, "ETag")?;
        let size = header(headers, "x-linked-size")
            .or_else(|| header(headers, CONTENT_LENGTH.as_str()))
            .and_then(|size| size.parse().ok());
        Ok(Remote {
            commit: required(header(headers, "x-repo-commit"), "X-Repo-Commit")?,
            size: size.ok_or_else(|| Failure {
                reason: "the server does not tell the file's size".to_owned(),
                transient: false,
            })?,
            etag: etag.trim_start_matches("W/").trim_matches('"').to_owned(),
        })
    }
}

impl Remote {
    /// The SHA-256, which the etag is for a file in LFS or Xet, as models are.
    pub fn sha256(&self) -> Option<&str> {
        let is_sha256 = self.etag.len() == 64
            && self
                .etag
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        is_sha256.then_some(self.etag.as_str())
    }

    /// A file name component for this content.
    pub fn tag(&self) -> String {
        let tag = self.etag.chars().filter(char::is_ascii_alphanumeric);
        tag.take(16).collect()
    }
}

impl Failure {
    /// A request without a (whole) answer. The URL, which may be a signed one of the CDN's, is
    /// left out; the causes below it hold the system's reason.
    pub fn request(error: reqwest::Error, transient: bool) -> Self {
        let error = error.without_url();
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        Self { reason, transient }
    }

    fn status(status: StatusCode, message: Option<String>) -> Self {
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "; if the repository exists, it is private or gated: set HF_TOKEN"
            }
            _ => "",
        };
        let message = message.map_or_else(String::new, |m| format!(": {m}"));
        Self {
            reason: format!("the server answered {status}{message}{hint}"),
            transient: status.is_server_error()
                || matches!(
                    status,
                    StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
                ),
        }
    }
}

impl From<HFError> for Failure {
    fn from(error: HFError) -> Self {
        match error {
            HFError::Request { source, .. } => Self::request(source, true),
            HFError::Http { context }
            | HFError::AuthRequired { context }
            | HFError::Forbidden { context }
            | HFError::Conflict { context }
            | HFError::RateLimited { context, .. } => {
                Self::status(context.status, context.server_message)
            }
            // Xet retries by itself, but a later attempt resumes after what it delivered.
            HFError::Xet { .. } => Self {
                reason: error.to_string(),
                transient: true,
            },
            _ => Self {
                reason: error.to_string(),
                transient: false,
            },
        }
    }
}

/// Follows a renamed repository, but stops at the CDN: its answer lacks the Hub's headers.
fn stay_on_host(attempt: Attempt<'_>) -> Action {
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error("too many redirects");
    }
    match attempt.previous().last() {
        Some(previous) if previous.origin() == attempt.url().origin() => attempt.follow(),
        _ => attempt.stop(),
    }
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// The token that `hf-hub` would find, which keeps it to itself.
fn token() -> Option<String> {
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some() {
        return None;
    }
    variable("HF_TOKEN").or_else(|| {
        let stored = variable("HF_TOKEN_PATH").map(Into::into);
        [stored, Some(hf_hub::hf_home().join("token"))]
            .into_iter()
            .flatten()
            .filter_map(|path| fs::read_to_string(path).ok())
            .map(|token| token.trim().to_owned())
            .find(|token| !token.is_empty())
    })
}
