"""Two jobs that were given the same address."""

import os
import time

import pytest
from mscclpp import CommGroup, Error, ErrorCode, TcpBootstrap

import ranks

#: The ids that tell the two jobs apart, in the environment and as an argument.
IDS = {
    "a variable": lambda job: ({"MSCCLPP_JOB_ID": f"job {job}"}, None, f"job {job}"),
    "an argument": lambda job: ({"MSCCLPP_JOB_ID": "the same"}, f"job {job}", f"job {job}"),
    "a launcher": lambda job: (
        {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(job)},
        None,
        f"Slurm job 7 step {job}",
    ),
    "nothing": lambda job: ({}, None, "without an id"),
}


def meet(how, address, rank, job):
    if how == "group":
        return CommGroup(interfaceIpPortTrio=address, rank=rank, size=2, job=job, timeout_sec=60).bootstrap
    bootstrap = TcpBootstrap.create(rank, 2)
    bootstrap.initialize(address, 60, job=job)
    return bootstrap


def of_two_jobs(index, n, address, how, ids, together):
    """Runs ranks 0 and 1 of the first job, and of the second. Returns their errors, or that they met."""
    job, rank = divmod(index, 2)
    variables, given, _ = IDS[ids](job)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI", "OMPI_", "TORCHELASTIC_", "JOB_"))]:
        del os.environ[name]
    os.environ.pop("MSCCLPP_JOB_ID", None)
    os.environ.update(variables)
    together.wait(60)
    try:
        bootstrap = meet(how, address, rank, given)
        if ids == "nothing":
            # This rank never comes: the job fails when the others do.
            bootstrap.recv(1 - rank, 0, timeout_sec=60)
        told = None
    except Error as error:
        told = str(error)
    # Ranks that met stay until all have their result.
    together.wait(60)
    if told is None:
        bootstrap.barrier(60)
    return told


@pytest.mark.parametrize("how", ["group", "bootstrap"])
@pytest.mark.parametrize("ids", ["a variable", "an argument", "a launcher"])
def test_jobs_with_ids_at_one_address_do_not_mix(how, ids):
    told = ranks.run(4, of_two_jobs, how, ids, ranks.SPAWN.Barrier(4))
    won = 0 if told[0] is None else 1
    lost = told[2:] if won == 0 else told[:2]
    assert told[2 * won : 2 * won + 2] == [None, None], told
    names = [IDS[ids](job)[2] for job in (won, 1 - won)]
    assert all(f"of another job ({names[0]}), and this rank of {names[1]}" in text for text in lost), told


@pytest.mark.parametrize("how", ["group", "bootstrap"])
def test_all_ranks_of_jobs_without_ids_at_one_address_are_told(how):
    told = ranks.run(4, of_two_jobs, how, "nothing", ranks.SPAWN.Barrier(4))
    assert all("two jobs share this address" in text or "another job uses this address" in text for text in told), told


def test_a_group_waits_as_long_as_it_is_told():
    start = time.monotonic()
    with pytest.raises(Error, match=r"timed out.*\b1\b") as caught:
        CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=2, timeout_sec=0.5)
    assert caught.value.code == ErrorCode.Timeout and time.monotonic() - start < 10
    with pytest.raises(ValueError, match="timeout_sec"):
        CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=1, timeout_sec=-1)


def test_an_id_goes_with_an_address():
    with pytest.raises(TypeError, match="'job' with 'interfaceIpPortTrio'"):
        CommGroup(rank=0, size=1, job="mine")
    with pytest.raises(TypeError, match="'job' with an address"):
        TcpBootstrap.create(0, 1).initialize(TcpBootstrap.create_unique_id(), job="mine")
    for job in ("", "x" * 513):
        with pytest.raises(Error, match="job's id has .* bytes; allowed: 1 to 512"):
            CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=1, job=job)
