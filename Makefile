# make run and make test are all there is to do on a fresh Debian or Ubuntu machine with Rust.
.PHONY: help run test check house bench setup assertions loom python fuzz miri asan other-compiler neon rxe figures compression clean

CARGO ?= cargo
# Without a recent hwloc the same programs are built on the sysfs reader alone.
FEATURES = $$(sh tools/setup.sh features)

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/' | expand -t 16

run: setup  ## build, and probe what a hub can do on this machine
	$(CARGO) run --release --bin phub-probe $(FEATURES)

test: setup assertions loom python  ## everything that needs no special hardware, as it is shipped
	$(CARGO) test --release $(FEATURES)
	sh tools/figures/check.sh

assertions: setup  ## unit tests, simulated clusters, fuzzing's inputs with debug assertions and overflow checks
	$(CARGO) test --no-run --lib --test corpora --test together $(FEATURES)
	$(CARGO) test --lib --test corpora $(FEATURES)
	$(CARGO) test --test together $(FEATURES) sim_

loom: setup  ## the ring and the bell under every interleaving
	$(CARGO) test --release -p fabric-loom

python: setup  ## the Python package: built, installed in target/python, its types and tests
	sh tools/python.sh

other-compiler:  ## unit tests of what moves and sums with the rustc of Debian unstable
	sh tools/other-compiler.sh

neon:  ## kernels and codecs for 64-bit Arm, on an emulated one
	sh tools/neon.sh

CHECKS ?=
rxe:  ## the checks that need RDMA, in guests with soft-RoCE (CHECKS="02 05" for some)
	bash tools/rxe/run.sh $(CHECKS)

FIGURES =
figures: setup  ## P3's and iBatch's experiments on rate-limited links (root; an hour; FIGURES="--quick" for minutes)
	sh tools/figures/run.sh $(FIGURES)
	sh tools/figures/run.sh ibatch

COMPRESSION =
compression: python  ## accuracy of Slim-DP, codecs, P3, ASGD by rounds and time on rate-limited links (root; 15 minutes; COMPRESSION=length: until it is flat, no root, an hour)
	$(CARGO) build --release --bin phub-server $(FEATURES)
	sh tools/compression/run.sh $(COMPRESSION)

# The three below need a nightly compiler; docs/testing.md says what each can see.
FUZZ_SECONDS ?= 600
HOST = $$(rustc -vV | sed -n 's/host: //p')

fuzz: setup  ## each fuzz target for FUZZ_SECONDS (600)
	sh tools/fuzz.sh $(FUZZ_SECONDS)

# Not what maps memory or makes system calls, which Miri does not have.
miri:  ## the ring, the layout, arrival and parsers under Miri (rustup component add miri)
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 $(CARGO) +nightly miri test -p fabric --lib -- ring::
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 $(CARGO) +nightly miri test -p pbox-core --no-default-features --lib -- \
	    control:: kernels::optimizer:: layout:: place:: turn::arrival:: turn::clocks::

# Not the test that reads the machine code of a turn: the sanitizer's own is in it.
asan: setup  ## fabric and pbox-core under AddressSanitizer
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test -p fabric -p pbox-core --lib --tests --target $(HOST) \
	    --target-dir target/asan -- --skip turns_hold_no_locked_instruction

check: setup  ## formatting, lints with warnings denied, docs, the build without hwloc
	sh tools/check-unsafe.sh
	! command -v python3 >/dev/null || python3 tools/check-docs.py
	! command -v python3 >/dev/null || python3 tools/miscompiled.py $(FEATURES)
	! command -v shellcheck >/dev/null || shellcheck tools/figures/*.sh
	! command -v ruff >/dev/null || ruff check --line-length 120 tools/figures
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets $(FEATURES) -- -D warnings
	$(CARGO) clippy --all-targets -p topology -p phub-server -p phub-python --no-default-features -- -D warnings
	$(CARGO) clippy -p fabric-loom --test ring_and_bell -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps $(FEATURES)

house:  ## what stands out in the tree: full folders, long files, circles of imports, names used twice
	@python3 tools/house.py

bench: setup  ## kernels and codecs by criterion, the probe, and the peers beside it
	$(CARGO) bench -p benches $(FEATURES)
	$(CARGO) build --release --bins $(FEATURES)
	$(CARGO) run --release --bin phub-peers $(FEATURES)

setup:  ## install the packages that are missing
	@sh tools/setup.sh

clean:  ## remove what was built
	$(CARGO) clean
