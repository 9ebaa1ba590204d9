# The commands that a user, a developer and CI run. `make run` and `make test` set up what they need.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Where cargo builds; CARGO_TARGET_DIR is honoured.
BIN := $(or $(CARGO_TARGET_DIR),target)/release
# `make CPU=native ...` builds for this machine alone; the default runs on any x86-64 server with AVX2.
ifdef CPU
export RUSTFLAGS := -C target-cpu=$(CPU) -C force-frame-pointers=yes
endif
CONFIG ?= config/rung4-cache.toml
ARGS ?=
MODEL := models/smollm2-135m-instruct-q4_0.gguf
VENV := .venv
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: deps
deps: ## Install what is missing to build (cmake, libclang, a C++ compiler, pip)
	@missing=(); \
	command -v cargo >/dev/null || { echo "cadenced needs a Rust toolchain (1.95 or newer): https://rustup.rs" >&2; exit 1; }; \
	command -v cmake >/dev/null || missing+=(cmake); \
	command -v g++ >/dev/null || missing+=(g++); \
	[ -n "$$(find /usr/lib \( -name 'libclang.so*' -o -name 'libclang-[0-9]*.so*' \) -print -quit)" ] || missing+=(libclang-dev); \
	command -v python3 >/dev/null || missing+=(python3); \
	python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip); \
	if [ $${#missing[@]} -gt 0 ]; then \
	  echo "installing $${missing[*]} with apt-get"; \
	  $(SUDO) apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null; \
	fi

.PHONY: build
build: deps ## Build cadenced and cadenced-bench (llama.cpp included; 5 to 10 minutes the first time)
	cargo build --release --workspace --locked

$(MODEL): | build
	$(BIN)/cadenced model pull smollm2-135m-instruct

.PHONY: model
model: build ## Fetch the default model and make its served format
	@$(BIN)/cadenced model pull smollm2-135m-instruct

.PHONY: run
run: model ## Build, fetch the model, serve on 127.0.0.1:8000
	$(BIN)/cadenced serve --config $(CONFIG) $(ARGS)

.PHONY: fmt
fmt: ## Formatting, checked
	cargo fmt --all --check

.PHONY: lint
lint: deps ## clippy and rustdoc, without a warning
	cargo clippy --release --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --locked

# The Python clients that the tests drive.
$(VENV)/ready: tests/clients/requirements.txt | deps
	python3 -m venv --help >/dev/null 2>&1 && python3 -c 'import ensurepip' 2>/dev/null \
	  || DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq python3-venv >/dev/null
	python3 -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -r $<
	touch $@

.PHONY: test-models
test-models: model
	@$(BIN)/cadenced model pull gemma3-270m

.PHONY: test
test: fmt lint model test-models $(VENV)/ready ## Everything that CI checks, on the release build
	cargo test --release --workspace --locked
	$(MAKE) --no-print-directory gate
	$(BIN)/cadenced-bench report --check

.PHONY: gate
gate: build ## Rungs 4 and 5 in virtual time against the committed budget, then a minute of load over sockets
	$(BIN)/cadenced-bench gate
	$(BIN)/cadenced-bench gate --sockets

.PHONY: gate-refresh
gate-refresh: build ## Make what the daemon does now the gate's budget
	$(BIN)/cadenced-bench gate --refresh

.PHONY: perf
perf:
	@command -v perf >/dev/null || { \
	  echo "installing linux-perf with apt-get"; \
	  command -v apt-get >/dev/null || { echo "no apt-get here; install perf by other means" >&2; exit 1; }; \
	  $(SUDO) apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends linux-perf >/dev/null; \
	}

.PHONY: profile
profile: model perf ## Sample the daemon under load: folded stacks, a flamegraph, shares by component
	$(BIN)/cadenced-bench profile --clients 1 --out bench/results/profile/one-client
	$(BIN)/cadenced-bench profile --clients 8 --out bench/results/profile

# The smallest whole: this machine measured, three rungs under two loads on the real model, tables and figures.
SMOKE := $(BIN)/../bench-smoke
.PHONY: bench-smoke
bench-smoke: model ## In under three minutes: calibrate, a three-rung mini ladder, the report
	rm -rf $(SMOKE)
	$(BIN)/cadenced-bench calibrate --short --mix short --rates 2 --out $(SMOKE)/calibration.json
	$(BIN)/cadenced-bench ladder --calibration $(SMOKE)/calibration.json --out $(SMOKE)/ladder \
	  --rungs config/rung1-fifo.toml,config/rung3-continuous.toml,config/rung4-cache.toml \
	  --seeds 1 --arrivals 30 --percentile 95
	$(BIN)/cadenced-bench report $(SMOKE)/ladder

.PHONY: bench
bench: model ## The engine's and the daemon's measurements of bench/README.md; needs a quiet machine
	$(BIN)/cadenced-bench all
	$(BIN)/cadenced-bench report
