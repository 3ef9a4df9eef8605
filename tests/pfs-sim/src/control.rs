//! Contents of `.pfs-sim/counters`, `config` and `target_obd`, and the commands of `control`.

use crate::Errno;
use crate::ops::{Clients, Pfs};
use crate::settings::Change;
use crate::tally::{Config, Counters, FileCounters, OstConfig, OstCounters, Tally};
use std::fmt::Write;
use std::sync::atomic::Ordering;

impl Pfs {
    pub fn counters(&self) -> Counters {
        let mut total = Tally::default();
        let mut osts = Vec::with_capacity(self.cluster.osts.len());
        for (index, ost) in self.cluster.osts.iter().enumerate() {
            let state = ost.lock();
            total.add(&state.tally);
            osts.push(OstCounters {
                ost: index,
                name: ost.name.clone(),
                pending: state.pending(),
                used: state.used(),
                tally: state.tally,
            });
        }
        Counters {
            total,
            osts,
            files: self.file_counters(),
        }
    }

    fn file_counters(&self) -> Vec<FileCounters> {
        let tree = self.tree.read();
        let paths = tree.paths();
        let mut files: Vec<FileCounters> = tree
            .nodes()
            .filter_map(|node| {
                let tally = *node.file()?.tally.lock();
                let path = paths.get(&node.ino)?.clone();
                let ino = node.ino;
                (tally.requests > 0).then_some(FileCounters { ino, path, tally })
            })
            .collect();
        files.sort_by_key(|file| file.ino);
        files
    }

    pub fn config(&self) -> Config {
        let common = &self.cluster.common;
        let osts = self.cluster.osts.iter().enumerate();
        Config {
            stripe_size: common.default_layout.stripe_size.unwrap_or(0),
            stripe_count: common.stripe_count(),
            lock_cost_ns: common.lock_cost_ns.load(Ordering::Relaxed),
            lock_unit: common.lock_unit,
            rmw_unit: common.rmw_unit,
            write_behind: common.write_behind,
            no_direct: common.no_direct,
            clients: match self.clients {
                Clients::Mount => "mount",
                Clients::Process => "process",
                Clients::Handle => "handle",
            }
            .into(),
            osts: osts
                .map(|(ost, state)| OstConfig {
                    ost,
                    name: state.name.clone(),
                    settings: state.lock().settings.clone(),
                })
                .collect(),
        }
    }

    /// Formats the list of OSTs as in `/proc/fs/lustre/lov/*/target_obd`.
    pub fn target_obd(&self) -> String {
        let mut text = String::new();
        for (index, ost) in self.cluster.osts.iter().enumerate() {
            // Writing to a `String` cannot fail.
            writeln!(text, "{index}: {} ACTIVE", ost.name).unwrap_or_default();
        }
        text
    }

    /// Carries out commands, one JSON object on each line. Stops at the first bad one, which
    /// reading `control` explains until the next write.
    pub fn command(&self, text: &[u8]) -> Result<(), Errno> {
        let outcome = self.commands(text);
        *self.outcome.lock() = match &outcome {
            Ok(()) => "ok\n".into(),
            Err(sentence) => format!("{sentence}\n"),
        };
        outcome.map_err(|_| Errno::EINVAL)
    }

    fn commands(&self, text: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(text).map_err(|_| "a command is UTF-8 text")?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        for line in lines {
            let change: Change = serde_json::from_str(line)
                .map_err(|e| format!("\"{line}\" is not a command: {e}"))?;
            self.cluster
                .change(&change)
                .map_err(|e| format!("\"{line}\": {e}"))?;
            if change.reset.is_some() {
                self.reset_files();
            }
        }
        Ok(())
    }

    fn reset_files(&self) {
        let tree = self.tree.read();
        for file in tree.nodes().filter_map(|node| node.file()) {
            *file.tally.lock() = Tally::default();
        }
    }
}
