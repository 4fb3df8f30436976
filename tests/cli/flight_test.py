"""Flight records and failures of `pipewright train` under `launch`. PIPEWRIGHT_BIN names the program."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

TIMEOUT = 60
MODEL = "--layers 2 --width 16 --heads 2 --context 12 --batch 2 --steps 100000 --json".split()


@pytest.fixture
def start(program, tmp_path):
    """A training of two processes that goes on until it is ended; flight records go to `flight`."""
    with contextlib.ExitStack() as stack:

        def begin(*options: object) -> subprocess.Popen:
            train = [program, "train", "--schedule", "1F1B", "-p", 2, "-m", 4, *MODEL]
            options = options if "--flight-record" in options else (*options, "--flight-record", "flight")
            process = subprocess.Popen(
                [*map(str, [program, "launch", "-n", 2, "--grace", 3, "--", *train, *options])],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            assert json.loads(process.stdout.readline())["step"] == 1
            return process

        yield begin


def rank_pids(launch: subprocess.Popen) -> list[int]:
    """In the order of their ranks, which is that of their start."""
    children = pathlib.Path(f"/proc/{launch.pid}/task/{launch.pid}/children").read_text().split()
    return sorted(map(int, children))


def is_running(pid: int) -> bool:
    return pathlib.Path(f"/proc/{pid}/stat").exists()


def wait_for(condition) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def explain(program: str, folder: pathlib.Path) -> str:
    files = sorted(folder.iterdir())
    result = subprocess.run([program, "explain", *files], capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_signal_writes_records_and_training_goes_on(start, program, tmp_path):
    process = start()
    process.send_signal(signal.SIGUSR1)
    records = [tmp_path / "flight" / f"flight.{rank}.json" for rank in (0, 1)]
    wait_for(lambda: all(each.exists() and each.read_text().endswith("\n") for each in records))
    last = max(json.loads(each.read_text())["step"] for each in records)
    while json.loads(process.stdout.readline())["step"] <= last:
        pass
    text = explain(program, tmp_path / "flight")
    assert text.count("SIGUSR1") == 2 and "process 1 (rank 1)" in text
    process.terminate()
    _, errors = process.communicate(timeout=TIMEOUT)
    assert errors.count("pipewright: flight record in flight/flight.") == 2


def test_killed_rank_is_named_and_nobody_is_left(start, tmp_path):
    process = start()
    pids = rank_pids(process)
    os.kill(pids[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGKILL
    assert "process 1 (rank 1) is gone: its connections have closed" in errors
    assert "What led to it is in flight/flight.0.json" in errors
    assert not any(map(is_running, pids))
    record = json.loads((tmp_path / "flight" / "flight.0.json").read_text())
    assert "process 1 (rank 1) is gone" in record["because"]


@pytest.mark.parametrize("rank", [0, 1])
def test_stopped_rank_is_named_and_nobody_is_left(rank, start, program, tmp_path):
    process = start("--timeout", 2)
    pids = rank_pids(process)
    os.kill(pids[rank], signal.SIGSTOP)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert f"process {rank} (rank {rank}) does not answer: it is stopped, or cannot be reached" in errors
    assert not any(map(is_running, pids))
    assert f"Culprit: process {rank} (rank {rank}) has left no record" in explain(program, tmp_path / "flight")


def test_no_records_where_none_are_wanted(start, tmp_path):
    process = start("--flight-record", "")
    os.kill(rank_pids(process)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert "process 0 (rank 0) is gone" in errors and "What led to it" not in errors
    assert list(tmp_path.iterdir()) == []
