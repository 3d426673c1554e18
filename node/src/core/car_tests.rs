use std::io::Write as _;

use throughline_protocol::content::Block as Paragraph;
use throughline_protocol::entry::{PayloadRef, UserMessage};
use throughline_protocol::id::HashKind;
use throughline_protocol::payload::{Attachment, UserWords, Words as Said};
use throughline_protocol::testing::{Built, Party, SessionBuilder};

use super::*;
use crate::config::{Config, Overrides};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;
use crate::report::Required;

/// A node of its own, in a directory that stays as long as the value.
fn node() -> (tempfile::TempDir, Node) {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::load(&dirs, &Overrides::default()).unwrap();
    let node = Node::open(dirs, config, "test").unwrap();
    (home, node)
}

/// Takes in all that a builder made.
fn take(node: &Node, builder: &SessionBuilder) {
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    let entries = builder.entries().iter().map(checked).collect();
    let controls = builder.controls().to_vec();
    node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
}

/// What `export` writes, as a file.
fn exported(node: &Node, session: SessionId) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    node.export_car(session, true, &mut |part| {
        file.write_all(&part).unwrap();
        Ok(())
    })
    .unwrap();
    file
}

#[test]
fn what_waits_for_the_holder_goes_along_and_the_root_stays_the_head() {
    let (_home, node) = node();
    let mut session = SessionBuilder::new("waiting");
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    session.user(&owner, "clean up");
    session.response(&server, "done", &[]);
    let head = session.head().entry.cid();
    let settled = session.clone();
    take(&node, &settled);
    let before = std::fs::read(exported(&node, session.session()).path()).unwrap();
    // Two on one head: the chain goes on with the first, the other waits beside it.
    let mut other = session.clone().branch("other");
    session.user(&owner, "and now the tests");
    session.user(&owner, "all of them");
    other.user(&owner, "or rather not");
    take(&node, &session);
    take(&node, &other);
    let file = exported(&node, session.session());
    let report = node.verify_car(file.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
    assert_eq!((&report["verdict"], &report["checks"]["head"]["result"]), (&"valid".into(), &"pass".into()));
    let counts = (&report["checks"]["chain"]["entries"], &report["payloads"]["missing"]);
    assert_eq!(counts, (&session.entries().len().into(), &0.into()), "{report}");

    let (_away, importer) = self::node();
    importer.take_car(file.path(), false).unwrap();
    let row = |node: &Node| need_session(&node.reader().unwrap(), session.session()).unwrap();
    let (there, here) = (row(&importer), row(&node));
    assert_eq!((there.tip.cid, there.summary.pending), (here.tip.cid, 2));
    assert_eq!(there.summary.head.unwrap().cid, head);
    // The file is what it was, with the new entries behind it.
    let after = std::fs::read(file.path()).unwrap();
    assert!(after.starts_with(&before) && after.len() > before.len());
}

#[test]
fn words_beside_the_chain_are_counted_as_held() {
    let (_home, node) = node();
    let mut one = SessionBuilder::new("both");
    let (owner, server) = (one.owner.clone(), one.server1.clone());
    one.user(&owner, "clean up");
    let mut other = one.clone().branch("other");
    one.response(&server, "one history", &[]);
    other.response(&server, "another history", &[]);
    take(&node, &one);
    take(&node, &other);
    let counts = |report: &Value| {
        let count = |what: &str| report["payloads"][what].as_u64().unwrap();
        (count("linked"), count("here"), count("missing"))
    };
    let held = node.verify(one.session(), PayloadUse::Present, None).unwrap();
    let held = crate::report::verify(&held, "store", Required::Nothing);
    let file = exported(&node, one.session());
    let filed = node.verify_car(file.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
    assert_eq!((held["verdict"].as_str(), counts(&held).2), (Some("forked"), 0), "{held}");
    assert_eq!(counts(&held), counts(&filed));
}

#[test]
fn in_a_dispute_the_root_is_in_the_file() {
    let (_home, node) = node();
    let mut one = SessionBuilder::new("disputed");
    let (owner, server) = (one.owner.clone(), one.server1.clone());
    one.user(&owner, "clean up");
    let mut other = one.clone().branch("other");
    one.response(&server, "one history", &[]);
    // What the holder signed twice is deep, on messages that it did not sign.
    for number in 0..3 {
        other.user(&owner, &format!("message {number}"));
    }
    other.response(&server, "another history", &[]);
    take(&node, &one);
    take(&node, &other);
    let file = exported(&node, one.session());
    let report = node.verify_car(file.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
    assert_eq!(report["verdict"], "forked", "{report}");

    // More is held beside the chain than is read for a file: what stands on the rest stays here.
    let reader = node.reader().unwrap();
    let row = need_session(&reader, one.session()).unwrap();
    let whole = evidence(&reader, one.session()).unwrap();
    let deepest = extent(&reader, &row, whole.clone()).unwrap();
    assert_eq!(deepest.root, other.head().entry.cid());
    let lacking: Vec<SideEntry> =
        whole.into_iter().filter(|side| side.cid != other.entries()[3].entry.cid()).collect();
    let left = extent(&reader, &row, lacking).unwrap();
    let mut written: Vec<EntryCid> = left.side.iter().map(|side| side.cid).collect();
    for stored in reader.entries(one.session(), Seq::ZERO, row.tip.seq).unwrap() {
        written.push(stored.unwrap().cid);
    }
    assert!(written.contains(&left.root), "{} of {written:?}", left.root);
    assert!(!written.contains(&other.head().entry.cid()));
}

/// A message that calls all of these a file.
fn attach(session: &mut SessionBuilder, party: &Arc<Party>, cids: &[Cid]) {
    let attachments = cids
        .iter()
        .map(|cid| Attachment { cid: *cid, size: 1, media_type: "text/plain".to_owned(), name: None })
        .collect();
    let words = UserWords {
        body: vec![Paragraph::paragraph("b1", "see there")],
        attachments,
        ..UserWords::default()
    };
    session.append(party, Body::UserMessage(UserMessage::default()), Some(Said::UserMessage(words)));
}

/// A response that names `config` as its config block, and `payload`, if there is one, as its payload.
fn respond(
    session: &mut SessionBuilder,
    party: &Arc<Party>,
    config: Option<EntryCid>,
    payload: Option<EntryCid>,
) {
    let template = {
        let mut copy = session.clone().branch("template");
        copy.response(party, "a template", &[]);
        let built = copy.head().clone();
        (built.entry.value().body.clone(), built.payload)
    };
    let (mut body, words) = template;
    if let Body::ModelResponse(response) = &mut body {
        response.config = config;
    }
    let (mut entry, _) = session.draft(party, body, None);
    let own = words.as_ref().map(|bytes| PayloadRef { cid: EntryCid::of(bytes), size: bytes.len() as u64 });
    entry.payload = payload.map(|cid| PayloadRef { cid, size: 100 }).or(own);
    let words = words.filter(|_| payload.is_none());
    session.push(party, entry, words).unwrap();
}

/// All that a session's file holds, and what each name in it may be taken for by somebody who wants to spoil the file.
#[test]
fn a_block_stands_in_a_file_once_as_what_it_is_whatever_names_it() {
    let mut one = SessionBuilder::new("names");
    let (owner, server) = (one.owner.clone(), one.server1.clone());
    one.user(&owner, "clean up");
    let mut other = one.clone().branch("other");
    // Evidence that stands at the same seqs and above, so later in the file than what names it.
    other.response(&server, "another history", &[]);
    other.response(&server, "and more of it", &[]);
    other.response(&server, "its end", &[]);
    let words = one.entries()[1].payload.clone().unwrap();
    let mut named: Vec<EntryCid> = other.entries().iter().map(|built| built.entry.cid()).collect();
    named.extend(one.controls().iter().map(|control| EntryCid::of(control.bytes())));
    named.push(EntryCid::of(&words));
    named.push(EntryCid::of(other.head().payload.as_ref().unwrap()));
    let files: Vec<Cid> = named
        .iter()
        .flat_map(|cid| {
            [Codec::DagCbor, Codec::Raw, Codec::DagPb]
                .map(|codec| Cid::from_parts(codec, HashKind::Sha256, *cid.digest()))
        })
        .collect();
    for files in files.chunks(64) {
        attach(&mut one, &owner, files);
    }
    for cid in &named {
        respond(&mut one, &server, Some(*cid), None);
        respond(&mut one, &server, None, Some(*cid));
    }

    let (_home, node) = node();
    take(&node, &one);
    take(&node, &other);
    let (_away, importer) = self::node();
    let mut before = exported(&node, one.session());
    for node in [&node, &importer] {
        let report = node.verify_car(before.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
        assert_eq!(report["verdict"], "forked", "{report}");
        importer.take_car(before.path(), false).unwrap();
        let after = exported(&importer, one.session());
        assert!(std::fs::read(before.path()).unwrap() == std::fs::read(after.path()).unwrap());
        before = after;
        let mut digests = BTreeSet::new();
        let mut reader = throughline_protocol::car::CarReader::new(throughline_protocol::car::CidForms::V1);
        reader.push(&std::fs::read(before.path()).unwrap());
        while let Some(event) = reader.next() {
            if let throughline_protocol::car::CarEvent::Block(block) = event.unwrap() {
                assert!(digests.insert(*block.cid().digest()), "{} stands twice", block.cid());
            }
        }
    }
}

/// The file of a public report: a message whose attachment is the genesis of its own session.
#[test]
fn a_session_whose_attachment_is_its_genesis_is_exported_as_it_came() {
    let file = include_bytes!("../../../tests/cases/found/attachment-names-genesis.car");
    let mut spool = tempfile::NamedTempFile::new().unwrap();
    spool.write_all(file).unwrap();
    let (_home, node) = node();
    let answer = node.take_car(spool.path(), false).unwrap();
    assert_eq!((&answer["verdict"], &answer["adopted"]), (&"valid".into(), &true.into()));
    let session: SessionId = answer["session"].as_str().unwrap().parse().unwrap();
    let again = exported(&node, session);
    let report = node.verify_car(again.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
    assert_eq!(report["verdict"], "valid", "{report}");
    assert!(std::fs::read(again.path()).unwrap() == file);
}

#[test]
fn who_orders_an_entry_refuses_a_file_that_can_be_none() {
    let mut session = SessionBuilder::new("refused");
    let owner = session.owner.clone();
    session.user(&owner, "clean up");
    let (_home, node) = node();
    take(&node, &session);
    let cid = session.entries()[0].entry.cid().cid();
    let blake = Cid::from_parts(Codec::Raw, HashKind::Blake2b256, *cid.digest());
    for cid in [cid, blake] {
        let mut session = session.clone();
        attach(&mut session, &owner, &[cid]);
        let built = session.head();
        let request = super::super::SignedAppend {
            session: session.session(),
            entry: Arc::clone(built.entry.bytes()),
            payload: built.payload.clone(),
            grants: Vec::new(),
            dry_run: false,
        };
        assert_eq!(node.append_signed(&request).unwrap_err().code(), Code::CidCodec);
    }
}
