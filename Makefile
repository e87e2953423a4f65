# Two commands do everything on a fresh machine: `make demo` and `make test`. Both need Rust alone.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: tools
tools: ## Build the real control planes' programs into a cache, once (about 12 min on two cores)
	@tests/tools/build.sh >/dev/null

.PHONY: promtool
promtool: ## Build promtool, which the tests run on both programs' metrics, once (about 4 min on two cores)
	@tests/tools/build.sh promtool >/dev/null

.PHONY: prometheus
prometheus: ## Build Prometheus, which asks the dashboards' queries in the tests on real control planes, once (about 4 min on two cores)
	@tests/tools/build.sh prometheus >/dev/null

.PHONY: helm
helm: ## Build Helm, which installs the chart in the tests on real control planes, once (about 6 min on two cores)
	@tests/tools/build.sh helm >/dev/null

.PHONY: cert-manager-crds
cert-manager-crds: ## Download cert-manager's CRDs, which the chart's certificates are tested against, once (a second)
	@tests/tools/build.sh cert-manager >/dev/null

.PHONY: chart
chart: ## Check the Helm chart: lint, render every mode, test the alert rules (builds Helm and promtool once, about 8 min on two cores)
	@deploy/charts/tidewatch/tests/check.sh

.PHONY: images
images: ## Build the images of receiver and agent as OCI layouts in target/images, with SBOMs; IMAGE_REGISTRY=… pushes them
	@deploy/images/build.sh

.PHONY: images-check
images-check: ## Build the images, push them to a CNCF registry, pull them back, and run them as their user with a read-only root (needs Go)
	@deploy/images/check.sh

# Always the whole workspace: with `-p`, cargo chooses other features of the dependencies and builds them once more.
.PHONY: build
build: ## Build everything, debug
	@$(CARGO) build --workspace --bins --example operator --locked

.PHONY: demo
ifdef REAL
demo: tools build ## Show the product at work, on simulated clusters (KEEP=1 leaves it running; SINGLE=1 in one cluster; REAL=1 on real control planes, which needs Go)
	$(if $(SINGLE),$(error SINGLE=1 and REAL=1 exclude each other: the single cluster is simulated))
	@TIDEWATCH_TOOLS="$$(tests/tools/build.sh)" $(TARGET)/debug/tidewatch-real-demo up $(if $(KEEP),--keep) $(if $(FORCE),--force)
else
demo:
	@$(CARGO) build --locked -p tidewatch-cli
	@$(TARGET)/debug/tidewatch demo $(if $(SINGLE),--single) $(if $(KEEP),--keep --detach) $(if $(FORCE),--force)
endif

.PHONY: demo-down
demo-down: ## End what `make demo KEEP=1` has left running, with or without REAL=1
	@test -x $(TARGET)/debug/tidewatch || $(CARGO) build -p tidewatch-cli --locked
	@$(TARGET)/debug/tidewatch demo down

export RUST_TEST_THREADS ?= 4
# The end-to-end tests wait for control planes most of the time: several at once, on however few cores.
E2E_TEST = $(CARGO) test --workspace --locked --test e2e

.PHONY: test
ifdef T
test: build ## Run every test that needs Rust alone, the end-to-end ones on the fake API server (T=versions: one end-to-end module)
	@$(E2E_TEST) $(T) -- --nocapture --skip _on_real_control_planes
else
test: build
	@$(CARGO) test --workspace --tests --locked
	@$(E2E_TEST) -- --test-threads 8 --skip _on_real_control_planes
	@tests/count.sh fake
endif

REAL_TESTS = TIDEWATCH_E2E=real RUST_TEST_THREADS=6 TIDEWATCH_TOOLS="$$(tests/tools/build.sh)" $(E2E_TEST)

.PHONY: e2e
ifdef T
e2e: tools build ## Run the end-to-end tests on real control planes, and compare the fake API server with one (T=versions: one end-to-end module)
	@$(REAL_TESTS) $(T) -- --nocapture
else
e2e: tools promtool prometheus helm cert-manager-crds build
	@$(REAL_TESTS) --test differential --test idle
	@tests/count.sh real
endif

.PHONY: lint
lint: ## Formatting, clippy and rustdoc with warnings denied
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@$(CARGO) clippy --workspace --test e2e --test differential --test idle --locked -- -D warnings
	@$(CARGO) clippy --workspace --features tidewatch-receiver/otlp --locked -- -D warnings
	@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --quiet

.PHONY: generate
generate: ## Write the files that are made from the code (the CRDs of the chart)
	@$(CARGO) run --quiet --locked -p tidewatch-cli -- generate crds --out deploy/charts/tidewatch/files/crds

.PHONY: soak
soak: ## Simulate the event path with faults: STEPS=1000000 steps from SEED=1 on; ends with one line
	@$(CARGO) run --quiet --locked -p tidewatch-delivery-sim --bin tidewatch-soak -- --steps $(or $(STEPS),1000000) --seed $(or $(SEED),1)

.PHONY: model
model: ## Explore the model's one world with everything: DEPTH=12 steps from the start as a whole, and STEPS=20000000 on random ways from SEED=1
	@TIDEWATCH_MODEL=full TIDEWATCH_MODEL_DEPTH=$(or $(DEPTH),12) TIDEWATCH_MODEL_STEPS=$(or $(STEPS),20000000) TIDEWATCH_SEED=$(or $(SEED),1) $(CARGO) test --locked -p tidewatch-delivery --test model at_once -- --nocapture --test-threads 1

.PHONY: soak-certs
soak-certs: build ## Rotate the CA N=20 times under load (about 12 min) on the fake API server: no event fails
	@TIDEWATCH_ROTATIONS=$(or $(N),20) $(E2E_TEST) rotation -- --nocapture

.PHONY: crashes
crashes: ## Crash the receiver at chosen points of installs, upgrades and deletions, and compare how it ends: N=200 seeds from SEED=1 on
	@TIDEWATCH_CRASHES=$(or $(N),200) TIDEWATCH_SEED=$(or $(SEED),1) $(CARGO) test --locked -p tidewatch-fleet-sim --test crash -- --nocapture

.PHONY: differential
differential: tools ## Compare the simulated API server with a real one: N=1000 random sequences from SEED=1 on
	@TIDEWATCH_TOOLS="$$(tests/tools/build.sh)" TIDEWATCH_DIFFERENTIAL=$(or $(N),1000) TIDEWATCH_SEED=$(or $(SEED),1) $(CARGO) test --workspace --locked --test differential -- --nocapture

.PHONY: bench
bench: tools ## Measure; writes target/bench/report.json and prints a table (release builds; QUICK=1 shows that it works)
	@$(if $(QUICK),true,$(CARGO) bench --locked -p tidewatch-engine --bench planner --bench queue)
	@$(CARGO) build --release --locked --bin tidewatch-receiver --bin tidewatch-agent --bin tidewatch-bench --bin tidewatch-load --bin tidewatch
	@TIDEWATCH_TOOLS="$$(tests/tools/build.sh)" $(TARGET)/release/tidewatch-bench $(if $(QUICK),--quick)

.PHONY: idle
idle: tools ## Leave an unchanged world alone for SECONDS=3600 on real control planes, and count by their audit logs who asked for what meanwhile
	@$(CARGO) build --locked --bin tidewatch-receiver --bin tidewatch-agent --bin tidewatch-idle
	@TIDEWATCH_TOOLS="$$(tests/tools/build.sh)" $(TARGET)/debug/tidewatch-idle --for $(or $(SECONDS),3600)

.PHONY: corpus corpus-folder
corpus: corpus-folder tools build ## Check every YAML file of DIR=… as a module, beside kubectl, on real control planes (3 min, and 30 s a file; OUTPUT=json)
	@TIDEWATCH_TOOLS="$$(tests/tools/build.sh)" $(TARGET)/debug/tidewatch-corpus "$(DIR)" $(if $(OUTPUT),-o $(OUTPUT))

corpus-folder:
	@test -d "$(DIR)" || { echo "DIR names no folder ('$(DIR)'): make corpus DIR=path/to/yaml-files"; exit 2; }

.PHONY: fuzz
fuzz: ## Fuzz what comes from outside, every target for SECONDS=60 (TARGETS="xfcc seqset" picks some)
	@fuzz/run.sh $(or $(SECONDS),60) $(TARGETS)

.PHONY: fmt
fmt: ## Format the code
	@$(CARGO) fmt --all
