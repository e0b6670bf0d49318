// Exchanges that move data by plain stores into the receive memory of the peers, where they have published it: nothing is
// copied out of the scratch. For the library's own use.
//
// A rank that takes something says where the place for it is: its kernel's first block stores the number of the segment,
// the offset of the place in it, its size, and behind these, with release, the number of the call. The peer reads that number
// with acquire before it puts anything, and looks the place up in what it has mapped itself (D7). Without a number of a
// segment there is no place: then the message goes through a ring of the scratch, as by Simple. So each pair of ranks
// decides by what the receiver says, and whether memory is published, aligned or in place on one rank need not be known to
// the others before.
//
// A lane of these exchanges has the places, signals and credits of Simple. So a rank may launch this kernel where a peer
// launches that of Simple: see D8. The results of an all_reduce go directly by the same rules: collective_results_device.hpp.
//
//   D1. Nobody writes into a rank's receive memory before its kernel for this call has begun: only that kernel says where
//       the place is. So what came before in its stream is complete, and has neither to be read nor written any more.
//   D2. A place is named only if no part of it is memory that this rank's kernel sends from, or copies from. (The host
//       compares the addresses. What of a call in place overlaps goes through the ring.) The place for a peer's results may
//       be, byte for byte, the memory of the numbers that this rank sends to be reduced to them: see there.
//   D3. The block that puts a lane's chunks signals behind the last one, with release behind a barrier of the block. The block
//       of the peer that takes the lane's waits for that, with acquire, before it ends. So when the receiver's kernel is
//       complete, all is there, and nobody writes into its memory any more.
//   D4. What a rank says lies in one of two lines, by the parity of the call's number. It is written for call e behind
//       what makes the scratch of e - 2 free (E2, E3), and so when the peer has ended e - 2 and does not read it any more.
//       In a call that is not `oneWay`, every rank waits for a signal of every other, as E2 wants it.
//   D5. A sender puts no more than the place holds, even if ranks make calls that do not match. Launches keep what is
//       published, on both sides.
//   D6. No wait is in a circle. Every kernel says its places before it waits for anything but what others do as they
//       begin (E3). After that, a block waits in step k for what peers' blocks do in steps before k, as for the chunks of R2.
//       What a copier copies comes in front of all steps, and waits for nobody.
//   D7. No address goes from rank to rank. Each rank has a table of what it has mapped of its peers, by the numbers that they
//       have given to their segments. Who says a place that does not lie in the table's memory whole, at a multiple of 16, is
//       not written to: the rank that finds it gives up its call and says so.
//   D8. A sender decides for each lane of a message, before its first chunk. If it goes directly, it stores the call's number
//       in the word behind that of the lane's signals, before the first signal; then the receiver takes nothing of the lane
//       out of the ring. That word is written again only when the receiver has said a place in a later call, and so when it
//       has ended this one. (The signal itself is not: a root may be a call ahead.) A kernel of Simple says no places, and
//       does not ask for any; so a sender waits for what a peer says only if it has mapped something of it, since such a
//       peer does not launch that kernel, and not for long, since it may have launched it before.
//   D9. A place is named when all peers have mapped the segment: the host says it in the word `ready` when each has said so,
//       and each has written its table before. Both are read by relaxed loads of 8 bytes, which the host may write meanwhile:
//       the place is said with release after `ready` is read, and the table is read after that is acquired.

#ifndef MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_

#include "mscclpp/collective_simple_device.hpp"

namespace mscclpp {

// The most segments that a rank may have published at a time.
enum CollectiveReachLimits : uint32_t { CollectiveMaxSegments = 256 };

// A place in published memory: the number of its rank's segment, counted from 1, and where in it the place begins. Number 0 is no
// place.
struct CollectivePlace {
  uint64_t segment;
  uint64_t offset;
};

// The segments of one number, of all ranks: where this rank has mapped that of each peer, and how many bytes it has.
struct CollectiveSegments {
  uint8_t* at[CollectiveMaxRanks];
  uint64_t bytes[CollectiveMaxRanks];
};

// What a rank reaches, and what others reach of it. In the rank's own memory; the host writes its words while kernels run (D9).
struct CollectiveReach {
  // By the number of the segment, less 1.
  CollectiveSegments mapped[CollectiveMaxSegments];
  // For each segment of this rank, whether all peers have mapped it.
  uint64_t ready[CollectiveMaxSegments];
  // For each peer, whether any of its segments is mapped.
  uint64_t expects[CollectiveMaxRanks];
};

// One call. For each rank from which this one takes something, where segments[p].recv of this one is.
struct CollectiveDirectCall {
  CollectiveCall call;
  CollectivePlace places[CollectiveMaxRanks];
  const CollectiveReach* reach;
};

// In CollectiveHandle::mismatch: that a rank, whose number plus 1 is in the lower half, has said a place that is none.
constexpr uint32_t CollectiveNoPlace = 1u << 31;

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Reads a word that the host writes: see D9.
MSCCLPP_DEVICE_INLINE uint64_t loadOfHost(const uint64_t* word) {
  return detail::load<MemoryOrder::Relaxed, MemoryScope::System>(word);
}

// How often a block looks for what a peer says, at most: about a millisecond.
#if defined(MSCCLPP_DEVICE_SIM)
enum DirectPolls : uint32_t { PollsForPlace = 256 };
#else
enum DirectPolls : uint32_t { PollsForPlace = 2048 };
#endif

// Looks, with acquire, whether a word that a peer writes is at least `least`, and returns whether it is. Nobody aborts this
// wait, which is short. Not inlined, because it is much code.
MSCCLPP_DEVICE_NOINLINE bool lookForWord(const uint64_t* word, uint64_t least) {
  const auto came = [=] { return detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) >= least; };
  return came() || pollUntil<4>(came, PollsForPlace, nullptr);
}

// Where a block puts what it sends, for each peer.
struct DirectTargets {
  // Null: into the ring.
  uint8_t* at[CollectiveMaxRanks];
  uint64_t bytes[CollectiveMaxRanks];
  // Whether the peer's messages to this rank, in this block's lane, come directly.
  bool comes[CollectiveMaxRanks];
};

// What ranks say of their places: four words of a rank's line for checks, behind those of a check.
struct DirectPlaces {
  const CollectiveBlock& b;
  const CollectiveDirectCall& direct;
  // Of the block, in shared memory.
  DirectTargets& targets;
  // Of the peer of the thread's number: whether this rank's place for it is ready, and whether it may say a place. Both are read
  // at the kernel's begin, together with the number of the call: the host's words change seldom, and only count in what is said.
  uint64_t ready = 0, expects = 0;

  MSCCLPP_DEVICE_INLINE DirectPlaces(const CollectiveBlock& b, const CollectiveDirectCall& direct, DirectTargets& targets)
      : b(b), direct(direct), targets(targets) {
    const uint32_t p = b.thread;
    if (p >= b.ranks || p == b.rank) return;
    const uint64_t segment = direct.places[p].segment;
    if (segment != 0) ready = loadOfHost(direct.reach->ready + segment - 1);
    expects = loadOfHost(direct.reach->expects + p);
  }

  MSCCLPP_DEVICE_INLINE uint64_t* words(uint32_t at, uint32_t of) const {
    const uint64_t line = 2 * of + (b.epoch & 1);
    return reinterpret_cast<uint64_t*>(b.comm.scratch[at] + b.comm.checks + line * CollectiveLine) + 4;
  }
  // Says where this rank's places are. All threads of a block call it.
  MSCCLPP_DEVICE_INLINE void say() const {
    const uint32_t p = b.thread;
    if (!isFirstBlock() || p >= b.ranks || p == b.rank || b.call.segments[p].recvBytes == 0) return;
    const uint64_t segment = ready != 0 ? direct.places[p].segment : 0;
    uint64_t* const theirs = words(p, b.rank);
    store8(theirs, segment);
    store8(theirs + 1, direct.places[p].offset);
    store8(theirs + 2, b.call.segments[p].recvBytes);
    detail::store<MemoryOrder::Release, MemoryScope::System>(theirs + 3, b.epoch);
  }
  // Whether this rank may have said a place to any peer.
  MSCCLPP_DEVICE_INLINE bool any() const {
    bool any = false;
    for (uint32_t n = 1; n < b.ranks; ++n) any = any || direct.places[b.peer(n)].segment != 0;
    return any;
  }
  // Finds the place that peer p has said, if it has said one, by thread p, in front of a barrier, behind which all threads
  // know it. Returns whether what it said can be. `waits`: until it has said something.
  MSCCLPP_DEVICE_INLINE bool find(uint32_t p, bool waits) const {
    targets.at[p] = nullptr;
    targets.bytes[p] = 0;
    const uint64_t* const said = words(b.rank, p);
    if (waits) {
      if (!waitForWord(said + 3, b.epoch, b.comm.status[p])) return false;
    } else if (expects == 0 || !lookForWord(said + 3, b.epoch)) {
      return true;
    }
    const uint64_t segment = load8(said), offset = load8(said + 1), bytes = load8(said + 2);
    if (segment == 0) return true;
    if (segment <= CollectiveMaxSegments) {
      const CollectiveSegments& mapped = direct.reach->mapped[segment - 1];
      uint8_t* const at = reinterpret_cast<uint8_t*>(loadOfHost(reinterpret_cast<const uint64_t*>(mapped.at + p)));
      const uint64_t size = loadOfHost(mapped.bytes + p);
      if (at != nullptr && offset <= size && bytes <= size - offset && isAligned<16>(at + offset)) {
        targets.at[p] = at + offset;
        targets.bytes[p] = bytes;
        return true;
      }
    }
    const uint32_t parity = static_cast<uint32_t>(b.epoch & 1) << 16;
    CollectiveStart::giveUp(b.comm, CollectiveNoPlace | parity | (p + 1));
    return false;
  }
  // The place of peer p, null if there is none, and how many bytes of it are behind `offset`.
  MSCCLPP_DEVICE_INLINE uint8_t* of(uint32_t p) const { return targets.at[p]; }
  MSCCLPP_DEVICE_INLINE uint64_t room(uint32_t p, uint64_t offset) const {
    const uint64_t bytes = targets.bytes[p];
    return bytes > offset ? bytes - offset : 0;
  }
  // A chunk's copy into the place of peer p.
  MSCCLPP_DEVICE_INLINE PartCopy part(uint32_t p, const uint8_t* from, uint64_t offset, uint32_t bytes) const {
    const uint64_t room = this->room(p, offset);
    return PartCopy{of(p) + offset, from + offset, room < bytes ? static_cast<uint32_t>(room) : bytes};
  }
};

// A lane of an exchange of which some messages go directly. Each thread has the part of one peer, that of its own number.
template <bool OfTwo>
struct DirectLane {
  const CollectiveBlock& b;
  const DirectPlaces& places;
  const ChunkRole& role;
  const Chunks chunks;

  MSCCLPP_DEVICE_INLINE DirectLane(const CollectiveBlock& b, const DirectPlaces& places, const ChunkRole& role)
      : b(b), places(places), role(role), chunks(b, role.lane, role.lanes) {}

  // The word that says whether the lane of `from` goes directly to rank `to`.
  MSCCLPP_DEVICE_INLINE uint64_t* mode(uint32_t to, uint32_t from) const {
    return chunks.word(Chunks::First, to, from) + 1;
  }
  // The signals of a message that goes directly, and the waits for them: number 0 when it begins, k + 1 behind chunk k if steps
  // are signalled (R1), and at the end 1 more than it has chunks.
  MSCCLPP_DEVICE_INLINE void signal(uint32_t peer, uint32_t number) const { chunks.signal(Chunks::First, peer, number); }
  MSCCLPP_DEVICE_INLINE bool wait(uint32_t peer, uint32_t number) const { return chunks.wait(Chunks::First, peer, number); }
  MSCCLPP_DEVICE_INLINE bool sends(uint32_t r, uint32_t k) const { return chunks.has(b.call.segments[r].sendBytes, k); }
  MSCCLPP_DEVICE_INLINE bool takes(uint32_t r, uint32_t k) const { return chunks.has(b.call.segments[r].recvBytes, k); }

  // Copies the parts of all peers.
  template <class Part>
  MSCCLPP_DEVICE_INLINE void copy(Part part) const {
    if constexpr (OfTwo) {
      const PartCopy it = part(1 - b.rank);
      if (it.bytes > 0) copyBytes(it.to, it.from, it.bytes, b.thread, b.threads);
    } else {
      copyForPeers<false>(b, part);
    }
  }
  // Puts chunk k to each peer that has one.
  MSCCLPP_DEVICE_INLINE void put(uint32_t k) const {
    copy([&](uint32_t p) {
      const CollectiveSegment ours = b.call.segments[p];
      if (!chunks.has(ours.sendBytes, k)) return PartCopy{};
      const uint64_t at = chunks.offset(k);
      const uint32_t bytes = chunks.length(ours.sendBytes, k);
      if (places.of(p) != nullptr) return places.part(p, ours.send, at, bytes);
      return PartCopy{chunks.place(Chunks::First, p, b.rank, k), ours.send + at, bytes};
    });
  }
  // Takes chunk k of each peer that sends one through its ring.
  MSCCLPP_DEVICE_INLINE void take(uint32_t k) const {
    copy([&](uint32_t p) {
      const CollectiveSegment theirs = b.call.segments[p];
      if (!chunks.has(theirs.recvBytes, k) || places.targets.comes[p]) return PartCopy{};
      return PartCopy{theirs.recv + chunks.offset(k), chunks.place(Chunks::First, b.rank, p, k),
                      chunks.length(theirs.recvBytes, k)};
    });
  }
  // Waits for chunk k of peer r, and at first learns whether its message `comes` directly. With `steps`, also for the
  // peer's step k if there is nothing to take. One thread calls it.
  MSCCLPP_DEVICE_INLINE bool waitFor(uint32_t r, uint32_t k, bool steps, bool& comes) const {
    if (!comes) {
      if (!wait(r, k)) return false;
      comes = k == 0 && load8(mode(b.rank, r)) == b.epoch;
      if (comes) places.targets.comes[r] = true;
    }
    return !comes || !steps || wait(r, k + 1);
  }

  // Does the block's part. `goes`: this thread's peer has a place.
  MSCCLPP_DEVICE_INLINE bool run(bool goes) const {
    const CollectiveCall& call = b.call;
    const uint32_t r = b.thread;
    const bool isPeer = r < b.ranks && r != b.rank;
    bool comes = false;
    // R1: then a step says what the peer has taken. In other calls credits do.
    const bool steps = role.puts && role.takes && !call.oneWay;
    // Whether any message goes through a ring; of what comes that is known after the first wait.
    const bool puts = role.puts && blockAny(isPeer && !goes && sends(r, 0));
    bool takesAny = role.takes;
    if (goes) {
      store8(mode(r, b.rank), b.epoch);
      signal(r, 0);
    }

    const CollectiveSegment own = call.segments[b.rank];
    const uint64_t copies = !role.takes || own.send == own.recv ? 0 : own.recvBytes;
    uint64_t mostBytes = copies;
    for (uint32_t n = 1; n < b.ranks; ++n) {
      const CollectiveSegment it = call.segments[b.peer(n)];
      if (it.sendBytes > mostBytes) mostBytes = it.sendBytes;
      if (it.recvBytes > mostBytes) mostBytes = it.recvBytes;
    }
    const uint32_t most = chunks.count(mostBytes), behind = role.puts ? 1 : 0;
    const auto copyOwn = [&](uint32_t k) {
      if (!chunks.has(copies, k)) return;
      const uint64_t at = chunks.offset(k);
      const PartCopy it{own.recv + at, own.send + at, chunks.length(own.recvBytes, k)};
      if constexpr (OfTwo) {
        copyBytes(it.to, it.from, it.bytes, b.thread, b.threads);
      } else {
        copyByWarps(it);
      }
    };
    // Between two ranks, half of the blocks begin with a copy and stay one ahead, so that some blocks put while others
    // copy, and the link is never idle.
    const uint32_t ahead = OfTwo ? b.block % 2 : 0;
    if (ahead != 0) copyOwn(0);
    bool failed = false;
    for (uint32_t k = 0; k < most + behind && !failed; ++k) {
      // Between two ranks both know after the first step whether both messages go directly. Then nobody asks for steps.
      const bool signals = puts || call.inPlace || (steps && (!OfTwo || takesAny));
      if (role.puts && k < most) {
        if (puts && !steps && k >= CollectiveChunks) {
          const auto due = [&](uint32_t p) { return places.of(p) == nullptr && sends(p, k); };
          failed = !chunks.waitForAll(Chunks::Credits, k - CollectiveChunks, due);
          if (failed) break;
        }
        put(k);
        if (signals) {
          blockSync();
          if (isPeer && !goes && sends(r, k)) chunks.signal(Chunks::First, r, k);
          if (isPeer && goes && steps && sends(r, k)) signal(r, k + 1);
          if (r == b.rank && call.inPlace) chunks.signal(Chunks::First, r, k);
        }
      }
      if (!role.takes) continue;
      copyOwn(k + ahead);
      if (k < behind || !(takesAny || (steps && (!OfTwo || puts)))) continue;
      const uint32_t j = k - behind;
      bool came = true;
      if (isPeer && takes(r, j)) came = waitFor(r, j, steps, comes);
      // The own block that puts has read what is overwritten here.
      if (r == b.rank && call.inPlace && !role.puts) came = chunks.wait(Chunks::First, r, j);
      failed = blockAny(!came);
      if (failed) break;
      if (j == 0) takesAny = blockAny(isPeer && takes(r, 0) && !comes);
      take(j);
      if (takesAny && !steps) {
        chunks.signalAll(Chunks::Credits, j, [&](uint32_t p) { return takes(p, j) && !places.targets.comes[p]; });
      }
    }
    if (failed) return false;
    // D3.
    if (role.puts) {
      blockSync();
      if (goes) signal(r, chunks.count(call.segments[r].sendBytes) + 1);
    }
    return !blockAny(comes && !wait(r, chunks.count(call.segments[r].recvBytes) + 1));
  }
};

// Blocks have at least as many threads as there are ranks.
template <bool OfTwo>
MSCCLPP_DEVICE_INLINE void exchangeDirectly(const CollectiveHandle& comm, const CollectiveDirectCall& direct) {
  CollectiveBlock b(comm, direct.call, OfTwo);
#if defined(MSCCLPP_DEVICE_HIP)
  static __attribute__((shared)) DirectTargets targets;
#else
  __shared__ DirectTargets targets;
#endif
  const DirectPlaces places(b, direct, targets);
  if (!b.begin()) return;
  places.say();
  b.countOthers();
  ChunkRole role(b);
  if constexpr (OfTwo) {
    // Each block is a lane.
    role.lane = b.block;
    role.lanes = b.blocks;
    role.puts = role.takes = true;
  }
  const DirectLane<OfTwo> lane(b, places, role);
  const uint32_t r = b.thread;
  bool failed = false, goes = false;
  if (r < b.ranks && r != b.rank) {
    targets.at[r] = nullptr;
    targets.comes[r] = false;
    if (role.puts && lane.sends(r, 0)) failed = !places.find(r, false);
    goes = targets.at[r] != nullptr;
  }
  failed = blockAny(failed);
  if (!failed && !blockAny(goes) && !(role.takes && places.any())) {
    chunksSimple<MoveWords, OfTwo>(b);
    return;
  }
  b.end(failed || !lane.run(goes));
}

// The kernel NAME of direct calls.
#define MSCCLPP_DIRECT_KERNEL(NAME, OF_TWO)                                                              \
  extern "C" __global__ void __launch_bounds__(1024)                                                    \
      NAME(const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveHandle comm,                                  \
           const MSCCLPP_GRID_CONSTANT mscclpp::CollectiveDirectCall call) {                            \
    mscclpp::detail::exchangeDirectly<OF_TWO>(comm, call);                                              \
  }

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_
