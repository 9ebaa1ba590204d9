//! Responses, whole and cut, and bytes that are none.

use super::*;
use proptest::prelude::*;

fn read(response: &[u8], cuts: &[usize]) -> Result<(ResponseReader, Vec<u8>)> {
    let mut reader = ResponseReader::default();
    let mut body = Vec::new();
    let mut from = 0;
    let ends = cuts.iter().map(|c| c % (response.len() + 1));
    let mut ends: Vec<usize> = ends.chain([response.len()]).collect();
    ends.sort_unstable();
    for to in ends {
        reader.feed(&response[from..to], |_, b| body.extend_from_slice(b))?;
        from = to;
    }
    Ok((reader, body))
}

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n\
    5\r\nhello\r\nA;x=1\r\n, world!!!\r\n0\r\nx: y\r\n\r\n";

proptest! {
    #[test]
    fn how_a_response_was_cut_into_reads_makes_no_difference(
        cuts in proptest::collection::vec(0..CHUNKED.len(), 0..12),
    ) {
        let (reader, body) = read(CHUNKED, &cuts).unwrap();
        prop_assert_eq!(body, b"hello, world!!!");
        prop_assert!(reader.is_done());
        let head = reader.head().unwrap();
        prop_assert!(head.keep_alive && head.status == 200);
        prop_assert_eq!(head.header("x-a"), Some("b"));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        let _ = read(&bytes, &[]);
        let _ = read(&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &bytes[..]].concat(), &[]);
    }
}

#[test]
fn a_body_ends_by_its_length_or_with_the_connection() {
    let (reader, body) = read(b"HTTP/1.1 503 No\r\ncontent-length: 3\r\n\r\nabc", &[]).unwrap();
    assert!(reader.is_done() && reader.head().unwrap().keep_alive);
    assert_eq!(body, b"abc");
    let (mut reader, body) = read(b"HTTP/1.0 200 OK\r\n\r\nabc", &[]).unwrap();
    assert!(!reader.is_done() && !reader.head().unwrap().keep_alive);
    reader.end().unwrap();
    assert_eq!(body, b"abc");
}

#[test]
fn what_was_cut_off_is_no_response() {
    for cut in [0, 10, 60, 80, CHUNKED.len() - 1] {
        let (mut reader, _) = read(&CHUNKED[..cut], &[]).unwrap();
        assert!(reader.end().is_err(), "{cut}");
    }
}

#[test]
fn an_interim_response_is_passed_over() {
    let both = [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED].concat();
    assert_eq!(read(&both, &[30]).unwrap().0.head().unwrap().status, 200);
}
