// A block of a dispatch, and the places of rows and headers. For the library's own use.

#ifndef MSCCLPP_EP_DISPATCH_BLOCK_DEVICE_HPP_
#define MSCCLPP_EP_DISPATCH_BLOCK_DEVICE_HPP_

#include "mscclpp/ep_packets_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace mscclpp {
namespace detail {

// How the rows of a dispatch travel.
enum class EpRows {
  // They are stored, and each block signals all that it has sent.
  AreStored,
  // The same, and warps share the tokens by a counter: X7.
  AreShared,
  // They travel as packets: X6.
  ArePackets,
  // They are stored, and each row is signalled by itself, so that rows are taken to their places while others come: X8. The
  // sender reads its own rows where they are given.
  AreSignalled
};

// A block of a dispatch. It sends (EpSender), and then receives (EpReceiver); of a whole call whose rows travel as packets, it
// does one of the two, and of one by row (X8), some blocks only receive.
//
// `counts` are words in shared memory. While the block routes, they say for each expert, and behind them for each rank, how many
// tokens before those that are routed go there; if it routes all tokens, they are the words of EpHandle::experts instead. Behind
// them is which of those go there (EpRouting::marks). While it receives, and if the layout is one by expert, they say for each
// rank and local expert where the rows of that rank begin among those of the expert; behind them for each expert how many rows it
// has, and where they begin.
template <class Known>
struct EpDispatchBlock {
  using Handle = typename Known::Handle;
  using Call = typename Known::Call;
  const Handle& ep;
  const Call& call;
  const EpBlock b;
  EpHeads& heads;
  uint32_t* const counts;
  const Ll16Packets packets;
  const EpCounts* const tables;

  MSCCLPP_DEVICE_INLINE EpDispatchBlock(const EpBlock& block, const Handle& ep, const Call& call, EpHeads& heads, uint32_t* counts)
      : ep(ep),
        call(call),
        b(block),
        heads(heads),
        counts(counts),
        packets(b.epoch),
        tables(reinterpret_cast<const EpCounts*>(call.tables)) {}

  // Returns i / topK, for i below 2^25.
  MSCCLPP_DEVICE_INLINE uint32_t tokenOf(uint32_t i) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(i) * ep.topKInverse >> 31);
  }
  // Returns the parts of a segment that a warp moves at once.
  MSCCLPP_DEVICE_INLINE uint32_t partsOf(uint32_t segment) const {
    return (ep.segmentBytes[segment] + EpPartBytes - 1) / EpPartBytes;
  }

  // The header of this rank's rows at rank r has one packet for each word: the number of rows and of tokens, the flags and
  // the payload, and for each local expert how many of the rows are for it.
  MSCCLPP_DEVICE_INLINE uint8_t* header(uint32_t at, uint32_t from, uint32_t word) const {
    return b.placeOfCall(at, ep.headers + (static_cast<uint64_t>(from) * (ep.mostLocal + 2) + word) * 16);
  }

  // Returns a number of the tensors that travel: ranks whose numbers differ do not understand each other.
  MSCCLPP_DEVICE_INLINE uint32_t payload() const {
    uint32_t number = ep.quantisation;
    for (uint32_t segment = 0; segment < ep.parts; ++segment) number = number * 0x9e3779b1u + ep.segmentBytes[segment];
    return number;
  }

  // Returns the place of the packets of what goes along with row n of rank `from`, in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* routeAt(uint32_t at, uint32_t from, uint64_t n) const {
    const uint64_t row = static_cast<uint64_t>(from) * ep.capacity + n;
    return b.placeOfCall(at, ep.routes + row * ((ep.segmentBytes[ep.parts] + 7) / 8 * 16));
  }
  // Returns the place of a segment of row n of rank `from` in the scratch of rank `at`.
  MSCCLPP_DEVICE_INLINE uint8_t* rowAt(uint32_t at, uint32_t from, uint64_t n, uint32_t segment) const {
    return b.place(at, ep.segments[segment] + (static_cast<uint64_t>(from) * ep.capacity + n) * ep.segmentStride[segment]);
  }
  // Returns the words of row n of rank `from` in the scratch of rank `at`: X8.
  MSCCLPP_DEVICE_INLINE uint64_t* rowWords(uint32_t at, uint32_t from, uint64_t n) const {
    return reinterpret_cast<uint64_t*>(b.place(at, ep.rowWords)) + (static_cast<uint64_t>(from) * ep.capacity + n) * EpRowWarps;
  }
  // Returns the place of a segment of the row as packets.
  MSCCLPP_DEVICE_INLINE uint8_t* packetsAt(uint32_t at, uint32_t from, uint64_t n, uint32_t segment) const {
    return b.placeOfCall(at, ep.packets[segment] + (static_cast<uint64_t>(from) * ep.capacity + n) * ep.packetStride[segment]);
  }
  // Whether a segment travels as LL16 packets, a word each, and not by EpRowPackets: the scales of rows that are quantised on
  // their way, which are too few for each thread of a warp to have some.
  MSCCLPP_DEVICE_INLINE bool isByWords(uint32_t segment) const { return segment == 1 && ep.quantisation != EpAsItIs; }
};

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_DISPATCH_BLOCK_DEVICE_HPP_
