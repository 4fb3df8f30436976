"""Hangs of real processes, and what `pipewright explain` says of the flight records that they leave.

PIPEWRIGHT_BIN and PIPEWRIGHT_FAILURE_WORKER name the programs.
"""

import re
import subprocess

import pytest
from failure_points_test import Worker, world_case
from namespaces import Hosts, namespaces_work

TIMEOUT = 60
STALL_MS = 4000


@pytest.fixture
def culprit_of(program, tmp_path):
    """Stages a hang; what explain calls its culprit. All of its other lines are printed."""

    def stage(fault: str, action: str, when: str, process: int, hosts: Hosts | None = None, **other) -> str:
        point = {"action": action, "when": when, "process": process, "step": 2, "schedule": "ZB-H1"}
        case = world_case(fault, point, "") | {"stall": STALL_MS, "flight_record": str(tmp_path / "flight")} | other
        worker = Worker(hosts)
        result = worker.run(case, str(tmp_path))
        worker.close()
        print(result)
        records = sorted(map(str, (tmp_path / "flight").iterdir()))
        command = [program, "explain", *records, "--timeline", str(tmp_path / "hang.html")]
        explained = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        assert explained.returncode == 0, explained.stderr
        print(explained.stdout)
        assert "Step 2" in (tmp_path / "hang.html").read_text()
        return next(line for line in explained.stdout.splitlines() if line.startswith("Culprit: "))

    return stage


def test_stopped_process(culprit_of):
    assert "process 2 (rank 1 of replica 0) has left no record" in culprit_of("stop", "1F1", "before", 2)


def test_stage_that_does_not_return(culprit_of):
    culprit = culprit_of("stall", "1F1", "in", 2)
    assert "rank 1 of replica 0 (process 2) has been running 1F1 of step 2 for" in culprit


def test_backward_that_does_not_return(culprit_of):
    culprit = culprit_of("stall", "2I1", "in", 4)
    assert "rank 2 of replica 0 (process 4) has been running 2I1 of step 2 for" in culprit


def test_process_that_does_not_make_its_step(culprit_of):
    culprit = culprit_of("stall", "0F1", "between", 0)
    assert "process 0 (rank 0 of replica 0) is between steps: its step 1 ended" in culprit


def test_replica_that_does_not_come_to_the_sum(culprit_of):
    culprit = culprit_of("stall", "1REDUCE_GRAD", "before", 2)
    assert "rank 1 of replica 0 (process 2) has been running 1REDUCE_GRAD of step 2 for" in culprit


def test_thread_that_does_not_return(culprit_of):
    culprit = culprit_of("stall", "0F1", "in", 0, processes=1, timeout_ms=300)
    assert "rank 0 of replica 0 has been running 0F1 of step 2 for" in culprit


@pytest.mark.skipif(not namespaces_work(), reason="network namespaces need root, iproute2 and their kernel part")
def test_cut_link(culprit_of):
    with Hosts(6, "h") as hosts:
        culprit = culprit_of("link", "1SEND_F1", "before", 2, hosts)
    assert re.search(r"connection (between .*process 2\b|to process 2)", culprit)
