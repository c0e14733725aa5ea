# Every target sets up what it needs; `make help` lists them.

SHELL := bash
export RUSTDOCFLAGS := -D warnings

.DEFAULT_GOAL := help
.PHONY: help run test test-rust lint stress bench-quick clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

run: ## tell a short story in the terminal: two workers, one dies, takeover, the old token refused
	@scripts/setup cc
	cargo run -q -p litelease --example takeover

test: lint test-rust ## set up and run all checks and tests

test-rust: ## the Rust part of the tests
	@scripts/setup cc strace
	cargo test -q --workspace

lint: ## formatting, clippy and documentation, without a warning
	@scripts/setup cc
	cargo fmt --all --check
	cargo clippy -q --workspace --all-targets -- -D warnings
	cargo doc -q --workspace --no-deps

stress: ## repeat the acceptance journeys for FOR=120 seconds, several at a time on one file
	@scripts/setup cc
	LITELEASE_STRESS_SECONDS=$(or $(FOR),120) cargo test -q -p litelease-proof --test journeys stress

bench-quick: ## what it costs, as counts next to the bare SQLite statement
	@scripts/setup cc valgrind strace
	cargo build -q --release -p litelease-bench
	target/release/litelease-bench quick

clean: ## remove everything that was built
	cargo clean
