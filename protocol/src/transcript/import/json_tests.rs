use super::*;

#[test]
fn half_a_surrogate_pair_becomes_the_replacement_character() {
    let raw = r#""a\ud83d b\n\ud83d\ude00\udc00""#;
    assert!(serde_json::from_str::<String>(raw).is_err(), "the plain reader refuses it");
    assert_eq!(text(raw).as_deref(), Some("a\u{fffd} b\n\u{1f600}\u{fffd}"));
    let line = format!(r#"{{"type":"user","text":{raw}}}"#);
    let opened = object(&line).expect("an object whose string has half a pair opens");
    assert_eq!(opened["text"].get(), raw, "the raw text stays as it came");
}

#[test]
fn values_keep_the_text_they_came_in() {
    let line = r#"{"n":1.0e4,"big":12345678901234567890123, "o":{"b":1,"a":2}}"#;
    let opened = object(line).expect("an object");
    assert_eq!(opened["n"].get(), "1.0e4");
    assert_eq!(opened["big"].get(), "12345678901234567890123");
    assert_eq!(opened["o"].get(), r#"{"b":1,"a":2}"#);
}

#[test]
fn a_whole_record_after_half_a_one_is_found() {
    let half = r#"{"type":"user","message":{"role":"user","content":"he"#;
    let whole = r#"{"type":"assistant","message":{"id":"m"}}"#;
    let line = format!("{half}{whole}");
    let scan = scan(&line);
    assert_eq!(scan.values.as_slice(), std::slice::from_ref(&(half.len()..line.len())));
    assert_eq!(scan.lost.len(), 1);
    assert_eq!(scan.lost[0].0, 0..half.len());
}

#[test]
fn a_whole_record_before_half_a_one_is_kept() {
    let line = r#"{"type":"a"} {"type":"b"}{"type":"c","x":"un"#;
    let scan = scan(line);
    assert_eq!(scan.values, [0..12, 13..25]);
    assert_eq!(scan.lost, [(25..line.len(), "ends inside a string")]);
}

#[test]
fn what_ends_is_named() {
    let why = |line: &str| scan(line).lost.first().map(|(_, why)| *why);
    assert_eq!(why(r#"{"a":"b"#), Some("ends inside a string"));
    assert_eq!(why(r#"{"a":1"#), Some("ends inside an object"));
    assert_eq!(why("[1,"), Some("ends inside a value"));
    assert_eq!(why("{]"), Some("not valid JSON"));
    assert_eq!(why("42"), None);
}

#[test]
fn a_broken_line_costs_a_multiple_of_its_length() {
    // Every `{"` begins a value that only fails at the end of the line: without a budget this is quadratic.
    let line = "{\"a\":".repeat(1 << 18);
    let scan = scan(&line);
    assert!(scan.values.is_empty());
    assert_eq!(scan.lost.len(), 1);
}

proptest::proptest! {
    #[test]
    fn text_reads_what_serde_json_writes(words in ".{0,40}") {
        let raw = serde_json::to_string(&words).unwrap();
        proptest::prop_assert_eq!(text(&raw), Some(words.clone()));
        proptest::prop_assert_eq!(unescape(&raw[1..raw.len() - 1]), Some(words));
    }

    #[test]
    fn a_scan_covers_the_line(line in "[{}\"a:,\\[\\] \\\\u1tpye]{0,80}") {
        let scan = scan(&line);
        let mut parts: Vec<_> = scan.values.iter().cloned().chain(scan.lost.iter().map(|(r, _)| r.clone())).collect();
        parts.sort_by_key(|part| part.start);
        let mut at = 0;
        for part in parts {
            proptest::prop_assert!(line[at..part.start].trim().is_empty());
            at = part.end;
        }
        proptest::prop_assert!(line[at..].trim().is_empty());
    }
}
