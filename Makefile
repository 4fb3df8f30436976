# The front door: every target does its own set-up and can be called again at any time.
.DEFAULT_GOAL := help
.PHONY: help setup build test lint asan tsan fuzz demo bench clean

PROGRAM := build/bin/pipewright
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0

help:  ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 20

setup:  ## Install what the build and the tests need (Debian packages, .venv)
	@scripts/setup.sh build test

build:  ## Build the optimised program, build/bin/pipewright
	@scripts/setup.sh build
	@scripts/build.sh release

test:  ## Build and run all tests
	@scripts/setup.sh build test
	@scripts/build.sh release
	@ctest --preset release

lint:  ## Check formatting and run clang-tidy
	@scripts/setup.sh build test
	@scripts/lint.sh

asan:  ## Run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/setup.sh build test
	@scripts/build.sh asan
	@ctest --preset asan

tsan:  ## Run the tests of threads and channels under ThreadSanitizer
	@scripts/setup.sh build test
	@scripts/build.sh tsan
	@ctest --preset tsan

fuzz:  ## Fuzz the parsers for FUZZ_SECONDS (60), from FUZZ_SEED (0: a new one)
	@scripts/setup.sh build test
	@scripts/build.sh fuzz
	@mkdir -p build/fuzz/corpus build/fuzz/models
	@build/fuzz/bin/csv_fuzz -seed=$(FUZZ_SEED) -max_total_time=$(FUZZ_SECONDS) -max_len=1024 -timeout=20 -verbosity=0 -dict=tests/fuzz/actions.dict \
	  -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/corpus tests/fuzz/corpus
	@.venv/bin/python tests/fuzz/model_seeds.py build/fuzz/models
	@ASAN_OPTIONS=detect_container_overflow=0:detect_leaks=0 build/fuzz/bin/model_fuzz -seed=$(FUZZ_SEED) -max_total_time=$(FUZZ_SECONDS) \
	  -max_len=65536 -timeout=20 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/models

demo: build  ## Draw and compare all schedules, train a small GPT by one: gallery/
	@scripts/demo.sh $(PROGRAM) gallery

bench:  ## Benchmarks, beside PyTorch in the same run
	@scripts/setup.sh build test
	@scripts/build.sh release
	@.venv/bin/python bench/compare_planning.py build/bin/schedule_bench
	@.venv/bin/python bench/compare_runtime.py build/bin/runtime_bench
	@.venv/bin/python bench/compare_frontend.py build/bin/frontend_bench
	@if .venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  .venv/bin/python bench/compare_device.py build/bin/device_bench; \
	else echo 'The benchmark on a CUDA device is skipped: there is none.'; fi

clean:  ## Remove what was built; .venv stays
	@rm -rf build gallery
