"""`pipewright train`, as users and other programs call it. PIPEWRIGHT_BIN names the program."""

import json
import math
import os
import pty
import re
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file

TIMEOUT = 120
FIELDS = ["step", "loss", "grad_norm", "seconds", "bubble", "peak_memory", "peak_device_memory"]
TINY = "--layers 3 --width 16 --heads 2 --context 12 --batch 2".split()
FOUR = [*TINY, "--steps", "4"]
OPTIONS = [
    "--help",
    "--version",
    "--csv",
    "--schedule",
    "--ranks",
    "--microbatches",
    "--stages-per-rank",
    "--steps",
    "--optimizer",
    "--lr",
    "--clip",
    "--non-finite",
    "--device",
    "--dtype",
    "--cuda-graph",
    "--threads-per-rank",
    "--data-parallel",
    "--sharded",
    "--modules",
    "--at",
    "--after",
    "--at-marks",
    "--costs",
    "--shared",
    "--weights",
    "--data",
    "--loss",
    "--save",
    "--batch",
    "--seed",
    "--layers",
    "--width",
    "--heads",
    "--context",
    "--vocab",
    "--text",
    "--checkpoint",
    "--every",
    "--keep",
    "--resume",
    "--timeout",
    "--flight-record",
    "--json",
    "--timeline",
    "--write-costs",
    "--trace",
]
SCHEDULES = [
    "GPipe -p 2",
    "1F1B -p 3",
    "Interleaved1F1B -p 2 -v 2",
    "LoopedBFS -p 2 -v 3",
    "InterleavedZeroBubble -p 2 -v 2",
    "ZBVZeroBubble -p 2",
    "DualPipeV -p 2",
    "ZB-H1 -p 3",
    "ZB-H2 -p 2",
    "V-Half -p 3",
    "V-Min -p 2",
]


@pytest.fixture(scope="module")
def call(program):
    def run(*arguments, stdin="", timeout=TIMEOUT):
        return subprocess.run(
            [program, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=timeout
        )

    return run


@pytest.fixture(scope="module")
def steps(call):
    """The lines of a training that must succeed."""

    def run(*arguments, count=4, stdin=""):
        result = call("train", *TINY, "--steps", count, *arguments, "--json", stdin=stdin)
        assert (result.returncode, result.stderr) == (0, "")
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


@pytest.fixture(scope="module")
def alone(steps):
    """The same training on one rank, with its stage unsplit."""
    return steps("--schedule", "GPipe", "-p", 1, "-m", 4)


def column(lines, field):
    return [line[field] for line in lines]


def assert_same(lines, expected):
    for field in ("loss", "grad_norm"):
        assert column(lines, field) == pytest.approx(column(expected, field), rel=1e-4)


# ---- what a step tells -------------------------------------------------------------------------


def test_a_line_a_step_with_exactly_the_fields(alone):
    assert [list(line) for line in alone] == [FIELDS] * 4
    assert column(alone, "step") == [1, 2, 3, 4]
    for line in alone:
        assert math.isfinite(line["loss"]) and line["grad_norm"] > 0 and line["seconds"] > 0
        assert 0 <= line["bubble"] < 1
    assert column(alone, "peak_memory") == sorted(column(alone, "peak_memory"))
    assert 10e6 < alone[0]["peak_memory"] < 10e9
    assert column(alone, "peak_device_memory") == [0] * 4


def test_the_first_loss_is_that_of_knowing_nothing(steps):
    first = steps("--schedule", "GPipe", "-p", 1, "-m", 4, "--vocab", 20)[0]
    assert first["loss"] == pytest.approx(math.log(20), abs=0.1)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_loss_falls(optimizer, steps):
    lines = steps("--schedule", "ZBVZeroBubble", "-p", 2, "-m", 4, "--optimizer", optimizer, count=40)
    losses = column(lines, "loss")
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


# ---- the same training under every schedule ----------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_losses_agree(schedule, steps, alone):
    assert_same(steps("--schedule", *schedule.split(), "-m", 4), alone)


def test_losses_agree_with_more_stages_than_layers(steps, alone):
    assert_same(steps("--schedule", "LoopedBFS", "-p", 2, "-v", 5, "-m", 4), alone)


def test_losses_agree_when_clipped(steps, alone):
    clip = min(column(alone, "grad_norm")) / 2
    clipped = steps("--schedule", "GPipe", "-p", 1, "-m", 4, "--clip", clip, "--optimizer", "sgd")
    assert clipped[0]["grad_norm"] == pytest.approx(alone[0]["grad_norm"])
    assert clipped[3]["loss"] != pytest.approx(alone[3]["loss"], rel=1e-4)
    split = steps("--schedule", "ZB-H1", "-p", 3, "-m", 4, "--clip", clip, "--optimizer", "sgd")
    assert_same(split, clipped)


def test_another_seed_is_another_training(steps, alone):
    other = steps("--schedule", "GPipe", "-p", 1, "-m", 4, "--seed", 1)
    assert other[0]["loss"] != alone[0]["loss"]


@pytest.mark.parametrize("lowering", [[], ["--lowered"], ["--lowered", "--defer-recv"]], ids=" ".join)
def test_csv_trains_alike(lowering, call, steps, alone, tmp_path):
    path = tmp_path / "plan.csv"
    made = call("generate", "ZBVZeroBubble", "-p", 2, "-m", 4, *lowering, "-o", path)
    assert made.returncode == 0
    assert_same(steps("--csv", path), alone)


def test_csv_from_standard_input(call, steps, alone):
    schedule = call("generate", "1F1B", "-p", 2, "-m", 4).stdout
    assert_same(steps("--csv", "-", stdin=schedule), alone)


def test_text_of_ones_own(steps, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("to and fro " * 20)
    lines = steps("--schedule", "1F1B", "-p", 2, "-m", 2, "--text", path, count=60)
    assert lines[0]["loss"] == pytest.approx(math.log(len(set("to and fro "))), abs=0.1)
    assert lines[-1]["loss"] < 0.5


# ---- precision and devices ----------------------------------------------------------------------

with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_bf16_trains_and_is_saved(suffix, steps, alone, tmp_path):
    saved = tmp_path / f"model.{suffix}"
    size = ["--schedule", "ZBVZeroBubble", "-p", 2, "-m", 4, "--dtype", "bf16"]
    losses = column(steps(*size, "--save", saved, count=40), "loss")
    assert losses[0] == pytest.approx(alone[0]["loss"], rel=1e-2) and losses[0] != alone[0]["loss"]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.4
    state = torch.load(saved, weights_only=True) if suffix == "pt" else load_file(saved)
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}


def test_bf16_trains_with_sgd(steps):
    """libtorch's own kernel for it leaves parameters of 16 bits on the CPU as they are."""
    size = ["--schedule", "1F1B", "-p", 2, "-m", 4, "--optimizer", "sgd"]
    narrow = column(steps(*size, "--dtype", "bf16", count=20), "loss")
    assert narrow[-1] < narrow[0] - 0.3
    assert narrow == pytest.approx(column(steps(*size, count=20), "loss"), rel=5e-2)


def test_bf16_goes_on_from_a_checkpoint(steps, tmp_path):
    size = ["--schedule", "1F1B", "-p", 2, "-m", 4, "--dtype", "bf16"]
    saved = ["--checkpoint", tmp_path / "saved"]
    before = steps(*size, *saved, count=3)
    after = steps(*size, *saved, "--resume", count=6)
    assert column(before + after, "loss") == column(steps(*size, count=6), "loss")


@without_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_no_device(device, call):
    result = call("train", *FOUR, "--schedule", "GPipe", "-p", 2, "-m", 2, "--device", device)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"pipewright: --device {device}: there is no CUDA device\n"


@with_cuda
def test_no_such_device(call):
    result = call("train", *FOUR, "--schedule", "GPipe", "-p", 2, "-m", 2, "--device", "cuda:100")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--device cuda:100: there is no such CUDA device; the last one is cuda:" in result.stderr


@with_cuda
@pytest.mark.parametrize("schedule", ["GPipe -p 1", "1F1B -p 3", "ZBVZeroBubble -p 2"])
def test_losses_agree_on_a_device(schedule, steps, alone):
    lines = steps("--schedule", *schedule.split(), "-m", 4, "--device", "cuda")
    for field in ("loss", "grad_norm"):
        assert column(lines, field) == pytest.approx(column(alone, field), rel=1e-3)
    assert all(line["peak_device_memory"] > 0 and 0 <= line["bubble"] < 1 for line in lines)


@with_cuda
@pytest.mark.parametrize("schedule", ["GPipe -p 1", "1F1B -p 2", "ZBVZeroBubble -p 2"])
@pytest.mark.parametrize("dtype, rel", [("float32", 1e-3), ("bf16", 1e-2)])
def test_graphs_train_alike(dtype, rel, schedule, steps):
    size = ["--schedule", *schedule.split(), "-m", 4, "--device", "cuda:0", "--dtype", dtype]
    plain = steps(*size, count=20)
    graphs = steps(*size, "--cuda-graph", count=20)  # nothing is told of steps that were not captured
    assert column(graphs, "loss") == pytest.approx(column(plain, "loss"), rel=rel)
    assert column(graphs, "loss")[-1] < column(graphs, "loss")[0] - 0.3
    assert column(graphs, "bubble") == [None] * 20


@with_cuda
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("non_finite", ["stop", "continue"])
def test_graphs_clip_alike(non_finite, optimizer, steps):
    size = ["--schedule", "1F1B", "-p", 2, "-m", 4, "--device", "cuda:0", "--optimizer", optimizer]
    size += ["--clip", 0.3, "--non-finite", non_finite]
    plain = steps(*size, count=10)
    graphs = steps(*size, "--cuda-graph", count=10)
    for field in ("loss", "grad_norm"):
        assert column(graphs, field) == pytest.approx(column(plain, field), rel=1e-3)


@with_cuda
def test_graphs_go_on_from_a_checkpoint(steps, tmp_path):
    size = ["--schedule", "1F1B", "-p", 2, "-m", 4, "--device", "cuda:0", "--cuda-graph"]
    saved = ["--checkpoint", tmp_path / "saved"]
    before = steps(*size, *saved, count=5)
    after = steps(*size, *saved, "--resume", count=10)
    assert column(before + after, "loss") == pytest.approx(column(steps(*size, count=10), "loss"), rel=1e-3)


@with_cuda
def test_graphs_skip_alike(call):
    away = [*TINY, "--steps", 8, "--schedule", "1F1B", *SIZE, "--optimizer", "sgd", "--lr", "1e30"]
    away += ["--device", "cuda:0"]
    plain, graphs = (call("train", *away, "--non-finite", "skip", *more) for more in ([], ["--cuda-graph"]))
    assert plain.returncode == graphs.returncode == 0, graphs.stderr
    assert graphs.stderr == plain.stderr and "step 8 is skipped: " in graphs.stderr


@with_cuda
def test_checkpoint_of_a_device_goes_on_without(steps, tmp_path):
    size = ["--schedule", "1F1B", "-p", 2, "-m", 4]
    saved = ["--checkpoint", tmp_path / "saved"]
    before = steps(*size, *saved, "--device", "cuda", count=3)
    after = steps(*size, *saved, "--resume", count=6)
    assert column(before + after, "loss") == pytest.approx(column(steps(*size, count=6), "loss"), rel=1e-3)


# ---- for people --------------------------------------------------------------------------------


def test_report_compares_prediction_and_measurement(call, tmp_path):
    page, costs, trace = (tmp_path / name for name in ("page.html", "costs.json", "trace.json"))
    size = ["-p", 2, "-m", 4]
    result = call(
        *["train", *FOUR, "--schedule", "zbvzerobubble", *size],
        *["--timeline", page, "--write-costs", costs, "--trace", trace],
    )
    assert result.returncode == 0
    assert "\x1b" not in result.stdout and "\r" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ZBVZeroBubble: ranks 2, microbatches 4, stages 4; ")
    assert [line for line in lines if line.startswith("step 4/4  loss ")]
    assert [line for line in lines if line.startswith("peak memory ") and line.endswith(" MiB resident")]
    for source in ("predicted", "measured"):
        assert [line for line in lines if re.fullmatch(source + r" .* ms +[0-9.]+ % +[0-9.]+ KiB", line)]
    assert result.stderr.splitlines() == [f"wrote {path}" for path in (page, costs, trace)]

    text = page.read_text()
    assert '"source":"measured"' in text and '"source":"predicted"' in text and "3F2" in text

    stages = json.loads(costs.read_text())["stages"]
    assert len(stages) == 4
    assert all(stage[kind] > 0 for stage in stages for kind in ("f", "i", "w"))
    assert all(stages[3][kind] > 0 for kind in ("activation", "held_for_w"))
    simulated = call("simulate", "ZBVZeroBubble", *size, "--costs", costs, "--json")
    assert (simulated.returncode, simulated.stderr) == (0, "")
    assert json.loads(simulated.stdout)["makespan"] > 0

    events = json.loads(trace.read_text())["traceEvents"]
    computed = [event for event in events if event["ph"] == "X" and event["cat"] == "compute"]
    assert len(computed) == 3 * 4 * 4


def test_files_are_written_beside_json(call, tmp_path):
    path = tmp_path / "costs.json"
    result = call("train", *FOUR, "--schedule", "1F1B", "-p", 2, "-m", 2, "--json", "--write-costs", path)
    assert (result.returncode, result.stderr) == (0, f"wrote {path}\n")
    assert len(result.stdout.splitlines()) == 4
    assert json.loads(path.read_text())["stages"][0]["b"] > 0


def test_bar_on_a_terminal(program):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [program, "train", *FOUR, "--schedule", "1F1B", "-p", "2", "-m", "2"], stdout=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other side is closed
            pass
        assert process.wait(TIMEOUT) == 0
    os.close(ours)
    drawn = [line for line in shown.decode().split("\r") if "/4" in line]
    assert len(drawn) == 4
    assert "█" in drawn[-1] and "░" not in drawn[-1]
    assert "step 4/4" in drawn[-1] and "0:00 left" in drawn[-1]


def test_help_names_exactly_the_options(call):
    result = call("train", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    declared = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  -")]
    assert [names.split(",")[-1] for names in declared] == OPTIONS
    assert result.stdout.splitlines()[1] == "Usage: pipewright train [OPTIONS] [model]"


# ---- errors ------------------------------------------------------------------------------------

SIZE = ["-p", "2", "-m", "2"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--steps"),
        (["--steps", "1"], "--csv"),
        (["--steps", "1", "--schedule", "GPipe"], "--microbatches"),
        (["--steps", "1", "--schedule", "GPipes", *SIZE], "GPipes"),
        (["--steps", "1", "--schedule", "GPipe", "--csv", "-"], "--csv"),
        (["--steps", "1", "--schedule", "ForwardOnly", *SIZE], "no backward"),
        (["--steps", "0", "--schedule", "GPipe", *SIZE], "--steps must be at least 1"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--batch", "0"], "--batch must be from 1 to"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--heads", "3"], "heads, 3, does not divide the width, 64"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--layers", "0"], "number of layers must be from 1 to"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--context", "1000000"], "do not fit into a text of"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--vocab", "-1"], "--vocab"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--width", 1 << 62], "the width must be from 1 to"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--lr", "nan"], "--lr"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--clip", "0"], "--clip"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--optimizer", "lion"], "lion"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--text", "missing.txt"], "missing.txt"),
        (["--steps", "1", "--csv", "missing.csv"], "missing.csv"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--device", "gpu"], "cpu, cuda or cuda:N, not 'gpu'"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--device", "mps"], "cpu, cuda or cuda:N, not 'mps'"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--dtype", "fp16"], "fp16"),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--cuda-graph"], "--cuda-graph needs a CUDA device"),
        (
            ["--steps", "1", "--schedule", "GPipe", *SIZE, "--device", "cuda", "--cuda-graph", "--trace", "x"],
            "--cuda-graph leaves no times for",
        ),
        (["--steps", "1", "--schedule", "GPipe", *SIZE, "--fast"], "--fast"),
        (["--steps", "1", "list"], "list"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments, told, call):
    result = call("train", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert told in result.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0F0,0X0\n", "row 1 (rank 0), column 2"),
        ("0B0,0F0\n", "0B0"),
        ("0F0,0B0\n1F0\n", "1"),
        ("0F0\n", "no backward"),
        ("", "empty"),
    ],
)
def test_bad_csv(text, told, call):
    result = call("train", *FOUR, "--csv", "-", stdin=text)
    assert (result.returncode, result.stdout) == (1, "")
    assert told in result.stderr


def test_steps_with_numbers_that_are_not_finite_are_skipped(call):
    away = [*FOUR, "--schedule", "1F1B", *SIZE, "--optimizer", "sgd", "--lr", "1e30"]
    result = call("train", *away, "--non-finite", "skip")
    assert result.returncode == 0, result.stderr
    assert "pipewright: step 2 is skipped: the loss of microbatch 0 (stage 1, rank 1) is nan" in result.stderr
    assert "\n3 steps skipped\n" in result.stdout
    result = call("train", *away, "--non-finite", "continue")
    assert result.returncode == 0, result.stderr
    assert result.stderr == "" and "loss 3." in result.stdout and "nan" in result.stdout


def test_loss_that_runs_away_is_told(call):
    result = call("train", *FOUR, "--schedule", "1F1B", *SIZE, "--optimizer", "sgd", "--lr", "1e30", "--json")
    assert result.returncode == 1
    assert "not a finite number" in result.stderr and "--lr" in result.stderr


def test_program_without_its_companion(program, tmp_path):
    lonely = shutil.copy(program, tmp_path / "pipewright")
    result = subprocess.run([lonely, "train", "--help"], capture_output=True, text=True, timeout=TIMEOUT)
    assert (result.returncode, result.stdout) == (1, "")
    assert "built without libtorch" in result.stderr
