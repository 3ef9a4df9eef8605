use super::*;

fn parsed(line: &[&str]) -> Result<(String, String)> {
    let words: Vec<OsString> = line.iter().map(OsString::from).collect();
    let (host, line) = parse(&words)?;
    Ok((host, line.into_string().unwrap()))
}

#[test]
fn options_of_ssh_are_passed_over() {
    let want = ("n1".to_owned(), "\"/usr/bin/proxy\" --port n0:1".to_owned());
    let rest = ["n1", "\"/usr/bin/proxy\"", "--port", "n0:1"];
    for options in [
        &[][..],
        &["-x"],
        &["-l", "me", "-x"],
        &["-oBatchMode=yes"],
        &["-o", "X=y"],
    ] {
        let line = [options, &rest].concat();
        assert_eq!(parsed(&line).unwrap(), want, "{line:?}");
    }
    assert_eq!(parsed(&["me@n2", "hostname"]).unwrap().0, "n2");
}

#[test]
fn a_command_is_needed() {
    for line in [&[][..], &["-x"], &["n1"], &["-l", "n1"]] {
        let failure = parsed(line).expect_err("it was taken");
        assert_eq!(failure.code, Code::Usage);
    }
}
