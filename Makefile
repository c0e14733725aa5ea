# Every target sets up what it needs; `make help` lists them.

SHELL := bash
export RUSTDOCFLAGS := -D warnings

.DEFAULT_GOAL := help
.PHONY: help run story test test-rust test-python lint build-cli build-ext smoke-ext dist-ext python-wheel torture bench bench-quick bench-plots clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

run: ## start the service on a file under target/, with a pool to look at
	@scripts/setup cc curl
	cargo build --locked -q --release -p litelease-cli
	@scripts/run-serve

story: ## tell a short story in the terminal: a worker is paused, another takes over, the database stops the first
	@scripts/setup cc
	cargo run --locked -q -p litelease-cli -- demo

test: lint test-rust smoke-ext test-python ## set up and run all checks and tests

test-rust: ## the Rust part of the tests
	@scripts/setup cc strace sqlite3 redis-server initdb faketime pgrep curl
	@scripts/setup-node
	@scripts/setup-browser
	@scripts/setup-schemathesis
	@scripts/setup-python
	cargo test --locked -q --workspace

test-python: ## the Python package: types and tests, on two Pythons
	@scripts/setup cc
	@scripts/setup-python
	@scripts/test-python

lint: ## formatting, clippy and documentation, without a warning
	@scripts/setup cc
	cargo fmt --all --check
	cargo clippy --locked -q --workspace --all-targets -- -D warnings
	cargo doc --locked -q --workspace --no-deps

build-cli: ## build the command, target/release/litelease
	@scripts/setup cc
	cargo build --locked -q --release -p litelease-cli

build-ext: ## build the loadable extension, target/release/liblitelease_ext.so
	@scripts/setup cc
	cargo build --locked -q --release -p litelease-extension

smoke-ext: build-ext ## take it through its life in the sqlite3 shell and python3 of the system
	@scripts/setup cc sqlite3 valgrind
	@scripts/smoke-ext

dist-ext: build-ext ## put it into dist/, named after the platform, with its checksum
	@scripts/dist-ext

python-wheel: ## build the wheel of the Python package into dist/
	@scripts/setup cc
	@scripts/setup-python
	target/python/system/bin/python -m pip wheel -q --no-build-isolation --no-deps -w dist ./python

torture: ## all long proofs for MINUTES=30 (PROOF=name for one of them), ending in one table
	@scripts/setup cc strace
	cargo build --locked -q --release -p litelease-proof
	target/release/torture $(or $(MINUTES),30) $(PROOF)

bench: ## measure everything next to raw SQLite, Redis, PostgreSQL, etcd (ROWS="B8 B9" for some, SAVE=1 for docs/performance.md)
	@scripts/setup cc valgrind strace redis-server initdb etcd
	@scripts/setup-python
	@scripts/setup-sayt2
	cargo build --locked -q --release -p litelease-bench -p litelease-extension -p litelease-cli
	target/release/litelease-bench all $(if $(SAVE),save) $(ROWS)

bench-quick: ## counts only, compared with the committed ones (SAVE=1 writes those)
	@scripts/setup cc valgrind strace
	cargo build --locked -q --release -p litelease-bench -p litelease-extension
	target/release/litelease-bench quick $(if $(SAVE),save)

bench-plots: ## draw the plots of docs/performance.md again
	@scripts/setup cc
	cargo build --locked -q --release -p litelease-bench
	target/release/litelease-bench draw

clean: ## remove everything that was built
	cargo clean
