"""Training on one CUDA device, beside torch.distributed.pipelining in the same run.

    compare_device.py DEVICE_BENCH [small] [medium] [large]

DEVICE_BENCH is the path of the benchmark program device_bench; without a choice, all
models are measured. On both sides a GPT in bfloat16 is cut into four stages on one rank.
The sides take turns, each kind of ours in a process of its own, and free what memory they
can after a turn. A step's time is that of the host, from an idle device to an idle device;
gradients are reset before it, on all sides alike. Typical times, the medians, are held
against the goals.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from statistics import median

import torch

import reference_device

ROUNDS, STEPS = 4, 3

# What is measured in Python, and by the benchmark program.
THEIRS = {
    "reference, Interleaved1F1B": "Interleaved1F1B",
    "reference, InterleavedZeroBubble": "InterleavedZeroBubble",
    "bare Python loop": "loop",
}
OURS = {
    "bare C++ loop": "loop",
    "bare whole-step graph": "graph",
    "ours, Interleaved1F1B": "eager",
    "ours captured, Interleaved1F1B": "captured",
    "ours, InterleavedZeroBubble": "zero_bubble",
    "ours captured, InterleavedZeroBubble": "captured_zero_bubble",
}

BARE_GOAL = 1.05
CAPTURED_GOALS = {"small": 10, "medium": 5, "large": 1.25}
MEMORY_GOAL = 1


class Ours:
    """A process of the benchmark program, asked for steps of one kind and model."""

    def __init__(self, program: str, kind: str, model: str):
        self.what = f"{kind} {model}"
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, steps: int) -> None:
        self.process.stdin.write(f"{self.what} {steps}\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:  # it has said why
            sys.exit(self.process.wait() or 1)
        return json.loads(line)

    def __enter__(self) -> "Ours":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()


class Numbers:
    """What was found of one of those that are measured, over all rounds."""

    def __init__(self):
        self.ms: list[float] = []
        self.allocated = self.reserved = 0.0

    def add(self, answer: dict) -> None:
        self.ms += answer["ms"]
        self.allocated = max(self.allocated, answer["allocated_MiB"])
        self.reserved = max(self.reserved, answer["reserved_MiB"])

    @property
    def typical(self) -> float:
        return median(self.ms)


def measure(program: str, name: str, device: torch.device) -> dict[str, Numbers]:
    found = {label: Numbers() for label in (*THEIRS, *OURS)}
    with ExitStack() as stack:
        ours = {label: stack.enter_context(Ours(program, kind, name)) for label, kind in OURS.items()}
        for each in ours.values():
            each.ask(0)  # all build and warm up at once
        theirs = reference_device.Model(reference_device.MODELS[name], device)
        for each in ours.values():
            each.answer()
        for turn in range(ROUNDS):
            print(f"{name}: {turn + 1} of {ROUNDS}", file=sys.stderr, flush=True)
            for label, kind in THEIRS.items():
                found[label].add(theirs.measure(kind, STEPS))
            for label, each in ours.items():
                each.ask(STEPS)
                found[label].add(each.answer())
    return found


def print_ratio(label: str, ratio: float, sign: str = "", goal: float | None = None) -> None:
    if goal is None:
        print(f"{label:<66}{ratio:>9.2f}")
        return
    reached = "reached" if (ratio <= goal if sign == "<=" else ratio >= goal) else "missed"
    print(f"{label:<66}{ratio:>9.2f}{sign:>5}{goal:>6.2f} {reached}")


def print_table(name: str, found: dict[str, Numbers]) -> None:
    config, microbatches, rows = reference_device.MODELS[name]
    print(f"{name}: GPT of {config.layers} layers, width {config.width}, {config.heads} heads,", end=" ")
    print(f"vocabulary {config.vocab}, in bfloat16; {reference_device.STAGES} stages on one device,", end=" ")
    print(f"{microbatches} microbatches of {rows} sequences of {config.context}")
    print(f"{'':<40}{'ms a step':>18}{'peak MiB':>22}")
    print(f"{'':<40}{'best':>9}{'median':>9}{'allocated':>11}{'reserved':>11}")
    for label, each in found.items():
        print(f"{label:<40}{min(each.ms):>9.2f}{each.typical:>9.2f}{each.allocated:>11.1f}{each.reserved:>11.1f}")
    print(f"{'':<66}{'median':>9}{'goal':>11}")
    loop, graph = found["bare C++ loop"].typical, found["bare whole-step graph"].typical
    for schedule in ("Interleaved1F1B", "InterleavedZeroBubble"):
        theirs, eager, captured = (found[f"{side}, {schedule}"] for side in ("reference", "ours", "ours captured"))
        bare, faster = (BARE_GOAL, CAPTURED_GOALS[name]) if schedule == "Interleaved1F1B" else (None, None)
        print_ratio(f"{schedule}, ours / bare C++ loop", eager.typical / loop, "<=", bare)
        print_ratio(f"{schedule}, ours captured / bare whole-step graph", captured.typical / graph, "<=", bare)
        print_ratio(f"{schedule}, reference / ours", theirs.typical / eager.typical)
        print_ratio(f"{schedule}, reference / ours captured", theirs.typical / captured.typical, ">=", faster)
        # Tensors of a graph lie in its own memory, which counts as reserved alone.
        memory = eager.allocated / theirs.allocated
        print_ratio(f"{schedule}, allocated memory, ours / reference", memory, "<=", MEMORY_GOAL)
        memory = captured.reserved / theirs.reserved
        print_ratio(f"{schedule}, reserved memory, ours captured / reference", memory, "<=", MEMORY_GOAL)
    print(flush=True)


def main() -> None:
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= reference_device.MODELS.keys():
        sys.exit(__doc__)
    if not torch.cuda.is_available():
        print("compare_device.py: there is no CUDA device", file=sys.stderr)
        sys.exit(2)
    device = torch.device("cuda", 0)
    with reference_device.one_rank(device):
        for name in sys.argv[2:] or reference_device.MODELS:
            print_table(name, measure(sys.argv[1], name, device))


if __name__ == "__main__":
    main()
