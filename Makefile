# `make test` and `make lint` are all that CI runs.

SHELL := bash
.PHONY: help test lint fmt snapshots attempts

help:
	@echo 'make test        all tests, LocalStack and the cloud side included'
	@echo 'make lint        format, clippy, rustdoc, shell scripts, licences'
	@echo 'make fmt         format'
	@echo 'make snapshots   accept what the command line prints now'
	@echo 'make attempts    count in SECURITY.md what the tests try and see refused'

test:
	@tests/run

lint:
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --all-targets --no-default-features -- -D warnings
	cargo clippy --locked --all-targets --no-default-features --features embedded -- -D warnings
	cargo clippy --locked --all-targets --no-default-features --features import -- -D warnings
	cargo clippy --locked --all-targets --all-features -- -D warnings
	cargo clippy --locked -p skillfs-bench --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --all-features
	@if command -v shellcheck >/dev/null; then shellcheck localstack/start localstack/stop localstack/python.sh tests/run tests/attempts terraform/check terraform/tests/run .ci/run; \
	else echo 'note: shellcheck is not installed; the shell scripts were not checked'; fi
	@if command -v cargo-deny >/dev/null; then cargo deny --locked check licenses bans sources; \
	else echo 'note: cargo-deny is not installed; licences and sources were not checked'; fi

fmt:
	cargo fmt --all

snapshots:
	INSTA_UPDATE=always cargo test --locked --test it cli

# Terraform's part needs tools that not everybody has; where they are missing its rows stay as they are.
attempts: export SKILLFS_ATTEMPTS := $(CURDIR)/target/attempts
attempts:
	rm -rf $(SKILLFS_ATTEMPTS) && mkdir -p $(SKILLFS_ATTEMPTS)
	cargo test --locked --lib --bins --test it
	@if [ -x terraform/tests/run ]; then SKILLFS="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/skillfs" terraform/tests/run; fi
	tests/attempts --write $(SKILLFS_ATTEMPTS)
