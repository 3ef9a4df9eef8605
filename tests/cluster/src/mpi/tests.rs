use super::*;
use crate::spec::Plan;

fn state(network: Network) -> State {
    let plan = Plan {
        nodes: 3,
        place: Place("/s".into()),
        mount: "/scratch".into(),
        backing: "/scratch".into(),
        forebay: "/bin/true".into(),
        program: "/bin/true".into(),
        config: None,
        arguments: Vec::new(),
        binds: Vec::new(),
        environment: Vec::new(),
        network,
    };
    State::new(&plan, false).unwrap()
}

#[test]
fn nodes_are_named_once_and_exist() {
    let state = state(Network::Own);
    assert_eq!(choose(&state, &[]).unwrap(), [0, 1, 2]);
    assert_eq!(choose(&state, &[2, 0]).unwrap(), [2, 0]);
    let twice = choose(&state, &[1, 1]).unwrap_err();
    assert!(twice.message.contains("twice"), "{twice}");
    let missing = choose(&state, &[3]).unwrap_err();
    assert!(missing.message.contains("the nodes 0 to 2"), "{missing}");
}

#[test]
fn a_program_of_the_other_mpi_is_refused() {
    let own = state(Network::Own);
    let refused = program(&own, Some(Mpi::OpenMpi), "/usr/bin/mpirun.mpich".as_ref());
    assert!(refused.unwrap_err().message.contains("--mpi openmpi"));
    for fine in ["mpirun.mpich", "./job.sh", "mpirun"] {
        assert_eq!(program(&own, None, fine.as_ref()).unwrap(), fine);
    }
}

#[test]
fn open_mpi_needs_addresses() {
    let shared = state(Network::Host);
    let refused = program(&shared, None, "mpirun.openmpi".as_ref()).unwrap_err();
    assert!(refused.message.contains("--network own"), "{refused}");
    assert!(program(&shared, None, "mpirun.mpich".as_ref()).is_ok());
}
