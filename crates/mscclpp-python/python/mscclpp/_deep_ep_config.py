"""`Config` of `deep_ep`, and the sizes of memory that programs ask for before they make a `Buffer`."""

from __future__ import annotations

from ._arguments import count


class Config:
    """The numbers by which programs tune DeepEP. The kernels here choose their own: the numbers are kept, and have no
    effect beyond the size hints.
    """

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        self.num_sms = count("num_sms", num_sms)
        self.num_max_nvl_chunked_send_tokens = count("num_max_nvl_chunked_send_tokens", num_max_nvl_chunked_send_tokens)
        self.num_max_nvl_chunked_recv_tokens = count("num_max_nvl_chunked_recv_tokens", num_max_nvl_chunked_recv_tokens)
        self.num_max_rdma_chunked_send_tokens = count(
            "num_max_rdma_chunked_send_tokens", num_max_rdma_chunked_send_tokens
        )
        self.num_max_rdma_chunked_recv_tokens = count(
            "num_max_rdma_chunked_recv_tokens", num_max_rdma_chunked_recv_tokens
        )

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """A size for `num_nvl_bytes`, in bytes. The memory of a `Buffer` grows with its calls, whatever this size is."""
        rows = count("num_ranks", num_ranks) * self.num_max_nvl_chunked_recv_tokens
        return rows * count("hidden_bytes", hidden_bytes)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """A size for `num_rdma_bytes`: 0, since all ranks are on one node."""
        count("hidden_bytes", hidden_bytes), count("num_ranks", num_ranks)
        return 0


def low_latency_bytes(tokens: int, hidden: int, ranks: int) -> int:
    """The approximate memory of low-latency calls, in bytes: two dispatches and two combines at the same time.

    Rows of up to 128 tokens of a rank travel as packets, which take more.
    """
    most = count("num_max_dispatch_tokens_per_rank", tokens)
    rows = (13 if most <= 128 else 4) * count("num_ranks", ranks) * most
    return rows * 2 * count("hidden", hidden)
