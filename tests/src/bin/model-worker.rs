//! A worker process of the model test; started by tests/model.rs.

use forebay_tests::model::worker::{Task, Worker};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mount, side, worker, workers, seed, operations, rounds] = args.as_slice() else {
        eprintln!("usage: model-worker MOUNT SIDE WORKER WORKERS SEED OPERATIONS ROUNDS");
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
        side: side.into(),
        worker: number(worker),
        workers: number(workers),
        seed: number(seed),
        operations: number(operations),
        rounds: number(rounds),
    };
    if let Err(e) = Worker::new(task).and_then(|mut worker| worker.run()) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
