.PHONY: help run demo test test-all test-examples soak dist prove-containers memcheck lint bench bench-chart bench-walks instructions drawings fuzz
.DEFAULT_GOAL := help

SERVER ?= redis-server
PORT ?= 6379

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build, and serve in the foreground on PORT (6379, or the next free one)
	@PORT='$(PORT)' SERVER='$(SERVER)' scripts/run

demo: ## Draw what the three algorithms make of the same bursty traffic; ten seconds, on a server of its own
	@SERVER='$(SERVER)' scripts/demo

test: ## Run all tests on SERVER (redis-server)
	@scripts/test '$(SERVER)'

test-all: ## Run all tests on redis-server, on Redis 8.2.3 and on Valkey 9.1.2, and those of the examples
	@$(MAKE) --no-print-directory test SERVER=all

test-examples: ## Drive the applications in examples/ over HTTP; installs Node, PHP, Ruby and their clients
	@scripts/test-examples

soak: ## Run the long forms on SERVER: what depends on chance 200 times, ten million calls, random calls for ten minutes
	@SOAK=200 scripts/test '$(SERVER)' failures:: hostile:: lifecycle::calls

dist: ## Pack the module, stripped, with licence, README and checksums into dist/
	@scripts/dist

prove-containers: ## Build and try Dockerfile and compose file, with stand-in base images where none can be pulled
	@scripts/prove-containers

memcheck: ## Run the tests under valgrind's memcheck, on Valkey 9.1.2
	@scripts/memcheck

lint: ## Check format, lints and scripts
	@scripts/lint

fuzz: ## Hold algorithms and arguments against slow models with made-up input, FUZZ_SECONDS (60) each
	@scripts/fuzz

bench: ## Measure side by side with INCR and Lua scripts on SERVER; all of it with BENCH=full
	@SERVER='$(SERVER)' scripts/bench

bench-chart: ## Draw docs/bench.svg from the figures of the last make bench
	@scripts/bench chart

bench-walks: ## Measure how long others wait while audit, repair and sweeper walk
	@SERVER='$(SERVER)' scripts/bench walks

instructions: ## Count docs/instructions.txt anew, where valgrind and Redis 7.0.15 are at hand
	@RL_MODULE=$$(scripts/build) WRITE_INSTRUCTIONS=1 cargo test --locked --quiet --test server instructions

drawings: ## Draw docs/drawings anew, from what the algorithms decide
	@WRITE_DRAWINGS=1 cargo test --locked --quiet --lib drawings
