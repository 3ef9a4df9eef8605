use super::*;
use std::process::{Child, Command, Stdio};

fn sleeper() -> Child {
    let mut command = Command::new("sleep");
    command.arg("600").stdin(Stdio::null());
    command.spawn().expect("start sleep")
}

#[test]
fn names_with_brackets_do_not_shift_the_fields() {
    let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
    let text = format!("17 (a) S (b)) R {}", numbers.join(" "));
    assert_eq!(parse_stat(&text), Some(('R', 22)));
    assert_eq!(parse_stat("17 (short) S 1 2"), None);
    assert_eq!(parse_stat(""), None);
}

#[test]
fn another_process_of_the_same_number_is_left_alone() {
    let mut child = sleeper();
    let real = Process::of(child.id() as i32).unwrap();
    let earlier = Process {
        started: real.started - 1,
        ..real
    };
    assert!(real.is_alive());
    assert!(!earlier.is_alive());
    earlier
        .end(Signal::SIGKILL, Duration::from_secs(1))
        .unwrap();
    assert!(real.is_alive(), "a stranger was killed");
    real.end(Signal::SIGKILL, Duration::from_secs(10)).unwrap();
    // The parent has not waited for it yet: a zombie counts as gone.
    assert!(!real.is_alive());
    real.end(Signal::SIGKILL, Duration::from_secs(1)).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_that_ignores_the_signal_is_reported() {
    let mut child = Command::new("sh")
        .args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = io::BufReader::new(child.stdout.take().unwrap());
    io::BufRead::read_line(&mut out, &mut line).unwrap();
    let process = Process::of(child.id() as i32).unwrap();
    let error = process
        .end(Signal::SIGTERM, Duration::from_millis(20))
        .unwrap_err();
    assert!(error.to_string().contains("does not end"), "{error}");
    process
        .end(Signal::SIGKILL, Duration::from_secs(10))
        .unwrap();
    child.wait().unwrap();
}

#[test]
fn variables_are_compared_whole() {
    let mut child = Command::new("sleep")
        .arg("600")
        .env("FOREBAY_CLUSTER", "/a/b")
        .spawn()
        .unwrap();
    let pid = child.id() as i32;
    // Until the child has executed `sleep`, its environment is that of its parent.
    crate::wait::poll(Duration::from_secs(10), || {
        has_variable(pid, "FOREBAY_CLUSTER", "/a/b").then_some(())
    })
    .expect("the variable is seen");
    assert!(!has_variable(pid, "FOREBAY_CLUSTER", "/a"));
    assert!(!has_variable(pid, "CLUSTER", "/a/b"));
    let process = Process::of(pid).unwrap();
    process
        .end(Signal::SIGKILL, Duration::from_secs(10))
        .unwrap();
    child.wait().unwrap();
}
