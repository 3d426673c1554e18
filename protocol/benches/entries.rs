//! What one entry costs on its way in: decode, encode, check, link; and what selection costs over a whole session.
//!
//! `cargo bench -p throughline-protocol --features testing`. The figures that the project states are those of
//! `throughline bench`, which measures against a baseline in the same run; these here are for finding a cost.
#![allow(clippy::expect_used, missing_docs, reason = "a benchmark that cannot be set up must stop")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use throughline_protocol::block::{Decoded, Signed, SignedBlob};
use throughline_protocol::codec;
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::{Controls, Set};
use throughline_protocol::limits::ENTRY_DEPTH_MAX;
use throughline_protocol::sign::{BareKey, VerifyingKeys};
use throughline_protocol::testing::{Built, SessionBuilder};
use throughline_protocol::verify::{Collect, Prechecked, Verifier};

/// Turns of a message, a response with a tool call, and the call's result.
fn session(entries: usize) -> SessionBuilder {
    let mut builder = SessionBuilder::new("bench");
    let server = builder.server1.clone();
    while builder.entries().len() < entries {
        builder.user(&server, "Run the tests and tell me what fails.");
        let response = builder.response(&server, "I run them now.", &["call-1"]);
        builder.tool(&server, response, "call-1", "test result: ok. 214 passed; 0 failed");
    }
    builder
}

fn controls(session: &SessionBuilder) -> Controls {
    let mut controls = Controls::new();
    for control in session.controls() {
        controls.insert(control);
    }
    controls
}

/// A response with one call: the largest of the usual entries.
fn response() -> Built {
    session(3).entries()[2].clone()
}

fn entry(c: &mut Criterion) {
    let built = response();
    let bytes = Arc::clone(built.entry.bytes());
    let mut group = c.benchmark_group("entry");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    let (value, _) = codec::decode(&bytes, ENTRY_DEPTH_MAX).expect("a canonical entry");
    group.bench_function("codec/decode", |b| b.iter(|| codec::decode(black_box(&bytes), ENTRY_DEPTH_MAX)));
    group.bench_function("codec/encode", |b| b.iter(|| codec::encode(black_box(&value))));
    group.bench_function("read", |b| b.iter(|| Entry::read(black_box(&bytes))));
    group.bench_function("decode", |b| b.iter(|| Decoded::<Entry>::decode(Arc::clone(black_box(&bytes)))));
    let mut keys = VerifyingKeys::default();
    group.bench_function("check", |b| {
        b.iter(|| Signed::<Entry>::check(Arc::clone(black_box(&bytes)), &mut keys).expect("a signed entry"));
    });
    group.bench_function("check/payload", |b| {
        b.iter(|| Prechecked::check(Arc::clone(&bytes), built.payload.clone(), &mut keys).expect("an entry"));
    });
    let field = *Decoded::<Entry>::decode(Arc::clone(&bytes)).expect("an entry").signature();
    let mut message = bytes.to_vec();
    message[field.offset..field.offset + field.signature.len()].fill(0);
    let key = BareKey::new(&built.entry.value().signer).expect("a key");
    group.bench_function("verify_strict", |b| {
        b.iter(|| assert!(key.verify_strict(black_box(&message), &field.signature)));
    });
    // What the same key costs without tables, with them, and what making them does.
    let signer = built.entry.value().signer;
    let mut with_tables = VerifyingKeys::with_tables();
    group.bench_function("verify/tables", |b| {
        b.iter(|| assert_eq!(with_tables.verify(&signer, black_box(&message), &field.signature), Ok(())));
    });
    group.bench_function("verify/first", |b| {
        b.iter(|| {
            let mut fresh = VerifyingKeys::default();
            assert_eq!(fresh.verify(&signer, black_box(&message), &field.signature), Ok(()));
        });
    });
    group.bench_function("verify/first with tables", |b| {
        b.iter(|| {
            let mut fresh = VerifyingKeys::with_tables();
            assert_eq!(fresh.verify(&signer, black_box(&message), &field.signature), Ok(()));
        });
    });
    group.finish();
}

fn link(c: &mut Criterion) {
    let session = session(3_000);
    let controls = controls(&session);
    let checked: Vec<Prechecked> = session
        .entries()
        .iter()
        .map(|built| Prechecked::of(built.entry.clone(), None).expect("an entry"))
        .collect();
    let mut group = c.benchmark_group("chain");
    group.throughput(Throughput::Elements(checked.len() as u64));
    group.bench_function("link/3000", |b| {
        b.iter_batched(
            || (checked.clone(), Verifier::begin(controls.clone()).collecting(Collect::Nothing)),
            |(checked, mut verifier)| {
                for entry in checked {
                    verifier.link(entry).expect("the next entry");
                }
                verifier
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

fn select(c: &mut Criterion) {
    let session = session(10_000);
    let mut set = Set::with_controls(session.session(), controls(&session));
    for built in session.entries() {
        set.insert_entry(&built.entry);
    }
    let mut group = c.benchmark_group("chain");
    group.sample_size(20);
    group.throughput(Throughput::Elements(set.len() as u64));
    group.bench_function("select/10000", |b| b.iter(|| black_box(&set).select()));
    group.finish();
}

criterion_group!(benches, entry, link, select);
criterion_main!(benches);
