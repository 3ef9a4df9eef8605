//! A network that only the nodes see: a bridge in a network namespace of its own, and a cable (a
//! veth pair) from each node to it. Every cluster uses the same addresses, which is possible
//! because nothing outside can reach them.

use crate::failure::{Failure, Result};
use crate::namespace;
use crate::process::Process;
use crate::programs;
use crate::state::{Network, State};
use nix::sched::CloneFlags;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Name of the node's end of the cable.
pub const INTERFACE: &str = "eth0";
const BRIDGE: &str = "br0";

pub fn address(node: usize) -> String {
    format!("10.88.0.{}", node + 1)
}

/// Returns `/etc/hosts` of every node.
pub fn hosts(network: Network, nodes: usize) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    for node in 0..nodes {
        let address = match network {
            Network::Own => address(node),
            Network::Host => "127.0.0.1".to_owned(),
        };
        text.push_str(&format!("{address} n{node}\n"));
    }
    text
}

/// Makes the cables and addresses; the nodes must exist.
pub fn connect(state: &State) -> Result<()> {
    let Some(switch) = state.switch else {
        return Ok(());
    };
    let mut lines = format!("link add {BRIDGE} type bridge\nlink set {BRIDGE} up\n");
    for (index, node) in state.nodes.iter().enumerate() {
        let pid = node.keeper()?.process.pid;
        lines.push_str(&format!(
            "link add p{index} type veth peer name {INTERFACE} netns {pid}\n\
             link set p{index} master {BRIDGE} up\n"
        ));
    }
    ip(switch, &lines)?;
    for (index, node) in state.nodes.iter().enumerate() {
        let lines = format!(
            "link set lo up\naddr add {}/24 dev {INTERFACE}\nlink set {INTERFACE} up\n",
            address(index)
        );
        ip(node.keeper()?.process, &lines)?;
    }
    Ok(())
}

/// Runs `ip -batch` in the network namespace of that process.
fn ip(process: Process, lines: &str) -> Result<()> {
    let cannot = |e: std::io::Error| Failure::failed(format!("ip, which makes the network: {e}"));
    let mut command = Command::new(programs::needed("ip", "iproute2")?);
    command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    namespace::enter(
        &mut command,
        process,
        CloneFlags::CLONE_NEWNET,
        Path::new("/"),
    )?;
    let mut child = command.spawn().map_err(cannot)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.as_bytes()).map_err(cannot)?;
    }
    let out = child.wait_with_output().map_err(cannot)?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(Failure::failed(format!(
        "the nodes' network cannot be made: {}; without one of their own: --network host",
        said.trim().replace('\n', "; ")
    )))
}
