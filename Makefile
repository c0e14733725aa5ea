# Every target sets up what it needs; `make help` lists them.

SHELL := bash
export RUSTDOCFLAGS := -D warnings
# Most tests wait for processes and clocks: three for two processors.
TEST_THREADS := $(shell echo $$(( (3 * $$(nproc) + 1) / 2 )))

# The tools of `make test`, which its parts name again for those who run them alone.
TEST_TOOLS := cc cargo-fmt cargo-clippy strace sqlite3 sqlite3.h redis-server initdb pgbouncer etcd openssl faketime ip pgrep curl node ruby ruby-sqlite3 valgrind

# With the code that only proofs have. As an option and not in the environment: tests build what is shipped, without it.
PLANTED := --config build.rustc-workspace-wrapper=\"scripts/planted\"
# The command for a first look: without etcd and PostgreSQL, and not optimized. `make build-cli` builds the whole one.
QUICK := scripts/build "building the command litelease" build --profile quick -p litelease-cli --no-default-features

.DEFAULT_GOAL := help
.PHONY: dist-all test-arm64 first-minute-dist setup-release package reproducible sbom oldest-rust release release-upload lint-workflows help run demo cluster-demo setup test test-begins deny deny-if-installed test-rust test-integrations test-hosts test-python first-minute lint build-cli install uninstall build-ext smoke-ext dist dist-ext python-wheel torture torture-cluster bench bench-quick bench-plots clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

run: ## start the service on a file under target/, with a pool to look at
	@scripts/setup cc curl
	@$(QUICK)
	@scripts/run-serve

demo: ## six seconds in the terminal: a worker is paused, another takes over, the database stops the first
	@scripts/setup cc
	@$(QUICK)
	@$(or $(CARGO_TARGET_DIR),target)/quick/litelease demo

cluster-demo: ## leases on a cluster: three etcd members and three workers, and who takes over when one is killed
	@scripts/setup cc curl etcd
	@scripts/build "building the command litelease" build -p litelease-cli
	@scripts/cluster-demo

setup: ## install and fetch what the tests use (as root with apt-get; otherwise says what is missing)
	@scripts/setup $(TEST_TOOLS)
	@scripts/setup-node
	@scripts/setup-browser
	@scripts/setup-schemathesis
	@scripts/setup-jwt
	@scripts/setup-python

test: test-begins lint deny-if-installed test-rust test-integrations smoke-ext test-python first-minute ## set up and run all checks and tests

test-begins:
	@echo "make test: lints and documentation, the Rust tests, other SQLite crates, the extension, the Python package, a newcomer's first minute."
	@echo "It takes about ten minutes on two cores; the first time another ten, to build and to fetch what the tests use."
	@scripts/setup $(TEST_TOOLS)

deny: ## check licences, sources and duplicates of what the published crates link (cargo-deny from crates.io)
	@echo "==> checking licences, sources and duplicate crates"
	@cargo deny --locked --log-level error check --hide-inclusion-graph bans licenses sources

setup-release: ## install what checks and lists the dependencies of a release: cargo-deny and cargo-cyclonedx
	@for tool in cargo-deny cargo-cyclonedx; do command -v $$tool >/dev/null || cargo install --locked --quiet $$tool; done

# It takes minutes to build cargo-deny, so the tests do not install it.
deny-if-installed:
	@if cargo deny --version >/dev/null 2>&1; then $(MAKE) --no-print-directory deny; \
	else echo "==> skipped: licences and duplicate crates (make setup-release deny)"; fi

test-rust: ## the Rust part of the tests
	@scripts/setup cc strace sqlite3 redis-server initdb pgbouncer etcd openssl faketime ip pgrep curl node ruby ruby-sqlite3
	@scripts/setup-node
	@scripts/setup-browser
	@scripts/setup-schemathesis
	@scripts/setup-jwt
	@scripts/setup-python
	@scripts/build "building the Rust tests" test --no-run --workspace $(PLANTED)
	@echo "==> running the Rust tests: several minutes, with a dot for each test that passes"
	@RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked -q --workspace $(PLANTED)

test-integrations: ## the crate next to sqlx, diesel, r2d2, deadpool and tokio: small projects, built and run
	@scripts/setup cc sqlite3.h
	@echo "==> building and running projects with other SQLite crates: two minutes or three the first time"
	@LITELEASE_INTEGRATIONS=1 cargo test --locked -q -p litelease-proof --test project $(PLANTED) integrations::

test-hosts: ## holds from programs in Node, Go, Ruby, Java, PHP and the shell: beside them, and in SQL
	@scripts/setup cc node ruby ruby-sqlite3 go go-sqlite3 javac sqlite-jdbc php php-sqlite3
	@scripts/setup-node
	@echo "==> running litelease hold beside programs in six languages"
	@LITELEASE_HOSTS=1 cargo test --locked -q -p litelease-proof --test command $(PLANTED) hosts::
	@echo "==> holding in SQL from six languages"
	@LITELEASE_HOSTS=1 cargo test --locked -q -p litelease-proof --test sql $(PLANTED) held_hosts::

test-python: ## the Python package: types and tests, on two Pythons
	@scripts/setup cc openssl
	@scripts/setup-python
	@echo "==> checking and testing the Python package"
	@scripts/test-python

first-minute: build-ext ## what a newcomer types first, on six paths, with times
	@scripts/setup cc sqlite3 curl
	@scripts/setup-python
	@scripts/build "building the command litelease" build -p litelease-cli $(PLANTED)
	@scripts/first-minute

first-minute-dist: ## the paths that need no Rust, from dist/ as `make dist-all` leaves it, in a system that has nothing else
	@DIST=dist scripts/first-minute

test-arm64: ## run the crates, the command, the extension and the Python package on an emulated arm64
	@scripts/setup cc
	@scripts/setup-python
	@scripts/test-platform linux-arm64

lint: lint-workflows ## formatting, clippy and documentation, without a warning
	@scripts/setup cc cargo-fmt cargo-clippy
	@echo "==> checking the formatting"
	@cargo fmt --all --check
	@scripts/build "checking with clippy" clippy --workspace --all-targets -- -D warnings --cfg planted
	@scripts/build "building the documentation" doc --workspace --no-deps

lint-workflows: ## check the workflow files of the forge against their schema, which comes with the tool
	@scripts/lint-workflows

build-cli: ## build the command, target/release/litelease
	@scripts/setup cc
	@scripts/build "building the command litelease" build --release -p litelease-cli

install: ## install the command, its manual pages and completions (PREFIX=/usr/local, DESTDIR=)
	@scripts/install

uninstall: ## remove what make install has put there
	@scripts/install uninstall

build-ext: ## build the loadable extension, target/release/liblitelease_ext.so
	@scripts/setup cc
	@scripts/build "building the extension" build --release -p litelease-extension

smoke-ext: build-ext ## take it through its life in the sqlite3 shell and python3 of the system
	@scripts/setup cc sqlite3 valgrind
	@scripts/smoke-ext

dist: dist-ext ## a .deb, a tarball with a static program and the extension in dist/, with their checksums
	@scripts/setup cc musl-gcc
	@eval "$$(scripts/release-flags)"; scripts/dist deb tarball

dist-all: ## build the command, the extension and the wheel for Linux on x86_64 and arm64, with glibc and musl, into dist/
	@scripts/setup cc musl-gcc
	@scripts/setup-python
	@scripts/dist-all

dist-ext: ## build the extension into dist/, named after the platform, with its checksum
	@scripts/setup cc
	@eval "$$(scripts/release-flags)"; scripts/build "building the extension" build --release -p litelease-extension
	@scripts/dist-ext

python-wheel: ## build the wheel of the Python package into dist/, and try it where there is no Rust
	@scripts/setup cc
	@scripts/setup-python
	@eval "$$(scripts/release-flags)"; scripts/python-wheel

package: ## pack the crates as they would be published, build each, and a stranger's program on them
	@scripts/setup cc
	@scripts/package

reproducible: ## build the extension and the command in two folders, and compare the bytes
	@scripts/setup cc
	@scripts/reproducible

sbom: ## list all that is linked into the command, the extension and the crate, in dist/ (CycloneDX)
	@scripts/sbom

oldest-rust: ## check the library and the command with the oldest Rust that is promised (rustup fetches it)
	@scripts/oldest-rust

release: dist python-wheel sbom ## build what a release consists of into dist/, and check version and changelog (TAG=v0.1.0)
	@scripts/check-release $(TAG)

release-upload: ## attach dist/ to the release of TAG on the forge, which it makes if need be (by gh)
	@scripts/check-release $(TAG)
	@gh release view $(TAG) >/dev/null 2>&1 || gh release create $(TAG) --verify-tag --title "Litelease $(TAG)" --notes-file dist/notes.md
	@gh release upload $(TAG) --clobber $$(find dist -maxdepth 1 -type f ! -name notes.md)

torture: ## all long proofs for MINUTES=30 (PROOF=name for one of them), ending in one table
	@scripts/setup cc strace
	@scripts/build "building the proofs" build --release -p litelease-proof $(PLANTED)
	$(or $(CARGO_TARGET_DIR),target)/release/torture $(or $(MINUTES),30) $(PROOF)

torture-cluster: ## leases on etcd and PostgreSQL through every kind of fault, for MINUTES=15, and millions of interleavings
	@scripts/setup cc etcd initdb openssl faketime ip
	@scripts/build "building the proofs" test --no-run -p litelease-proof --test cluster
	LITELEASE_STRESS_SECONDS=$$(( 60 * $(or $(MINUTES),15) )) cargo test --locked -q -p litelease-proof --test cluster -- --test-threads=6 faults:: killed_and_stopped holds_survive histor

bench: ## measure everything next to raw SQLite, Redis, PostgreSQL, etcd (ROWS="B8 B9" for some, SAVE=1 for docs/performance.md)
	@scripts/setup cc valgrind strace redis-server initdb etcd
	@scripts/setup-python
	@scripts/setup-sayt2
	@scripts/setup-litequeue
	@scripts/build "building the measurements" build --release -p litelease-bench -p litelease-extension -p litelease-cli
	$(or $(CARGO_TARGET_DIR),target)/release/litelease-bench all $(if $(SAVE),save) $(ROWS)

bench-quick: ## counts only, compared with the committed ones (SAVE=1 writes those, and the counts in docs/performance.md)
	@scripts/setup cc valgrind strace
	@scripts/build "building the measurements" build --release -p litelease-bench -p litelease-extension
	$(or $(CARGO_TARGET_DIR),target)/release/litelease-bench quick $(if $(SAVE),save)

bench-plots: ## draw the plots of docs/performance.md again
	@scripts/setup cc
	@scripts/build "building the measurements" build --release -p litelease-bench
	$(or $(CARGO_TARGET_DIR),target)/release/litelease-bench draw

clean: ## remove everything that was built
	cargo clean
