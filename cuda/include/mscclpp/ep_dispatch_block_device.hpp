// A block of a dispatch, and the places of rows and headers. For the library's own use.

#ifndef MSCCLPP_EP_DISPATCH_BLOCK_DEVICE_HPP_
#define MSCCLPP_EP_DISPATCH_BLOCK_DEVICE_HPP_

#include "mscclpp/copy_device.hpp"
#include "mscclpp/ep_call_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

constexpr uint32_t EpNoExpert = ~0u;

// Numbers of a block in shared memory: the tokens that it routes at once, and the headers of what has come.
struct EpRouting {
  // The expert of each choice or -1; its word of EpHandle::experts, or EpNoExpert; and the place of the token among those of this
  // rank for that expert.
  int32_t experts[EpChoicesAtOnce];
  uint32_t owners[EpChoicesAtOnce];
  uint32_t places[EpChoicesAtOnce];
  // The row of each token at each rank, or -1.
  int32_t rows[EpChoicesAtOnce];
  // The numbers of rows and of tokens of each rank, and its flags, as its header says.
  uint32_t heads[3][EpMaxRanks];
};

// A block of a dispatch. It sends (EpSender), and then receives (EpReceiver).
//
// `counts` are words in shared memory. While the block routes, they say for each expert, and behind them for each rank, how many
// tokens before its own go there. While it receives, they say for each rank and local expert where the rows of that rank begin
// among those of the expert; behind them for each expert how many rows it has, and where they begin.
struct EpDispatchBlock {
  const EpHandle& ep;
  const EpDispatch& call;
  const EpBlock b;
  EpRouting& routing;
  uint32_t* const counts;
  const Ll16Packets packets;
  const EpCounts* const tables;
  // Whether this rank's rows travel as packets.
  const bool packed;
  // The tokens of this block.
  const uint32_t first, end;

  MSCCLPP_DEVICE_INLINE EpDispatchBlock(const EpHandle& ep, const EpDispatch& call, EpRouting& routing, uint32_t* counts)
      : ep(ep),
        call(call),
        b(ep, call.microBatch, EpDispatching),
        routing(routing),
        counts(counts),
        packets(b.epoch),
        tables(reinterpret_cast<const EpCounts*>(call.tables)),
        packed(call.tokens <= ep.packetTokens),
        first(static_cast<uint32_t>(static_cast<uint64_t>(call.tokens) * b.block / b.blocks)),
        end(static_cast<uint32_t>(static_cast<uint64_t>(call.tokens) * (b.block + 1) / b.blocks)) {}

  // The header of this rank's rows at rank r has one packet for each word: the number of rows and of tokens, the flags, and
  // for each local expert how many of the rows are for it.
  MSCCLPP_DEVICE_INLINE uint8_t* header(uint32_t at, uint32_t from, uint32_t word) const {
    return b.place(at, ep.headers + (static_cast<uint64_t>(from) * (ep.mostLocal + 2) + word) * 16);
  }

  // Returns the place of the packets of a segment of row n of rank `from` in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* packetAt(uint32_t at, uint32_t from, uint64_t n, uint32_t segment) const {
    const uint64_t row = static_cast<uint64_t>(from) * ep.packetTokens + n;
    return b.place(at, ep.packets + (row * ep.rowWords + ep.segmentWord[segment]) * 16);
  }
  // Returns the place of a segment of row n of rank `from` in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* rowAt(uint32_t at, uint32_t from, uint64_t n, uint32_t segment) const {
    return b.place(at, ep.segments[segment] + (static_cast<uint64_t>(from) * ep.capacity + n) * ep.segmentStride[segment]);
  }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_DISPATCH_BLOCK_DEVICE_HPP_
