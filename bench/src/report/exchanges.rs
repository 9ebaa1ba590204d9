//! What `exchanges` has seen, as a reader of the README would see it: the command, the status, the headers that say
//! something of the promise, the body. Nothing is changed but line breaks, and what is left out is an ellipsis.

use std::fmt::Write as _;

use serde_json::Value;

use super::tables::{Render, rows, string};

const COLUMNS: usize = 116;
/// Where the README's daemon listens; the one that was asked had a port of its own.
const DAEMON: &str = "http://127.0.0.1:8000";

/// Name in the markers, file of results, renderer.
pub const ALL: &[(&str, &str, Render)] = &[("exchanges", "exchanges.json", shown)];

/// A block for each exchange.
fn shown(results: &Value) -> String {
    let mut text = String::from("```console\n");
    for (i, exchange) in rows(results).iter().enumerate() {
        if i > 0 {
            text += "\n";
        }
        let (path, body) = (string(&exchange["path"]), string(&exchange["body"]));
        let _ = writeln!(
            text,
            "$ curl -i {DAEMON}{path} -H 'content-type: application/json' -d '\n  {}'",
            folded(&body)
        );
        text += &answer(&string(&exchange["answer"]));
    }
    text + "```\n"
}

fn answer(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let mut lines = head.lines();
    let mut text = lines.next().unwrap_or_default().trim_end().to_owned() + "\n";
    for line in lines.filter(|l| l.starts_with("retry-after:") || l.starts_with("x-cadenced-")) {
        text += line;
        text += "\n";
    }
    text += "…\n\n";
    let receipt = body
        .lines()
        .find(|l| l.starts_with("data: ") && l.contains("\"cadenced\":"));
    match receipt {
        Some(receipt) => text + "…\n\n" + &folded(receipt) + "\n\ndata: [DONE]\n",
        None => text + &folded(body.trim_end()) + "\n",
    }
}

/// JSON with line breaks after some of its commas, where a line would get too long.
fn folded(json: &str) -> String {
    let (mut text, mut line) = (String::new(), String::new());
    for piece in pieces(json) {
        if !line.is_empty() && line.chars().count() + piece.chars().count() > COLUMNS {
            text += &line;
            text += "\n";
            line = "  ".into();
        }
        line += piece;
    }
    text + &line
}

/// Cut behind the commas that stand in no string.
fn pieces(json: &str) -> Vec<&str> {
    let (mut quoted, mut escaped, mut from) = (false, false, 0);
    let mut pieces = Vec::new();
    for (at, c) in json.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                pieces.push(&json[from..=at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&json[from..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn folding_changes_nothing_but_white_space_and_no_string() {
        let long = "a, \"quoted\", text ".repeat(20);
        let value = json!({ "message": long, "list": (0..200).collect::<Vec<_>>(), "n": 1.5 });
        let text = folded(&value.to_string());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 4, "{text}");
        let fits = |l: &&&str| l.chars().count() <= COLUMNS;
        assert_eq!(
            lines.iter().filter(|l| !fits(l)).count(),
            1,
            "the message alone: {text}"
        );
    }

    #[test]
    fn a_stream_is_shown_by_its_receipt_and_headers_by_what_they_say_of_the_promise() {
        let stream = "HTTP/1.1 200 OK\r\nx-cadenced-verdict: promised\r\ndate: today\r\n\r\n\
                      data: {\"choices\":[]}\n\ndata: {\"cadenced\":{\"receipt\":{}}}\n\ndata: [DONE]\n\n";
        let exchange = json!([{ "name": "receipt", "path": "/p", "body": "{}", "answer": stream }]);
        assert_eq!(
            shown(&exchange),
            "```console\n$ curl -i http://127.0.0.1:8000/p -H 'content-type: application/json' -d '\n  {}'\n\
             HTTP/1.1 200 OK\nx-cadenced-verdict: promised\n…\n\n…\n\n{\"cadenced\"…"
                .replace("{\"cadenced\"…", "data: {\"cadenced\":{\"receipt\":{}}}\n\ndata: [DONE]\n```\n")
        );
        let refusal = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 3\r\n\r\n{\"error\":1}";
        assert_eq!(
            answer(refusal),
            "HTTP/1.1 503 Service Unavailable\nretry-after: 3\n…\n\n{\"error\":1}\n"
        );
    }
}
