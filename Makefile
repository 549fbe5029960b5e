# Shorthands; each program has a --help of its own or says at its top what it does.
.PHONY: test lint bench demo

test:
	tests/run

lint:
	tests/run lint

bench:
	tests/bench/run

demo:
	packaging/demo
