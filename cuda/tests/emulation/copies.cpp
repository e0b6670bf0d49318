// Copies write every byte of the range and none beside it, and read none beside it, for any size and any alignments.

#include "mscclpp/memory_channel_device.hpp"

using mscclpp::MemoryChannelDeviceHandle;
using emulation::Limits;
using emulation::Memory;

// Source and destination, and the bytes that the destination must have after the copy.
struct Memories {
  explicit Memories(uint64_t largest) : source(largest + 16, 1), destination(largest + 16, 2), expected(destination) {}

  // Copies `size` bytes by `threads` threads in turns, and checks the destination.
  template <int Alignment, bool CopyRemainder, bool Get>
  void copyAndCheck(uint64_t size, uint64_t toOffset, uint64_t fromOffset, uint32_t threads) {
    MemoryChannelDeviceHandle channel = {};
    const Limits::Range readable = {source.at(fromOffset), source.at(fromOffset + size)};
    const Limits::Range writable = {destination.at(toOffset), destination.at(toOffset + size)};
    const auto inTurns = [&](const auto& work) {
      const Limits limits(readable, writable);
      emulation::inTurns(threads, work);
    };
    if constexpr (Get) {
      channel.dst_ = source.at(0), channel.src_ = destination.at(0);
      inTurns([&](uint32_t thread) {
        channel.get<Alignment, CopyRemainder>(toOffset, fromOffset, size, thread, threads);
      });
    } else {
      channel.dst_ = destination.at(0), channel.src_ = source.at(0);
      inTurns([&](uint32_t thread) {
        channel.put<Alignment, CopyRemainder>(toOffset, fromOffset, size, thread, threads);
      });
    }
    std::memcpy(expected.at(toOffset), source.at(fromOffset), size);
    CHECK(destination.same(expected, toOffset + size));
    // No two copies move the same bytes.
    for (uint64_t i = 0; i < size; i += 61) *source.at(i) ^= static_cast<uint8_t>(copies + i);
    ++copies;
  }

  Memory source, destination, expected;
  uint64_t copies = 1;
};

static const uint32_t threadCounts[] = {1, 2, 3, 7, 16, 32, 33, 64};

static void everySizeAtEveryAlignment() {
  Memories memories(8192);
  Random random(3);
  for (uint64_t size = 0; size <= 4200; ++size) {
    // Of long copies, each fourth alignment, at random.
    const uint64_t step = size > 1000 ? 4 : 1;
    for (uint64_t alignments = random.below(step); alignments < 256; alignments += step) {
      const uint32_t threads = threadCounts[random.below(8)];
      if (random.below(2) == 0) {
        memories.copyAndCheck<16, true, false>(size, alignments % 16, alignments / 16, threads);
      } else {
        memories.copyAndCheck<16, true, true>(size, alignments % 16, alignments / 16, threads);
      }
    }
  }
  CHECK(memories.destination.same(memories.expected));
}

// Copies with the promises that leave code out are right where the promises are kept, whatever the bases are.
template <int Alignment>
static void promises() {
  Memories memories(2048);
  Random random(4);
  for (uint64_t size = 0; size <= 700; ++size) {
    for (uint64_t alignments = 0; alignments < 256; ++alignments) {
      const uint32_t threads = threadCounts[random.below(8)];
      memories.copyAndCheck<Alignment, true, true>(size, alignments % 16, alignments / 16, threads);
      if (size % Alignment == 0) {
        memories.copyAndCheck<Alignment, false, false>(size, alignments % 16, alignments / 16, threads);
      }
    }
  }
  CHECK(memories.destination.same(memories.expected));
}

static void aroundPowersOfTwo() {
  const uint64_t pairs[][2] = {{0, 0}, {0, 8}, {4, 12}, {1, 1}, {3, 6}, {15, 0}, {0, 15}};
  Memories memories((16 << 20) + 64);
  for (uint64_t power = 4096; power <= 16 << 20; power *= 2) {
    for (uint64_t size = power - 1; size <= power + 1; ++size) {
      const auto& pair = pairs[memories.copies % 7];
      memories.copyAndCheck<16, true, false>(size, pair[0], pair[1], 1024);
      memories.copyAndCheck<16, true, true>(size, pair[1], pair[0], 300);
    }
  }
  CHECK(memories.destination.same(memories.expected));
}

int main() {
  everySizeAtEveryAlignment();
  promises<4>();
  promises<8>();
  promises<16>();
  aroundPowersOfTwo();
}
