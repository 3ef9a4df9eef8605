use super::*;
use crate::spec::Plan;

fn place() -> (tempfile::TempDir, Place) {
    let dir = tempfile::tempdir().unwrap();
    let place = Place(dir.path().to_owned());
    (dir, place)
}

fn state(nodes: usize) -> State {
    let plan = Plan {
        nodes,
        place: Place("/s".into()),
        mount: "/scratch".into(),
        backing: "/scratch".into(),
        forebay: "/usr/bin/forebay".into(),
        program: "/usr/bin/forebay-cluster".into(),
        config: None,
        arguments: vec!["--close".into(), "publish".into()],
        environment: vec![("NAME".into(), "value".into())],
        binds: Vec::new(),
        network: Network::Own,
    };
    State::new(&plan, false).unwrap()
}

#[test]
fn what_is_saved_is_loaded() {
    let (_dir, place) = place();
    assert!(State::load_if_any(&place).unwrap().is_none());
    let mut state = state(3);
    state.nodes[1].daemon = Some(Process {
        pid: 7,
        started: 1234,
    });
    state.save(&place).unwrap();
    assert_eq!(State::load(&place).unwrap(), state);
}

#[test]
fn processes_of_another_boot_are_nobodys() {
    let (_dir, place) = place();
    let mut state = state(1);
    let me = Process::of(std::process::id() as i32).unwrap();
    state.nodes[0].daemon = Some(me);
    state.boot = "another".into();
    state.save(&place).unwrap();
    assert_eq!(State::load(&place).unwrap().nodes[0].daemon, None);
}

#[test]
fn damaged_and_newer_states_are_refused() {
    let (_dir, place) = place();
    std::fs::write(place.file(), "{").unwrap();
    let failure = State::load(&place).unwrap_err();
    assert!(failure.message.contains("is not the state"), "{failure}");
    let mut newer = state(1);
    newer.version = 99;
    newer.save(&place).unwrap();
    let failure = State::load(&place).unwrap_err();
    assert!(failure.message.contains("version 99"), "{failure}");
}

#[test]
fn only_its_own_names_are_removed() {
    let (_dir, place) = place();
    let state = State {
        made_directory: true,
        ..state(2)
    };
    state.save(&place).unwrap();
    std::fs::create_dir_all(place.store("n1")).unwrap();
    std::fs::create_dir_all(place.logs()).unwrap();
    std::fs::write(place.log("n0"), "words").unwrap();
    let (mine, n2) = (place.0.join("mine"), place.node("n2"));
    std::fs::write(&mine, "").unwrap();
    std::fs::create_dir(&n2).unwrap();
    remove(&place, &state, true).unwrap();
    assert!(mine.exists() && n2.exists() && place.log("n0").exists());
    assert!(!place.file().exists() && !place.node("n1").exists());
    // Removes everything this time, and once more: repeated calls must succeed.
    std::fs::remove_file(&mine).unwrap();
    std::fs::remove_dir(&n2).unwrap();
    remove(&place, &state, false).unwrap();
    assert!(!place.0.exists());
    remove(&place, &state, false).unwrap();
}

#[test]
fn a_directory_with_strangers_is_not_free() {
    let (dir, place) = place();
    assert!(is_free(dir.path()).unwrap());
    std::fs::create_dir(place.logs()).unwrap();
    assert!(is_free(dir.path()).unwrap());
    std::fs::write(dir.path().join("thesis.tex"), "").unwrap();
    assert!(!is_free(dir.path()).unwrap());
}
