# make run and make test are all there is to do on a fresh Debian or Ubuntu machine with Rust.
.PHONY: help run test check bench setup loom neon clean

CARGO ?= cargo
# Without a recent hwloc the same programs are built on the sysfs reader alone.
FEATURES = $$(sh tools/setup.sh features)

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/' | expand -t 10

run: setup  ## build, and probe what a hub can do on this machine
	$(CARGO) run --release --bin phub-probe $(FEATURES)

test: setup loom  ## everything that needs no special hardware
	$(CARGO) test --workspace $(FEATURES)

loom: setup  ## the ring and the bell under every interleaving
	RUSTFLAGS="--cfg loom" $(CARGO) test -p fabric --lib --release --target-dir target/loom loom

neon:  ## the kernels for 64-bit Arm, on an emulated one
	sh tools/neon.sh

check: setup  ## formatting, lints with warnings denied, docs, the build without hwloc
	sh tools/check-unsafe.sh
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(FEATURES) -- -D warnings
	$(CARGO) clippy --workspace --all-targets --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps $(FEATURES)

bench: setup  ## kernels by criterion, the probe, and the peers beside it
	$(CARGO) bench -p benches $(FEATURES)
	$(CARGO) build --release --bins $(FEATURES)
	$(CARGO) run --release --bin phub-peers $(FEATURES)

setup:  ## install the packages that are missing
	@sh tools/setup.sh

clean:  ## remove what was built
	$(CARGO) clean
