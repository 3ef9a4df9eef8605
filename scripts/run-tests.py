#!/usr/bin/env python3
"""Runs the test binaries that cargo has built, concurrently, and reports which tests are slow.

Most tests wait (for a daemon, a lease, a lock), so more tests run at a time than there are processors. Each test of
an integration suite runs in its own process; a suite of unit tests is one process. SCHEDULE says which tests take
longer than others (they start first), need several places, or must have the machine to themselves.

    cargo test --no-run --message-format=json ... > built.json
    scripts/run-tests.py built.json                 # all suites
    scripts/run-tests.py built.json --check         # suites that SCHEDULE does not list: `make check`
    scripts/run-tests.py built.json locks nodes_    # suites whose names contain one of these
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

# A test that runs longer than this is killed with its whole process group. Tests have shorter limits of their
# own.
LIMIT_SECONDS = 1500
SLOWEST_SHOWN = 20
# How much of each panic is repeated at the end.
PANIC_LINES = 6


class Suite:
    """How one suite is run. These are the defaults for what SCHEDULE does not set."""

    def __init__(self, seconds=5, places=1, group=None, alone=False):
        self.seconds = seconds  # about how long its longest test takes: long tests start first
        self.places = places  # number of places that a test takes, of all that there are
        self.group = group  # only one test of all suites in a group runs at a time
        self.alone = alone  # no other test runs at the same time


# MPI ranks spin while they wait, and bystanders of an attack must be answered within a second: few other
# tests may run at the same time.
SPINS = {"places": 3, "group": "MPI"}
MEASURES = {"places": 3, "group": "hostile"}

# Keys are suites, or suite::test.
SCHEDULE = {
    "holds": Suite(seconds=120),
    "sabotage": Suite(seconds=120),
    "order": Suite(seconds=40),
    "mpiio": Suite(seconds=110, **SPINS),
    "kernels": Suite(seconds=100, **SPINS),
    "libraries": Suite(seconds=90, **SPINS),
    "restart": Suite(seconds=80, **SPINS),
    "jobs": Suite(seconds=80, **SPINS),
    "mpi": Suite(seconds=70, **SPINS),
    "nodes_model": Suite(seconds=100),
    "kill": Suite(seconds=90),
    "model": Suite(seconds=60),
    "images": Suite(seconds=60),
    "faults": Suite(seconds=60),
    "flusher": Suite(seconds=60),
    "flusher_subfiles": Suite(seconds=60),
    "many_nodes": Suite(seconds=60),
    "layout_fuzz": Suite(seconds=60),
    "pjdfstest": Suite(seconds=60),
    "fsx": Suite(seconds=60),
    "osts_hang": Suite(seconds=60),
    "osts_moosefs": Suite(seconds=60),
    "locks_moosefs": Suite(seconds=60),
    "moosefs_cluster": Suite(seconds=40),
    "moosefs_live": Suite(seconds=40),
    "ost_moosefs": Suite(seconds=40),
    "ost_moosefs_errors": Suite(seconds=60),
    "store_disk": Suite(seconds=60),
    "hostile_pool": Suite(seconds=40, **MEASURES),
    "hostile_space": Suite(seconds=30, **MEASURES),
    "hostile_descriptors": Suite(seconds=30, **MEASURES),
    "hostile_status": Suite(seconds=20, **MEASURES),
    "hostile_setuid": Suite(seconds=20, **MEASURES),
    "hostile_namespaces": Suite(seconds=20, **MEASURES),
    "probe": Suite(seconds=20, places=2),
    # Drops what the kernel knows of all files of the machine. Commands then show files by number (OPERATIONS).
    "posix_handles::handles_outlive_the_kernels_memory": Suite(seconds=5, alone=True),
}


def built_suites(path):
    """Returns (name, executable, package directory, is it unit tests) of each test binary in cargo's messages."""
    suites = []
    with open(path, encoding="utf-8") as messages:
        for line in messages:
            message = json.loads(line)
            if message.get("reason") != "compiler-artifact" or not message["profile"]["test"]:
                continue
            if not message.get("executable"):
                continue
            target = message["target"]
            package = os.path.dirname(message["manifest_path"])
            is_unit = "test" not in target["kind"]
            name = target["name"] + (" (unit)" if is_unit else "")
            suites.append((name, message["executable"], package, is_unit))
    return suites


class Case:
    def __init__(self, suite, executable, package, test, how):
        self.suite, self.executable, self.package, self.test, self.how = suite, executable, package, test, how
        self.name = f"{suite}::{test}" if test else suite

    def command(self):
        if self.test:
            return [self.executable, "--exact", self.test]
        return [self.executable, "--test-threads=2"]

    def run(self):
        """Runs the case. Returns (passed, failed, ignored, seconds, output)."""
        began = time.monotonic()
        process = subprocess.Popen(
            self.command(), cwd=self.package, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, text=True, errors="replace",
            env={**os.environ, "CARGO_MANIFEST_DIR": self.package})
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nended after {LIMIT_SECONDS} s\n"
        seconds = time.monotonic() - began
        counts = self.counts(output)
        if counts is None or (process.returncode != 0 and counts[1] == 0):
            counts = (0, 1, 0)
            output += f"\n{self.name} ended with {process.returncode} and reported no failed test\n"
        return (*counts, seconds, output)

    @staticmethod
    def counts(output):
        found = None
        for line in output.splitlines():
            if "test result: " in line:
                words = line.split("test result: ")[1].replace(";", "").split()
                found = tuple(int(words[words.index(key) - 1]) for key in ("passed", "failed", "ignored"))
        return found


def cases_of(suites):
    for name, executable, package, is_unit in suites:
        how = SCHEDULE.get(name, Suite())
        if is_unit:
            yield Case(name, executable, package, None, how)
            continue
        listed = subprocess.run([executable, "--list", "--format=terse"], cwd=package, check=True, text=True,
                                stdout=subprocess.PIPE)
        for line in listed.stdout.splitlines():
            test, _, kind = line.rpartition(": ")
            if kind == "test":
                yield Case(name, executable, package, test, SCHEDULE.get(f"{name}::{test}", how))


class Places:
    """Decides which case may start: the longest first, as far as places, groups and `alone` allow."""

    def __init__(self, cases, places):
        self.waiting = sorted(cases, key=lambda case: (case.how.alone, -case.how.seconds))
        self.places = self.free = places
        self.groups = set()
        self.changed = threading.Condition()

    def needed(self, case):
        return self.places if case.how.alone else min(case.how.places, self.places)

    def next(self):
        """Waits for the next case that may start and returns it, or None when all have started."""
        with self.changed:
            while True:
                if not self.waiting:
                    return None
                for case in self.waiting:
                    if self.needed(case) <= self.free and case.how.group not in self.groups:
                        self.waiting.remove(case)
                        self.free -= self.needed(case)
                        if case.how.group:
                            self.groups.add(case.how.group)
                        return case
                self.changed.wait()

    def done(self, case):
        with self.changed:
            self.free += self.needed(case)
            self.groups.discard(case.how.group)
            self.changed.notify_all()


def run_all(cases, places):
    at = Places(cases, places)
    results = queue.Queue()

    def work():
        while (case := at.next()) is not None:
            try:
                result = case.run()
            except Exception as e:  # without a result, the main thread would wait for this one for ever
                result = (0, 1, 0, 0.0, f"{case.name}: {e!r}\n")
            at.done(case)
            results.put((case, result))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(places)]
    for thread in threads:
        thread.start()
    for _ in range(len(cases)):
        yield results.get()


def panics(output):
    """The messages of all panics in a test's output, which may stand far above its last line."""
    lines, found = output.splitlines(), []
    for at, line in enumerate(lines):
        if " panicked at " in line:
            found += lines[at:at + PANIC_LINES]
    return found or lines[-PANIC_LINES:]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("built", help="what cargo said with --message-format=json")
    arguments.add_argument("suites", nargs="*", help="only suites whose name contains one of these")
    arguments.add_argument("--check", action="store_true", help="only suites that SCHEDULE does not list")
    arguments.add_argument("--places", type=int, default=int(os.environ.get("FOREBAY_TEST_PLACES", 0)),
                           help="how many tests run at a time (three for each processor)")
    arguments.add_argument("--times", help="write the seconds of each test to this file")
    said = arguments.parse_args()
    places = said.places or 3 * (os.cpu_count() or 1)

    suites = built_suites(said.built)
    cases = list(cases_of(suites))
    unknown = set(SCHEDULE) - {case.suite for case in cases} - {case.name for case in cases}
    if unknown:
        sys.exit(f"scripts/run-tests.py: SCHEDULE names what is not there: {', '.join(sorted(unknown))}")
    if said.check:
        cases = [case for case in cases if case.suite not in SCHEDULE]
    if said.suites:
        cases = [case for case in cases if any(text in case.suite for text in said.suites)]

    began = time.monotonic()
    passed = failed = ignored = 0
    times, broken = [], []
    for n, (case, (good, bad, left, seconds, output)) in enumerate(run_all(cases, places), 1):
        passed, failed, ignored = passed + good, failed + bad, ignored + left
        times.append((seconds, case.name))
        verdict = "FAILED" if bad else "ok"
        count = f" ({good} tests)" if not case.test else ""
        print(f"[{n:4}/{len(cases)}] {seconds:6.1f} s  {case.name}{count} ... {verdict}", flush=True)
        if bad:
            broken.append((case.name, panics(output)))
            print(output, flush=True)

    times.sort(reverse=True)
    if said.times:
        with open(said.times, "w", encoding="utf-8") as out:
            out.writelines(f"{seconds:.1f} {name}\n" for seconds, name in times)
    print(f"\nThe {min(SLOWEST_SHOWN, len(times))} slowest:")
    for seconds, name in times[:SLOWEST_SHOWN]:
        print(f"  {seconds:6.1f} s  {name}")
    took = int(time.monotonic() - began)
    names = {case.suite for case in cases}
    print(f"\n{len(names)} suites in {took // 60} min {took % 60:02} s, {places} places, "
          f"{sum(seconds for seconds, _ in times) / 60:.0f} min of tests")
    for name, why in broken:
        print(f"  failed: {name}")
        print("".join(f"    {line[:400]}\n" for line in why), end="")
    if ignored:
        print(f"  ignored: {ignored}")
    print(f"tests: {passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
