/* A library that stands in for NCCL in the tests of MSCCLPP_NCCL_FALLBACK. It has the functions that mscclpp-nccl calls; its
   collectives write numbers by which the tests recognise which one was called. No GPU is needed. */

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char internal[128]; } Id;
typedef struct { int ranks, rank, grouped; } Comm;

int ncclGetVersion(int* version) { *version = 22899; return 0; }
int ncclGetUniqueId(Id* id) { memset(id, 7, sizeof *id); return 0; }

/* A test that sets `waits` lets communicators be formed when it clears it again. The other two count. */
volatile int waits, forming, aborts;

int ncclCommInitRank(Comm** comm, int ranks, Id id, int rank) {
  for (int i = 0; i < 128; ++i)
    if (id.internal[i] != 7) return 4;
  ++forming;
  while (waits) usleep(1000);
  *comm = malloc(sizeof **comm);
  **comm = (Comm){ranks, rank, 0};
  return 0;
}

static volatile int splitting;
int ncclCommSplit(Comm* comm, int color, int key, Comm** made, void* config) {
  (void)key; (void)config;
  splitting = 1;
  usleep(50000);
  splitting = 0;
  *made = NULL;
  if (color < 0) return 0;
  *made = malloc(sizeof **made);
  **made = (Comm){1, 0, 0};
  return comm->ranks > 0 ? 0 : 4;
}

int ncclCommCount(Comm* comm, int* count) { *count = comm->ranks; return 0; }
int ncclCommUserRank(Comm* comm, int* rank) { *rank = comm->rank; return 0; }
int ncclCommFinalize(Comm* comm) { (void)comm; return 0; }
int ncclCommDestroy(Comm* comm) { free(comm); return 0; }
int ncclCommAbort(Comm* comm) { ++aborts; free(comm); return 0; }
int ncclCommGetAsyncError(Comm* comm, int* error) { (void)comm; *error = 0; return 0; }
const char* ncclGetLastError(Comm* comm) { (void)comm; return "the fake says so"; }

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, Comm* comm) {
  (void)scalar; (void)type; (void)residence; (void)comm;
  *op = 77;
  return 0;
}
int ncclRedOpDestroy(int op, Comm* comm) { (void)comm; return op == 77 ? 0 : 4; }

static int depth, before;
int ncclGroupStart(void) { if (depth++ == 0) before = 0; return 0; }
int ncclGroupEnd(void) { --depth; return 0; }

/* Writes a call's number, as a float, plus 100 for each call before it in its group. Refuses types other than float, and calls
   outside of a group or while a communicator is being split. */
static int says(void* to, int type, float number) {
  if (type != 7) return 4;
  if (depth == 0 || splitting) return 3;
  *(float*)to = number + 100 * before++;
  return 0;
}

#define UNUSED (void)from, (void)n, (void)c, (void)s
int ncclAllReduce(const void* from, void* to, size_t n, int t, int op, Comm* c, void* s) { UNUSED; (void)op; return says(to, t, 1); }
int ncclReduce(const void* from, void* to, size_t n, int t, int op, int root, Comm* c, void* s) { UNUSED; (void)op; return says(to, t, 2 + root); }
int ncclReduceScatter(const void* from, void* to, size_t n, int t, int op, Comm* c, void* s) { UNUSED; (void)op; return says(to, t, 4); }
int ncclAllGather(const void* from, void* to, size_t n, int t, Comm* c, void* s) { UNUSED; return says(to, t, 5); }
int ncclAlltoAll(const void* from, void* to, size_t n, int t, Comm* c, void* s) { UNUSED; return says(to, t, 6); }
int ncclBroadcast(const void* from, void* to, size_t n, int t, int root, Comm* c, void* s) { UNUSED; return says(to, t, 7 + root); }
int ncclGather(const void* from, void* to, size_t n, int t, int root, Comm* c, void* s) { UNUSED; return says(to, t, 9 + root); }
int ncclScatter(const void* from, void* to, size_t n, int t, int root, Comm* c, void* s) { UNUSED; return says(to, t, 11 + root); }
int ncclSend(const void* from, size_t n, int t, int peer, Comm* c, void* s) { UNUSED; (void)peer; return t == 7 ? 0 : 4; }
int ncclRecv(void* to, size_t n, int t, int peer, Comm* c, void* s) { (void)n; (void)c; (void)s; return says(to, t, 13 + peer); }
