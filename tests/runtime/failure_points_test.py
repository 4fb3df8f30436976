"""Faults injected at many points of a step: every process must end, soon, and name the culprit.

PIPEWRIGHT_FAILURE_WORKER names the program that runs the cases. The table of docs/errors.md is printed by
running this file's tests with -s.
"""

import contextlib
import json
import os
import pathlib
import queue
import random
import re
import socket
import subprocess
import tempfile
import threading

import pytest
import torch
from namespaces import Hosts, namespaces_work

ERRORS = pathlib.Path(__file__).parents[2] / "docs" / "errors.md"
RANKS, REPLICAS = 3, 2
PROCESSES = RANKS * REPLICAS
# Longer than a busy machine keeps a process from running.
TIMEOUT_MS = 1500
LANES = 6  # nearly all of the time is waiting
# The stages of one replica of which each kind of action is taken, in turn: rank 0, which the others have
# met at, is among the culprits.
STAGES = {
    "F": [0, 1, 2],
    "B": [1, 2, 0],
    "I": [2, 1],  # the first stage has no input gradient
    "W": [0, 1, 2],
    "SEND_F": [0, 1],
    "RECV_F": [1, 2],
    "SEND_B": [2, 1],
    "RECV_B": [0, 1],
    "REDUCE_GRAD": [1, 2, 0],
}
COMPUTE = ["F", "B", "I", "W"]
STEPS = [1, 3]


def points(kinds=tuple(STAGES), beside: bool = True) -> list[dict]:
    """Before, in and after each kind of action, in the first and in a later step. `beside`: a fault can also come
    from outside while a message or a sum is begun."""
    found = []
    for kind in kinds:
        for step in STEPS:
            for when in ("before", "in", "after"):
                if when == "in" and kind not in COMPUTE and not beside:
                    continue
                stage = STAGES[kind][len(found) % len(STAGES[kind])]
                action = f"{stage}{kind}" + ("" if kind == "REDUCE_GRAD" else "1")
                schedule = "1F1B" if kind == "B" else "ZB-H1"
                found.append({"kind": kind, "action": action, "when": when, "step": step, "stage": stage})
                found[-1] |= {"schedule": schedule, "process": stage * REPLICAS}
    return found


class Worker:
    """Runs one case after the other; with hosts, each process on one of its own."""

    def __init__(self, hosts: Hosts | None = None):
        self.hosts = hosts
        self.process = subprocess.Popen(
            [os.environ["PIPEWRIGHT_FAILURE_WORKER"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, case: dict, folder: str) -> dict:
        case = case | {"folder": folder, "port": free_port(), "address": "127.0.0.1"}
        if self.hosts:
            for name in self.hosts.names:
                self.hosts.ip("-n", name, "link", "set", "eth0", "up")
            case |= {"namespaces": self.hosts.names, "port": 29500, "address": self.hosts.address(0)}
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


def free_port() -> int:
    """Not from the range from which connections take theirs: so many of them come and go here."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(20000, 32000)
            probe.bind(("127.0.0.1", port))
            return port


def run_all(cases: list[dict], judge, hosts: list[Hosts] | None = None, lanes: int = LANES) -> list[str]:
    """What is wrong, with all of them; the counts go to the table."""
    waiting: queue.Queue = queue.Queue()
    for case in cases:
        waiting.put(case)
    wrong, times, lock = [], [], threading.Lock()

    def work(lane: int) -> None:
        worker = Worker(hosts[lane] if hosts else None)
        try:
            while True:
                case = waiting.get_nowait()
                with tempfile.TemporaryDirectory() as folder:
                    result = worker.run(case, folder)
                problems = judge(case, result)
                with lock:
                    wrong.extend(f"{case['fault']} {case['when']} {case['action']}, step {case['step']}: {each}"
                                 for each in problems)  # fmt: skip
                    times.extend(seconds_after(result))
        except queue.Empty:
            worker.close()

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(len(hosts) if hosts else lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert waiting.empty()
    for each in wrong:
        print(each)
    ROWS[cases[0]["row"]] = (len(cases), len(cases) - len({each.split(":")[0] for each in wrong}), max(times))
    return wrong


def seconds_after(result: dict) -> list[float]:
    ended = [each for each in result["processes"] if each["status"] is not None]
    return [each["time"] - result["fault_at"] for each in ended] if result["fault_at"] else [0]


ROWS: dict[str, tuple[int, int, float]] = {}


def world_case(fault: str, point: dict, row: str) -> dict:
    sizes = {"ranks": RANKS, "replicas": REPLICAS, "processes": PROCESSES, "timeout_ms": TIMEOUT_MS}
    return {"fault": fault, "row": row} | sizes | point


def threads_case(fault: str, point: dict, row: str) -> dict:
    return world_case(fault, point, row) | {"processes": 1, "timeout_ms": 600, "stall": 1800}


def judged(culprit_says, named):
    """Every process but, perhaps, the culprit must have said the same, which names it."""

    def judge(case: dict, result: dict) -> list[str]:
        if result["fault_at"] is None:
            return ["the fault did not happen"]
        problems, others = [], set()
        for process, ended in enumerate(result["processes"]):
            if process == case["process"]:
                problems += culprit_says(case, ended)
                continue
            if ended["status"] is None:
                problems.append(f"process {process} hangs")
            elif ended["status"] == 0:
                problems.append(f"process {process} ended as if nothing were")
            else:
                others.add(ended["said"])
        for said in others:
            problems += [f"no '{part}' in: {said}" for part in named(case) if not re.search(part, said)]
        if len(others) > 1:
            problems.append(f"not all say the same: {others}")
        return problems

    return judge


def says_the_same(named):
    def check(case: dict, ended: dict) -> list[str]:
        if not ended["status"]:
            return ["the culprit did not fail"]
        return [f"the culprit says: {ended['said']}" for part in named(case) if not re.search(part, ended["said"])]

    return check


def is_killed(case: dict, ended: dict) -> list[str]:
    return [] if ended["status"] == 9 else ["the culprit was not killed"]


def is_stopped(case: dict, ended: dict) -> list[str]:
    return [] if ended["status"] is None else ["the culprit went on"]


def is_cut_off(case: dict, ended: dict) -> list[str]:
    told = f"process {case['process']} reaches none of the others"
    said = ended.get("said", "it hangs")
    return [] if ended["status"] and told in said else [f"who is cut off says: {said}"]


# Who noticed it: in which action, and in which channel or sum; or in what processes do together; or nobody waited
# yet, and it is only the culprit that is named.
NOTICED = (
    r"^replica \d, rank \d, \w+ \(stage \d\): .*(activations|gradients) of stage \d"
    r"|^process \d: the processes (did not come together|have lost each other)"
    r"|^process \d waits for the .* in vain"
    r"|^process \d \(rank \d of replica 0\) is gone"
)


def place(case: dict) -> str:
    stage = case["stage"]
    return rf"^replica 0, rank {stage}, {case['action']} \(stage {stage}\): "


def is_process(case: dict, what: str) -> str:
    return rf"process {case['process']} \(rank {case['stage']} of replica 0\) {what}"


RESTART = "The world is over: start its processes again"


def thrown(case: dict) -> list[str]:
    return [place(case) + "thrown by the test", RESTART]


def out_of_memory(case: dict) -> list[str]:
    return [place(case) + ".*can't allocate memory", RESTART]


def gone(case: dict) -> list[str]:
    return [NOTICED, is_process(case, "is gone: its connections have closed"), RESTART]


def silent(case: dict) -> list[str]:
    return [NOTICED, is_process(case, "does not answer"), RESTART]


def test_killed_processes():
    cases = [world_case("kill", point, "processes: killed") for point in points()]
    assert run_all(cases, judged(is_killed, gone)) == []


def test_stopped_processes():
    cases = [world_case("stop", point, "processes: stopped") for point in points()]
    assert run_all(cases, judged(is_stopped, silent)) == []


def test_stages_that_throw():
    cases = [world_case("throw", point, "processes: an action throws") for point in points(beside=False)]
    assert run_all(cases, judged(says_the_same(thrown), thrown)) == []


def test_ranks_out_of_memory():
    cases = [world_case("oom", point, "processes: out of memory") for point in points(beside=False)]
    assert run_all(cases, judged(says_the_same(out_of_memory), out_of_memory)) == []


@pytest.mark.skipif(not namespaces_work(), reason="network namespaces need root, iproute2 and their kernel part")
def test_cut_links():
    cases = [world_case("link", point, "processes: link cut") for point in points()]
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(Hosts(PROCESSES, lane)) for lane in "abcd"]
        assert run_all(cases, judged(is_cut_off, silent), hosts) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(
    ("fault", "at", "row", "judge"),
    [
        ("kill", points(), "processes on CUDA devices: killed", judged(is_killed, gone)),
        ("stop", points(), "processes on CUDA devices: stopped", judged(is_stopped, silent)),
        ("throw", points(beside=False), "processes on CUDA devices: an action throws",
         judged(says_the_same(thrown), thrown)),
    ],  # fmt: skip
    ids=["killed", "stopped", "throw"],
)
def test_processes_on_devices(fault, at, row, judge):
    """With messages and sums under way on the devices, where only the end of NCCL's kernels ends a wait."""
    cases = [world_case(fault, point, row) | {"device": "cuda:0", "timeout_ms": 5000} for point in at]
    assert run_all(cases, judge, lanes=3) == []  # it takes a while to begin with a device


def judge_threads(named):
    def judge(case: dict, result: dict) -> list[str]:
        said = result["processes"][0].get("said", "it hangs")
        return [f"no '{part}' in: {said}" for part in named(case) if not re.search(part, said)]

    return judge


def test_threads_that_throw():
    cases = [threads_case("throw", point, "threads: an action throws") for point in points(beside=False)]
    assert run_all(cases, judge_threads(lambda case: thrown(case)[:1])) == []


def test_threads_out_of_memory():
    cases = [threads_case("oom", point, "threads: out of memory") for point in points(beside=False)]
    assert run_all(cases, judge_threads(lambda case: out_of_memory(case)[:1])) == []


def test_threads_that_do_not_go_on():
    """Only where others wait for what comes out of it: for a W, a sum, or the first stage's B, nobody does."""

    def stalled(case: dict) -> list[str]:
        return [
            r"^replica 0, rank \d, \w+ \(stage \d\): no (activations|gradients) of stage \d",
            rf"rank {case['stage']} of replica 0 has been running {case['action']} of step {case['step']} for",
        ]

    kinds = ["F", "B", "I", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]
    waited_for = [point for point in points(kinds) if point["action"] != "0B1"]
    cases = [threads_case("stall", point, "threads: a rank does not go on") for point in waited_for]
    assert run_all(cases, judge_threads(stalled)) == []


def test_table_is_that_of_the_documentation():
    """Last: what the others have counted. Times are of the machine that measured them."""
    lines = [f"| {row} | {count} | {right} | {longest:.1f} s |" for row, (count, right, longest) in ROWS.items()]
    print("\n" + "\n".join(lines))
    documented = ERRORS.read_text()
    for line in lines:
        assert re.search(re.escape(line.rsplit("|", 2)[0]) + r"\| \d+\.\d s \|", documented), line
