// Several small calls that reduce by the same type and operation in one launch: one exchange by packets (LL16), as if
// their messages were contiguous. So all of them together take one round trip. For the library's own use.

#ifndef MSCCLPP_COLLECTIVE_GROUP_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_GROUP_DEVICE_HPP_

#include "mscclpp/collective_ll16_device.hpp"

namespace mscclpp {

enum GroupLimits : uint32_t {
  // The most messages of a group. Its call is a parameter of a kernel, of which there may be 4096 bytes.
  CollectiveMaxParts = 96,
  // The value of CollectivePart::to of a message whose result all ranks get.
  CollectiveToAll = ~0u,
};

// A message of the same size on all ranks: that of an all_reduce, or what a reduce_scatter or a reduce has for one rank.
struct CollectivePart {
  const uint8_t* send;
  // Not used on ranks that do not get the result.
  uint8_t* recv;
  // The number of bytes, and the number of words of 8 bytes in the messages before it, each of whose last word may be
  // shorter.
  uint32_t bytes;
  uint32_t before;
  // The rank that gets the result, or CollectiveToAll.
  uint32_t to;
  uint32_t reserved;
};

// One call. No part's result overlaps another part. In `call`, mostBytes is 8 for each word of the parts, and there are no
// segments.
struct CollectiveGroup {
  CollectiveCall call;
  CollectivePart parts[CollectiveMaxParts];
  uint64_t count;
};

static_assert(sizeof(CollectiveHandle) + sizeof(CollectiveGroup) <= 4096, "the parameters of a kernel");

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Word i of all messages together is moved by thread i modulo the threads of the call, on all ranks: as in exchangeLl16,
// so what holds there for the scratch and its epochs holds here.
template <class Words, bool OfTwo = false>
MSCCLPP_DEVICE_INLINE void reduceGroup(const CollectiveHandle& comm, const CollectiveGroup& group) {
  const CollectiveCall& call = group.call;
  CollectiveBlock b(comm, call, OfTwo);
  const uint32_t here = static_cast<uint32_t>(b.threadOfCall()), stride = static_cast<uint32_t>(b.threadsOfCall());
  const uint64_t slotBytes = call.mostBytes * 2;
  if (!b.begin()) return;
  const Ll16Packets packets(b.epoch);
  const uint64_t base = comm.ll16 + b.half(comm.ll16Bytes);
  // Calls `word(part, i, at)` for each word i of a part that is this thread's, the word `at` of all together, until one
  // returns false.
  const auto forWords = [&](auto word) {
    uint32_t at = here;
#pragma unroll 1
    for (uint32_t k = 0; k < group.count; ++k) {
      const CollectivePart& part = group.parts[k];
      const uint32_t end = part.before + (part.bytes + 7) / 8;
#pragma unroll 1
      for (; at < end; at += stride) {
        if (!word(part, at - part.before, at)) return false;
      }
    }
    return true;
  };
  forWords([&](const CollectivePart& part, uint32_t i, uint32_t at) {
    if (part.to == b.rank) return true;
    const uint64_t mine = sentWord<Words>(call, part.send, part.bytes, i);
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const uint32_t p = b.peer(n);
      if (part.to != CollectiveToAll && part.to != p) continue;
      packets.put(comm.scratch[p] + base + b.slotOf(b.rank, p) * slotBytes + static_cast<uint64_t>(at) * 16, mine);
    }
    return true;
  });
  b.countOthers();
  const uint8_t* const inbox = comm.scratch[b.rank] + base;
  const bool done = forWords([&](const CollectivePart& part, uint32_t i, uint32_t at) {
    if (part.to != CollectiveToAll && part.to != b.rank) return true;
    const uint64_t mine = sentWord<Words>(call, part.send, part.bytes, i);
    typename Words::Fold fold;
    for (uint32_t r = 0; r < b.ranks; ++r) {
      uint64_t word = mine;
      const uint8_t* const place = inbox + b.slotOf(r, b.rank) * slotBytes + static_cast<uint64_t>(at) * 16;
      if (r != b.rank && !packets.take(place, word, comm.status[r])) return false;
      fold.put(call, r, word);
    }
    storeMessageWord(part.recv, part.bytes, i, fold.result(call, b.ranks));
    return true;
  });
  b.end(!done);
}

// The kernel NAME of group calls, by a function of (handle, group).
#define MSCCLPP_GROUP_KERNEL(NAME, ...) MSCCLPP_KERNEL_OF(mscclpp::CollectiveGroup, NAME, __VA_ARGS__)

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_GROUP_DEVICE_HPP_
