// The kernels of the tests in this folder: single calls, by one thread, whose result goes to `result`; and many
// threads at once.

#include <assert.h>

#include "mscclpp/port_channel_device.hpp"

using mscclpp::FifoDeviceHandle;
using mscclpp::PortChannelDeviceHandle;
using mscclpp::ProxyTrigger;

// ---- port channels

extern "C" __global__ void port_put(PortChannelDeviceHandle ch, uint64_t dst, uint64_t src, uint64_t size,
                                    uint64_t* result) {
  *result = ch.put(dst, src, size);
}

// Puts between two memories that are named.
extern "C" __global__ void port_put_between(PortChannelDeviceHandle ch, uint32_t dst, uint32_t src, uint64_t size,
                                            uint64_t* result) {
  *result = ch.put(dst, 0, src, 0, size);
}

extern "C" __global__ void port_signal(PortChannelDeviceHandle ch, uint64_t* result) { *result = ch.signal(); }

extern "C" __global__ void port_put_with_signal(PortChannelDeviceHandle ch, uint64_t dst, uint64_t src, uint64_t size,
                                                uint64_t* result) {
  *result = ch.putWithSignal(dst, src, size);
}

extern "C" __global__ void port_put_with_signal_and_flush(PortChannelDeviceHandle ch, uint64_t dst, uint64_t src,
                                                          uint64_t size, uint64_t* result) {
  *result = ch.putWithSignalAndFlush(dst, src, size);
}

extern "C" __global__ void port_flush(PortChannelDeviceHandle ch, uint64_t* result) { *result = ch.flush(); }

extern "C" __global__ void port_wait(PortChannelDeviceHandle ch, uint64_t* result) { *result = ch.wait(); }

extern "C" __global__ void port_poll(PortChannelDeviceHandle ch, uint64_t* result) { *result = ch.poll(); }

// Each block puts its part, `stride` bytes after that of the block before, into the half behind all sources: all of
// its part or only 16 bytes. Then it flushes, and waits for a block of the peer.
extern "C" __global__ void port_exchange(PortChannelDeviceHandle ch, uint64_t stride) {
  const uint64_t at = blockIdx.x * stride;
  assert(ch.putWithSignal(gridDim.x * stride + at, at, blockIdx.x == 0 ? stride : 16));
  assert(ch.flush());
  assert(ch.wait());
}

// ---- FIFOs

extern "C" __global__ void fifo_push(FifoDeviceHandle fifo, uint64_t fst, uint64_t snd, int64_t maxSpin,
                                     uint64_t* result) {
  *result = fifo.push(ProxyTrigger{fst, snd}, maxSpin);
}

extern "C" __global__ void fifo_sync(FifoDeviceHandle fifo, uint64_t position, int64_t maxSpin, uint64_t* result) {
  *result = fifo.sync(position, maxSpin);
}

extern "C" __global__ void fifo_poll(FifoDeviceHandle fifo, uint64_t position, uint64_t* result) {
  *result = fifo.poll(position);
}

// Every block pushes until a push fails.
extern "C" __global__ void fifo_push_for_ever(FifoDeviceHandle fifo) {
  while (fifo.push(ProxyTrigger{0, 0}) != FifoDeviceHandle::Failed) {
  }
}

// Every block pushes `each` triggers: its number above `sequenceBit`, and the number of its earlier pushes below. A
// few of the blocks sync: hundreds that wait would take turns with the thread that pops.
extern "C" __global__ void fifo_push_numbered(FifoDeviceHandle fifo, uint64_t each, uint32_t sequenceBit) {
  for (uint64_t n = 0; n < each; ++n) {
    const uint64_t word = static_cast<uint64_t>(blockIdx.x) << sequenceBit | n;
    const uint64_t position = fifo.push(ProxyTrigger{word, ~word >> 1});
    assert(position != FifoDeviceHandle::Failed);
    if (blockIdx.x < 8 && n % 16 == 15) assert(fifo.sync(position));
  }
}

// Does `puts` puts of `piece` bytes without a wait, from and to one of `places` after the other. The result is the
// number of puts done.
extern "C" __global__ void port_put_many(mscclpp::PortChannelDeviceHandle channel, uint64_t puts, uint64_t piece,
                                         uint64_t places, uint64_t* result) {
  uint64_t done = 0;
  while (done < puts && channel.put(done % places * piece, done % places * piece, piece)) ++done;
  *result = done;
}
