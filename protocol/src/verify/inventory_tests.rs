use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::id::Codec;

fn cid(number: usize) -> Cid {
    let codec = if number.is_multiple_of(4) { Codec::Raw } else { Codec::DagPb };
    Cid::sha256(codec, &number.to_be_bytes())
}

/// A graph of blocks: each links only lower numbers, so none is below itself.
fn graph() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
    proptest::collection::vec(
        (proptest::collection::vec(any::<u8>(), 0..4), prop::bool::weighted(0.8)),
        1..24,
    )
}

proptest! {
    #[test]
    fn a_file_is_here_when_every_block_below_it_is(blocks in graph()) {
        let mut here: BTreeMap<Cid, Vec<Cid>> = BTreeMap::new();
        let mut whole = Vec::new();
        for (number, (links, is_here)) in blocks.iter().enumerate() {
            let below: Vec<usize> =
                links.iter().map(|link| usize::from(*link)).filter(|link| *link < number).collect();
            whole.push(*is_here && below.iter().all(|link| whole[*link]));
            if *is_here {
                here.insert(cid(number), below.iter().map(|link| cid(*link)).collect());
            }
        }
        let mut asked = BTreeMap::<Cid, u32>::new();
        let mut files = WholeFiles::default();
        for (number, expected) in whole.iter().enumerate() {
            let mut links_of = |cid: &Cid| {
                *asked.entry(*cid).or_default() += 1;
                Ok::<_, Infallible>(here.get(cid).cloned())
            };
            prop_assert_eq!(files.is_whole(cid(number), &mut links_of).unwrap(), *expected);
        }
        for (cid, times) in asked {
            prop_assert!(times == 1 || !here.contains_key(&cid), "a block that is here is read once");
        }
    }
}
