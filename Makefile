# `make test` and `make lint` are all that CI runs.

SHELL := bash
.PHONY: help test lint fmt snapshots mutants

help:
	@echo 'make test        all tests, LocalStack and the cloud side included'
	@echo 'make lint        format, clippy, rustdoc, shell scripts, licences'
	@echo 'make fmt         format'
	@echo 'make snapshots   accept what the command line prints now'
	@echo 'make mutants     deliberate mistakes in the cache, each of which must fail a test'

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
	@if command -v shellcheck >/dev/null; then shellcheck localstack/start localstack/stop localstack/python.sh tests/run terraform/check terraform/tests/run .ci/run; \
	else echo 'note: shellcheck is not installed; the shell scripts were not checked'; fi
	@if command -v cargo-deny >/dev/null; then cargo deny --locked check licenses bans sources; \
	else echo 'note: cargo-deny is not installed; licences and sources were not checked'; fi

fmt:
	cargo fmt --all

snapshots:
	INSTA_UPDATE=always cargo test --locked --test it cli

mutants:
	@tests/mutants/run
