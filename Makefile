# Every habit of the project is one word here. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo

.PHONY: help run test lint bench mutants fmt doc

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## See the six algorithms at work (the server comes next)
	$(CARGO) run --quiet --release -p tidegate-server -- simulate

test: ## Everything that must hold: unit tests, laws, timelines, examples, mutants
	$(CARGO) test --workspace --features tidegate-store/testing --quiet
	$(MAKE) --no-print-directory mutants

mutants: ## Plant known mistakes in a copy of the core; each must be caught
	$(CARGO) run --quiet -p tidegate-lab -- mutants

lint: ## Formatting, lints, documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: ## Time one decision, count its instructions, write BENCHMARKS.md
	@command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	$(CARGO) run --quiet --release -p tidegate-lab -- core

fmt: ## Format the source
	$(CARGO) fmt --all

doc: ## Build and open the documentation
	$(CARGO) doc --workspace --no-deps --open
