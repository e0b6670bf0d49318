"""`deep_ep` over `mscclpp.ep`: the names that serving engines import. `mscclpp.ep.install_deep_ep()` puts it into place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import _deep_ep_low_latency as low_latency
from . import _deep_ep_normal as normal
from ._arguments import count
from ._deep_ep_config import Config, low_latency_bytes
from ._deep_ep_events import EventHandle, EventOverlap, call_in
from ._deep_ep_refusals import named, refuse_internode, refuse_unknown
from ._deep_ep_setup import Ranks

#: The type of the numbers of experts.
topk_idx_t = torch.int64

#: The most bytes that a program may name for a buffer.
_MOST_BYTES = (1 << 63) - 1

_Bias: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class Buffer:
    """Dispatch and combine of the ranks of a group, on one node, with the calls of DeepEP's `Buffer`.

    `group` is a group of torch.distributed, of any backend, or `comm` a communicator of mpi4py. All ranks make the
    buffer together, and the same calls in the same order. Sizes and numbers of queue pairs are accepted and not used:
    memory grows with the calls. Hidden sizes are multiples of 4; there may be any number of tokens, and up to 64
    choices a token.

    A call with `async_finish` goes into a stream of the buffer, after `previous_event` or else the current stream's
    work, and its event is the last value that is returned, or the last but one. Other calls go into the current stream.
    `allocate_on_comm_stream` changes nothing: both streams know all tensors of a call. On simulated devices tensors are
    those of the CPU, and a call is complete when it returns.

    With `enable_shrink`, low-latency calls go on without ranks that are lost: the first that dies, and each one for which
    a call has waited for 100 seconds. The log and the masks say so, and no call raises an error for it. The results of the
    call during which a rank was lost may be wrong. Later calls receive nothing from that rank, and ignore choices of its
    experts.
    """

    #: The number that `set_num_sms` has set, and that each `Config` of this class has.
    num_sms: int = 20
    #: The most blocks of a call, if `set_num_sms` was called. Else the kernels choose.
    _max_blocks: int | None = None

    def __init__(
        self,
        group: Any = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        use_fabric: bool = False,
        **unknown: Any,
    ) -> None:
        refuse_unknown("Buffer", unknown)
        if (group is None) == (comm is None):
            raise TypeError("Buffer() takes one of 'group', a group of torch.distributed, and 'comm', of mpi4py")
        self.group, self.low_latency_mode, self.explicitly_destroy = group, low_latency_mode, explicitly_destroy
        self.num_nvl_bytes = count("num_nvl_bytes", num_nvl_bytes, most=_MOST_BYTES)
        self.num_rdma_bytes = count("num_rdma_bytes", num_rdma_bytes, most=_MOST_BYTES)
        self._made: Ranks | None = Ranks(comm if group is None else group, type(self)._max_blocks, enable_shrink)
        self.rank, self.group_size = self._made.rank, self._made.size
        self._local: dict[bool, torch.Tensor] = {}

    @property
    def _ranks(self) -> Ranks:
        if self._made is None:
            raise RuntimeError("this Buffer has been destroyed; make another one, on all ranks")
        return self._made

    def destroy(self) -> None:
        """Give the memory back, when all ranks have called it, or after 100 seconds with an error. Later calls raise."""
        made, self._made = self._made, None
        self._local.clear()
        if made is not None:
            made.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether tokens of type float8_e4m3fn may travel: they may on all devices."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Limit the blocks of calls of buffers that are made later, alike on all ranks."""
        Buffer.num_sms = Buffer._max_blocks = count("new_num_sms", new_num_sms)

    @staticmethod
    def capture() -> EventOverlap:
        """Return an event of the current stream, as it is now."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Return a `Config` for dispatch, for any number of ranks."""
        count("num_ranks", num_ranks)
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Return a `Config` for combine, for any number of ranks."""
        return Buffer.get_dispatch_config(num_ranks)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Return roughly how many bytes low-latency calls take."""
        count("num_experts", num_experts)
        return low_latency_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks)

    def get_comm_stream(self) -> Any:
        """Return the stream of calls with `async_finish`. Simulated devices have a stream of the CPU, without effect."""
        return self._ranks.comm if self._ranks.comm is not None else torch.cpu.current_stream()

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> torch.Tensor:
        """Return memory of `num_rdma_bytes` or `num_nvl_bytes`, the same in each call, from element `offset` on, or as
        many elements as the shape `size` has. Calls do not use it, so clearing it has no effect.
        """
        ranks = self._ranks
        if use_rdma_buffer not in self._local:
            size_of_it = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            device = "cpu" if ranks.is_simulated else f"cuda:{ranks.device}"
            self._local[use_rdma_buffer] = torch.zeros(size_of_it, dtype=torch.uint8, device=device)
        memory = self._local[use_rdma_buffer]
        elements = memory[: memory.numel() // dtype.itemsize * dtype.itemsize].view(dtype)[offset:]
        return elements if size is None else elements[: torch.Size(size).numel()].view(size)

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **unknown: Any,
    ) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Return the numbers of tokens for each rank (int32 [R]), None, those for each expert (int32 [E]), which token
        goes to which rank (bool [T, R]), and the event.
        """
        refuse_unknown("get_dispatch_layout", unknown)
        with call_in(self._ranks.comm, previous_event, async_finish, [topk_idx]) as call:
            call.made = [*normal.layout(self._ranks, topk_idx, num_experts)]
        of_ranks, of_experts, of_tokens = call.made
        return of_ranks, None, of_experts, of_tokens, call.event

    def dispatch(
        self,
        x: normal.Rows,
        handle: normal.Handle | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **unknown: Any,
    ) -> tuple[normal.Rows, torch.Tensor | None, torch.Tensor | None, list[int] | None, normal.Handle, EventOverlap]:
        """Send each token once to every rank that has an expert of it. `x` is rows, or rows of type float8_e4m3fn and
        their scales, of 4 bytes each.

        Return the rows that came, by rank and then token; the local expert of each choice, -1 for those elsewhere; the
        weights, 0 for those; for each local expert the number of its rows, rounded up to `expert_alignment`; the handle
        and the event. With a `handle` of an earlier dispatch, other rows take the same way, and choices, weights and
        numbers are None.

        The host waits for the numbers of all ranks, unless there is `num_worst_tokens`: the number of ranks times the
        most tokens of a rank, alike on all ranks. Then as many rows are returned, with choices of -1 behind those that
        came, and no numbers.
        """
        refuse_unknown("dispatch", unknown)
        if num_tokens_per_rdma_rank is not None:
            refuse_internode("dispatch(num_tokens_per_rdma_rank=...)")
        rows = x if isinstance(x, tuple) else (x,)
        tensors = (*rows, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights)
        given = [each for each in tensors if each is not None]
        counts: list[int] | None
        with named(), call_in(self._ranks.comm, previous_event, async_finish, given) as call:
            if handle is not None:
                came = normal.dispatch_again(self._ranks, x, handle)
                ids = weights = counts = None
            else:
                came, ids, weights, counts, handle = normal.dispatch(
                    self._ranks,
                    x,
                    is_token_in_rank,
                    num_tokens_per_rank,
                    num_tokens_per_expert,
                    topk_idx,
                    topk_weights,
                    count("expert_alignment", expert_alignment) or 1,
                    count("num_worst_tokens", num_worst_tokens),
                )
            made = (*(came if isinstance(came, tuple) else (came,)), ids, weights)
            call.made = [each for each in made if each is not None]
        return came, ids, weights, counts, handle, call.event

    def combine(
        self,
        x: torch.Tensor,
        handle: normal.Handle,
        topk_weights: torch.Tensor | None = None,
        bias: _Bias | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **unknown: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Return the sum of each token's rows, in the order of the ranks, without weights; the sum of its weights, if
        there are any; and the event. `bias`, a row for each token, or two of them, is added last.
        """
        refuse_unknown("combine", unknown)
        biases = bias if isinstance(bias, tuple) else (bias,)
        given = [each for each in (x, topk_weights, *biases) if each is not None]
        with named(), call_in(self._ranks.comm, previous_event, async_finish, given) as call:
            combined, weights = normal.combine(self._ranks, x, handle, topk_weights, bias)
            call.made = [combined] if weights is None else [combined, weights]
        return combined, weights, call.event

    def internode_dispatch(self, *_arguments: Any, **_named: Any) -> Any:
        """Raise an error: mscclpp.ep works within one node."""
        refuse_internode("internode_dispatch")

    def internode_combine(self, *_arguments: Any, **_named: Any) -> Any:
        """Raise an error: mscclpp.ep works within one node."""
        refuse_internode("internode_combine")

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        **unknown: Any,
    ) -> tuple[Any, torch.Tensor, low_latency.Handle, EventOverlap, Callable[[], None]]:
        """Send tokens to their experts, without a wait of the host. L is the number of this rank's experts, and N the
        number of ranks times `num_max_dispatch_tokens_per_rank`, which all ranks give alike.

        Return rows [L, N, H], or with `use_fp8` rows of type float8_e4m3fn and their scales; the number of rows of each
        expert, int32 [L]; the handle, the event, and the hook. Scales are one for 128 numbers, column-major in the last
        two dimensions: float32 [L, N, H / 128], with `round_scale` powers of two, and with `use_ue8m0` their exponents,
        four in an int32, [L, N, H / 512]. Rows behind those that came are not written.

        With `return_recv_hook` the call only sends, and `hook()` receives, in the stream that is the current one then.
        `cumulative_local_expert_recv_stats`, int32 [L], gets the numbers of rows added, and
        `dispatch_wait_recv_cost_stats`, int64 [R], the nanoseconds of the waits for each rank.
        """
        refuse_unknown("low_latency_dispatch", unknown)
        _expect_one_end(async_finish, return_recv_hook)
        stats, waits = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        given = [each for each in (x, topk_idx, stats, waits) if each is not None]
        names = named(waits_into="dispatch_wait_recv_cost_stats")
        with names, call_in(self._ranks.comm, None, async_finish, given) as call:
            came, counts, handle, hook = low_latency.dispatch(
                self._ranks,
                x,
                topk_idx,
                count("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank),
                count("num_experts", num_experts),
                stats,
                waits,
                use_fp8,
                round_scale,
                use_ue8m0,
                return_recv_hook,
            )
            call.made = [*(came if isinstance(came, tuple) else (came,)), counts, handle.sources]
        return came, counts, handle, call.event, hook

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: low_latency.Handle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        **unknown: Any,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None]]:
        """Return the sum of each token's rows, multiplied by their weights, in `out` or a new tensor; the event; and the
        hook. Each rank adds its experts' rows and rounds their sum; then the ranks' sums are added.

        `x` [L, N, H] is read where it is. With `zero_copy` the rows are those of
        `get_next_low_latency_combine_buffer(handle)` instead. With `use_logfmt` rows travel as they are, too.
        """
        refuse_unknown("low_latency_combine", unknown)
        _expect_one_end(async_finish, return_recv_hook)
        waits = combine_wait_recv_cost_stats
        given = [each for each in (x, topk_idx, topk_weights, out, waits, handle.to_combine) if each is not None]
        names = named(waits_into="combine_wait_recv_cost_stats")
        with names, call_in(self._ranks.comm, None, async_finish, given) as call:
            combined, hook = low_latency.combine(
                self._ranks, x, topk_idx, topk_weights, handle, zero_copy, out, waits, return_recv_hook
            )
            call.made = [combined]
        return combined, call.event, hook

    def get_next_low_latency_combine_buffer(self, handle: low_latency.Handle) -> torch.Tensor:
        """Return memory for the rows [L, N, H] of a combine with `zero_copy`."""
        return low_latency.buffer_to_combine(handle)

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Do nothing: each mode has memory of its own, so calls of both modes may follow each other."""
        low_latency_bytes(num_max_dispatch_tokens_per_rank, hidden, count("num_experts", num_experts))

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """With `mask`, give a rank up: later low-latency calls go on without it. Bringing it back is an error.
        For buffers with `enable_shrink`.
        """
        if not 0 <= rank_to_mask < self.group_size or (mask and rank_to_mask == self.rank):
            raise ValueError(
                f"argument 'rank_to_mask': expected another one of the ranks 0 to {self.group_size - 1}, got {rank_to_mask}"
            )
        if mask and not self._ranks.survives_loss:
            raise ValueError("argument 'mask': a Buffer goes on without a rank if it is made with enable_shrink=True")
        if mask:
            self._ranks.lose([rank_to_mask])
        elif rank_to_mask in self._ranks.lost():
            self._ranks.expect_all(f"low_latency_update_mask_buffer({rank_to_mask}, False) brings no rank back")

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Store 1 for each rank that is lost, and 0 for the others. The host waits for the calls in the current stream."""
        if mask_status.shape != (self.group_size,):
            raise ValueError(
                f"argument 'mask_status': expected a number for each of {self.group_size} ranks, got "
                f"{tuple(mask_status.shape)}"
            )
        mask_status.zero_()
        for rank in self._ranks.lost():
            mask_status[rank] = 1

    def low_latency_clean_mask_buffer(self) -> None:
        """Do nothing if all ranks take part. Bringing lost ranks back is an error."""
        self._ranks.lost()
        self._ranks.expect_all("low_latency_clean_mask_buffer() brings no rank back")


def _expect_one_end(async_finish: bool, return_recv_hook: bool) -> None:
    if async_finish and return_recv_hook:
        raise ValueError(
            "arguments 'async_finish' and 'return_recv_hook': a call ends by an event or by a hook, not both"
        )


__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "topk_idx_t"]
