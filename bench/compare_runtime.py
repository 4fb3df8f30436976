"""What running a pipeline costs, beside torch.distributed.pipelining in the same run.

    compare_runtime.py RUNTIME_BENCH [tiny] [gpt] [gloo] [actions] [recording] [handover] [memory]

RUNTIME_BENCH is the path of the benchmark program runtime_bench; without a choice,
all is measured. Ours runs its ranks as threads of one process, the reference as
processes connected by Gloo, and so does ours where it says Gloo; each rank has one
thread for its operators. Both sides take turns, so that other work on the machine
meets both. A ratio is shown of the best times and of the typical ones; the typical
one is held against the goal.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))
import reference_runtime  # noqa: E402
from world import World  # noqa: E402

SCHEDULES = [
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
]
# As in runtime_bench.cpp.
TINY_STAGES, TINY_MICROBATCHES, TINY_ROWS, TINY_WIDTH = 4, 16, 4, 8
GPT_RANKS, GPT_MICROBATCHES, GPT_ROWS = 2, 16, 2
HANDOVERS = 15

TINY_TURNS, TINY_STEPS, TINY_REFERENCE_STEPS = 8, 100, 15
GPT_STEPS = {64: 25, 256: 8}
ACTION_ROUNDS = 50
RECORDING_ROUNDS = 300
HANDOVER_STEPS = {4 << 10: 100, 1 << 20: 40, 64 << 20: 8}
MEMORY_STEPS = 3

LOOP_GOAL = 1.15
TINY_GOALS = {"Interleaved1F1B": 3.5, "InterleavedZeroBubble": 5.0}
GPT_GOALS = {64: 1.5, 256: 1.05}
GLOO_GOALS = {64: 1.2, 256: 1.0}
RECORDING_GOAL = 1


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start_world(ranks: int) -> World:
    return World(ranks, timeout=300, start="spawn")


def step_seconds(ranks: list[list[tuple[float, float]]]) -> list[float]:
    """Of each step, from when the first rank starts to when the last rank ends."""
    return [max(end for _, end in step) - min(start for start, _ in step) for step in zip(*ranks)]


def bench(program: str, *arguments: object) -> Iterable[dict]:
    """The lines that the benchmark program prints."""
    command = [program, *map(str, arguments)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True, text=True)
    return map(json.loads, result.stdout.splitlines())


class OurProcesses:
    """Processes of the benchmark program that answer requests, and keep their pipelines between them."""

    def __init__(self, processes: list[subprocess.Popen]):
        self.processes = processes

    def call(self, *request: object) -> list[dict]:
        """What each of them answers."""
        for process in self.processes:
            process.stdin.write(" ".join(map(str, request)) + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self.processes]

    def step_seconds(self, *request: object) -> list[float]:
        return step_seconds([answer["steps"] for answer in self.call(*request)])


def world_variables(rank: int, size: int, port: int) -> dict[str, str]:
    """What tells a process its rank, and that a launcher listens at the port where all meet."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RES_OPTIONS": "timeout:1 attempts:1",  # a name service that does not answer is not waited for
    }


@contextmanager
def start_ours(program: str, command: str, count: int = 1) -> Iterator[OurProcesses]:
    """One process, in which all ranks are threads, or several that are one world, connected by Gloo.

    They end with the context, by force where it is left by an exception.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    worlds = [world_variables(rank, count, store.port) for rank in range(count)] if count > 1 else [{}]
    with ExitStack() as stack:
        processes = []
        for world in worlds:
            process = subprocess.Popen(
                [program, command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | world,
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        yield OurProcesses(processes)
        for process in processes:
            process.stdin.close()
        for process in processes:
            process.wait(10)


def verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


# ---- what is measured --------------------------------------------------------------------------


def tiny(program: str) -> None:
    """Layers so small that only the pipeline itself takes time."""
    sizes = (TINY_STAGES, TINY_MICROBATCHES, TINY_ROWS, TINY_WIDTH)
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {name: [] for name in TINY_GOALS}
    with start_world(1) as world:
        for name in TINY_GOALS:
            world.call(reference_runtime.tiny, (name, *sizes), 2)
        for turn in range(TINY_TURNS):
            progress(f"tiny layers: {turn + 1} of {TINY_TURNS}")
            for entry in bench(program, "tiny", TINY_STEPS):
                ours.setdefault(entry["runs"], []).extend(entry["seconds"])
            for name in TINY_GOALS:
                ranks = world.call(reference_runtime.tiny, (name, *sizes), TINY_REFERENCE_STEPS)
                theirs[name] += step_seconds(ranks)

    print(f"Tiny layers: {TINY_STAGES} stages on one rank, each Linear({TINY_WIDTH}, {TINY_WIDTH})", end=" ")
    print(f"and ReLU, {TINY_MICROBATCHES} microbatches of {TINY_ROWS} rows; µs a step")
    print(f"{'':<36}{'best':>9}{'median':>9}")
    for side, results in (("ours", ours), ("reference", theirs)):
        for name, seconds in results.items():
            label = name if name not in TINY_GOALS else f"{name}, {side}"
            print(f"{label:<36}{1e6 * min(seconds):>9.0f}{1e6 * median(seconds):>9.0f}")
    print(f"{'':<52}{'best':>9}{'median':>9}{'goal':>9}")
    loop = ours["hand-written loop"]

    def ratio(label: str, above: list[float], below: list[float], goal: float, at_most: bool) -> None:
        found = median(above) / median(below)
        reached = verdict(found <= goal if at_most else found >= goal)
        sign = "<=" if at_most else ">="
        print(f"{label:<52}{min(above) / min(below):>9.2f}{found:>9.2f}{sign:>5}{goal:>5.2f} {reached}")

    ratio("Interleaved1F1B, ours / hand-written loop", ours["Interleaved1F1B"], loop, LOOP_GOAL, True)
    for name, goal in TINY_GOALS.items():
        ratio(f"{name}, reference / ours", theirs[name], ours[name], goal, False)
    print(flush=True)


def compare_gpt(program: str, our_processes: int, goals: dict[int, float]) -> None:
    """Training steps of a small GPT, by every schedule of the reference."""
    alike = ", on both sides processes connected by Gloo" if our_processes > 1 else ""
    print(f"GPT of 8 layers on {GPT_RANKS} ranks{alike}, {GPT_MICROBATCHES} microbatches", end=" ")
    print(f"of {GPT_ROWS} sequences of 64; ms a step.", end=" ")
    print("Paired: the median over pairs of steps that follow each other")
    print(f"{'':<32}{'reference':>16}{'ours':>18}{'reference / ours':>22}")
    print(f"{'schedule':<24}{'width':>6}", end="")
    print(f"{'best':>9}{'median':>9}" * 2 + f"{'best':>9}{'paired':>9}{'goal':>9}")
    with start_world(GPT_RANKS) as world, start_ours(program, "gpt", our_processes) as our_gpt:
        for width, name in [(width, name) for width in GPT_STEPS for name in SCHEDULES]:
            case = (name, width, GPT_MICROBATCHES, GPT_ROWS)
            progress(f"GPT of width {width}: {name}")
            ours, theirs = [], []
            for step in range(-1, GPT_STEPS[width]):
                our_step = our_gpt.step_seconds(name, width, 1)
                their_step = step_seconds(world.call(reference_runtime.train, case, 1))
                if step >= 0:
                    ours += our_step
                    theirs += their_step
            ratio = median(their / our for their, our in zip(theirs, ours))
            goal = goals[width]
            print(f"{name:<24}{width:>6}", end="")
            for seconds in (theirs, ours):
                print(f"{1e3 * min(seconds):>9.1f}{1e3 * median(seconds):>9.1f}", end="")
            print(f"{min(theirs) / min(ours):>9.2f}{ratio:>9.2f}", end="")
            print(f"{'>=':>5}{goal:>5.2f} {verdict(ratio >= goal)}", flush=True)
    print()


def gpt(program: str) -> None:
    compare_gpt(program, 1, GPT_GOALS)


def gloo(program: str) -> None:
    compare_gpt(program, GPT_RANKS, GLOO_GOALS)


def actions(program: str) -> None:
    """Stages that do nothing: what is left is the executor, the messages and the autograd graph."""
    progress("actions")
    print("Stages that hand one number on, 256 microbatches; µs for each action of a rank")
    print(f"{'schedule':<24}{'ranks':>6}{'actions':>9}{'traced':>9}{'best':>9}{'median':>9}")
    for entry in bench(program, "actions", ACTION_ROUNDS):
        each = entry["actions"] / entry["ranks"]
        traced = "yes" if entry["trace"] else "no"
        print(f"{entry['runs']:<24}{entry['ranks']:>6}{entry['actions']:>9}{traced:>9}", end="")
        print(f"{1e6 * min(entry['seconds']) / each:>9.2f}{1e6 * median(entry['seconds']) / each:>9.2f}")
    print(flush=True)


def recording(program: str) -> None:
    """What the flight record, which is always on, takes of a step with tiny layers."""
    progress("recording")
    recorded, step = bench(program, "recording", RECORDING_ROUNDS)
    print("The flight record, in steps of 4 stages on one rank, each Linear(8, 8) and ReLU, 16 microbatches of 4 rows")
    print(f"{'':<28}{'best':>9}{'median':>9}")
    shares = []
    for of in (min, median):
        nanoseconds = 1e9 * of(recorded["seconds"]) / recorded["actions"]
        shares.append((nanoseconds, 1e9 * of(step["seconds"]) / step["actions"]))
    print(f"{'ns to record an action':<28}" + "".join(f"{each:>9.0f}" for each, _ in shares))
    print(f"{'ns of a step, an action':<28}" + "".join(f"{each:>9.0f}" for _, each in shares))
    parts = [100 * each / whole for each, whole in shares]
    print(f"{'share of the step':<28}" + "".join(f"{part:>7.2f} %" for part in parts), end="")
    print(f"   < {RECORDING_GOAL} % {verdict(parts[1] < RECORDING_GOAL)}\n", flush=True)


def handover(program: str) -> None:
    """What a message from one rank to the next takes.

    A step brings one microbatch forwards through stages that hand it on as it is, on two ranks in
    turn: each message waits for the one before. A message is its share of a step: packing,
    sending, waking the receiver, and the little that the executor does for a stage.
    """
    print(f"Handing a message on, by steps of {HANDOVERS} messages one after the other; µs a message")
    print(f"{'':<10}{'in process':>18}{'Gloo':>18}{'reference, Gloo':>18}", end="")
    print(f"{'Gloo / in process':>20}{'reference / Gloo':>20}")
    print(f"{'bytes':<10}" + f"{'best':>9}{'median':>9}" * 3 + f"{'best':>11}{'median':>9}" * 2)
    with (
        start_world(2) as world,
        start_ours(program, "handover") as threads,
        start_ours(program, "handover", 2) as processes,
    ):
        for size, steps in HANDOVER_STEPS.items():
            progress(f"messages of {size} bytes")
            case = (size, HANDOVERS + 1)
            in_process, by_gloo, by_reference = [], [], []
            for step in range(-2, steps):
                turn = (
                    (in_process, threads.step_seconds(size, 1)),
                    (by_gloo, processes.step_seconds(size, 1)),
                    (by_reference, step_seconds(world.call(reference_runtime.handover, case, 1))),
                )
                if step >= 0:
                    for results, seconds in turn:
                        results += [1e6 * each / HANDOVERS for each in seconds]
            print(f"{size:<10}", end="")
            for results in (in_process, by_gloo, by_reference):
                print(f"{min(results):>9.0f}{median(results):>9.0f}", end="")
            for above, below in ((by_gloo, in_process), (by_reference, by_gloo)):
                print(f"{min(above) / min(below):>11.2f}{median(above) / median(below):>9.2f}", end="")
            print(flush=True)
    print()


def memory(program: str) -> None:
    """The most that was resident, all ranks together, and what of it an idle program does not need."""
    with start_world(GPT_RANKS) as world:
        idle_theirs = sum(world.call(reference_runtime.idle_peak))
    (idle,) = bench(program, "idle")
    print(f"Peak resident memory of training that GPT, MiB; idle: reference {idle_theirs:.0f},", end=" ")
    print(f"ours {idle['peak_MiB']:.0f}")
    print(f"{'':<32}{'reference':>16}{'ours':>18}{'ours / reference':>22}")
    print(f"{'schedule':<24}{'width':>6}" + f"{'all':>9}{'net':>9}" * 3 + f"{'goal':>9}")
    for width, name in [(width, name) for width in GPT_STEPS for name in SCHEDULES]:
        progress(f"memory at width {width}: {name}")
        case = (name, width, GPT_MICROBATCHES, GPT_ROWS)
        with start_world(GPT_RANKS) as world:
            theirs = sum(world.call(reference_runtime.train_peak, case, MEMORY_STEPS))
        with start_ours(program, "gpt") as our_gpt:
            ours = sum(answer["peak_MiB"] for answer in our_gpt.call(name, width, MEMORY_STEPS))
        net_theirs, net_ours = theirs - idle_theirs, ours - idle["peak_MiB"]
        print(f"{name:<24}{width:>6}{theirs:>9.0f}{net_theirs:>9.1f}{ours:>9.0f}{net_ours:>9.1f}", end="")
        print(f"{ours / theirs:>9.2f}{net_ours / net_theirs:>9.2f}", end="")
        print(f"{'<=':>5}{1:>5.2f} {verdict(net_ours <= net_theirs)}", flush=True)
    print()


MEASUREMENTS = {
    "tiny": tiny,
    "gpt": gpt,
    "gloo": gloo,
    "actions": actions,
    "recording": recording,
    "handover": handover,
    "memory": memory,
}


def main() -> None:
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= MEASUREMENTS.keys():
        sys.exit(__doc__)
    for name in sys.argv[2:] or MEASUREMENTS:
        MEASUREMENTS[name](sys.argv[1])


if __name__ == "__main__":
    main()
