# Forebay. `make help` lists the targets; `make demo` and `make test` need no preparation.
#
#   CARGO_TARGET_DIR  may be a target directory outside the clone (warm builds)
#   BUNDLED=1         build RocksDB from source even if the system's library fits
#   PREFIX, DESTDIR   for `make install`

SHELL := /bin/bash
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
BUNDLED ?=
BENCH_ARGS ?=
INDEX_BENCH_ARGS ?=
OSTS_BENCH_ARGS ?=
DEFER_BENCH_ARGS ?=
JOBS_BENCH_ARGS ?=

OUT := $(or $(CARGO_TARGET_DIR),target)/release
# Chooses between the system's RocksDB and the bundled one when a recipe runs, not when this file is read,
# because `make deps` may install the library in between.
ENV = source scripts/rocksdb-env.sh $(if $(BUNDLED),bundled) &&

.PHONY: help deps test-deps build test check lint fmt soak bench index-bench bench-osts bench-defer bench-jobs demo install uninstall clean env

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {gsub(/\$$\$$/, "$$"); printf "  make %-12s %s\n", $$1, $$2}' Makefile

deps: ## install missing packages that building and mounting need (Debian and Ubuntu)
	@scripts/deps.sh build

test-deps: ## install missing packages that the tests need
	@scripts/deps.sh build test

build: deps ## release build of the `forebay` binary
	@$(ENV) $(CARGO) build --release --locked -p mount-tools
	@echo "built $(OUT)/forebay"

test: test-deps ## lint, unit tests and tests on real mounts
	@$(ENV) CARGO=$(CARGO) scripts/test.sh

check: test-deps ## lint, unit tests and the fast mount suites: quick feedback while you work
	@$(ENV) CARGO=$(CARGO) scripts/test.sh --check

lint: test-deps ## rustfmt, clippy with warnings denied, shell and Python syntax
	@$(ENV) CARGO=$(CARGO) scripts/lint.sh

fmt: ## format the sources
	$(CARGO) fmt --all

soak: test-deps ## kill -9 cycles and random operations at length (scripts/soak.sh has the numbers)
	@$(ENV) CARGO=$(CARGO) scripts/soak.sh

bench: deps ## the mount against the plain directory and a minimal FUSE file system
	@$(ENV) $(CARGO) build --release --locked -p mount-tools -p forebay-bench
	@$(OUT)/forebay-bench $(BENCH_ARGS)

index-bench: deps ## ten million extents in one file: memory, lookups, recovery
	@$(ENV) $(CARGO) build --release --locked -p forebay-bench
	@$(OUT)/index-bench $(INDEX_BENCH_ARGS)

bench-osts: deps ## slow OSTs and unmapped writers on the simulated file system; rewrites docs/
	@$(ENV) $(CARGO) build --release --locked -p mount-tools -p forebay-bench -p pfs-sim
	@$(OUT)/bench-osts --update-docs docs $(OSTS_BENCH_ARGS)

bench-defer: deps ## checkpoints between compute phases: deferred against publishing closes; rewrites docs/
	@$(ENV) $(CARGO) build --release --locked -p mount-tools -p forebay-bench -p pfs-sim
	@$(OUT)/bench-defer --update-docs docs $(DEFER_BENCH_ARGS)

bench-jobs: test-deps ## the papers' kernels on four nodes, directly and through Forebay; rewrites docs/
	@$(ENV) $(CARGO) build --release --locked -p mount-tools -p forebay-bench -p forebay-cluster -p pfs-sim
	@$(OUT)/bench-jobs --update-docs docs $(JOBS_BENCH_ARGS)

demo: deps ## a job on two nodes writes one shared file; watch it drain; compare every byte
	@$(ENV) $(CARGO) build --release --locked -p mount-tools -p forebay-bench -p forebay-cluster
	@FOREBAY=$(OUT)/forebay CLUSTER=$(OUT)/forebay-cluster WRITER=$(OUT)/strided-writer tests/demo/run.sh

install: ## install below PREFIX (/usr/local), staged in DESTDIR
	@test -x $(OUT)/forebay || $(MAKE) build
	install -D -m 0755 $(OUT)/forebay $(DESTDIR)$(PREFIX)/bin/forebay
	install -d $(DESTDIR)$(PREFIX)/share/doc/forebay
	install -m 0644 README.md CHANGELOG.md LICENSE docs/*.md $(DESTDIR)$(PREFIX)/share/doc/forebay/

uninstall: ## remove what `make install` put below PREFIX
	rm -f $(DESTDIR)$(PREFIX)/bin/forebay
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/forebay

clean: ## remove build output
	$(CARGO) clean

env: ## print the variables for running cargo by hand: eval "$$(make -s env)"
	@$(ENV) if [ -n "$${ROCKSDB_LIB_DIR:-}" ]; then \
	    echo "export ROCKSDB_LIB_DIR=$$ROCKSDB_LIB_DIR"; else echo "unset ROCKSDB_LIB_DIR"; fi
