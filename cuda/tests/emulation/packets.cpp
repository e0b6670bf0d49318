// Packets: each message arrives, with every byte and no byte beside it, whatever the size, the alignments and the
// threads; packets that have not been sent are not taken; and waits for them end.

#include "mscclpp/memory_channel_device.hpp"

using mscclpp::LL128Packet;
using mscclpp::LL16Packet;
using mscclpp::LL8Packet;
using mscclpp::MemoryChannelDeviceHandle;
using emulation::Limits;
using emulation::Memory;

static const uint64_t LargestPacketsOf = 9000;

template <class Packet>
static uint64_t packetsOf(uint64_t bytes) {
  return (bytes + Packet::PayloadBytes - 1) / Packet::PayloadBytes * sizeof(Packet);
}

template <class Packet>
static uint32_t someThreads(Random& random) {
  const uint32_t counts[] = {1, 2, 5, 32, 33, 64};
  return sizeof(Packet) == 128 ? 32 * (1 + random.below(3)) : counts[random.below(6)];
}

// One message: memory to send from, packets, memory to receive in, and the bytes that it must then have.
template <class Packet>
struct Message {
  Message() : source(2048, 1), packets(LargestPacketsOf, 2), destination(2048, 3), expected(destination) {
    std::memset(packets.at(0), 0, LargestPacketsOf);
  }

  void put(uint64_t bytes, uint64_t offset, uint32_t threads, uint32_t flag) {
    const Limits limits({source.at(offset), source.at(offset + bytes)},
                        {packets.at(0), packets.at(packetsOf<Packet>(bytes))});
    emulation::inTurns(threads, [&](uint32_t thread) {
      CHECK(mscclpp::copyToPackets<Packet>(packets.at(0), source.at(offset), bytes, thread, threads, flag));
    });
  }

  // Each thread's answer is or-ed to `came` and and-ed to `all`.
  void unpack(uint64_t bytes, uint64_t offset, uint32_t threads, uint32_t flag, bool& came, bool& all) {
    const Limits limits({packets.at(0), packets.at(packetsOf<Packet>(bytes))},
                        {destination.at(offset), destination.at(offset + bytes)});
    came = false, all = true;
    emulation::inTurns(threads, [&](uint32_t thread) {
      const bool answer =
          mscclpp::copyFromPackets<Packet>(destination.at(offset), packets.at(0), bytes, thread, threads, flag, 0);
      came = came || answer;
      all = all && answer;
    });
  }

  Memory source, packets, destination, expected;
};

template <class Packet>
static void everySizeAtEveryAlignment(uint64_t largest) {
  Message<Packet> message;
  Memory before = message.packets;
  Random random(4);
  uint32_t flag = 0xfffff000;
  for (uint64_t size = 0; size <= largest; ++size) {
    // Of long messages, each fourth alignment, at random.
    const uint64_t step = size > 400 ? 4 : 1;
    for (uint64_t alignments = random.below(step); alignments < 256; alignments += step) {
      const uint64_t to = alignments % 16, from = alignments / 16;
      flag = flag == 0xffffffff ? 1 : flag + 1;
      bool came, all;
      if (alignments == 0 && size > 0) {
        // Nothing has been sent with this flag: the threads with packets return that, and nothing is written.
        message.unpack(size, to, sizeof(Packet) == 128 ? 32 : 1, flag, came, all);
        CHECK(!came && message.destination.same(message.expected));
      }
      message.put(size, from, someThreads<Packet>(random), flag);
      // The packets take what they should, and no more.
      const uint64_t taken = packetsOf<Packet>(size);
      std::memcpy(before.at(0), message.packets.at(0), taken);
      CHECK(message.packets.same(before, taken));
      message.unpack(size, to, someThreads<Packet>(random), flag, came, all);
      CHECK(all);
      std::memcpy(message.expected.at(to), message.source.at(from), size);
      CHECK(message.destination.same(message.expected, to + size));
      for (uint64_t i = 0; i < size; i += 37) *message.source.at(i) ^= static_cast<uint8_t>(flag + i);
    }
  }
  CHECK(message.destination.same(message.expected));
}

// Messages of many steps, in which the threads of a warp exchange what they have loaded, and waits between them: as
// blocks that run at the same time on both sides of the packets.
template <class Packet>
static void manySteps() {
  Memory source(1 << 15, 21), packets(1 << 16, 22), destination(1 << 15, 23), expected(destination);
  Random random(24);
  for (uint32_t flag = 1; flag <= 150; ++flag) {
    const uint64_t bytes = random.below(3) == 0 ? 480 * random.below(60) : random.below(30000);
    const uint64_t from = 16 * random.below(3), to = random.below(4) == 0 ? 8 : 16 * random.below(3);
    const uint32_t threads = 32 * (1 + random.below(4)), others = 32 * (1 + random.below(4));
    Memory before = packets;
    std::atomic<unsigned int> refused{0}, gaveUp{0};
    std::thread sender([&] {
      emulation::launch(1, threads, [&] {
        refused += !mscclpp::copyToPackets<Packet>(packets.at(0), source.at(from), bytes, threadIdx.x, threads, flag);
      });
    });
    emulation::launch(1, others, [&] {
      gaveUp += !mscclpp::copyFromPackets<Packet>(destination.at(to), packets.at(0), bytes, threadIdx.x, others, flag);
    });
    sender.join();
    CHECK(refused == 0 && gaveUp == 0);
    const uint64_t taken = packetsOf<Packet>(bytes);
    std::memcpy(before.at(0), packets.at(0), taken);
    CHECK(packets.same(before));
    std::memcpy(expected.at(to), source.at(from), bytes);
    CHECK(destination.same(expected));
    for (uint64_t i = 0; i < bytes; i += 5) *source.at(i) ^= static_cast<uint8_t>(flag + i);
  }
}

// Each packet of a message in turn is missing: the thread that has it reports so, after few looks and after many. When
// the packet has come, the message is complete, however late.
template <class Packet>
static void onePacketIsMissing() {
  const uint32_t threads = 32;
  for (uint64_t bytes : {1, 119, 120, 121, 500, 961, 1500, 1930}) {
    const uint64_t count = packetsOf<Packet>(bytes) / sizeof(Packet);
    for (uint64_t missing = 0; missing < count; ++missing) {
      Message<Packet> message;
      const auto put = [&](uint32_t flag) {
        emulation::launch(1, threads, [&] {
          const uint32_t thread = threadIdx.x;
          CHECK(mscclpp::copyToPackets<Packet>(message.packets.at(0), message.source.at(0), bytes, thread, threads, flag));
        });
      };
      put(7);
      Memory earlier = message.packets;
      put(8);
      std::memcpy(message.packets.at(missing * sizeof(Packet)), earlier.at(missing * sizeof(Packet)), sizeof(Packet));
      const auto gaveUp = [&](int64_t maxSpinCount) {
        unsigned int threadsThatDid = 0;
        emulation::launch(1, threads, [&] {
          const uint32_t thread = threadIdx.x;
          threadsThatDid += !mscclpp::copyFromPackets<Packet>(message.destination.at(0), message.packets.at(0), bytes,
                                                            thread, threads, 8, maxSpinCount);
        });
        return threadsThatDid;
      };
      for (int64_t looks : {3, 3 + static_cast<int>(mscclpp::detail::LooksAtAll)}) {
        CHECK(gaveUp(looks) == (sizeof(Packet) == 128 ? 32u : 1u));
      }
      if (missing == 0 || missing == count - 1) {
        // It comes long after so many looks.
        std::thread late([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          put(8);
        });
        CHECK(gaveUp(-1) == 0);
        late.join();
      }
      put(8);
      CHECK(gaveUp(0) == 0 && std::memcmp(message.destination.at(0), message.source.at(0), bytes) == 0);
    }
  }
}

// An LL16 packet of which one half has come is not there.
static void halfAPacket() {
  LL16Packet packet({1, 2}, 5);
  packet.flag2 = 4;
  uint2 value = {77, 78};
  CHECK(packet.readOnce(5, value) && packet.readOnce(4, value) && value.x == 77 && value.y == 78);
  packet.flag2 = 5;
  CHECK(!packet.readOnce(5, value) && value.x == 1 && value.y == 2);
  CHECK(packet.read(5).y == 2 && packet.read(5, 0).x == 1);
  packet.write(8, 9, 6);
  CHECK(packet.data1 == 8 && packet.data2 == 9 && packet.flag1 == 6 && packet.flag2 == 6);
  LL8Packet small = {};
  small.write(10, 3);
  uint32_t word = 0;
  CHECK(small.data == 10 && small.flag == 3 && small.readOnce(2, word) && !small.readOnce(3, word) && word == 10);
  CHECK(small.raw_ == (3ull << 32 | 10));
  small.clear();
  CHECK(small.raw_ == 0 && !small.readOnce(0, word) && word == 0);
}

// Wrong arguments are refused and reported, and nothing is done.
static void refusals() {
  Memory memory(4096, 5), before(memory);
  MemoryChannelDeviceHandle channel = {};
  channel.dst_ = channel.src_ = channel.packetBuffer_ = memory.at(0);
  uint32_t status[4] = {};
  channel.semaphore_.status = status;
  const auto refused = [&](bool answer) {
    const bool said = status[mscclpp::StatusRefused] == 1;
    status[mscclpp::StatusRefused] = 0;
    return !answer && said && memory.same(before);
  };
  CHECK(refused(channel.putPackets(8, 1024, 8ul, 0, 1, 1)));
  // A thread without a packet is not checked.
  CHECK(channel.putPackets(8, 1024, 8ul, 1, 2, 1) && channel.unpackPackets(8, 1024, 8ul, 1, 2, 1));
  CHECK(channel.putPackets(8, 1024, 0, 0, 1, 1) && status[mscclpp::StatusRefused] == 0 && memory.same(before));
  CHECK(refused(channel.unpackPackets<LL8Packet>(4, 1024, 8ul, 0, 1, 1)));
  CHECK(refused(channel.putPackets<LL128Packet>(0, 1024, 8ul, 0, 32, 1)));
  CHECK(refused(channel.unpackPackets<LL128Packet>(0, 1024, 8ul, 0, 32, 1)));
  channel.flags_ = mscclpp::MemoryChannelLines;
  CHECK(refused(channel.putPackets<LL128Packet>(0, 1024, 8ul, 0, 33, 1)));
  CHECK(refused(channel.putPackets<LL128Packet>(0, 1024, 8ul, 1, 32, 1)));
  CHECK(refused(channel.unpackPackets<LL128Packet>(64, 1024, 8ul, 0, 32, 1)));
  CHECK(channel.putPackets<LL128Packet>(0, 1024, 8ul, 0, 32, 1) && status[mscclpp::StatusRefused] == 0);
}

// Waits end by their bound and by an abort, and an abort does not hide packets that have come.
template <class Packet>
static void endings() {
  Memory memory(4096, 6);
  std::memset(memory.at(0), 0, 2048);
  uint32_t status[4] = {};
  const auto wait = [&](int64_t maxSpinCount, uint32_t flag) {
    std::atomic<unsigned int> gaveUp{0};
    emulation::launch(1, 32, [&] {
      gaveUp += !mscclpp::copyFromPackets<Packet>(memory.at(2048), memory.at(0), 1000, threadIdx.x, 32, flag,
                                                maxSpinCount, status);
    });
    return 32 - gaveUp.load();
  };
  CHECK(wait(0, 1) == 0 && status[mscclpp::StatusTimedOut] == 1 && status[mscclpp::StatusAborted] == 0);
  status[mscclpp::StatusTimedOut] = 0;
  CHECK(wait(5000, 1) == 0 && status[mscclpp::StatusTimedOut] == 1 && status[mscclpp::StatusAborted] == 0);
  status[mscclpp::StatusTimedOut] = 0;
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    __atomic_store_n(status + mscclpp::StatusAbortRequested, 1u, __ATOMIC_RELEASE);
  });
  CHECK(wait(-1, 1) == 0);
  host.join();
  CHECK(status[mscclpp::StatusAborted] == 1 && status[mscclpp::StatusTimedOut] == 0);
  emulation::inTurns(32, [&](uint32_t thread) {
    CHECK(mscclpp::copyToPackets<Packet>(memory.at(0), memory.at(2048), 1000, thread, 32, 1));
  });
  CHECK(wait(-1, 1) == 32);
}

// The threads of a warp give up together, also when the abort comes while some have looked for it and some have not.
static void warpGivesUpTogether() {
  uint32_t status[4] = {};
  unsigned int gaveUp = 0, calls[32] = {};
  emulation::launch(1, 32, [&] {
    const auto never = [&] {
      // Thread 0 is the first to come back from its first look.
      const bool isBehindIt = ++calls[threadIdx.x] == mscclpp::PollsBeforeFirstLook + 1;
      if (threadIdx.x == 0 && isBehindIt) status[mscclpp::StatusAbortRequested] = 1;
      return mscclpp::warpAny(false);
    };
    gaveUp += !mscclpp::pollUntilByWarp(never, -1, status);
  });
  CHECK(gaveUp == 32 && status[mscclpp::StatusAborted] == 1);
  for (unsigned int callsOfThread : calls) CHECK(callsOfThread == calls[0]);
}

int main() {
  everySizeAtEveryAlignment<LL8Packet>(300);
  everySizeAtEveryAlignment<LL16Packet>(600);
  everySizeAtEveryAlignment<LL128Packet>(1300);
  manySteps<LL8Packet>();
  manySteps<LL16Packet>();
  manySteps<LL128Packet>();
  onePacketIsMissing<LL8Packet>();
  onePacketIsMissing<LL16Packet>();
  onePacketIsMissing<LL128Packet>();
  emulation::asThread(halfAPacket);
  emulation::asThread(refusals);
  endings<LL8Packet>();
  endings<LL16Packet>();
  endings<LL128Packet>();
  warpGivesUpTogether();
}
