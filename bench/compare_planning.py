"""What planning costs, beside torch.distributed.pipelining in the same run.

    compare_planning.py SCHEDULE_BENCH

SCHEDULE_BENCH is the path of the benchmark program schedule_bench.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))
import reference  # noqa: E402

SCHEDULES = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
RANKS, MICROBATCHES, STAGES_PER_RANK = 64, 256, 2
ROUNDS = 3
# Ours takes milliseconds: each round takes it several times.
REPEATED = ["--benchmark_repetitions=8", "--benchmark_min_time=0.1"]


def progress(text):
    print(text, file=sys.stderr, flush=True)


def benchmark(program, name, *options):
    """The results of the one benchmark called `name`, run in a process of its own."""
    # Linux counts the memory of the process that calls exec towards the peak of the program it
    # becomes: a shell, which is small, forks the program in place of this process, which is not.
    arguments = ["sh", "-c", '"$@"; exit $?', "sh", program]
    arguments += ["--benchmark_format=json", f"--benchmark_filter=^{name}$", *options]
    result = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return [entry for entry in json.loads(result.stdout)["benchmarks"] if entry["run_type"] == "iteration"]


def benchmark_names(program, prefix):
    arguments = [program, "--benchmark_list_tests", f"--benchmark_filter=^{prefix}/"]
    result = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout.split()


def reference_seconds(name):
    start = time.perf_counter()
    reference.build(name, RANKS, MICROBATCHES, STAGES_PER_RANK)
    return time.perf_counter() - start


def compare(program):
    print(f"Planning {RANKS} ranks, {MICROBATCHES} microbatches, {STAGES_PER_RANK} stages a rank;", end=" ")
    print(f"best of {ROUNDS}, taken in turns")
    print(f"{'schedule':<24}{'actions':>10}{'reference s':>14}{'ours ms':>11}{'ratio':>9}")
    for name in SCHEDULES:
        theirs, ours = [], []
        for turn in range(ROUNDS):
            progress(f"{name}: {turn + 1} of {ROUNDS}")
            theirs.append(reference_seconds(name))
            sizes = f"{RANKS}/{MICROBATCHES}/{STAGES_PER_RANK}"
            ours += benchmark(program, f"plan/{name}/{sizes}/real_time", *REPEATED)
        best = min(entry["real_time"] for entry in ours)
        actions = int(ours[0]["actions"])
        ratio = 1e3 * min(theirs) / best
        print(f"{name:<24}{actions:>10}{min(theirs):>14.3f}{best:>11.2f}{ratio:>9.0f}", flush=True)


def growth(program):
    print("\nGrowth of ours, each size in a process of its own")
    print(f"{'schedule':<24}{'ranks':>7}{'microbatches':>14}{'actions':>12}", end="")
    print(f"{'seconds':>10}{'ns/action':>11}{'peak MiB':>10}")
    for full_name in benchmark_names(program, "growth"):
        progress(full_name)
        (entry,) = benchmark(program, full_name)
        _, name, ranks, microbatches, *_ = full_name.split("/")
        actions, seconds = int(entry["actions"]), entry["real_time"] / 1e3
        print(f"{name:<24}{ranks:>7}{microbatches:>14}{actions:>12}", end="")
        print(f"{seconds:>10.3f}{1e9 * seconds / actions:>11.1f}{entry['peak_MiB']:>10.0f}", flush=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    compare(sys.argv[1])
    growth(sys.argv[1])


if __name__ == "__main__":
    main()
