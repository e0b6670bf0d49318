"""The examples run without an error."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import ranks
from device import sim_only

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def test_the_mesh_runs_with_the_names_of_today():
    port = ranks.free_address().rpartition(":")[2]
    run = ranks.python("-W", "always", EXAMPLES / "mesh.py", "--ranks", "4", "--port", port)
    assert run.returncode == 0, run.stderr
    lines = sorted(run.stdout.splitlines())
    assert lines == [f"rank {rank}: has the parts of all 4 ranks" for rank in range(4)]
    assert run.stderr == ""


def torchrun(*program, **environment):
    pytest.importorskip("torch")
    port = ranks.free_address().rpartition(":")[2]
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    return ranks.python(*command, *program, **environment)


def test_the_mesh_runs_under_mpi():
    pytest.importorskip("mpi4py")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    mpiexec = shutil.which("mpiexec", path=path)
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    command = [mpiexec, "-n", "2", sys.executable, EXAMPLES / "mesh.py", "--mpi"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = [f"rank {rank}: has the parts of all 2 ranks" for rank in range(2)]
    # The ranks write at the same time, so the ends of two lines may change places.
    assert all(line in run.stdout for line in lines), run.stdout + run.stderr


def test_the_custom_proxy_runs():
    run = ranks.python(EXAMPLES / "custom_proxy.py")
    assert run.stdout == "reports of 8 threads: 0 3 6 9 12 15 18 21\n", run.stderr


@pytest.mark.parametrize("how", ["--env", "--torch"])
def test_the_mesh_runs_under_torchrun(how):
    run = torchrun(EXAMPLES / "mesh.py", how)
    lines = [f"rank {rank}: has the parts of all 2 ranks" for rank in range(2)]
    # torchrun has the ranks write without a buffer, so the ends of two lines may change places.
    assert all(line in run.stdout for line in lines), run.stdout + run.stderr


def test_the_ping_pong_runs():
    run = ranks.python(EXAMPLES / "ping_pong.py", ranks.free_address())
    lines = [f"rank {rank}: 10 rounds, each element is {value}" for rank, value in ((0, 9), (1, 10))]
    assert sorted(run.stdout.splitlines()) == lines, run.stderr


def test_the_all_reduce_runs():
    run = ranks.python(EXAMPLES / "all_reduce.py", ranks.free_address())
    lines = [f"rank {rank}: the sums are 3, and the largest number behind them 2" for rank in range(2)]
    assert sorted(run.stdout.splitlines()) == lines, run.stderr


SUMS = [f"rank {rank}: every sum is 3" for rank in range(2)]


def test_the_first_program_of_the_readme_runs():
    run = ranks.python(EXAMPLES / "two_ranks.py", ranks.free_address())
    assert sorted(run.stdout.splitlines()) == SUMS, run.stderr


def test_the_experts_run():
    run = ranks.python(EXAMPLES / "experts.py", ranks.free_address())
    came = ([4, 2], [2, 4])
    lines = [f"rank {rank}: {came[rank]} tokens came, the sums are [4.0, 12.0, 15.0]" for rank in range(2)]
    assert sorted(run.stdout.splitlines()) == lines, run.stderr


def test_the_all_reduce_of_torch_runs_under_torchrun():
    run = torchrun(EXAMPLES / "torch_ranks.py", MSCCLPP_TORCH_SIMULATED="1")
    # The ends of two lines may change places, as above.
    assert all(line in run.stdout for line in SUMS), run.stdout + run.stderr


def test_calls_that_differ_are_told_on_both_ranks():
    run = ranks.python(EXAMPLES / "wrong_calls.py", ranks.free_address())
    lines = sorted(run.stdout.splitlines())
    assert [line[:10] for line in lines] == ["on rank 0:", "on rank 1:"], run.stdout + run.stderr
    assert all("(Sum) of 1024 F32" in line and "(Max) of 1024 F32" in line for line in lines), lines


def test_the_all_reduce_of_two_nodes_runs():
    address = ranks.free_address()
    runs = []
    for rank in range(2):
        job = {"MSCCLPP_RANK": str(rank), "MSCCLPP_N_RANKS": "2", "MSCCLPP_ADDRESS": address}
        environment = {**os.environ, **job, "MSCCLPP_HOSTID": f"node {rank}"}
        command = [sys.executable, EXAMPLES / "from_env.py"]
        runs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    try:
        lines = [run.communicate(timeout=300)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert lines == [f"rank {rank} of 2 on GPU 0: every sum is 3\n" for rank in range(2)]


@sim_only
def test_the_first_program_of_nccl_runs():
    run = ranks.python(EXAMPLES / "nccl_ranks.py")
    assert sorted(run.stdout.splitlines()) == SUMS, run.stderr


@sim_only
def test_the_tokens_of_deep_ep_run_under_torchrun():
    run = torchrun(EXAMPLES / "deep_ep_ranks.py")
    lines = [f"rank {rank}: [2, 2] tokens for its experts, each sum is {3 * (1 + rank)}" for rank in range(2)]
    assert all(line in run.stdout for line in lines), run.stdout + run.stderr
