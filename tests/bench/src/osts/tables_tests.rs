use super::super::daemon::Probe;
use super::super::draw::Contention;
use super::*;

fn sample(run: u32, case: Case, seconds: f64) -> probing::Sample {
    let probe = (case == Case::Probing).then_some(Probe {
        seconds: 0.02,
        bytes: Some(16_000_000),
    });
    probing::Sample {
        run,
        case,
        contention: Contention { slow: Vec::new() },
        bytes: 100_000_000,
        perceived: seconds / 2.0,
        safe: seconds,
        complete: Some(seconds * 2.0),
        probe,
        slow_bytes: 12,
        written_bytes: 100,
        lock_moves: 0,
        complaints: Vec::new(),
    }
}

fn results(times: &[(Case, [f64; 2])]) -> Results {
    let samples = times.iter().flat_map(|(case, seconds)| {
        let of_run = |(run, seconds)| sample(run as u32, *case, seconds);
        seconds.iter().copied().enumerate().map(of_run)
    });
    Results {
        samples: samples.collect(),
        long: None,
    }
}

#[test]
fn targets_follow_from_the_samples() {
    let mut good = results(&[
        (Case::Direct, [2.0, 1.0]),
        (Case::AllOsts, [2.0, 1.0]),
        (Case::Probing, [0.50, 0.51]),
    ]);
    let lines = probing_verdicts(&good);
    assert_eq!(lines.len(), 7, "{lines:#?}");
    // Direct 75 MB/s, with probing 198 MB/s.
    assert!(lines[0].starts_with("met: ") && lines[0].ends_with(": 2.64"));
    // Deviations of 35.4 and 2.8 MB/s.
    assert!(lines[1].starts_with("met: ") && lines[1].ends_with(" 0.08"));
    assert!(lines[2].starts_with("met: ") && lines[2].ends_with(" 0.03"));
    // The same verdicts until the canonical file is complete.
    assert!(lines[3].starts_with("met: ") && lines[3].contains("until complete"));
    // 0.02 s of probing in 1.0 s and 1.02 s.
    assert!(lines[6].starts_with("missed: ") && lines[6].contains("2.0 %"));

    good.long = Some(sample(2, Case::Probing, 10.0));
    let last = probing_verdicts(&good).pop().expect("lines");
    assert!(last.starts_with("met: "), "{last}");
    assert!(last.ends_with("0.10 %, and wrote 16 MB of them"), "{last}");

    let bad = results(&[
        (Case::Direct, [1.0, 1.0]),
        (Case::AllOsts, [1.0, 1.1]),
        (Case::Probing, [1.0, 1.1]),
    ]);
    let missed = |line: &&String| line.starts_with("missed: ");
    assert_eq!(probing_verdicts(&bad).iter().filter(missed).count(), 7);
}

#[test]
fn cases_that_did_not_run_are_left_out() {
    let direct = results(&[(Case::Direct, [1.0, 1.0])]);
    assert!(probing_verdicts(&direct).is_empty());
    let text = probing_grid(&direct).text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("12.0 %"), "{text}");
    assert!(probing_grid(&Results::default()).text().lines().count() == 1);
}

#[test]
fn delegates_are_grouped() {
    let sample = |run, delegates, lock_moves| domains::Sample {
        run,
        delegates,
        sharing: 1,
        units: 64,
        bytes: 64_000_000,
        seconds: 0.5,
        lock_moves,
    };
    let samples = [
        sample(0, 8, 0),
        sample(0, 9, 50),
        sample(1, 8, 0),
        sample(1, 9, 60),
    ];
    let text = domains_grid(&samples).text();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(
        lines[1],
        [
            "8", "mapped", "1", "64", "0.0", "0", "0", "0.50", "128.0", "0.0"
        ]
    );
    assert_eq!(
        lines[2][..7],
        ["9", "unmapped", "1", "64", "55.0", "50", "60"]
    );
}
