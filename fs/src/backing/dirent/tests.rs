use super::*;

fn dirent(ino: u64, next: u64, kind: u8, name: &[u8]) -> Vec<u8> {
    let len = (19 + name.len() + 1).next_multiple_of(8);
    let mut out = vec![];
    out.extend(ino.to_ne_bytes());
    out.extend(next.to_ne_bytes());
    out.extend((len as u16).to_ne_bytes());
    out.push(kind);
    out.extend(name);
    out.resize(len, 0);
    out
}

#[test]
fn directory_entries_parse_one_by_one() {
    let mut buf = dirent(7, 99, libc::DT_REG, b"hello");
    buf.extend(dirent(8, u64::MAX, libc::DT_DIR, &[b'x'; 255]));
    let (first, len) = parse_dirent(&buf).unwrap();
    assert_eq!((first.ino, first.next), (7, 99));
    assert_eq!(first.name.as_bytes(), b"hello");
    let (second, rest) = parse_dirent(&buf[len..]).unwrap();
    assert_eq!(second.name.as_bytes().len(), 255);
    assert_eq!(len + rest, buf.len());
}

#[test]
fn cut_entries_are_refused() {
    let whole = dirent(7, 99, libc::DT_REG, b"hello");
    for cut in 0..whole.len() {
        assert_eq!(parse_dirent(&whole[..cut]), None, "{cut}");
    }
    let mut lies = whole.clone();
    lies[16..18].copy_from_slice(&3u16.to_ne_bytes());
    assert_eq!(parse_dirent(&lies), None);
}
