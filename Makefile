# All there is to do: make run, make test. CI runs the same.
.PHONY: run test check bench setup loom

CARGO ?= cargo

run: setup
	$(CARGO) run --release --bin phub-probe

test: setup
	$(CARGO) nextest --version >/dev/null 2>&1 && $(CARGO) nextest run --workspace || $(CARGO) test --workspace

setup:
	@sh docs/setup.sh
