"""A service of one's own: kernels hand the host triggers, and a Python function says what they mean.

    MSCCLPP_PLATFORM=sim python custom_proxy.py

Here each thread of the kernel reports a number, and the function files them. It is called for one trigger after the other,
on a thread of the proxy, which takes some microseconds each time: right for what is asked for seldom. The function must not
wait for the kernel, nor for anything behind it on the default stream, while the kernel may wait for the function.
"""

import os

import mscclpp
from mscclpp import Proxy, ProxyHandlerResult, ProxyTrigger
from mscclpp.utils import KernelBuilder

HERE = os.path.dirname(os.path.abspath(__file__))


# ANCHOR: main
def main() -> None:
    reports: dict[int, int] = {}

    def handler(trigger: ProxyTrigger) -> ProxyHandlerResult:
        reports[trigger.fst] = trigger.snd
        return ProxyHandlerResult.Continue

    kernel = KernelBuilder("custom_proxy.cu", "report", HERE).get_compiled_kernel()
    with Proxy(handler) as proxy:
        kernel.launch_kernel((proxy, 3), 2, 4, 0, None)
        mscclpp.synchronize()
    # The kernel has waited until its triggers were handled.
    assert reports == {thread: 3 * thread for thread in range(8)}, reports
    print("reports of", len(reports), "threads:", *(reports[thread] for thread in sorted(reports)))
    # ANCHOR_END: main


if __name__ == "__main__":
    main()
