// The device side of switch channels: memory of several GPUs under one address, a multicast address. Through it the
// NVLink switch adds up loads from all of them, and passes stores to all of them. It needs compute capability 9.0. This
// library makes no such channels yet: the handles are for programs that map the memory themselves.

#ifndef MSCCLPP_SWITCH_CHANNEL_DEVICE_HPP_
#define MSCCLPP_SWITCH_CHANNEL_DEVICE_HPP_

#include "mscclpp/gpu_data_types.hpp"
#include "mscclpp/semaphore_device.hpp"

#if defined(MSCCLPP_DEVICE_CUDA) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#define MSCCLPP_MULTIMEM_AVAILABLE 1
#else
#define MSCCLPP_MULTIMEM_AVAILABLE 0
#endif

namespace mscclpp {

#if defined(MSCCLPP_DEVICE_COMPILE)

namespace detail {

// Fails a kernel that needs a switch where there is none.
MSCCLPP_DEVICE_INLINE void failWithoutSwitch() {
#if defined(MSCCLPP_DEVICE_SIM)
  mscclpp_sim::trap("a simulated device has no switch: multimem accesses need compute capability 9.0");
#elif defined(MSCCLPP_DEVICE_HIP)
  __builtin_trap();
#else
  assert(!"multimem accesses need compute capability 9.0, and this kernel was compiled for less");
  __trap();
#endif
}

// The types that the switch adds: vectors of 4, 8 or 16 bytes, and single integers and doubles.
template <class V, class T = typename V::ElementType>
constexpr bool isAddedBySwitch =
    isFloat16<T> || isSame<T, float> ? V::Bytes == 4 || V::Bytes == 8 || V::Bytes == 16
                                     : V::Size == 1 && (isSame<T, int32_t> || isSame<T, uint32_t> || isSame<T, double>);

// The instruction "multimem.OPERATION TYPE" for all words of `value`.
#define MSCCLPP_MULTIMEM_LOAD(OPERATION, TYPE)                                                                    \
  do {                                                                                                            \
    if constexpr (V::Bytes == 4)                                                                                  \
      asm volatile("multimem." OPERATION TYPE " %0, [%1];" : "=r"(value.words[0]) : "l"(at) : "memory");          \
    else if constexpr (V::Bytes == 8)                                                                             \
      asm volatile("multimem." OPERATION ".v2" TYPE " {%0, %1}, [%2];"                                            \
                   : "=r"(value.words[0]), "=r"(value.words[1])                                                   \
                   : "l"(at)                                                                                      \
                   : "memory");                                                                                   \
    else                                                                                                          \
      asm volatile("multimem." OPERATION ".v4" TYPE " {%0, %1, %2, %3}, [%4];"                                    \
                   : "=r"(value.words[0]), "=r"(value.words[1]), "=r"(value.words[2]), "=r"(value.words[3])       \
                   : "l"(at)                                                                                      \
                   : "memory");                                                                                   \
  } while (false)
#define MSCCLPP_MULTIMEM_STORE(OPERATION, TYPE)                                                                   \
  do {                                                                                                            \
    if constexpr (V::Bytes == 4)                                                                                  \
      asm volatile("multimem." OPERATION TYPE " [%0], %1;" : : "l"(at), "r"(value.words[0]) : "memory");          \
    else if constexpr (V::Bytes == 8)                                                                             \
      asm volatile("multimem." OPERATION ".v2" TYPE " [%0], {%1, %2};"                                            \
                   :                                                                                              \
                   : "l"(at), "r"(value.words[0]), "r"(value.words[1])                                            \
                   : "memory");                                                                                   \
    else                                                                                                          \
      asm volatile("multimem." OPERATION ".v4" TYPE " [%0], {%1, %2, %3, %4};"                                    \
                   :                                                                                              \
                   : "l"(at), "r"(value.words[0]), "r"(value.words[1]), "r"(value.words[2]), "r"(value.words[3])  \
                   : "memory");                                                                                   \
  } while (false)

}  // namespace detail

#endif  // MSCCLPP_DEVICE_COMPILE

// A barrier of the GPUs under one multicast address: each signals all of them, itself too, by one addition, and a wait
// takes one signal of each. A GPU must wait between two of its signals; otherwise its second signal would be taken for
// the first of another GPU. Trivially copyable, 40 bytes. Waits count and end as those of semaphore_device.hpp.
struct SwitchDevice2DeviceSemaphoreDeviceHandle {
  // The number of signals that have come from all GPUs. In this device's memory.
  uint64_t* inboundToken;
  // The number of waits that have claimed their signals. In this device's memory, on a line of its own.
  uint64_t* expectedInboundToken;
  // The multicast address of the tokens of all GPUs.
  uint64_t* multicastToken;
  // The number of GPUs.
  uint64_t devices;
  // Pinned host memory, see StatusWord.
  uint32_t* status;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Signals all GPUs. A wait that takes this signal sees what this thread wrote, or had acquired, before.
  MSCCLPP_DEVICE_INLINE void signal() const { send<MemoryOrder::Release>(); }
  // Signals all GPUs. The signal orders no memory.
  MSCCLPP_DEVICE_INLINE void relaxedSignal() const { send<MemoryOrder::Relaxed>(); }

  // Waits for a signal of each GPU and takes them. Returns false after an abort, or after maxSpinCount polls if that is
  // not negative.
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const {
    return detail::waitForSignal(Rounds<MemoryOrder::Acquire>{inboundToken, devices}, expectedInboundToken, status,
                                 maxSpinCount);
  }
  // Waits in the same way, and orders no memory.
  MSCCLPP_DEVICE_INLINE bool relaxedWait(int64_t maxSpinCount = -1) const {
    return detail::waitForSignal(Rounds<MemoryOrder::Relaxed>{inboundToken, devices}, expectedInboundToken, status,
                                 maxSpinCount);
  }

 private:
  // The number of signals of every GPU that have come.
  template <MemoryOrder O>
  struct Rounds {
    const uint64_t* token;
    uint64_t devices;
    MSCCLPP_DEVICE_INLINE uint64_t operator()() const {
      return detail::load<O, MemoryScope::System>(token) / devices;
    }
  };

  template <MemoryOrder O>
  MSCCLPP_DEVICE_INLINE void send() const {
#if MSCCLPP_MULTIMEM_AVAILABLE
    const uint64_t at = detail::globalAddress(multicastToken);
    if constexpr (O == MemoryOrder::Release) {
      asm volatile("multimem.red.release.sys.global.add.u64 [%0], 1;" : : "l"(at) : "memory");
    } else {
      asm volatile("multimem.red.relaxed.sys.global.add.u64 [%0], 1;" : : "l"(at) : "memory");
    }
#else
    detail::failWithoutSwitch();
#endif
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

// Memory of several GPUs: the part of this one, and the parts of all under their multicast address.
struct SwitchChannelDeviceHandle {
  // This device's memory.
  void* devicePtr;
  // The multicast address of the memory of all GPUs.
  void* mcPtr;
  // The size of the memory in bytes.
  uint64_t bufferSize;
  SwitchDevice2DeviceSemaphoreDeviceHandle barrier_;

#if defined(MSCCLPP_DEVICE_COMPILE)

  // Signals and waits of the barrier.
  MSCCLPP_DEVICE_INLINE void signal() const { barrier_.signal(); }
  MSCCLPP_DEVICE_INLINE void relaxedSignal() const { barrier_.relaxedSignal(); }
  MSCCLPP_DEVICE_INLINE bool wait(int64_t maxSpinCount = -1) const { return barrier_.wait(maxSpinCount); }
  MSCCLPP_DEVICE_INLINE bool relaxedWait(int64_t maxSpinCount = -1) const { return barrier_.relaxedWait(maxSpinCount); }

  // Returns the sum of the vectors with number `index` of all GPUs, and stores one to all. The index counts vectors of
  // type T.
  template <class T>
  MSCCLPP_DEVICE_INLINE T reduce(uint64_t index) const {
    return multimemLoadReduce<T>(static_cast<const T*>(mcPtr) + index);
  }
  template <class T>
  MSCCLPP_DEVICE_INLINE void broadcast(uint64_t index, const T& value) const {
    multimemStore(value, static_cast<T*>(mcPtr) + index);
  }

  // Returns the sum of the values at a multicast address in the memory of all GPUs: vectors of half, bfloat16 and float
  // of 4, 8 and 16 bytes, and one integer or double. Relaxed. Sums of half and bfloat16 have their own precision, or
  // with Acc = float that of float, and are rounded once.
  template <class V, class Acc = void>
  MSCCLPP_DEVICE_INLINE static V multimemLoadReduce(const V* ptr) {
    using T = typename V::ElementType;
    static_assert(detail::isAddedBySwitch<V>,
                  "the switch adds f16, bf16 and f32 of 4, 8 or 16 bytes, i32x1, u32x1 and f64x1: no other type");
    V value = V();
#if MSCCLPP_MULTIMEM_AVAILABLE
    const uint64_t at = detail::globalAddress(ptr);
    constexpr bool InFloat = detail::isSame<Acc, float>;
    if constexpr (detail::isSame<T, __half> && InFloat) {
      MSCCLPP_MULTIMEM_LOAD("ld_reduce.relaxed.sys.global.add.acc::f32", ".f16x2");
    } else if constexpr (detail::isSame<T, __half>) {
      MSCCLPP_MULTIMEM_LOAD("ld_reduce.relaxed.sys.global.add", ".f16x2");
    } else if constexpr (detail::isSame<T, __bfloat16> && InFloat) {
      MSCCLPP_MULTIMEM_LOAD("ld_reduce.relaxed.sys.global.add.acc::f32", ".bf16x2");
    } else if constexpr (detail::isSame<T, __bfloat16>) {
      MSCCLPP_MULTIMEM_LOAD("ld_reduce.relaxed.sys.global.add", ".bf16x2");
    } else if constexpr (detail::isSame<T, float>) {
      MSCCLPP_MULTIMEM_LOAD("ld_reduce.relaxed.sys.global.add", ".f32");
    } else if constexpr (detail::isSame<T, int32_t>) {
      MSCCLPP_MULTIMEM_LOAD("ld_reduce.relaxed.sys.global.add", ".s32");
    } else if constexpr (detail::isSame<T, uint32_t>) {
      MSCCLPP_MULTIMEM_LOAD("ld_reduce.relaxed.sys.global.add", ".u32");
    } else {
      asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f64 %0, [%1];"
                   : "=d"(value.data[0])
                   : "l"(at)
                   : "memory");
    }
#else
    (void)sizeof(T), (void)ptr;
    detail::failWithoutSwitch();
#endif
    return value;
  }

  // Stores a vector of 4, 8 or 16 bytes of any type to a multicast address, in the memory of all GPUs. Relaxed.
  template <class V, class P>
  MSCCLPP_DEVICE_INLINE static void multimemStore(const V& value, P* ptr) {
    static_assert(V::Bytes == 4 || V::Bytes == 8 || V::Bytes == 16, "a store by the switch is of 4, 8 or 16 bytes");
#if MSCCLPP_MULTIMEM_AVAILABLE
    const uint64_t at = detail::globalAddress(ptr);
    MSCCLPP_MULTIMEM_STORE("st.relaxed.sys.global", ".f32");
#else
    (void)value, (void)ptr;
    detail::failWithoutSwitch();
#endif
  }

  // Adds a vector to the values at a multicast address, in the memory of all GPUs: the types of multimemLoadReduce.
  // Relaxed.
  template <class V, class P>
  MSCCLPP_DEVICE_INLINE static void multimemStoreReduce(const V& value, P* ptr) {
    using T = typename V::ElementType;
    static_assert(detail::isAddedBySwitch<V>,
                  "the switch adds f16, bf16 and f32 of 4, 8 or 16 bytes, i32x1, u32x1 and f64x1: no other type");
#if MSCCLPP_MULTIMEM_AVAILABLE
    const uint64_t at = detail::globalAddress(ptr);
    if constexpr (detail::isSame<T, __half>) {
      MSCCLPP_MULTIMEM_STORE("red.relaxed.sys.global.add", ".f16x2");
    } else if constexpr (detail::isSame<T, __bfloat16>) {
      MSCCLPP_MULTIMEM_STORE("red.relaxed.sys.global.add", ".bf16x2");
    } else if constexpr (detail::isSame<T, float>) {
      MSCCLPP_MULTIMEM_STORE("red.relaxed.sys.global.add", ".f32");
    } else if constexpr (detail::isSame<T, int32_t>) {
      MSCCLPP_MULTIMEM_STORE("red.relaxed.sys.global.add", ".s32");
    } else if constexpr (detail::isSame<T, uint32_t>) {
      MSCCLPP_MULTIMEM_STORE("red.relaxed.sys.global.add", ".u32");
    } else {
      asm volatile("multimem.red.relaxed.sys.global.add.f64 [%0], %1;" : : "l"(at), "d"(value.data[0]) : "memory");
    }
#else
    (void)sizeof(T), (void)value, (void)ptr;
    detail::failWithoutSwitch();
#endif
  }

#endif  // MSCCLPP_DEVICE_COMPILE
};

#undef MSCCLPP_MULTIMEM_LOAD
#undef MSCCLPP_MULTIMEM_STORE

// The tag of `DeviceHandle<SwitchChannel>`.
struct SwitchChannel {
  using DeviceHandle = SwitchChannelDeviceHandle;
};

}  // namespace mscclpp

#endif  // MSCCLPP_SWITCH_CHANNEL_DEVICE_HPP_
