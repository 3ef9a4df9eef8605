//! A writer of the kill test; started by tests/kill.rs. Prints a dot for each acknowledged operation.

use forebay_tests::kill::worker::{Task, Worker};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mount, notes, worker, workers, seed, first] = args.as_slice() else {
        eprintln!("usage: kill-worker MOUNT NOTES WORKER WORKERS SEED FIRST");
        std::process::exit(2);
    };
    let number = |text: &String| -> u64 {
        text.parse().unwrap_or_else(|_| {
            eprintln!("{text} is not a number");
            std::process::exit(2)
        })
    };
    let task = Task {
        mount: mount.into(),
        notes: notes.into(),
        worker: number(worker),
        workers: number(workers),
        seed: number(seed),
        first: number(first),
    };
    let run = Worker::new(task).and_then(|mut worker| worker.run(std::io::stdout()));
    if let Err(e) = run {
        eprintln!("worker {worker}: {e}");
        std::process::exit(1);
    }
}
