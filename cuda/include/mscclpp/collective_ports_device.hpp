// Collectives of ranks whose devices do not reach each other's memory: all data goes through port channels. For the
// library's own use.
//
// A message goes by chunks. Each pair of ranks has, for each direction, a ring of places in the sender's scratch and one in
// the receiver's. Chunk c of a direction, counted over the messages of a launch, goes to place c modulo CollectiveChunks of
// both rings: the sender's block copies it into its own ring and puts it from there into the receiver's, with a signal; the
// receiver waits for the signal, copies the chunk out, and signals a credit. The semaphores count in device memory, so
// graphs can be replayed.
//
//   G1. Chunk c is put only when credit c - CollectiveChunks has come: each chunk from the fifth on waits for one credit.
//       That credit was sent when the chunk had been taken, and so had arrived: both places are free. Behind its last chunk
//       the sender waits for the credits that are left. So a launch leaves no signal behind, every launch begins with
//       empty rings, and when a rank's launch is complete, nothing of it is under way to this rank any more.
//   G2. A signal of a port channel comes behind the data that was put before it, and its wait acquires; the barrier of the
//       block behind it passes that on.
//   G3. Each peer and direction has a block of its own, so that no rank waits for a peer that waits for another.
//
// Data that is reduced first comes into memory of the receiver, from all ranks, and a kernel of its own reduces it
// there, in the order of the ranks. The host divides large messages into parts that fit, all but the last of which are
// whole rings: so one rank may make several launches of a message for which its peer makes one.

#ifndef MSCCLPP_COLLECTIVE_PORTS_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_PORTS_DEVICE_HPP_

#include "mscclpp/collective_device.hpp"
#include "mscclpp/port_channel_device.hpp"

namespace mscclpp {

// The messages of one launch, as in CollectiveSends. Block 2 * r + direction has those of rank r.
struct CollectivePortCall {
  CollectiveMessage messages[CollectiveMaxRanks][2][MessagesPerPeer];
  // Two PortChannelDeviceHandles for each rank: through the first, chunks go to it and come from it; through the second,
  // credits. In this device's memory.
  const void* channels;
  // This rank's scratch, which the channels put from, and offsets, the same on all ranks: the rings of places that peers
  // put into, and those that this rank puts from, for each peer.
  uint8_t* scratch;
  uint64_t inbox, outbox;
  // The bytes of a place, a multiple of 16.
  uint64_t chunk;
  uint32_t rank, ranks;
  // The factor of what is sent, as in CollectiveCall.
  uint32_t type, scaled;
  uint64_t scale;
  // CollectiveHandle::epochs.
  uint64_t* epochs;
};

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

MSCCLPP_DEVICE_INLINE void moveByPorts(const CollectivePortCall& call) {
  const uint32_t peer = blockOfGrid() / 2, thread = threadOfBlock(), threads = threadsOfBlock();
  const bool receives = blockOfGrid() % 2 != 0;
  if (peer >= call.ranks || peer == call.rank) return;
  if (anyGaveUp(call.epochs)) return;
  const auto ends = [&](bool failed) {
    if (failed) setGivenUp(call.epochs, CollectiveGaveUp, 1);
    return blockAny(failed);
  };
  const PortChannelDeviceHandle* const channels = static_cast<const PortChannelDeviceHandle*>(call.channels);
  const PortChannelDeviceHandle* const data = channels + 2 * peer;
  const PortChannelDeviceHandle* const credits = data + 1;
  // The beginning of a rank's ring for another, after `inbox` or `outbox`.
  const auto ring = [&](uint32_t of, uint32_t other) {
    return (other < of ? other : other - 1) * CollectiveChunks * call.chunk;
  };
  const uint64_t theirs = call.inbox + ring(peer, call.rank);
  const uint64_t ours = receives ? call.inbox + ring(call.rank, peer) : call.outbox + ring(call.rank, peer);
  const auto sent = [&](uint64_t word) { return call.scaled ? scaleAny(word, call.type, call.scale, call.scaled) : word; };

  uint64_t c = 0;
  for (uint32_t m = 0; m < MessagesPerPeer; ++m) {
    const CollectiveMessage message = call.messages[peer][receives][m];
    for (uint64_t at = 0; at < message.bytes; at += call.chunk, ++c) {
      const uint64_t left = message.bytes - at, offset = c % CollectiveChunks * call.chunk;
      const uint32_t bytes = static_cast<uint32_t>(left < call.chunk ? left : call.chunk);
      uint8_t* const place = call.scratch + ours + offset;
      bool failed = false;
      if (receives) {
        failed = thread == 0 && !data->wait();
        if (ends(failed)) return;
        takeBytes(message.memory + at, place, bytes, thread, threads);
        blockSync();
        failed = thread == 0 && !credits->signal();
      } else {
        failed = thread == 0 && c >= CollectiveChunks && !credits->wait();
        if (ends(failed)) return;
        putBytes(place, message.memory + at, bytes, thread, threads, sent);
        blockSync();
        failed = thread == 0 && !data->putWithSignal(theirs + offset, ours + offset, static_cast<uint64_t>(bytes));
      }
      if (ends(failed)) return;
    }
  }
  if (receives || thread != 0) return;
  uint64_t left = c < CollectiveChunks ? c : CollectiveChunks;
  while (left > 0 && credits->wait()) --left;
  if (left > 0) setGivenUp(call.epochs, CollectiveGaveUp, 1);
}

// Reduces on one device: segments[r].send are the numbers of rank r, of which the own ones may have to be multiplied,
// and segments[rank].recv is the place of the result of recvBytes bytes.
MSCCLPP_DEVICE_INLINE void reduceSegments(const CollectiveHandle& comm, const CollectiveCall& call) {
  const CollectiveSegment own = call.segments[comm.rank];
  const uint64_t threads = static_cast<uint64_t>(blocksOfGrid()) * threadsOfBlock();
  uint64_t i = static_cast<uint64_t>(blockOfGrid()) * threadsOfBlock() + threadOfBlock();
  for (; i * 8 < own.recvBytes; i += threads) {
    ReduceAnyWords::Fold fold;
    for (uint32_t r = 0; r < comm.ranks; ++r) {
      const uint64_t word = messageWord(call.segments[r].send, own.recvBytes, i);
      fold.put(r, r == comm.rank ? ReduceAnyWords::sent(call, word) : word);
    }
    storeMessageWord(own.recv, own.recvBytes, i, fold.result(call, comm.ranks));
  }
}

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

}  // namespace mscclpp

#endif  // MSCCLPP_COLLECTIVE_PORTS_DEVICE_HPP_
