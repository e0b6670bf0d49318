"""A test of PyTorch's suite for backends of torch.distributed, which its wheel has: torch.testing._internal.distributed.

    run_torch.py list    prints the names of the tests
    run_torch.py TEST    runs one

BACKEND and WORLD_SIZE name the backend and the number of processes, and TEMP_DIR a folder. The processes of the test import
this file.
"""

import os
import sys
import unittest

os.environ.setdefault("TEMP_DIR", "/tmp")
if os.environ["BACKEND"] == "mscclpp":
    import mscclpp.torch  # noqa: F401
    from torch.testing._internal import common_distributed

    # A test without the backend in the list of the feature that it needs is skipped.
    for backends in common_distributed.DistTestCases.backend_feature.values():
        if "nccl" in backends:
            backends.add("mscclpp")

from cases import FAILED, PASSED, SKIPPED, report  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TestOfBackend(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


def main(name: str) -> int:
    if name == "list":
        print("\n".join(unittest.TestLoader().getTestCaseNames(TestOfBackend)))
        return 0
    result = unittest.TextTestRunner(stream=sys.stdout).run(TestOfBackend(name))
    if result.wasSuccessful():
        skipped = [why for _, why in result.skipped]
        report(name, SKIPPED if skipped else PASSED, *skipped)
        return 0
    lines = (result.failures + result.errors or [(None, "it passed against expectation")])[0][1].strip().splitlines()
    reasons = [line.strip() for line in lines if "Error: " in line or "Exception: " in line]
    report(name, FAILED, (reasons or lines)[-1])
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
