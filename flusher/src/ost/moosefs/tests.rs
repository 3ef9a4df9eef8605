use super::*;

fn target(id: u16, labels: &str, connected: bool) -> Target {
    let bits = labels.bytes().map(|label| 1u32 << (label - b'A'));
    Target {
        address: format!("10.0.0.{id}:9422").parse().unwrap(),
        id,
        connected,
        maintenance: false,
        labels: if connected { bits.sum() } else { 0 },
        used: 1,
        total: if connected { 10 } else { 0 },
        chunks: 0,
        errors: 0,
        load: 0,
        busy: false,
    }
}

fn numbers(known: &[Known]) -> Vec<(u32, Result<char, &'static str>)> {
    known.iter().map(|k| (k.ost.index, k.usable)).collect()
}

#[test]
fn a_target_keeps_its_number_while_others_come_and_go() {
    let mut seen = HashMap::new();
    let all = [
        target(1, "SZ", true),
        target(2, "BS", true),
        target(3, "A", true),
    ];
    let known = number(&all, &mut seen);
    assert_eq!(numbers(&known), [(0, Ok('A')), (1, Ok('B')), (25, Ok('Z'))]);
    assert_eq!(known[1].ost.name, "B at 10.0.0.2:9422");
    // With the second chunkserver away, S would also be a label of the first one alone.
    let away = [
        target(1, "SZ", true),
        target(2, "BS", false),
        target(3, "A", true),
    ];
    let known = number(&away, &mut seen);
    assert_eq!(
        numbers(&known),
        [(0, Ok('A')), (1, Err(AWAY)), (25, Ok('Z'))]
    );
    assert_eq!(numbers(&number(&away[..1], &mut seen)), [(25, Ok('Z'))]);
}

#[test]
fn a_chunkserver_that_cannot_be_chosen_is_listed_with_the_reason() {
    let mut seen = HashMap::new();
    let mut all = vec![
        target(1, "A", true),
        target(2, "A", true),
        target(3, "", true),
        target(4, "D", false),
        target(5, "E", true),
        target(6, "F", true),
    ];
    all[4].maintenance = true;
    all[5].total = 0;
    let known = number(&all, &mut seen);
    let unlabelled = |id: u32, why| (UNLABELLED + id, Err(why));
    assert_eq!(
        numbers(&known),
        [
            (4, Err(MAINTENANCE)),
            (5, Err(NO_DISKS)),
            unlabelled(1, NO_LABEL),
            unlabelled(2, NO_LABEL),
            unlabelled(3, NO_LABEL),
            unlabelled(4, AWAY),
        ]
    );
    assert_eq!(known[2].ost.name, "10.0.0.1:9422");
}

/// The master begins no chunk on a chunkserver where no whole chunk fits.
#[test]
fn a_chunkserver_without_room_for_a_chunk_is_full() {
    let mut all = [1, 2, 3].map(|id| target(id, ["A", "B", "C"][usize::from(id) - 1], true));
    let sizes = [(CHUNK, 0), (CHUNK + 2, 1), (10, 20)];
    for (target, (total, used)) in all.iter_mut().zip(sizes) {
        (target.total, target.used) = (total, used);
    }
    let known = number(&all, &mut HashMap::new());
    let full: Vec<bool> = known.iter().map(|known| known.full).collect();
    assert_eq!(full, [true, false, true]);
}

/// A new machine has the label of one that is gone.
#[test]
fn a_number_is_given_once() {
    let mut seen = HashMap::new();
    number(&[target(1, "A", true)], &mut seen);
    let known = number(&[target(1, "A", false), target(2, "A", true)], &mut seen);
    assert_eq!(numbers(&known), [(0, Ok('A')), (UNLABELLED + 1, Err(AWAY))]);
    assert_eq!(known[0].ost.name, "A at 10.0.0.2:9422");
}

#[test]
fn directories_are_named_by_label() {
    let ost = |index| Ost {
        index,
        name: String::new(),
    };
    assert_eq!(label(&ost(0)), Some('A'));
    assert_eq!(label(&ost(25)), Some('Z'));
    assert_eq!(label(&ost(26)), None);
    assert_eq!(label(&ost(UNLABELLED)), None);
}
