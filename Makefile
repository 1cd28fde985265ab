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
	cargo fmt --manifest-path tests/api/Cargo.toml --check
	@tests/lint

api:
	@tests/api/check --update

fmt:
	cargo fmt --all

snapshots:
	INSTA_UPDATE=always cargo test --locked --test it cli

mutants:
	@tests/mutants/run
