"""`pipewright bench`, as users and other programs call it. PIPEWRIGHT_BIN names the program."""

import json
import subprocess

import pytest
import torch

TIMEOUT = 60
TINY = "--layers 3 --width 16 --heads 2 --context 12 --batch 2 --steps 2".split()
SIZE = ["-p", 2, "-m", 4]
SCHEDULES = [
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
    "ZB-H1",
    "ZB-H2",
    "V-Half",
    "V-Min",
]
FIELDS = [
    "name",
    "stages",
    "seconds",
    "tokens_per_second",
    "bubble",
    "predicted_bubble",
    "peak_live",
    "activations",
    "peak_memory",
    "peak_device_memory",
]
OPTIONS = [
    "--help",
    "--version",
    "--schedule",
    "--ranks",
    "--microbatches",
    "--stages-per-rank",
    "--steps",
    "--device",
    "--dtype",
    "--cuda-graph",
    "--threads-per-rank",
    "--layers",
    "--width",
    "--heads",
    "--context",
    "--batch",
    "--json",
]


@pytest.fixture(scope="module")
def call(program):
    def run(*arguments):
        return subprocess.run(
            [program, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT
        )

    return run


@pytest.fixture(scope="module")
def rows(call):
    """The objects of a call that must succeed."""

    def run(*arguments):
        result = call(*TINY, *SIZE, *arguments, "--json")
        assert (result.returncode, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return run


def test_every_schedule_that_trains(rows):
    all_of_them = rows()
    assert [row["name"] for row in all_of_them] == SCHEDULES
    for row in all_of_them:
        assert list(row) == FIELDS
        assert row["tokens_per_second"] == pytest.approx(2 * 12 * 4 / row["seconds"])
        assert 0 <= row["bubble"] < 1 and 0 <= row["predicted_bubble"] < 1
        assert row["peak_memory"] > 10e6 and row["peak_device_memory"] == 0
    live = {row["name"]: row["peak_live"] for row in all_of_them}
    assert (live["GPipe"], live["1F1B"], live["LoopedBFS"]) == (4, 2, 8)
    activations = {row["name"]: row["activations"] for row in all_of_them}
    assert 0 < activations["V-Min"] < activations["ZB-H1"] < activations["GPipe"]
    assert activations["1F1B"] < activations["GPipe"]


def test_schedules_by_name_in_their_order(rows):
    some = rows("--schedule", "zb-h1,GPIPE", "--schedule", "loopedbfs", "-v", 3, "--dtype", "bf16")
    assert [(row["name"], row["stages"]) for row in some] == [("ZB-H1", 2), ("GPipe", 2), ("LoopedBFS", 6)]


def test_table(call):
    result = call(*TINY, *SIZE, "--schedule", "GPipe,1F1B")
    assert (result.returncode, result.stderr) == (0, "")
    head, *lines = result.stdout.splitlines()
    assert head.split() == "schedule stages ms a step tokens/s bubble % predicted % peak live activations peak memory".split()
    assert [line.split()[0] for line in lines] == ["GPipe", "1F1B"]
    assert all(line.endswith(" MiB") and len(line) == len(head) for line in lines)


def test_processes_bench_together(program):
    command = [program, "launch", "-n", "2", "--", program, "bench", *TINY, *map(str, SIZE), "--json"]
    result = subprocess.run(
        [*command, "--schedule", "1F1B,V-Half"], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert result.returncode == 0, result.stderr
    assert [row["name"] for row in json.loads(result.stdout)] == ["1F1B", "V-Half"]


def test_help_names_exactly_the_options(call):
    text = call("--help").stdout
    declared = [line.split()[0] for line in text.splitlines() if line.startswith("  -")]
    assert [names.split(",")[-1] for names in declared] == OPTIONS


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-m", 4], "--ranks"),
        (["-p", -1, "-m", 4], "the number of ranks must be from 1 to"),
        ([*SIZE, "--schedule", "GPipe,GPipes"], "GPipes"),
        ([*SIZE, "--schedule", "ForwardOnly"], "no backward"),
        ([*SIZE, "--steps", 0], "--steps must be at least 1"),
        ([*SIZE, "--device", "tpu"], "cpu, cuda or cuda:N, not 'tpu'"),
        ([*SIZE, "--cuda-graph"], "--cuda-graph needs a CUDA device"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments, told, call):
    result = call(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert told in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_device(call):
    result = call(*SIZE, "--device", "cuda")
    assert (result.returncode, result.stderr) == (2, "pipewright: --device cuda: there is no CUDA device\n")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("graphs", [[], ["--cuda-graph"]], ids=["plain", "graphs"])
def test_on_a_device(graphs, rows):
    for row in rows("--device", "cuda:0", "--dtype", "bf16", *graphs):
        assert row["peak_device_memory"] > 0 and (row["bubble"] is None) == bool(graphs)
