// A stand-in for NCCL's library, for processes of one node whose devices are simulated: their memory is that of the
// process, and a call is complete when it returns. Ranks exchange numbers through a file that all of them map.
//
// FAKE_NCCL tells it to behave badly: "wrong" makes a number wrong, "wrong-windows" only in windows, "stuck" keeps an
// all-reduce, "stuck-init" keeps the ranks from joining, "refuse" lets calls fail, "no-window" lets registering give none.
// FAKE_NCCL_LOG names a file to which it appends what it was asked.
//
// With -DOLD it lacks what came late: windows, and the function for an all-to-all.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t kMost = 1 << 20;
constexpr int kRanks = 8;
enum { kSuccess = 0, kInvalidUsage = 5 };
enum { kUint8 = 1, kHalf = 6, kFloat = 7, kBfloat16 = 9 };

struct Shared {
  std::atomic<int> arrived;
  std::atomic<int> round;
  char numbers[kRanks][kMost];
};

struct Id {
  char path[128];
};

struct Comm {
  int ranks, rank;
  Shared* shared;
  char path[128];
};

int windows = 0;
const char* window_begin = nullptr;
const char* window_end = nullptr;

bool told(const char* what) {
  const char* given = getenv("FAKE_NCCL");
  return given != nullptr && strcmp(given, what) == 0;
}

void note(const std::string& line) {
  if (const char* path = getenv("FAKE_NCCL_LOG")) {
    // One write, so that lines of two processes do not mix.
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    std::string whole = line + "\n";
    if (write(file, whole.data(), whole.size()) < 0) abort();
    close(file);
  }
}

void meet(Comm* comm) {
  int round = comm->shared->round.load();
  if (comm->shared->arrived.fetch_add(1) + 1 == comm->ranks) {
    comm->shared->arrived.store(0);
    comm->shared->round.store(round + 1);
  }
  while (comm->shared->round.load() == round) usleep(20);
}

size_t size_of(int type) { return type <= kUint8 ? 1 : type == kFloat ? 4 : 2; }

float number(const char* at, int type) {
  if (type == kFloat) {
    float value;
    memcpy(&value, at, 4);
    return value;
  }
  unsigned short bits;
  memcpy(&bits, at, 2);
  if (type == kBfloat16) {
    unsigned wide = static_cast<unsigned>(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
  int exponent = bits >> 10 & 31;
  float fraction = static_cast<float>(bits & 1023) / 1024.0f;
  float value = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1.0f + fraction, exponent - 15);
  return bits & 0x8000 ? -value : value;
}

// Cuts off what does not fit, where NCCL rounds: near enough.
void put(char* at, float value, int type) {
  unsigned wide;
  memcpy(&wide, &value, 4);
  if (type == kFloat) {
    memcpy(at, &wide, 4);
    return;
  }
  unsigned short bits = static_cast<unsigned short>(wide >> 16);
  if (type == kHalf) {
    float size = std::fabs(value);
    int exponent = size == 0 ? -14 : std::max(-14, std::ilogb(size));
    int fraction = static_cast<int>(std::ldexp(size, 10 - exponent));
    bits = static_cast<unsigned short>((value < 0 ? 0x8000 : 0) | ((exponent + 14) * 1024 + fraction));
  }
  memcpy(at, &bits, 2);
}

// What all ranks send, side by side, once all have sent.
void gather(Comm* comm, const void* send, size_t bytes) {
  if (bytes > kMost) abort();
  memcpy(comm->shared->numbers[comm->rank], send, bytes);
  meet(comm);
}

int done(Comm* comm, void* recv) {
  meet(comm);
  const char* at = static_cast<const char*>(recv);
  bool in_window = at >= window_begin && at < window_end;
  if (told("wrong") || (told("wrong-windows") && in_window)) static_cast<char*>(recv)[1] ^= 0x7f;
  return kSuccess;
}

void reduce(Comm* comm, size_t from, size_t count, int type, void* recv) {
  size_t size = size_of(type);
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < comm->ranks; ++r) sum += number(comm->shared->numbers[r] + (from + i) * size, type);
    put(static_cast<char*>(recv) + i * size, sum, type);
  }
}

#ifdef OLD
struct Message {
  const void* send;
  void* recv;
  size_t bytes;
  int peer;
};
std::vector<Message> messages;
int groups = 0;
#endif

}  // namespace

extern "C" {

// The mark of a library that works with simulated devices.
int ncclOfSimulatedDevices = 1;

int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}

const char* ncclGetErrorString(int code) { return code == kInvalidUsage ? "invalid usage" : "no error"; }

const char* ncclGetLastError(void*) { return "the stand-in was told to\n"; }

int ncclGetUniqueId(Id* id) {
  *id = {};
  // Beside the log, in a folder that goes with the test.
  const char* log = getenv("FAKE_NCCL_LOG");
  snprintf(id->path, sizeof(id->path), "%s-XXXXXX", log ? log : "/tmp/fake-nccl");
  int file = mkstemp(id->path);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) abort();
  close(file);
  return kSuccess;
}

int ncclCommInitRank(Comm** comm, int ranks, Id id, int rank) {
  int file = open(id.path, O_RDWR);
  void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file < 0 || at == MAP_FAILED || ranks > kRanks) abort();
  close(file);
  while (told("stuck-init")) usleep(1000);
  const char* multicast = getenv("NCCL_NVLS_ENABLE");
  note("init " + std::to_string(rank) + " of " + std::to_string(ranks) + ", NVLS " + (multicast ? multicast : "?"));
  *comm = new Comm{ranks, rank, static_cast<Shared*>(at), {}};
  meet(*comm);
  if (rank == 0) unlink(id.path);
  return kSuccess;
}

static int leave(Comm* comm, const char* how) {
  note(how + std::string(" with ") + std::to_string(windows) + " windows");
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return kSuccess;
}

int ncclCommDestroy(Comm* comm) { return leave(comm, "destroy"); }
int ncclCommAbort(Comm* comm) { return leave(comm, "abort"); }

int ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, Comm* comm, void*) {
  while (told("stuck")) usleep(1000);
  if (told("refuse") || op != 0) return kInvalidUsage;
  gather(comm, send, count * size_of(type));
  reduce(comm, 0, count, type, recv);
  return done(comm, recv);
}

int ncclReduceScatter(const void* send, void* recv, size_t count, int type, int op, Comm* comm, void*) {
  if (op != 0) return kInvalidUsage;
  gather(comm, send, count * comm->ranks * size_of(type));
  reduce(comm, count * comm->rank, count, type, recv);
  return done(comm, recv);
}

int ncclAllGather(const void* send, void* recv, size_t count, int type, Comm* comm, void*) {
  size_t bytes = count * size_of(type);
  gather(comm, send, bytes);
  for (int r = 0; r < comm->ranks; ++r) memcpy(static_cast<char*>(recv) + r * bytes, comm->shared->numbers[r], bytes);
  return done(comm, recv);
}

#ifdef OLD

int ncclSend(const void* send, size_t count, int type, int peer, Comm*, void*) {
  messages.push_back({send, nullptr, count * size_of(type), peer});
  return groups == 1 ? kSuccess : kInvalidUsage;
}

int ncclRecv(void* recv, size_t count, int type, int peer, Comm* comm, void*) {
  messages.push_back({nullptr, recv, count * size_of(type), peer});
  // The last of them: all are done.
  if (messages.size() < 2u * comm->ranks) return kSuccess;
  size_t bytes = messages[0].bytes;
  for (const Message& it : messages) {
    if (it.send) memcpy(comm->shared->numbers[comm->rank] + it.peer * bytes, it.send, bytes);
  }
  meet(comm);
  for (const Message& it : messages) {
    if (it.recv) memcpy(it.recv, comm->shared->numbers[it.peer] + comm->rank * bytes, bytes);
  }
  messages.clear();
  return done(comm, recv);
}

int ncclGroupStart() {
  groups += 1;
  return kSuccess;
}

int ncclGroupEnd() {
  groups -= 1;
  return messages.empty() ? kSuccess : kInvalidUsage;
}

#else

int ncclGroupStart() { return kSuccess; }
int ncclGroupEnd() { return kSuccess; }

int ncclAlltoAll(const void* send, void* recv, size_t count, int type, Comm* comm, void*) {
  size_t bytes = count * size_of(type);
  gather(comm, send, bytes * comm->ranks);
  for (int r = 0; r < comm->ranks; ++r) {
    memcpy(static_cast<char*>(recv) + r * bytes, comm->shared->numbers[r] + comm->rank * bytes, bytes);
  }
  return done(comm, recv);
}

int ncclMemAlloc(void** memory, size_t bytes) {
  *memory = aligned_alloc(4096, bytes);
  return *memory ? kSuccess : kInvalidUsage;
}

int ncclMemFree(void* memory) {
  free(memory);
  return kSuccess;
}

int ncclCommWindowRegister(Comm* comm, void* memory, size_t bytes, void** window, int flags) {
  if (flags != 1 || bytes % 4096 != 0) return kInvalidUsage;
  meet(comm);
  *window = nullptr;
  if (told("no-window")) return kSuccess;
  note("window of " + std::to_string(bytes));
  window_begin = static_cast<const char*>(memory);
  window_end = window_begin + bytes;
  windows += 1;
  *window = memory;
  return kSuccess;
}

int ncclCommWindowDeregister(Comm*, void*) {
  windows -= 1;
  return kSuccess;
}

#endif
}
