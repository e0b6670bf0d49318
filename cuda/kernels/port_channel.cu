// Tests of port channels: single calls; puts and signals of all sizes in the order of their threads' turns, with which
// the peer checks that no signal comes before its data; and sources that are written again right after a flush.

// Puts by bulk copies need it:
// build: compute_90

#include "mscclpp/port_channel_device.hpp"

using mscclpp::PortChannelDeviceHandle;

// The values that port_call leaves in `result`: 0 would mean that it has not run to the end.
enum Outcome : unsigned int { Done = 1, NotDone = 2 };

// The call that port_call makes.
enum Call : int { Put, Signal, PutWithSignal, PutWithSignalAndFlush, Flush, Wait, Poll };

__device__ static bool make(const PortChannelDeviceHandle& ch, int call, uint64_t dstOffset, uint64_t srcOffset,
                            uint64_t bytes, int64_t maxSpin) {
  switch (call) {
    case Put: return ch.put(dstOffset, srcOffset, bytes);
    case Signal: return ch.signal();
    case PutWithSignal: return ch.putWithSignal(dstOffset, srcOffset, bytes);
    case PutWithSignalAndFlush: return ch.putWithSignalAndFlush(dstOffset, srcOffset, bytes, maxSpin);
    case Flush: return ch.flush(maxSpin);
    case Wait: return ch.wait(maxSpin);
    default: return ch.poll();
  }
}

// One call, by one thread.
extern "C" __global__ void port_call(PortChannelDeviceHandle ch, int call, uint64_t dstOffset, uint64_t srcOffset,
                                     uint64_t bytes, int64_t maxSpin, unsigned int* result) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  *result = make(ch, call, dstOffset, srcOffset, bytes, maxSpin) ? Done : NotDone;
}

// The word at `index` in that round: different rounds or seeds have no pattern in common (splitmix64's finalizer).
__device__ static uint64_t wordOf(uint64_t seed, uint64_t round, uint64_t index) {
  uint64_t x = seed + (round << 32) + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The numbers that both sides of port_turns need: `pieces` puts a round, each of its own part of the memories, of words
// of 8 bytes. About half of them have at most `smallWords` words; the others have at most `largeWords`, and all orders of
// magnitude below that are as frequent.
struct Turns {
  uint64_t seed;
  uint32_t rounds;
  uint32_t pieces;
  uint64_t smallWords;
  uint64_t largeWords;
};

struct Piece {
  uint64_t first;
  uint64_t words;
  bool fused;
};

__device__ static Piece pieceOf(const Turns& turns, uint32_t round, uint32_t piece) {
  const uint64_t random = wordOf(~turns.seed, round, piece);
  const uint64_t large = turns.largeWords >> (random >> 2) % 16;
  const uint64_t most = random & 1 ? turns.smallWords : large != 0 ? large : 1;
  return Piece{piece * turns.largeWords, 1 + (random >> 8) % most, (random & 2) != 0};
}

// The block's wait: thread 0 waits, and all threads get the outcome.
__device__ static bool waitInBlock(const PortChannelDeviceHandle& ch) {
  __shared__ int signalled;
  if (threadIdx.x == 0) signalled = ch.wait();
  __syncthreads();
  const bool result = signalled != 0;
  __syncthreads();
  return result;
}

// A port channel whose signals do not wait for their turn.
struct Overtaking : PortChannelDeviceHandle {
  __device__ bool signalAtOnce() const {
    if (directToken_ == nullptr) return signal();
    signalDirectly();
    return true;
  }
};

// Puts a piece and signals.
__device__ static bool send(const PortChannelDeviceHandle& ch, const Piece& piece, int weakened) {
  const uint64_t offset = piece.first * 8, bytes = piece.words * 8;
  if (weakened) return ch.put(offset, bytes) && Overtaking{ch}.signalAtOnce();
  return piece.fused ? ch.putWithSignal(offset, bytes) : ch.put(offset, bytes) && ch.signal();
}

// The sender, one block. In each round it writes fresh words to `source`, the channel's own memory; then its threads
// take turns, a barrier between one and the next, at putting a piece and signalling, by one call or two. It waits for
// the peer's answer, in every other round after a flush. On an abort it stops and leaves the round in `failed` as round
// + 1.
extern "C" __global__ void __launch_bounds__(1024, 1)
    port_turns_send(PortChannelDeviceHandle ch, uint64_t* source, Turns turns, int weakened, unsigned int* failed) {
  for (uint32_t round = 0; round < turns.rounds; ++round) {
    for (uint32_t i = 0; i < turns.pieces; ++i) {
      const Piece piece = pieceOf(turns, round, i);
      for (uint64_t word = threadIdx.x; word < piece.words; word += blockDim.x) {
        source[piece.first + word] = wordOf(turns.seed, round, piece.first + word);
      }
    }
    bool done = true;
    for (uint32_t i = 0; i < turns.pieces; ++i) {
      __syncthreads();
      if (threadIdx.x != i % blockDim.x) continue;
      done = send(ch, pieceOf(turns, round, i), weakened) && done;
    }
    if (threadIdx.x == 0 && round % 2 == 1) done = ch.flush() && done;
    if (__syncthreads_or(!done) || !waitInBlock(ch)) {
      if (threadIdx.x == 0) *failed = round + 1;
      return;
    }
  }
}

// The receiver, one block. After each signal it compares the piece that comes with it, and adds to `mismatches` how many
// words are wrong. `arrivals` is the memory that the peer puts into.
extern "C" __global__ void __launch_bounds__(1024, 1)
    port_turns_check(PortChannelDeviceHandle ch, const uint64_t* arrivals, Turns turns, unsigned long long* mismatches,
                     unsigned int* failed) {
  for (uint32_t round = 0; round < turns.rounds; ++round) {
    for (uint32_t i = 0; i < turns.pieces; ++i) {
      if (!waitInBlock(ch)) {
        if (threadIdx.x == 0) *failed = round + 1;
        return;
      }
      const Piece piece = pieceOf(turns, round, i);
      unsigned long long wrong = 0;
      for (uint64_t word = threadIdx.x; word < piece.words; word += blockDim.x) {
        wrong += arrivals[piece.first + word] != wordOf(turns.seed, round, piece.first + word);
      }
      if (wrong != 0) atomicAdd(mismatches, wrong);
    }
    __syncthreads();
    if (threadIdx.x == 0 && !ch.signal()) *failed = round + 1;
  }
}

// Every thread of the grid, `rounds` times: writes `words` fresh words to its own part of `source`, the channel's own
// memory, puts them to a part of the peer's memory that nobody else writes, waits for the flush, and overwrites the
// source. If a flush returned too early the peer's memory has other words than wordOf(seed, round, index there).
// Threads differ in how they flush, by their lowest bit. With `channels` more than one, thread t uses number t modulo
// that.
extern "C" __global__ void __launch_bounds__(1024, 1)
    port_flush_overwrite(const PortChannelDeviceHandle* chs, uint32_t channels, uint64_t* source, uint64_t seed,
                         uint32_t rounds, uint32_t words, unsigned int* failed) {
  const uint64_t thread = threadIdx.x + blockIdx.x * blockDim.x;
  const uint64_t threads = gridDim.x * blockDim.x;
  const PortChannelDeviceHandle ch = chs[thread % channels];
  uint64_t* const mine = source + thread * words;
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint64_t there = (round * threads + thread) * words;
    for (uint32_t i = 0; i < words; ++i) mine[i] = wordOf(seed, round, there + i);
    const bool done = thread & 1 ? ch.putWithSignalAndFlush(there * 8, thread * words * 8, words * 8)
                                 : ch.put(there * 8, thread * words * 8, words * 8) && ch.flush();
    if (!done) {
      *failed = round + 1;
      return;
    }
    for (uint32_t i = 0; i < words; ++i) mine[i] = ~static_cast<uint64_t>(0);
  }
}
