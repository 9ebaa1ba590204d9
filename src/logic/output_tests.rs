use super::*;
use proptest::prelude::*;

/// What the assembler promises, on the whole reply at once.
fn naive(bytes: &[u8], stops: &[String]) -> (String, bool) {
    let dangling = match bytes.utf8_chunks().last().map(|chunk| chunk.invalid()) {
        Some(end) if std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none()) => {
            end.len()
        }
        _ => 0,
    };
    let text = String::from_utf8_lossy(&bytes[..bytes.len() - dangling]).into_owned();
    let cut = stops
        .iter()
        .filter(|stop| !stop.is_empty())
        .filter_map(|stop| text.find(stop.as_str()))
        .min();
    (text[..cut.unwrap_or(text.len())].to_owned(), cut.is_some())
}

fn assemble(pieces: &[&[u8]], stops: &[&str]) -> (String, bool) {
    let mut assembler = TextAssembler::new(stops.iter().map(ToString::to_string).collect());
    let mut out = String::new();
    for piece in pieces {
        assembler.push(piece, &mut out);
    }
    let stopped = assembler.finish(&mut out);
    (out, stopped)
}

#[test]
fn a_character_split_over_tokens_comes_out_whole() {
    let mut assembler = TextAssembler::new(vec![]);
    let mut out = String::new();
    for byte in "€".bytes().take(2) {
        assert!(!assembler.push(&[byte], &mut out));
        assert_eq!(out, "");
    }
    assembler.push(&"€uro".as_bytes()[2..], &mut out);
    assert_eq!(out, "€uro");
}

#[test]
fn a_stop_string_may_span_tokens_and_ends_everything() {
    let mut assembler = TextAssembler::new(vec!["\n\nUser:".into()]);
    let mut out = String::new();
    assert!(!assembler.push(b"Hi.\n", &mut out));
    assert_eq!(out, "Hi.");
    assert!(!assembler.push(b"\nUs", &mut out));
    assert!(assembler.push(b"er: and more", &mut out));
    assert!(assembler.push(b"ignored", &mut out));
    assert!(assembler.finish(&mut out));
    assert_eq!(out, "Hi.");
}

#[test]
fn text_that_only_began_like_a_stop_string_is_released_at_once() {
    let mut assembler = TextAssembler::new(vec!["STOP".into()]);
    let mut out = String::new();
    assembler.push(b"STO", &mut out);
    assert_eq!(out, "");
    assembler.push(b"RY ST", &mut out);
    assert_eq!(out, "STORY ");
    assembler.finish(&mut out);
    assert_eq!(out, "STORY ST");
}

#[test]
fn the_leftmost_stop_string_wins_even_over_one_complete_before_it() {
    assert_eq!(
        assemble(&[b"xabc", b"d"], &["abcd", "bc"]),
        ("x".into(), true)
    );
    assert_eq!(
        assemble(&[b"xabc", b"e"], &["abcd", "bc"]),
        ("xa".into(), true)
    );
    assert_eq!(assemble(&[b"xabc"], &["abcd", "bc"]), ("xa".into(), true));
    assert_eq!(assemble(&[b"xab"], &["abc", "ab", ""]), ("x".into(), true));
}

#[test]
fn a_dangling_character_is_dropped_and_an_invalid_byte_replaced() {
    assert_eq!(
        assemble(&[b"a\xff", b"b\xe2\x82"], &[]),
        ("a\u{fffd}b".into(), false)
    );
    assert_eq!(
        assemble(&[b"\xe2\x82", b"\xe2\x82", b"\xac"], &[]),
        ("\u{fffd}€".into(), false)
    );
    assert_eq!(assemble(&[b""], &[""]), (String::new(), false));
}

/// Bytes that make up one-, two-, three- and four-byte characters, whole, cut and wrong.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let unit = prop::sample::select(vec![
        &b"a"[..],
        b"b",
        b"a",
        b"b",
        "é".as_bytes(),
        "€".as_bytes(),
        "😀".as_bytes(),
        b"\xe2",
        b"\x82",
        b"\xf0\x9f",
        b"\xff",
        b"\xed\xa0",
    ]);
    prop::collection::vec(unit, 0..24).prop_map(|units| units.concat())
}

fn stop_strings() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[abé€]{0,4}", 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn equals_the_naive_text_however_the_bytes_are_cut(
        bytes in bytes(), stops in stop_strings(), cuts in prop::collection::vec(1usize..6, 1..8)
    ) {
        let (expected, hit) = naive(&bytes, &stops);
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        let mut assembler = TextAssembler::new(stops);
        let (mut out, mut fed, mut stopped) = (String::new(), 0, false);
        for size in cuts.iter().cycle() {
            if fed == bytes.len() {
                break;
            }
            let end = (fed + size).min(bytes.len());
            stopped |= assembler.push(&bytes[fed..end], &mut out);
            fed = end;
            prop_assert!(expected.starts_with(&out));
            prop_assert!(stopped || assembler.held.len() < longest.max(1));
            prop_assert!(assembler.incomplete.len <= 3);
        }
        stopped |= assembler.finish(&mut out);
        prop_assert_eq!(out, expected);
        prop_assert_eq!(stopped, hit);
    }

    /// Nothing is held that cannot become a stop string any more.
    #[test]
    fn what_is_held_begins_a_stop_string(bytes in bytes(), stops in stop_strings()) {
        let mut assembler = TextAssembler::new(stops.clone());
        let mut out = String::new();
        if !assembler.push(&bytes, &mut out) {
            prop_assert!(assembler.held.is_empty() || stops.iter().any(|stop| stop.starts_with(&assembler.held)));
        }
    }
}
