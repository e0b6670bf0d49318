#include <mscclpp/atomic_device.hpp>
#include <mscclpp/poll_device.hpp>

// The tests define it: how the flag is stored.
#ifndef ORDER
#define ORDER mscclpp::memoryOrderRelease
#endif

// One block writes numbers and sets a flag; the other waits for the flag and adds up the numbers.
extern "C" __global__ void hand_over(int* numbers, unsigned int* flag, int* sum) {
  if (blockIdx.x == 0) {
    for (int i = 0; i < 16; ++i) numbers[i] = i;  // @write
    mscclpp::atomicStore<unsigned int, mscclpp::scopeDevice>(flag, 1, ORDER);
    return;
  }
  while (mscclpp::atomicLoad<unsigned int, mscclpp::scopeDevice>(flag, mscclpp::memoryOrderAcquire) == 0) {
    mscclpp::detail::betweenPolls();
  }
  int all = 0;
  for (int i = 0; i < 16; ++i) all += numbers[i];  // @read
  *sum = all;
}
