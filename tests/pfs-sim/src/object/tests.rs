use super::*;

fn both(test: impl Fn(Object)) {
    test(Object::default());
    let dir = tempfile::tempdir().expect("a directory");
    test(Object::new(Some(dir.path().join("object"))));
}

fn read(object: &Object, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    object.read(at, &mut buf).expect("read");
    buf
}

#[test]
fn bytes_come_back() {
    both(|mut object| {
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let new = object.write(70_000, &data).expect("write");
        assert_eq!(new, object.pages());
        assert_eq!(object.missing(70_000, 270_000), 0);
        assert_eq!(read(&object, 70_000, 200_000), data);
        assert_eq!(read(&object, 69_998, 4)[..2], [0, 0]);
        assert_eq!(read(&object, 1 << 40, 5), [0; 5]);
        assert_eq!(object.write(70_001, b"xyz").expect("write"), 0);
        assert_eq!(read(&object, 70_000, 5), [0, b'x', b'y', b'z', 4]);
    });
}

#[test]
fn punching_frees_whole_pages_and_zeroes_the_rest() {
    both(|mut object| {
        object.write(0, &[9; 40960]).expect("write");
        assert_eq!(object.punch(100, 8292).expect("punch"), 1);
        assert_eq!(object.pages(), 9);
        assert_eq!(read(&object, 99, 2), [9, 0]);
        assert_eq!(read(&object, 8291, 2), [0, 9]);
        assert_eq!(object.truncate(20_000).expect("truncate"), 5);
        assert_eq!(object.pages(), 4);
        object.allocate(0, 40960);
        assert_eq!(read(&object, 19_999, 2), [9, 0]);
    });
}

#[test]
fn holes_are_found() {
    both(|mut object| {
        object
            .write(5 * PAGE, &[1; 2 * PAGE as usize])
            .expect("write");
        object.write(CHUNK * 3 + 100, b"x").expect("write");
        assert_eq!(object.next_data(0), Some(5 * PAGE));
        assert_eq!(object.next_data(5 * PAGE + 7), Some(5 * PAGE + 7));
        assert_eq!(object.data_end(5 * PAGE + 7), 7 * PAGE);
        assert_eq!(object.next_data(7 * PAGE), Some(CHUNK * 3));
        assert_eq!(object.data_end(CHUNK * 3), CHUNK * 3 + PAGE);
        assert_eq!(object.next_data(CHUNK * 3 + PAGE), None);
        assert_eq!(object.data_end(0), 0);
    });
}

#[test]
fn read_modify_writes() {
    let mut object = Object::default();
    assert_eq!(
        object.partial_blocks(100, 5000, PAGE),
        0,
        "nothing there yet"
    );
    object.allocate(0, 3 * PAGE);
    assert_eq!(object.partial_blocks(0, PAGE, PAGE), 0, "a whole page");
    assert_eq!(object.partial_blocks(0, 100, PAGE), 1);
    assert_eq!(object.partial_blocks(100, PAGE + 100, PAGE), 2);
    assert_eq!(object.partial_blocks(10, 20, PAGE), 1, "both ends in one");
    assert_eq!(object.partial_blocks(2 * PAGE + 1, 5 * PAGE + 1, PAGE), 1);
    assert_eq!(object.partial_blocks(0, PAGE, 1 << 20), 1, "a big block");
    assert_eq!(object.partial_blocks(100, 200, 0), 0, "switched off");
}

#[test]
fn missing_pages() {
    let mut object = Object::default();
    assert_eq!(object.missing(0, 1), 1);
    assert_eq!(object.missing(4095, 4097), 2);
    assert_eq!(object.missing(10, 10), 0);
    object.allocate(0, CHUNK * 2);
    assert_eq!(object.missing(0, CHUNK * 2 + 1), 1);
}
