// Accesses of every kind that are checked on simulated devices, at one byte address.

#include <cuda_runtime.h>

#include <mscclpp/bulk_device.hpp>
#include <mscclpp/packet_device.hpp>
#include <mscclpp/thread_copy_device.hpp>

__device__ uint8_t numbers[20];
__device__ uint8_t behind_numbers[20];

// Accesses some bytes from `at` on in the way number `way`, and returns how many.
extern "C" __global__ void access(uint8_t* at, unsigned int way, unsigned int* bytes) {
  __shared__ alignas(16) uint8_t staged[64];
  switch (way) {
    case 0: *bytes = 1; mscclpp::write<uint8_t>(at, 0, 1); break;
    case 1: *bytes = 1; mscclpp::read<uint8_t>(at, 0); break;
    case 2: *bytes = 4; mscclpp::write<uint32_t>(at, 0, 1); break;
    case 3: *bytes = 16; mscclpp::store16(at, {1, 2}); break;
    case 4: *bytes = 8; mscclpp::LL8Packet::store(reinterpret_cast<mscclpp::LL8Packet*>(at), 1); break;
    case 5: *bytes = 40; mscclpp::copyByThread(at, staged + reinterpret_cast<uintptr_t>(at) % 8, 40); break;
    case 6: *bytes = 40; mscclpp::copyByThread(staged + reinterpret_cast<uintptr_t>(at) % 8, at, 40); break;
    case 7: *bytes = 48; mscclpp::bulkStore(at, staged, 48); break;
    case 8: *bytes = 4; atomicAdd(reinterpret_cast<unsigned int*>(at), 1u); break;
    case 9: *bytes = 4; __stcg(reinterpret_cast<unsigned int*>(at), 1u); break;
    case 10: *bytes = 4; *bytes = 4 + 0 * __ldg(reinterpret_cast<const unsigned int*>(at)); break;
    case 11:
      *bytes = 8;
      mscclpp::atomicStore(reinterpret_cast<uint64_t*>(at), uint64_t(1), mscclpp::memoryOrderRelaxed);
      break;
  }
}

// Writes a byte of an array of shared memory, static or dynamic.
extern "C" __global__ void write_shared(unsigned int index, int is_dynamic) {
  __shared__ uint8_t fixed[32];
  extern __shared__ uint8_t dynamic[];
  mscclpp::write<uint8_t>(is_dynamic ? dynamic : fixed, index, 1);
}

// Writes and reads a byte of a variable.
extern "C" __global__ void touch_numbers(unsigned int index) {
  mscclpp::write<uint8_t>(numbers, index, 1);
}
extern "C" __global__ void read_numbers(unsigned int index) {
  behind_numbers[0] = mscclpp::read<uint8_t>(numbers, index);
}

// Reads a literal, which has no name.
extern "C" __global__ void read_literal(unsigned int index) {
  numbers[0] = mscclpp::read<char>("some text", index);
}
