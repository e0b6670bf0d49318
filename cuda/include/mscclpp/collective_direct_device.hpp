// Exchanges that move data by plain stores straight into the receive memory of the peers, where they have published it. Then
// nothing is copied out of the scratch. For the library's own use.
//
// A rank names to each peer the place for what it takes from this peer. The first block of its kernel stores four words at the
// peer: the number of the segment, the offset of the place in the segment, the size of the place, and then, with release, the
// number of the call. The peer reads the number of the call with acquire before it puts anything, and then looks the segment up
// in its table of what it has mapped itself (D7). If the number of the segment is 0, there is no place, and the message goes
// through a ring of the scratch, as by Simple. So the receiver decides for each pair of ranks. The other ranks need not know
// beforehand whether its memory is published or aligned, or whether it makes the call in place.
//
// A lane of these exchanges has the rings, signals and credits of Simple. So a rank may launch this kernel where a peer launches
// that of Simple: see D8. The results of an all_reduce go directly by the same rules: collective_results_device.hpp.
//
//   D1. Nobody writes into a rank's receive memory before its kernel for this call has begun, since only that kernel names the
//       place. The work before it in the stream is complete by then, and no longer reads or writes this memory.
//   D2. A rank names a place only if its kernel neither sends nor copies from any part of it. (The host compares the addresses.
//       Where a call in place takes data into memory that it sends from, the data goes through the ring.) There is one
//       exception: the place for a peer's results may be exactly the memory of the numbers that this rank sends to that peer
//       to be reduced to them (collective_results_device.hpp).
//   D3. The block that puts the chunks of a lane signals after the last one, by a store with release behind a barrier of the
//       block. The peer's block that takes this lane waits for the signal with acquire before it ends. So when the receiver's
//       kernel is complete, all data has arrived, and nobody writes into its memory any more.
//   D4. A rank names its places in one of two lines at the peer, chosen by the parity of the call's number. It writes the line
//       for call e after it has waited for what makes the scratch of call e - 2 free (E2, E3). By then the peer has ended call
//       e - 2 and no longer reads the line. In a call that is not `oneWay`, every rank waits for a signal of every other rank,
//       as E2 requires.
//   D5. A sender puts no more bytes than the place holds, even if ranks make calls that do not match. Launches keep the
//       published memory, on both sides.
//   D6. No waits form a circle. Every kernel names its places before it waits for anything except what the other ranks do at
//       the beginning of their kernels (E3). After that, a block in step k waits for what the peers' blocks do in earlier
//       steps, as for the chunks of R2. Bulk copies come before all steps, and wait for nobody.
//   D7. No address goes from rank to rank. Each rank has a table of the segments that it has mapped of its peers, by the numbers
//       that the peers have given them. A place must lie in the mapped memory whole, and begin at a multiple of 16. If a peer
//       names any other place, the rank that looks it up writes nothing there, gives up its call and reports the peer.
//   D8. A sender decides for each lane of a message, before its first chunk. If the lane goes directly, the sender stores the
//       call's number in the word behind that of the lane's signals, before the first signal. Then the receiver takes nothing
//       of the lane out of the ring. The sender writes that word again only after the receiver has named a place in a later
//       call, and so has ended this one. (The signal may be written earlier: a root may be one call ahead.)
//       A kernel of Simple or of lanes names no places and looks for none. So a sender waits for a peer to name its place only
//       if it has mapped a segment of this peer, because a peer that has published memory does not launch that kernel. It does
//       not wait long, because the peer may have launched that kernel before it published anything.
//   D9. A rank names a place only in a segment that all peers have mapped. Each peer writes its table before it reports that it
//       has mapped the segment. When all have reported, the rank's host writes the word `ready`. Kernels read `ready` and the
//       table by relaxed loads of 8 bytes, since the host may write them at the same time. The rank's kernel reads `ready`
//       before it stores the call's number with release; the peer's kernel reads the table after it has loaded that number
//       with acquire.

#ifndef MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_

#include "mscclpp/collective_simple_device.hpp"

namespace mscclpp {

// The most segments that a rank may have published at a time.
enum CollectiveReachLimits : uint32_t { CollectiveMaxSegments = 256 };

// A place in published memory: the number of the segment, counted from 1 on each rank, and the offset of the place in it.
// Segment 0 means that there is no place.
struct CollectivePlace {
  uint64_t segment;
  uint64_t offset;
};

// The segments that have the same number, one of each peer: where this rank has mapped it, and how many bytes it has.
struct CollectiveMappedSegments {
  uint8_t* at[CollectiveMaxRanks];
  uint64_t bytes[CollectiveMaxRanks];
};

// The table of the peers' segments that a rank has mapped, and the state of its own segments. It lies in the rank's own memory,
// and the host writes its words while kernels run (D9).
struct CollectiveReach {
  // The peers' segments with number s are at s - 1.
  CollectiveMappedSegments mapped[CollectiveMaxSegments];
  // The word of this rank's segment s is at s - 1: whether all peers have mapped the segment.
  uint64_t ready[CollectiveMaxSegments];
  // For each peer, whether this rank has mapped any of its segments.
  uint64_t expects[CollectiveMaxRanks];
};

// A call whose data may go directly. places[p] is the place of segments[p].recv in this rank's published memory.
struct CollectiveDirectCall {
  CollectiveCall call;
  CollectivePlace places[CollectiveMaxRanks];
  const CollectiveReach* reach;
};

// A bit of CollectiveHandle::mismatch: the rank whose number plus 1 is in the lower half has named a place that does not exist.
constexpr uint32_t CollectiveNoPlace = 1u << 31;

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Reads a word of CollectiveReach, which the host may write at the same time: see D9.
MSCCLPP_DEVICE_INLINE uint64_t loadHostWord(const uint64_t* word) {
  return detail::load<MemoryOrder::Relaxed, MemoryScope::System>(word);
}

// The most times that a thread looks whether a peer has named its place. They take about a millisecond.
#if defined(MSCCLPP_DEVICE_SIM)
enum DirectPolls : uint32_t { PollsForPlace = 256 };
#else
enum DirectPolls : uint32_t { PollsForPlace = 2048 };
#endif

// Waits for a short time, with acquire, until a word that a peer writes is at least `least`, and returns whether it is. An abort
// does not end this wait. Not inlined, because it is much code.
MSCCLPP_DEVICE_NOINLINE bool lookForWord(const uint64_t* word, uint64_t least) {
  const auto came = [=] { return detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) >= least; };
  return came() || pollUntil<4>(came, PollsForPlace, nullptr);
}

// The places of the messages that a block puts, and which messages come to it directly. This is in shared memory.
struct DirectTargets {
  // The place that each peer has named, and its size. Null if there is none: then the message goes through the ring.
  uint8_t* at[CollectiveMaxRanks];
  uint64_t bytes[CollectiveMaxRanks];
  // Whether each peer's message to this rank comes directly, in this block's lane.
  bool comes[CollectiveMaxRanks];
};

// Names this rank's places to its peers, and finds those that the peers have named. The four words of a place lie in the line for
// checks, behind the words of a check.
struct DirectPlaces {
  const CollectiveBlock& b;
  const CollectiveDirectCall& direct;
  DirectTargets& targets;
  // Each thread reads two words for the peer that has the thread's number: `ready` of the segment in which this rank's place for
  // the peer lies, and `expects`. It reads them when the kernel begins, at the same time as the number of the call. If the host
  // writes them later, this call goes by their old values.
  uint64_t ready = 0, expects = 0;

  MSCCLPP_DEVICE_INLINE DirectPlaces(const CollectiveBlock& b, const CollectiveDirectCall& direct, DirectTargets& targets)
      : b(b), direct(direct), targets(targets) {
    const uint32_t p = b.thread;
    if (p >= b.ranks || p == b.rank) return;
    const uint64_t segment = direct.places[p].segment;
    if (segment != 0) ready = loadHostWord(direct.reach->ready + segment - 1);
    expects = loadHostWord(direct.reach->expects + p);
  }

  // The words at rank `at` in which rank `of` names its place.
  MSCCLPP_DEVICE_INLINE uint64_t* words(uint32_t at, uint32_t of) const {
    const uint64_t line = 2 * of + (b.epoch & 1);
    return reinterpret_cast<uint64_t*>(b.comm.scratch[at] + b.comm.checks + line * CollectiveLine) + 4;
  }
  // Names this rank's places to the peers. All threads of a block call it.
  MSCCLPP_DEVICE_INLINE void nameOwn() const {
    const uint32_t p = b.thread;
    if (!isFirstBlock() || p >= b.ranks || p == b.rank || b.call.segments[p].recvBytes == 0) return;
    const uint64_t segment = ready != 0 ? direct.places[p].segment : 0;
    uint64_t* const theirs = words(p, b.rank);
    store8(theirs, segment);
    store8(theirs + 1, direct.places[p].offset);
    store8(theirs + 2, b.call.segments[p].recvBytes);
    detail::store<MemoryOrder::Release, MemoryScope::System>(theirs + 3, b.epoch);
  }
  // Whether this rank may have named a place to any peer.
  MSCCLPP_DEVICE_INLINE bool mayHaveNamed() const {
    bool any = false;
    for (uint32_t n = 1; n < b.ranks; ++n) any = any || direct.places[b.peer(n)].segment != 0;
    return any;
  }
  // Finds the place that peer p has named, if there is one, and notes it in `targets`. Thread p calls it before a barrier, behind
  // which all threads know the place. Returns false if the place does not exist, or the wait was aborted. `waits`: it waits
  // until the peer has named a place, or said that it has none.
  MSCCLPP_DEVICE_INLINE bool find(uint32_t p, bool waits) const {
    targets.at[p] = nullptr;
    targets.bytes[p] = 0;
    const uint64_t* const named = words(b.rank, p);
    if (waits) {
      if (!waitForWord(named + 3, b.epoch, b.comm.status[p])) return false;
    } else if (expects == 0 || !lookForWord(named + 3, b.epoch)) {
      return true;
    }
    const uint64_t segment = load8(named), offset = load8(named + 1), bytes = load8(named + 2);
    if (segment == 0) return true;
    if (segment <= CollectiveMaxSegments) {
      const CollectiveMappedSegments& mapped = direct.reach->mapped[segment - 1];
      uint8_t* const at = reinterpret_cast<uint8_t*>(loadHostWord(reinterpret_cast<const uint64_t*>(mapped.at + p)));
      const uint64_t size = loadHostWord(mapped.bytes + p);
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
  // Returns the place that peer p has named, or null, and how many bytes of it are behind `offset`.
  MSCCLPP_DEVICE_INLINE uint8_t* of(uint32_t p) const { return targets.at[p]; }
  MSCCLPP_DEVICE_INLINE uint64_t room(uint32_t p, uint64_t offset) const {
    const uint64_t bytes = targets.bytes[p];
    return bytes > offset ? bytes - offset : 0;
  }
  // Returns the copy of a chunk into the place of peer p.
  MSCCLPP_DEVICE_INLINE PartCopy part(uint32_t p, const uint8_t* from, uint64_t offset, uint32_t bytes) const {
    const uint64_t room = this->room(p, offset);
    return PartCopy{of(p) + offset, from + offset, room < bytes ? static_cast<uint32_t>(room) : bytes};
  }
};

// A lane of an exchange in which some messages go directly. Each thread waits for and signals the peer that has its own number.
template <bool OfTwo>
struct DirectLane {
  const CollectiveBlock& b;
  const DirectPlaces& places;
  const ChunkRole& role;
  const Chunks chunks;

  MSCCLPP_DEVICE_INLINE DirectLane(const CollectiveBlock& b, const DirectPlaces& places, const ChunkRole& role)
      : b(b), places(places), role(role), chunks(b, role.lane, role.lanes) {}

  // The word at rank `to` by which rank `from` tells it that this lane goes directly (D8).
  MSCCLPP_DEVICE_INLINE uint64_t* mode(uint32_t to, uint32_t from) const {
    return chunks.word(Chunks::First, to, from) + 1;
  }
  // The signals of a message that goes directly, and the waits for them. The signals have numbers: 0 at the beginning of the
  // message; k + 1 behind chunk k if steps are signalled (R1); at the end the number of chunks plus 1.
  MSCCLPP_DEVICE_INLINE void signal(uint32_t peer, uint32_t number) const { chunks.signal(Chunks::First, peer, number); }
  MSCCLPP_DEVICE_INLINE bool wait(uint32_t peer, uint32_t number) const { return chunks.wait(Chunks::First, peer, number); }
  MSCCLPP_DEVICE_INLINE bool sends(uint32_t r, uint32_t k) const { return chunks.has(b.call.segments[r].sendBytes, k); }
  MSCCLPP_DEVICE_INLINE bool takes(uint32_t r, uint32_t k) const { return chunks.has(b.call.segments[r].recvBytes, k); }

  // Copies `part(p)` for each peer p.
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
  // Waits for chunk k of peer r. At chunk 0 it learns whether the message `comes` directly. If it does, there is nothing to take,
  // and this waits for the peer's step k only with `steps`. One thread calls it.
  MSCCLPP_DEVICE_INLINE bool waitFor(uint32_t r, uint32_t k, bool steps, bool& comes) const {
    if (!comes) {
      if (!wait(r, k)) return false;
      comes = k == 0 && load8(mode(b.rank, r)) == b.epoch;
      if (comes) places.targets.comes[r] = true;
    }
    return !comes || !steps || wait(r, k + 1);
  }

  // Moves the lane's chunks, by all threads of the block, and returns false if a wait was aborted. `goes`: the peer that has this
  // thread's number has named a place.
  MSCCLPP_DEVICE_INLINE bool run(bool goes) const {
    const CollectiveCall& call = b.call;
    const uint32_t r = b.thread;
    const bool isPeer = r < b.ranks && r != b.rank;
    bool comes = false;
    // Whether steps show what the peer has taken (R1). In other calls credits do (R2).
    const bool steps = role.puts && role.takes && !call.oneWay;
    // Whether any message goes or comes through a ring. For messages that come, the first wait tells it.
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
      // Between two ranks, both know after the first step whether both messages go directly. If so, nobody waits for steps.
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
      // In place, this rank's block that puts must have read the memory that `take` overwrites.
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
  places.nameOwn();
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
  if (!failed && !blockAny(goes) && !(role.takes && places.mayHaveNamed())) {
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
    mscclpp::waitForEarlierLaunches();                                                                  \
    mscclpp::detail::exchangeDirectly<OF_TWO>(comm, call);                                              \
  }

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_DIRECT_DEVICE_HPP_
