use super::*;

#[test]
fn a_subfile_is_named_as_its_store_names_it() {
    let subfile = SubfileRef {
        run: 0x12,
        no: 0xab,
        ost: "a".into(),
    };
    assert_eq!(
        subfile.name(NodeId(0xfeed)),
        "000000000000feed-00000012-000000ab"
    );
}

/// Compares the first piece that ends after each byte with a search through all pieces.
#[test]
fn pieces_are_found_by_arithmetic() {
    for (start, len, stride, count) in [(5, 3, 7, 4), (0, 1, 2, 9), (4, 6, 0, 1), (9, 2, 3, 2)] {
        let strip = Strip {
            start,
            len,
            stride,
            count,
            bytes: Bytes::Zero,
        };
        for at in 0..60 {
            let walk = (0..count).find(|i| strip.piece(*i).end > at);
            assert_eq!(strip.piece_after(at), walk, "{strip:?} at {at}");
        }
    }
}

#[test]
fn places_split_at_units() {
    let unit = |block, len| Unit {
        subfile: 0,
        block,
        len,
        crc: 0,
    };
    let tables = Tables {
        units: vec![unit(0, 10), unit(1, 1), unit(2, 10)],
        ..Tables::default()
    };
    let ends = unit_ends(&tables.units);
    let batch = Batch::new(Head::default(), tables, ends);
    let strip = Strip {
        start: 100,
        len: 15,
        stride: 0,
        count: 1,
        bytes: Bytes::Units { first: 0, skip: 4 },
    };
    let mut found = Vec::new();
    batch.places(&strip, 2, 9, |len, bytes| found.push((len, bytes)));
    let at = |first, skip| Bytes::Units { first, skip };
    assert_eq!(found, [(4, at(0, 6)), (1, at(1, 0)), (4, at(2, 0))]);
}
