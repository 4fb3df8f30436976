"""The benchmark on a CUDA device, where there is none. PIPEWRIGHT_DEVICE_BENCH names its program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

COMPARE = Path(__file__).resolve().parents[2] / "bench" / "compare_device.py"
PROGRAM = os.environ["PIPEWRIGHT_DEVICE_BENCH"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.mark.parametrize(
    "command, speaker", [([PROGRAM], "device_bench"), ([sys.executable, COMPARE, PROGRAM], "compare_device.py")]
)
def test_says_that_there_is_no_device(command, speaker):
    result = subprocess.run(command, input="loop small 1\n", capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == f"{speaker}: there is no CUDA device"
