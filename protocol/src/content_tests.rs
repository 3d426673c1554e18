use super::*;
use crate::code::Code;

#[test]
fn unknown_types_and_keys_are_kept() {
    let hologram = Map::new().with("type", "hologram").with("beam", 7_i64);
    let content = Content::from_map(&hologram).unwrap();
    assert_eq!(content, Content::Unknown(hologram.clone()));
    assert_eq!(content.to_map(), hologram);

    let text = Map::new().with("type", "text").with("text", "hi").with("mood", "calm");
    let content = Content::from_map(&text).unwrap();
    assert_eq!(content.words(), Some("hi"));
    assert_eq!(content.to_map(), text);
}

#[test]
fn a_known_type_keeps_its_rules() {
    let code = |map: Map<'_>| Content::from_map(&map).unwrap_err().code;
    assert_eq!(code(Map::new().with("type", "text")), Code::SchemaMissing);
    assert_eq!(code(Map::new().with("type", "text").with("text", "").with("phase", "")), Code::CborNoncanon);
    assert_eq!(code(Map::new().with("type", "refusal").with("text", 1_i64)), Code::SchemaType);
    let call =
        Map::new().with("type", "toolCall").with("callId", "a b").with("name", "bash").with("input", "");
    assert_eq!(code(call), Code::SchemaText);
}

#[test]
fn a_paragraph_is_what_seed_writes() {
    let map = Map::new()
        .with("id", "b1")
        .with("type", "Paragraph")
        .with("text", "")
        .with("children", Value::List(Vec::new()))
        .with("annotations", Value::List(Vec::new()));
    assert_eq!(Block::paragraph("b1", "").to_map(), map);
    assert_eq!(Block::from_map(&map).unwrap(), Block::paragraph("b1", ""));
}

#[test]
fn flattening_goes_depth_first() {
    let mut first = Block::paragraph("a", "one");
    first.children.push(Block::paragraph("b", "two"));
    let image = Block { text: None, ..Block::paragraph("c", "") };
    assert_eq!(Block::flatten(&[first, image, Block::paragraph("d", "three")]), "one\ntwo\nthree");
}
