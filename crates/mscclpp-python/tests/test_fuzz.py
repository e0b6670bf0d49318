"""No wrong argument ends the process, and errors are worded for Python programs."""

import os

import pytest

import ranks

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_arguments.py")


@pytest.mark.parametrize("seed", range(int(os.environ.get("FUZZ_SEEDS", "4"))))
def test_wrong_arguments_raise_and_crash_nothing(seed, tmp_path):
    run = ranks.python("-W", "ignore", PROGRAM, str(seed), "3000", cwd=tmp_path)
    assert run.returncode == 0, (run.returncode, run.stderr[-4000:])
    calls, raised = map(int, run.stdout.split())
    assert calls > 3000 and raised > calls / 2
    assert "panicked" not in run.stderr, run.stderr[-4000:]
