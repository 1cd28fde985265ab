# CI runs `make lint`, `make test` and `make test-long`.

SHELL := bash
.PHONY: help test test-long lint api fmt snapshots mutants

help:
	@echo 'make test        the tests on the embedded store, and what LocalStack does differently'
	@echo 'make test-long   all tests on LocalStack, long campaigns, the Terraform module, mutants'
	@echo 'make lint        format, clippy, rustdoc, shell scripts, licenses, package, public API'
	@echo 'make api         accept the current public API and dependencies'
	@echo 'make fmt         format'
	@echo 'make snapshots   accept the current output of the command line'
	@echo 'make mutants     deliberate mistakes in the cache, each of which must fail a test'

test:
	@tests/run

test-long:
	@tests/run --long

lint:
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked -p skillfs --all-targets -- -D warnings
	cargo clippy --locked -p skillfs --all-targets --features embedded -- -D warnings
	cargo clippy --locked -p skillfs --all-targets --features import -- -D warnings
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
	INSTA_UPDATE=always cargo test --locked -p skillfs-cli --test it cli

mutants:
	@tests/mutants/run
