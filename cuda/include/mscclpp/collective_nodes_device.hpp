// The messages that ranks on different nodes send each other in a collective, through port channels. For the library's
// own use.
//
// Between two ranks there are channels, of which a launch uses one at most, and `lanes` lanes of each: a block has one
// lane. A lane has a ring of AcrossChunks places in the receiver's memory, and as many in the sender's, from which it
// puts. A channel carries the data of a launch in chunks, as many in one direction as in the other: where there are no
// more bytes, a chunk is a signal alone. Both sides know the larger of the two messages, so they count alike, over all
// launches, in device memory: graphs can be replayed. Chunk c is in place c modulo AcrossChunks of both rings.
//
//   H1. A block puts chunk j of a launch when it has taken chunk j - 1 - AcrossAhead, and takes chunk j - AcrossAhead behind
//       that. So if it has taken chunk t, the peer had put t, and before that had taken t - 1 - AcrossAhead. Chunk j is put
//       into the place of chunk j - 2 * (AcrossAhead + 1), which the peer has taken, and which has therefore left this side.
//   H2. The same holds between launches: a launch takes as many chunks as it puts, so when it ends, all but the last
//       AcrossAhead + 1 of its chunks are known to be taken, and the first that a later launch takes says that of all.
//   H3. When a launch is complete, nothing that was put before is on its way to this rank over its channels. So no credits
//       are needed that would come later than what they are for, and a rank that leaves owes nobody a signal.
//   H4. A signal of a port channel comes behind the data that was put before it, and its wait acquires; the barrier of the
//       block behind it passes that on.
//
// There are two kernels. In `moveAcross` each peer has blocks of its own, so that no rank waits for a peer that waits for
// another. In `reduceAcross` a block has a lane of all peers: it takes a chunk of each and reduces them in their order.
//
// The first chunk of a message between two ranks, which is one of lane 0, has the message's length in front of it, in
// the same place and the same put. The receiver compares it with its own. Whatever the two lengths are, both sides put
// that chunk before they wait.

#ifndef MSCCLPP_COLLECTIVE_NODES_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_NODES_DEVICE_HPP_

#include "mscclpp/collective_device.hpp"
#include "mscclpp/port_channel_device.hpp"

namespace mscclpp {

enum AcrossLimits : uint32_t {
  // The places of a ring, and the number of chunks that are put before the first is taken.
  AcrossChunks = 8,
  AcrossAhead = 3,
  // The most peers of a launch.
  AcrossTransfers = 64,
  // The bytes in front of the first chunk of a message: its length, and as many again, so that the chunk is aligned.
  AcrossHead = 16,
  // The channel number of a transfer that stays on this rank.
  AcrossNoChannel = 0xffffffffu,
};
static_assert(AcrossChunks >= 2 * (AcrossAhead + 1), "H1");

// The data that this rank sends over a channel, and the data that it takes.
struct AcrossTransfer {
  const uint8_t* send;
  uint8_t* recv;
  uint64_t sendBytes, recvBytes;
  // The numbers of the channel here, or AcrossNoChannel, of its ring here, and of its ring at the peer.
  uint32_t channel, ring, theirRing;
  // The bytes of a chunk, a multiple of 16, the same on both sides.
  uint32_t chunk;
};

// One launch. When reducing, the transfers are in the order in which they are combined, and each brings as many bytes
// as the own transfer takes, whose number is `own`. That transfer has no channel, and others need not have one: then
// the numbers are at `send`. The result goes to the `recv` of the own transfer.
struct CollectiveAcross {
  AcrossTransfer transfers[AcrossTransfers];
  // A PortChannelDeviceHandle for each lane of each channel, and the number of chunks of each so far, in this device's
  // memory.
  const void* channels;
  uint64_t* counts;
  // The memory with the rings, which the channels put from, and the beginning of the rings that peers put into and of
  // this rank's own.
  uint8_t* memory;
  uint64_t inbox, outbox;
  // The bytes of a place, at least those of a chunk, and of messages at least AcrossHead more.
  uint64_t place;
  // When reducing, the most bytes that any rank sends to another in this step.
  uint64_t most;
  uint32_t count, lanes, own;
  // ReduceType, ReduceOp; by what sums are divided if that is ReduceAvg, which it is not for f32 and f64: see ReduceOp::of_nodes.
  uint32_t type, op, divisor;
  // The factor of the data that this rank sends, and of its own part, as in CollectiveCall.
  uint64_t scale;
  uint32_t scaled;
  // Whether the transfers are messages between two ranks, whose lengths go with them.
  uint32_t messages;
  // CollectiveHandle::epochs of the ranks of this node.
  uint64_t* epochs;
  // Where this device says that a peer sent a message of another length than this rank takes: 0, or the channel plus 1,
  // n. Words 2n and 2n + 1 are the lengths that were sent and taken. Pinned host memory.
  uint64_t* found;
};

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// A lane of a channel, in a launch.
struct AcrossLane {
  const CollectiveAcross& call;
  const AcrossTransfer& transfer;
  uint32_t lane, thread, threads;

  MSCCLPP_DEVICE_INLINE uint64_t index() const { return static_cast<uint64_t>(transfer.channel) * call.lanes + lane; }
  MSCCLPP_DEVICE_INLINE const PortChannelDeviceHandle* channel() const {
    return static_cast<const PortChannelDeviceHandle*>(call.channels) + index();
  }
  MSCCLPP_DEVICE_INLINE uint64_t counted() const { return load8(call.counts + index()); }
  MSCCLPP_DEVICE_INLINE void count(uint64_t chunks) const { store8(call.counts + index(), chunks); }

  // The offset of the place of chunk c in ring `ring`, from the beginning of all rings of its side.
  MSCCLPP_DEVICE_INLINE uint64_t place(uint32_t ring, uint64_t c) const {
    return ((static_cast<uint64_t>(ring) * call.lanes + lane) * AcrossChunks + c % AcrossChunks) * call.place;
  }
  MSCCLPP_DEVICE_INLINE uint8_t* inPlace(uint64_t c) const { return call.memory + call.inbox + place(transfer.ring, c); }

  // The number of chunks of this lane in a message of so many bytes.
  MSCCLPP_DEVICE_INLINE uint64_t chunks(uint64_t bytes) const {
    const uint64_t all = (bytes + transfer.chunk - 1) / transfer.chunk;
    return all > lane ? (all - lane + call.lanes - 1) / call.lanes : 0;
  }
  // The beginning of the lane's chunk j in a message, and the bytes of the message in that chunk.
  MSCCLPP_DEVICE_INLINE uint64_t begin(uint64_t j) const { return (j * call.lanes + lane) * transfer.chunk; }
  MSCCLPP_DEVICE_INLINE uint32_t bytesOf(uint64_t message, uint64_t j) const {
    const uint64_t at = begin(j);
    if (at >= message) return 0;
    return static_cast<uint32_t>(message - at < transfer.chunk ? message - at : transfer.chunk);
  }

  // The bytes in front of chunk j.
  MSCCLPP_DEVICE_INLINE uint32_t head(uint64_t j) const {
    return call.messages && lane == 0 && j == 0 ? uint32_t{AcrossHead} : 0;
  }

  // Copies chunk j, the c-th, to the place it is put from, behind `head` bytes. All threads call it; a barrier must
  // follow.
  MSCCLPP_DEVICE_INLINE void load(uint64_t j, uint64_t c, uint32_t head = 0) const {
    const uint32_t bytes = bytesOf(transfer.sendBytes, j);
    if (bytes == 0) return;
    uint8_t* const to = call.memory + call.outbox + place(transfer.ring, c);
    if (head != 0 && thread == 0) store8(reinterpret_cast<uint64_t*>(to), transfer.sendBytes);
#if defined(MSCCLPP_DEVICE_SIM)
    if (!call.scaled) return putBytes(to + head, transfer.send + begin(j), bytes, thread, threads, AsItIs());
#endif
    const auto sent = [&](uint64_t word) { return call.scaled ? scaleAny(word, call.type, call.scale, call.scaled) : word; };
    putBytes(to + head, transfer.send + begin(j), bytes, thread, threads, sent);
  }
  // Sends the chunk, by one thread. Returns whether it could.
  MSCCLPP_DEVICE_INLINE bool put(uint64_t j, uint64_t c, uint32_t head = 0) const {
    const uint64_t bytes = bytesOf(transfer.sendBytes, j);
    if (bytes == 0) return channel()->signal();
    return channel()->putWithSignal(call.inbox + place(transfer.theirRing, c), call.outbox + place(transfer.ring, c),
                                    head + bytes);
  }
};

// Reports that a peer's message has another length than this rank takes, and ends all waits of the launch.
MSCCLPP_DEVICE_NOINLINE void lengthsDiffer(const CollectiveAcross& call, const AcrossTransfer& transfer, uint64_t sent) {
  const uint64_t number = uint64_t{transfer.channel} + 1;
  store8(call.found + 2 * number, sent);
  store8(call.found + 2 * number + 1, transfer.recvBytes);
  setGivenUp(call.epochs, CollectiveGaveUpAcross, 1);
  detail::store<MemoryOrder::Release, MemoryScope::System>(call.found, number);
  for (uint32_t t = 0; t < call.count; ++t) {
    for (uint32_t lane = 0; lane < call.lanes; ++lane) {
      const AcrossLane of{call, call.transfers[t], lane, 0, 0};
      uint32_t* const abort = of.channel()->semaphore_.status + StatusAbortRequested;
      detail::store<MemoryOrder::Relaxed, MemoryScope::System>(abort, 1u);
    }
  }
}

// Returns whether a thread of the block has failed, and reports it.
MSCCLPP_DEVICE_INLINE bool acrossEnds(const CollectiveAcross& call, bool failed) {
  if (failed) setGivenUp(call.epochs, CollectiveGaveUpAcross, 1);
  return blockAny(failed);
}

MSCCLPP_DEVICE_INLINE void moveAcross(const CollectiveAcross& call) {
  const uint32_t which = blockOfGrid() / call.lanes;
  if (which >= call.count) return;
  const AcrossTransfer& transfer = call.transfers[which];
  const AcrossLane lane{call, transfer, blockOfGrid() % call.lanes, threadOfBlock(), threadsOfBlock()};
  const uint64_t most = transfer.sendBytes > transfer.recvBytes ? transfer.sendBytes : transfer.recvBytes;
  const uint64_t chunks = lane.chunks(most), before = lane.counted();
  if (chunks == 0 || anyGaveUp(call.epochs)) return;
  for (uint64_t j = 0; j < chunks + AcrossAhead; ++j) {
    if (j < chunks) {
      const uint32_t head = lane.head(j);
      lane.load(j, before + j, head);
      blockSync();
      if (acrossEnds(call, lane.thread == 0 && !lane.put(j, before + j, head))) return;
    }
    if (j < AcrossAhead) continue;
    const uint64_t taken = j - AcrossAhead;
    if (acrossEnds(call, lane.thread == 0 && !lane.channel()->wait())) return;
    const uint32_t bytes = lane.bytesOf(transfer.recvBytes, taken), head = lane.head(taken);
    if (bytes > 0) {
      const uint8_t* const place = lane.inPlace(before + taken);
      const bool hasLength = head != 0 && lane.thread == 0;
      // The load is under way while the chunk is copied.
      const uint64_t sent = hasLength ? load8(reinterpret_cast<const uint64_t*>(place)) : transfer.recvBytes;
      takeBytes(transfer.recv + lane.begin(taken), place + head, bytes, lane.thread, lane.threads);
      if (sent != transfer.recvBytes) lengthsDiffer(call, transfer, sent);
    }
    // The reads of all threads are complete before a later chunk tells the peer so.
    blockSync();
  }
  if (lane.thread == 0) lane.count(before + chunks);
}

// Combines the words of all nodes in their order, with a type that the kernel knows, into sums that are not divided.
template <uint32_t Type>
struct SumAcross {
  // The vectors of a node that a thread has under way at once.
  static constexpr uint32_t Vectors = VectorsInFlight;
  static constexpr bool AddsFloats = Type == ReduceF32;
  WordFold<Number<Type>> fold;
  MSCCLPP_DEVICE_INLINE void put(const CollectiveAcross&, uint32_t n, uint64_t word) {
    if (n == 0) {
      fold.first(word);
    } else {
      fold.next(ReduceSum, word);
    }
  }
  MSCCLPP_DEVICE_INLINE uint64_t result(const CollectiveAcross&) const { return fold.result(); }
};

// Combines one number after the other, as the call says. `values` are the bits of the combined numbers so far. Not
// inlined, because it is much code.
MSCCLPP_DEVICE_NOINLINE void combineAnyAcross(uint64_t* values, bool isFirst, uint64_t word, uint32_t type, uint32_t op) {
  withNumber(type, [=](auto number) {
    using N = decltype(number);
    using Value = typename N::Value;
#pragma unroll 1
    for (uint32_t i = 0; i < 8 / N::Bytes; ++i) {
      Value value = N::widen(word >> 8 * N::Bytes * i);
      if (!isFirst) value = combineValues(op, bitsAs<Value>(static_cast<WordOf<Value>>(values[i])), value);
      values[i] = bitsAs<WordOf<Value>>(value);
    }
  });
}
MSCCLPP_DEVICE_NOINLINE uint64_t resultOfAnyAcross(const uint64_t* values, uint32_t type, uint32_t op, uint32_t divisor) {
  return withNumber(type, [=](auto number) {
    using N = decltype(number);
    using Value = typename N::Value;
    uint64_t result = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < 8 / N::Bytes; ++i) {
      Value value = bitsAs<Value>(static_cast<WordOf<Value>>(values[i]));
      if (op == ReduceAvg) value = N::average(value, divisor);
      result |= N::narrow(value) << 8 * N::Bytes * i;
    }
    return result;
  });
}
struct AnyAcross {
  static constexpr uint32_t Vectors = 1;
  static constexpr bool AddsFloats = false;
  // The numbers of a word, 8 at most.
  uint64_t values[8];
  MSCCLPP_DEVICE_INLINE void put(const CollectiveAcross& call, uint32_t n, uint64_t word) {
    combineAnyAcross(values, n == 0, word, call.type, call.op);
  }
  MSCCLPP_DEVICE_INLINE uint64_t result(const CollectiveAcross& call) const {
    return resultOfAnyAcross(values, call.type, call.op, call.divisor);
  }
};

// The memory that the threads of a block share: the last counts of all channels, and the address of each node's
// numbers. In local memory they would take more of each thread than a device sets aside, and the first launch would
// wait until it has more.
struct AcrossShared {
  uint64_t before[AcrossTransfers];
  const uint8_t* from[AcrossTransfers];
};
MSCCLPP_DEVICE_INLINE AcrossShared& acrossShared() {
#if defined(MSCCLPP_DEVICE_HIP)
  static __attribute__((shared)) AcrossShared memory;
#else
  __shared__ AcrossShared memory;
#endif
  return memory;
}

// A number that the compiler knows.
template <uint32_t N>
struct AcrossVectors {
  static constexpr uint32_t Value = N;
};

template <class Fold>
MSCCLPP_DEVICE_INLINE void reduceAcross(const CollectiveAcross& call) {
  const uint32_t laneOfGrid = blockOfGrid(), thread = threadOfBlock(), threads = threadsOfBlock();
  const AcrossTransfer& own = call.transfers[call.own];
  const auto laneOf = [&](uint32_t n) { return AcrossLane{call, call.transfers[n], laneOfGrid, thread, threads}; };
  const auto sent = [&](uint64_t word) { return call.scaled ? scaleAny(word, call.type, call.scale, call.scaled) : word; };
  const auto isPeer = [&](uint32_t n) { return call.transfers[n].channel != AcrossNoChannel; };
  // All nodes have the same number of chunks.
  const uint64_t chunks = laneOf(call.own).chunks(call.most);
  if (chunks == 0) return;
  uint64_t* const before = acrossShared().before;
  const uint8_t** const from = acrossShared().from;
  // Runs `use` in one thread for each node.
  const auto byThreads = [&](auto use) {
    for (uint32_t n = thread; n < call.count; n += threads) use(n);
  };
  // Runs `use` in one thread for each peer, and returns whether none failed.
  const auto ofPeers = [&](auto use) {
    bool failed = false;
    byThreads([&](uint32_t n) {
      if (isPeer(n) && !use(laneOf(n), before[n])) failed = true;
    });
    return !acrossEnds(call, failed);
  };
  byThreads([&](uint32_t n) { before[n] = isPeer(n) ? laneOf(n).counted() : 0; });
  // The barrier in it comes after all reads of counts, and the last barrier of the loop before they are written.
  if (anyGaveUp(call.epochs)) return;
  for (uint64_t j = 0; j < chunks + AcrossAhead; ++j) {
    if (j < chunks) {
      for (uint32_t n = 0; n < call.count; ++n) {
        if (isPeer(n)) laneOf(n).load(j, before[n] + j);
      }
      blockSync();
      if (!ofPeers([&](const AcrossLane& lane, uint64_t c) { return lane.put(j, c + j); })) return;
    }
    if (j < AcrossAhead) continue;
    const uint64_t taken = j - AcrossAhead;
    const AcrossLane here = laneOf(call.own);
    byThreads([&](uint32_t n) {
      from[n] = isPeer(n) ? laneOf(n).inPlace(before[n] + taken) : call.transfers[n].send + here.begin(taken);
    });
    if (!ofPeers([](const AcrossLane& lane, uint64_t) { return lane.channel()->wait(); })) return;
    const uint32_t bytes = here.bytesOf(own.recvBytes, taken);
    uint8_t* const to = own.recv + here.begin(taken);
    // Combines `count` vectors from the i-th on, `threads` apart: all vectors of a node are loaded before the next
    // node's.
    const auto vectors = [&](uint32_t i, auto count) {
      constexpr uint32_t Count = decltype(count)::Value;
      Fold low[Count], high[Count];
#pragma unroll 1
      for (uint32_t n = 0; n < call.count; ++n) {
        Bytes16 v[Count];
#pragma unroll
        for (uint32_t u = 0; u < Count; ++u) {
          // A place may be read to its end.
          v[u] = vectorOf(from[n], isPeer(n) ? bytes + 16 : bytes, i + u * threads);
          if (call.scaled && n == call.own) v[u] = Bytes16{sent(v[u].low), sent(v[u].high)};
        }
#pragma unroll
        for (uint32_t u = 0; u < Count; ++u) {
          low[u].put(call, n, v[u].low);
          high[u].put(call, n, v[u].high);
        }
      }
#pragma unroll
      for (uint32_t u = 0; u < Count; ++u) {
        storeVectorOf(to, bytes, i + u * threads, Bytes16{low[u].result(call), high[u].result(call)});
      }
    };
    uint32_t i = thread;
#if defined(MSCCLPP_DEVICE_SIM)
    if (Fold::AddsFloats && !call.scaled) {
      const Stretch stretch(bytes, thread, threads);
      const uint32_t at = stretch.begin * 16, floats = (stretch.end - stretch.begin) * 4;
      if (!mscclpp_sim::addFloats(to, from, call.count, at, floats)) {
        for (uint32_t v = stretch.begin; v < stretch.end; ++v) vectors(v, AcrossVectors<1>());
      }
      // Only the last vector is left, if it is not whole.
      i = bytes / 16 + thread;
    }
#endif
#pragma unroll 1
    for (; (i + (Fold::Vectors - 1) * threads) * 16 < bytes; i += Fold::Vectors * threads) {
      vectors(i, AcrossVectors<Fold::Vectors>());
    }
#pragma unroll 1
    for (; i * 16 < bytes; i += threads) vectors(i, AcrossVectors<1>());
    blockSync();
  }
  byThreads([&](uint32_t n) {
    if (isPeer(n)) laneOf(n).count(before[n] + chunks);
  });
}

}  // namespace detail

#define MSCCLPP_ACROSS_KERNEL(NAME, ...)                                                                       \
  extern "C" __global__ void __launch_bounds__(512)                                                            \
      NAME(const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveAcross call) {                                       \
    __VA_ARGS__(call);                                                                                         \
  }

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_NODES_DEVICE_HPP_
