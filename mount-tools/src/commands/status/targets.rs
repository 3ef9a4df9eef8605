//! Formats the storage targets of a status report: a table, with the error of a target under its row.

use super::units;
use crate::output::table::{Align, Table};
use crate::output::{Style, plain};
use flusher::ost::{OstState, OstStatus, TargetsStatus};

/// Maximum number of OSTs with a row of their own. If there are more, chosen ones are only counted: a user
/// looks for those that are not in use.
const MOST_OSTS: usize = 32;

/// One line about all targets, for the list of facts.
pub fn summary(targets: &TargetsStatus, style: Style) -> String {
    if let Some(error) = &targets.error
        && targets.osts.is_empty()
    {
        return style.red(&plain(error));
    }
    let count = |state: OstState| targets.osts.iter().filter(|o| o.state == state).count();
    let mut text = format!(
        "{} ({}), {} chosen",
        units::count(targets.osts.len(), "OST"),
        plain(&targets.provider),
        count(OstState::Chosen)
    );
    if count(OstState::LeftOut) > 0 {
        text.push_str(&format!(", {} left out", count(OstState::LeftOut)));
    }
    let dropped: Vec<String> = [OstState::Stalled, OstState::Failed, OstState::Full]
        .into_iter()
        .filter(|state| count(*state) > 0)
        .map(|state| format!("{} {}", count(state), state.as_str()))
        .collect();
    if !dropped.is_empty() {
        text.push_str(&format!(", {}", style.red(&dropped.join(", "))));
    }
    let probed = match (targets.probing, targets.probed_seconds_ago) {
        (true, _) => "being probed".into(),
        (false, Some(ago)) => format!("probed {} ago", units::seconds(ago)),
        (false, None) => "not probed".into(),
    };
    text.push_str(&style.dim(&format!(", {probed}")));
    if let Some(error) = &targets.error {
        text.push_str(&format!("; {}", style.red(&plain(error))));
    }
    text
}

/// The table of targets; empty if there are none.
pub fn table(targets: &TargetsStatus, style: Style) -> String {
    if targets.osts.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("OST", Align::Right),
        ("name", Align::Left),
        ("state", Align::Left),
        ("bandwidth", Align::Right),
        ("latency", Align::Right),
        ("written", Align::Right),
        ("in flight", Align::Right),
    ]);
    let good = |o: &&OstStatus| o.state == OstState::Chosen;
    let others = targets.osts.iter().filter(|o| !good(o)).count();
    let room = match targets.osts.len() <= MOST_OSTS {
        true => MOST_OSTS,
        false => MOST_OSTS.saturating_sub(others),
    };
    let counted: Vec<&OstStatus> = targets.osts.iter().filter(good).skip(room).collect();
    for ost in &targets.osts {
        if counted.iter().any(|c| c.index == ost.index) {
            continue;
        }
        table.row(row(ost, style));
        if let Some(error) = &ost.error {
            table.note(style.red(&format!("{}{}", plain(error), retry(ost))));
        }
    }
    let mut out = format!("\n{}", table.render());
    if !counted.is_empty() {
        let written: u64 = counted.iter().map(|o| o.written).sum();
        let flying: u64 = counted.iter().map(|o| o.in_flight).sum();
        let text = format!(
            "  and {} more that are chosen, with {} written, {} in flight\n",
            units::count(counted.len(), "OST"),
            units::bytes(written),
            units::bytes(flying)
        );
        out.push_str(&style.dim(&text));
    }
    out
}

fn row(ost: &OstStatus, style: Style) -> [String; 7] {
    let state = match ost.state {
        OstState::Chosen => style.green(ost.state.as_str()),
        OstState::LeftOut => style.yellow(ost.state.as_str()),
        OstState::Stalled | OstState::Failed | OstState::Full => style.red(ost.state.as_str()),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        ost.index.to_string(),
        plain(&ost.name),
        state,
        or_dash(ost.bandwidth.map(units::rate)),
        or_dash(ost.latency_ms.map(|ms| format!("{ms:.1} ms"))),
        units::bytes(ost.written),
        units::bytes(ost.in_flight),
    ]
}

fn retry(ost: &OstStatus) -> String {
    match ost.retry_in {
        Some(seconds) if seconds > 0.0 => {
            format!("; tried again in {}", units::seconds(seconds.ceil()))
        }
        Some(_) => "; being tried again".into(),
        None => String::new(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn ost(index: u32, state: OstState) -> OstStatus {
        let dropped = state.is_dropped();
        OstStatus {
            index,
            name: format!("/ost{index}"),
            state,
            bandwidth: (!dropped).then_some(100.0 * 1048576.0),
            latency_ms: Some(2.25),
            written: 3 << 20,
            in_flight: 1 << 20,
            error: dropped.then(|| format!("OST {index} (/ost{index}): b\x1bad")),
            retry_in: dropped.then_some(30.2),
        }
    }

    pub fn targets(states: &[OstState]) -> TargetsStatus {
        TargetsStatus {
            provider: "directories".into(),
            probing: false,
            probed_seconds_ago: Some(61.0),
            probe_seconds: 0.5,
            error: None,
            osts: (0..).zip(states).map(|(n, s)| ost(n, *s)).collect(),
        }
    }

    #[test]
    fn a_row_for_each_and_what_is_wrong_under_it() {
        use OstState::*;
        let targets = targets(&[Chosen, LeftOut, Stalled, Full]);
        let text = table(&targets, Style::forced(false));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "  OST  name   state     bandwidth  latency   written  in flight"
        );
        assert_eq!(
            lines[2],
            "    0  /ost0  chosen    100 MiB/s   2.2 ms  3.00 MiB   1.00 MiB"
        );
        assert!(lines[3].contains("left out"), "{text}");
        assert_eq!(
            lines[4],
            "    2  /ost2  stalled           -   2.2 ms  3.00 MiB   1.00 MiB"
        );
        assert_eq!(
            lines[5].trim_start(),
            "OST 2 (/ost2): b\\u{1b}ad; tried again in 31s"
        );
        assert!(!text.contains('\x1b'));
        let line = summary(&targets, Style::forced(false));
        assert_eq!(
            line,
            "4 OSTs (directories), 1 chosen, 1 left out, 1 stalled, 1 full, probed 1m 1s ago"
        );
    }

    #[test]
    fn dropped_ones_are_red() {
        let text = table(&targets(&[OstState::Failed]), Style::forced(true));
        assert!(text.contains("\x1b[31mfailed\x1b[0m"), "{text:?}");
        assert!(text.contains("\x1b[31mOST 0"), "{text:?}");
    }

    #[test]
    fn of_very_many_those_that_are_chosen_are_counted() {
        let mut states = vec![OstState::Chosen; 156];
        (states[7], states[150]) = (OstState::LeftOut, OstState::Failed);
        let text = table(&targets(&states), Style::forced(false));
        assert!(
            text.contains("/ost7 ") && text.contains("/ost150 "),
            "{text}"
        );
        assert!(text.contains("and 124 OSTs more that are chosen"), "{text}");
        assert!(text.lines().count() < 40, "{text}");
    }

    #[test]
    fn a_list_that_could_not_be_had() {
        let mut targets = targets(&[]);
        targets.error = Some("the master does not answer".into());
        let style = Style::forced(false);
        assert_eq!(summary(&targets, style), "the master does not answer");
        assert_eq!(table(&targets, style), "");
        targets.osts = vec![ost(0, OstState::Chosen)];
        (targets.probing, targets.probed_seconds_ago) = (true, None);
        assert_eq!(
            summary(&targets, style),
            "1 OST (directories), 1 chosen, being probed; the master does not answer"
        );
    }
}
