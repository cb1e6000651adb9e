# The door to everything: `make help` lists what is behind it.
#
# What the tests need beside Rust is installed by `make testbeds` and kept outside the tree, in
# NODEYARD_CACHE; so is the build, in CARGO_TARGET_DIR, so that a fresh clone does not start from nothing.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

export NODEYARD_CACHE   ?= $(HOME)/.cache/nodeyard
export CARGO_TARGET_DIR ?= $(NODEYARD_CACHE)/target

CARGO := cargo

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Build an image on this machine, boot a container and a virtual machine from it, log in
	testbeds/packages.sh gcc libc6-dev
	testbeds/demo/install.sh
	$(CARGO) build --locked --profile demo --no-default-features --bin nodeyard
	testbeds/demo.sh "$(CARGO_TARGET_DIR)/demo/nodeyard"

.PHONY: check
check: ## The quick inner loop: format, lints, unit tests (needs Rust and a C compiler)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) test --locked --workspace --lib --bins

.PHONY: test
test: ## Everything, against the real counterparts; installs what is missing
	$(CARGO) fmt --all --check
	testbeds/packages.sh gcc libc6-dev
	$(MAKE) --no-print-directory --jobs=2 testbeds compiled
	rm -rf "$(TEST_LOGS)"
	NODEYARD_TEST_LOGS="$(TEST_LOGS)" $(MAKE) --no-print-directory --jobs=$(TEST_JOBS) --keep-going $(AREAS) test-demo
	testbeds/openstack/stop.sh

# Most tests wait most of the time, so there are more areas and more tests at once than processors, the longest first.
TEST_JOBS ?= 3
export RUST_TEST_THREADS ?= 4
TEST_LOGS := $(CARGO_TARGET_DIR)/test-logs
AREAS     := test-zuul test-openstack test-kubernetes test-local test-cli test-launcher test-builder test-store test-unit
RUN       := testbeds/cargo-test.sh

.PHONY: $(AREAS)
test-unit: ## Unit tests and examples in the documentation
	$(RUN) unit --lib --bins
	$(RUN) unit --doc

test-store: ## Records, the embedded store, ZooKeeper
	$(RUN) store --test records --test store

test-launcher: ## Plans, launchers, leases, drivers that need no cloud
	$(RUN) launcher --test plan --test launcher --test lease --test fake --test metastatic --test tenth --test sshd

test-builder: ## Image files, builds, uploads, gearman
	$(RUN) builder --test builder --test gearman --test image --test tls

test-kubernetes: ## Kubernetes and OpenShift
	$(RUN) kubernetes --test cluster --test emulated --test openshift
	$(RUN) kubernetes --test fleet zuul_pods

test-openstack: ## OpenStack, by itself and with the built programs
	$(RUN) openstack --test fleet openstack::
	$(RUN) openstack --test openstack --test testbeds

test-zuul: ## Zuul, Python Nodepool and the roles, with the built programs
	$(RUN) zuul --test fleet -- --skip openstack:: --skip zuul_pods
	$(RUN) zuul --test roles

test-local: ## QEMU and containers
	$(RUN) local --test qemu --test container

test-cli: ## The program as a person sees it, the API, the configuration
	$(RUN) cli --test cli --test api --test http_api --test config

# What is in the documentation for newcomers and administrators.
.PHONY: test-demo
test-demo:
	$(MAKE) --no-print-directory demo > /dev/null
	testbeds/containerfile.sh "$(CARGO_TARGET_DIR)/debug/nodeyard"

# Beside the installers, which wait for the network and use one core. Cargo finds out by itself how many jobs fit.
.PHONY: compiled
compiled:
	env --unset=MAKEFLAGS $(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	env --unset=MAKEFLAGS $(CARGO) test --locked --workspace --no-run --quiet

# About a minute; more with FUZZ=10, say.
FUZZ ?= 1

.PHONY: fuzz
fuzz: ## Throw damaged records, configurations and packets at the readers, longer than the tests do
	PROPTEST_CASES=$$((20000 * $(FUZZ))) $(CARGO) test --locked --workspace --test records properties
	PROPTEST_CASES=$$((8000 * $(FUZZ))) $(CARGO) test --locked --workspace --test config hostile::survived
	PROPTEST_CASES=$$((20000 * $(FUZZ))) $(CARGO) test --locked -p nodeyard-gearman --lib codec

.PHONY: soak
soak: fuzz ## Searches of which the tests try a sample, whole: death at every write of every service (half an hour)
	NODEYARD_SOAK=1 $(CARGO) test --locked --workspace --no-fail-fast --test builder --test launcher --test lease kill

# What is handed out, and what is measured.
HANDED_OUT := $(CARGO_TARGET_DIR)/handed-out

.PHONY: release
release: ## Build the program to be handed out, and a Debian package of it (twenty minutes)
	testbeds/packages.sh gcc binutils libc6-dev openjdk-17-jre-headless libzookeeper-java valgrind
	packaging/release.sh "$(HANDED_OUT)"
	packaging/deb.sh "$(HANDED_OUT)/nodeyard" "$(HANDED_OUT)"

.PHONY: bench
bench: testbeds release ## Print the figures of docs/benchmarks.md, measured on this machine (half an hour, and the release)
	$(CARGO) run --locked --release --package nodeyard-bench -- --program "$(HANDED_OUT)/nodeyard"
	$(CARGO) run --locked --release --package nodeyard-plan --example simulate
	$(CARGO) bench --locked --package nodeyard-config --bench load
	$(CARGO) bench --locked --package nodeyard-gearman --bench assign

.PHONY: testbeds
testbeds: ## Install the real counterparts the tests run against (Debian packages, Python environments)
	testbeds/packages.sh gcc libc6-dev
	testbeds/install.sh

.PHONY: generate
generate: ## Write again what is generated and checked in (schema, references, golden outputs)
	UPDATE_GOLDEN=1 $(CARGO) test --locked -p nodeyard-config --test config corpus
	UPDATE_GOLDEN=1 $(CARGO) test --locked -p nodeyard-api golden
	UPDATE_GOLDEN=1 $(CARGO) test --locked -p nodeyard-http-api golden
	UPDATE_GOLDEN=1 $(CARGO) test --locked -p nodeyard-model --lib error_code

.PHONY: deny
deny: ## Check licences, sources and banned crates
	@command -v cargo-deny > /dev/null || $(CARGO) install --locked cargo-deny
	cargo-deny check bans licenses sources
