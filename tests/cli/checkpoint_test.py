"""`pipewright train` with checkpoints: killed, told to end, resumed. PIPEWRIGHT_BIN names the program."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from world_test import clean_environment, run

MODEL = "--layers 3 --width 16 --heads 2 --context 12 --batch 2 --json".split()
STEPS = 12
KILLS = 20


@pytest.fixture(scope="module")
def train(program):
    def command(directory: Path, *arguments: object, steps: int = STEPS, keep: int = 2) -> list[object]:
        saving = ["--checkpoint", directory, "--every", 1, "--keep", keep, "--resume"]
        return [program, "train", "--steps", steps, *MODEL, *saving, *arguments]

    return command


PLAIN = ["--schedule", "1F1B", "-p", 2, "-m", 4]


def losses(text: str) -> dict[int, float]:
    """By step; a line that a kill has cut short is none."""
    found = {}
    for line in text.splitlines():
        try:
            step = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[step["step"]] = step["loss"]
    return found


@pytest.fixture(scope="module")
def uninterrupted(train, tmp_path_factory) -> dict[int, float]:
    result = run(*train(tmp_path_factory.mktemp("whole"), *PLAIN))
    assert result.returncode == 0, result.stderr
    found = losses(result.stdout)
    assert list(found) == list(range(1, STEPS + 1))
    return found


def start(*command: object) -> subprocess.Popen:
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )


def wait_until_saved(directory: Path, step: int, process: subprocess.Popen) -> None:
    """That step or a later one, which may have pruned it; or until the process has ended."""
    wanted = [directory / f"step-{later}" for later in range(step, STEPS + 1)]
    deadline = time.monotonic() + 60
    while not any(path.exists() for path in wanted) and process.poll() is None:
        assert time.monotonic() < deadline, f"step {step} was not saved"
        time.sleep(0.001)


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_training_goes_on_bit_for_bit(seed, train, uninterrupted, tmp_path):
    chance = random.Random(seed)
    killed = start(*train(tmp_path, *PLAIN))
    wait_until_saved(tmp_path, chance.randrange(1, STEPS - 2), killed)
    time.sleep(chance.random() * 0.02)
    killed.kill()
    text, _ = killed.communicate()
    result = run(*train(tmp_path, *PLAIN))
    assert result.returncode == 0, result.stderr
    found = losses(text) | losses(result.stdout)
    assert found == uninterrupted
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{STEPS - 1}", f"step-{STEPS}"]


@pytest.mark.parametrize(
    "processes, arguments",
    [
        (1, ["--schedule", "ZBVZeroBubble", "-p", 2, "-m", 4]),
        (2, ["--schedule", "Interleaved1F1B", "-p", 2, "-m", 4]),
        (4, ["--schedule", "GPipe", "-p", 2, "-m", 2, "--data-parallel", 2, "--sharded"]),
    ],
)
def test_training_goes_on_under_another_schedule_and_world(
    processes, arguments, program, train, uninterrupted, tmp_path
):
    assert run(*train(tmp_path, *PLAIN, steps=4)).returncode == 0
    result = run(program, "launch", "-n", processes, "--", *train(tmp_path, *arguments, steps=8))
    assert result.returncode == 0, result.stderr
    found = losses(result.stdout)
    assert list(found) == [5, 6, 7, 8]
    assert found == pytest.approx({step: uninterrupted[step] for step in found}, rel=1e-5)
    # And back again.
    result = run(*train(tmp_path, *PLAIN))
    found = losses(result.stdout)
    assert list(found) == [9, 10, 11, 12]
    assert found == pytest.approx({step: uninterrupted[step] for step in found}, rel=1e-5)


def test_killed_world_is_started_again_and_goes_on(program, train, uninterrupted, tmp_path):
    command = train(tmp_path, "--schedule", "1F1B", "-p", 2, "-m", 4, keep=0)
    # Rank 1 kills itself once, when there is a checkpoint.
    script = f"""
        if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
          (while [ ! -e {tmp_path}/step-3 ]; do sleep 0.001; done; kill -9 $$) &
        fi
        exec {" ".join(map(str, command))}
    """
    result = run(program, "launch", "-n", 2, "--restarts", 1, "--", "sh", "-c", script)
    assert result.returncode == 0, result.stderr
    assert "restart 1 of 1" in result.stderr
    assert losses(result.stdout) == pytest.approx(uninterrupted, rel=1e-5)


@pytest.mark.parametrize("launched", [False, True])
def test_sigterm_saves_and_ends_cleanly(launched, program, train, tmp_path):
    command = [word for word in train(tmp_path, *PLAIN, steps=100000) if word not in ("--every", 1)]
    launch = [program, "launch", "-n", 2, "--grace", 60, "--"] if launched else []
    process = start(*launch, *command)
    assert json.loads(process.stdout.readline())["step"] == 1
    process.send_signal(signal.SIGTERM)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == (128 + signal.SIGTERM if launched else 0), errors
    last = max(losses(text), default=1)
    assert [path.name for path in tmp_path.iterdir()] == [f"step-{last}"], errors
    result = run(*train(tmp_path, *PLAIN, steps=last + 1))
    assert list(losses(result.stdout)) == [last + 1], result.stderr


def test_python_reads_what_is_saved(train, tmp_path):
    assert run(*train(tmp_path, *PLAIN, steps=1)).returncode == 0
    tensors = safetensors.torch.load_file(tmp_path / "step-1" / "part-0.safetensors")
    manifest = json.loads((tmp_path / "step-1" / "checkpoint.json").read_text().split("\n", 1)[1])
    assert manifest["step"] == 1 and manifest["optimizer"] == "AdamW"
    assert tensors.keys() == manifest["entries"].keys()
    for name, tensor in tensors.items():
        assert list(tensor.shape) == manifest["entries"][name]["sizes"]
        if tensor.is_floating_point():
            assert torch.isfinite(tensor).all(), name
            if name.endswith("exp_avg"):
                assert tensor.shape == tensors[name.split("/")[1]].shape


def test_damaged_checkpoint_is_named(train, tmp_path):
    assert run(*train(tmp_path, *PLAIN, steps=1)).returncode == 0
    part = tmp_path / "step-1" / "part-0.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    result = run(*train(tmp_path, *PLAIN))
    assert result.returncode == 1
    assert f"{part} is damaged" in result.stderr


@pytest.mark.parametrize("arguments", [["--every", 2], ["--resume"], ["--keep", 1]])
def test_options_need_a_directory(arguments, program):
    result = run(program, "train", "--steps", 1, *arguments)
    assert result.returncode == 2
    assert "--checkpoint" in result.stderr
