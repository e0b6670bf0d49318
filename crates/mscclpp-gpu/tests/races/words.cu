// Words side by side, and words that share bytes. Block 0 writes data and then a word that says so, block 1 comes between, and
// block 2 looks at the word and reads the data. Relaxed steps bring them into this order; these order nothing else.

#include <cuda_fp16.h>

#include <mscclpp/packet_device.hpp>

using namespace mscclpp;

// Of the memory, in bytes: the words, the steps, the data.
constexpr int Steps = 64, Data = 128;

__device__ static unsigned int* step(char* memory) {
  return reinterpret_cast<unsigned int*>(memory + Steps);
}
__device__ static void done(char* memory, unsigned int number) {
  atomicStore<unsigned int, scopeDevice>(step(memory), number, memoryOrderRelaxed);
}
__device__ static void waitFor(char* memory, unsigned int number) {
  while (atomicLoad<unsigned int, scopeDevice>(step(memory), memoryOrderRelaxed) < number) detail::betweenPolls();
}
__device__ static void writeData(char* memory) {
  *reinterpret_cast<int*>(memory + Data) = 42;  // @write
}
__device__ static void readData(char* memory) {
  *reinterpret_cast<int*>(memory + Data + 8) = *reinterpret_cast<int*>(memory + Data);  // @read
}

// Writes bytes that are all 1.
template <class T>
__device__ static void storeAs(char* at, T value, bool isPlain, MemoryOrder order) {
  T* const word = reinterpret_cast<T*>(at);
  if (isPlain) {
    *word = value;  // @plain
  } else if constexpr (sizeof(T) == 16) {
    storePair(word, value);
  } else {
    atomicStore<T, scopeDevice>(word, value, order);
  }
}
__device__ static void store(char* at, int bytes, bool isPlain, MemoryOrder order) {
  const uint64_t ones = 0x0101010101010101;
  switch (bytes) {
    case 1: return storeAs(at, static_cast<uint8_t>(ones), isPlain, order);
    case 2: return storeAs(at, static_cast<uint16_t>(ones), isPlain, order);
    case 4: return storeAs(at, static_cast<uint32_t>(ones), isPlain, order);
    case 8: return storeAs(at, ones, isPlain, order);
    default: return storeAs(at, Bytes16{ones, ones}, isPlain, order);
  }
}
template <class T>
__device__ static void pollAs(char* at) {
  while (atomicLoad<T, scopeDevice>(reinterpret_cast<T*>(at), memoryOrderAcquire) == 0) detail::betweenPolls();
}
__device__ static void poll(char* at, int bytes) {
  switch (bytes) {
    case 1: return pollAs<uint8_t>(at);
    case 2: return pollAs<uint16_t>(at);
    case 4: return pollAs<uint32_t>(at);
    default: return pollAs<uint64_t>(at);
  }
}

// Somebody writes another word, plainly or not, before the first is acquired.
extern "C" __global__ void between(char* memory, int bytes, int at, int otherBytes, int otherAt, int isPlain) {
  if (blockIdx.x == 0) {
    writeData(memory);
    store(memory + at, bytes, false, memoryOrderRelease);
    done(memory, 1);
  } else if (blockIdx.x == 1) {
    waitFor(memory, 1);
    store(memory + otherAt, otherBytes, isPlain != 0, memoryOrderRelaxed);
    done(memory, 2);
  } else {
    waitFor(memory, 2);
    poll(memory + at, bytes);
    readData(memory);
  }
}

// The word that is acquired is not the one that was released, or it is.
extern "C" __global__ void other(char* memory, int bytes, int at, int otherBytes, int otherAt, int isPlain) {
  if (blockIdx.x == 0) {
    writeData(memory);
    store(memory + at, bytes, false, memoryOrderRelease);
    const bool areApart = at + bytes <= otherAt || otherAt + otherBytes <= at;
    if (areApart) store(memory + otherAt, otherBytes, isPlain != 0, memoryOrderRelaxed);
    done(memory, 2);
  } else if (blockIdx.x == 2) {
    waitFor(memory, 2);
    poll(memory + otherAt, otherBytes);
    readData(memory);
  }
}

// What blocks 0, 1 and 2 do to the words is put in here.
extern "C" __global__ void blocks(char* memory, int, int, int, int, int) {
  [[maybe_unused]] uint32_t* const words = reinterpret_cast<uint32_t*>(memory);
  [[maybe_unused]] uint64_t* const whole = reinterpret_cast<uint64_t*>(memory);
  [[maybe_unused]] __half* const halves = reinterpret_cast<__half*>(memory);
  [[maybe_unused]] __half2* const pairs = reinterpret_cast<__half2*>(memory);
  if (blockIdx.x == 0) {
    writeData(memory);
    /* first */;  // @first
    done(memory, 1);
  } else if (blockIdx.x == 1) {
    waitFor(memory, 1);
    /* second */;  // @second
    done(memory, 2);
  } else {
    waitFor(memory, 2);
    /* third */;  // @third
    readData(memory);
  }
}
