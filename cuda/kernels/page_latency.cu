// How long a lone thread waits for a load from each page of a piece of this device's memory.
//
// The L2 cache of a large GPU is in two halves, and which half a page belongs to goes with its physical address: a load
// at system scope from the other half takes longer. A token that is polled is worth placing in the near half.

#include "mscclpp/atomic_device.hpp"

using mscclpp::MemoryOrder;
using mscclpp::MemoryScope;

// For each page, the cycles of the fastest of some loads go to `cycles`. The pages must be zeroed. One thread, so that
// all loads are from one multiprocessor: the one where a lone block runs.
extern "C" __global__ void page_latency(const uint64_t* memory, uint64_t wordsPerPage, unsigned int pages,
                                        unsigned int* cycles) {
  if (threadIdx.x + blockIdx.x * blockDim.x != 0) return;
  for (unsigned int page = 0; page < pages; ++page) {
    const uint64_t* const start = memory + page * wordsPerPage;
    unsigned int fastest = ~0u;
    for (int attempt = 0; attempt < 6; ++attempt) {
      const unsigned int before = clock();
      // Each load's address is made of what the one before gave, which is 0.
      uint64_t word = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) word = mscclpp::atomicLoad<MemoryOrder::Relaxed, MemoryScope::System>(start + word);
      // Looked at before the clock is, so that the last load is over by then.
      if (word != 0) {
        cycles[page] = 0;
        return;
      }
      const unsigned int spent = static_cast<unsigned int>(clock()) - before;
      if (spent < fastest) fastest = spent;
    }
    cycles[page] = fastest;
  }
}
