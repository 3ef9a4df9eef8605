//! `forebay mount`.

use crate::args::MountArgs;
use crate::daemon::{self, daemonize};
use crate::exit_codes::{Code, Failure, Result};
use crate::settings::{self, MountSettings};
use crate::{logging, mountinfo};

pub fn run(args: &MountArgs) -> Result<Code> {
    let root = nix::unistd::geteuid().is_root();
    refuse_second(args)?;
    let settings = MountSettings::resolve(args, root)?;
    settings::make_store(&settings.store)?;
    if settings.foreground {
        logging::start();
        daemon::run(&settings, || {})?;
        return Ok(Code::Ok);
    }
    match daemonize::detach(&settings.log_file)? {
        daemonize::Side::Parent(pid) => {
            std::fs::metadata(&settings.mount).map_err(|e| {
                Failure::failed(format!("{} does not answer: {e}", settings.mount.display()))
            })?;
            crate::output::print(&format!(
                "{} is mounted (node {}, store {}, pid {pid})\n",
                settings.mount.display(),
                settings.node,
                settings.store.display()
            ))
            .map_err(super::output_failed)?;
            Ok(Code::Ok)
        }
        daemonize::Side::Child(report) => {
            logging::start();
            let mut report = Some(report);
            let result = daemon::run(&settings, || {
                if let Some(report) = report.take() {
                    report.ready();
                }
            });
            if let (Err(failure), Some(report)) = (&result, report) {
                report.failed(failure);
            }
            result.map(|()| Code::Ok)
        }
    }
}

/// Before anything is looked up: a dead mount would not even let itself be looked at.
fn refuse_second(args: &MountArgs) -> Result<()> {
    let Ok(point) = mountinfo::real_point(&args.dir) else {
        // Missing, most likely: the settings say it better.
        return Ok(());
    };
    let there = mountinfo::forebay_at(&point)
        .map_err(|e| Failure::failed(format!("cannot read the list of mounts: {e}")))?;
    if !there {
        return Ok(());
    }
    let dead = mountinfo::is_dead(&point);
    let point = point.display();
    Err(Failure::failed(match dead {
        false => format!("{point} is a Forebay mount already; see forebay status {point}"),
        true => format!(
            "{point} is a Forebay mount whose daemon is gone; take it away with forebay umount {point}"
        ),
    }))
}
