// The kernels of collectives: an exchange, in which every rank sends to every other and takes what comes, as it is or
// reduced, and the all_reduce in two steps. For kernels of yours there is `allReduceRows`, an all_reduce with an
// epilogue: see collective_rows_device.hpp. To do a collective otherwise, see collective_own_device.hpp.
//
// Ranks push. Each has scratch memory into which its peers write, so the peers need not know any memory of the user. A
// message travels in one of three protocols:
//
//   LL16    packets of 8 bytes and two flags, for small messages: they are valid by themselves
//   LL128   packets of 120 bytes and a flag, where the link keeps them whole
//   Simple  plain stores of 16 bytes and a signal for each chunk, for large messages
//
// Peers write directly into memory that a rank has published, in calls that move and in the all_reduce in two steps by Simple:
// D1 to D9 in collective_direct_device.hpp.
//
// Epochs. Each call of a communicator has a number, its epoch, which all ranks count alike. It lives in device
// memory, so that a graph can be replayed: a word for each block that a call may have (its slot). A block reads its
// own slot, and at its end writes the next number there. The slots of those that this call does not have are written by
// all blocks together, at any time. Blocks of one launch may read late or early: nobody writes a slot that another block
// of the launch reads. Launches of one communicator are in the order of a stream.
//
// Scratch is doubled: a call uses the half of its epoch's parity. So a rank that writes for epoch e must know that
// each peer has ended e - 2, the last epoch that used this half. E1. A kernel of a peer begins when its kernel before
// is complete, and what that read is read. So it is enough to know
//       that the peer has begun e - 1.
//   E2. In a call in which every rank takes something from every other, which is most calls, this rank's kernel for
//       e - 1 has waited for something that the peer's kernel for e - 1 wrote. It is complete, so the peer has begun e
//       - 1.
//   E3. In other calls (`oneWay`: a broadcast, counts that differ) every rank tells every other when it begins, by
//       the epoch in a word of the other's scratch; and the call after such a call waits for these words before it
//       writes. They were written a call ago, so this seldom takes time.
// What orders the peer's reads before these writes is that they are complete: a load that has returned its value does
// not see what is stored later, and the end of a kernel waits for its loads.
//
// Bits. Each element of a result is made of the ranks' elements in the order of the ranks, by reduce_device.hpp,
// whatever protocol brought them. So they do not depend on the size of the call, its blocks, or the protocol.
//
// Giving up. A wait for a peer ends when the host aborts the semaphore with it, as it does when the peer is lost.
// Then the block says so in a word of the communicator (CollectiveWords). All later calls are refused by the host, and
// launches that are queued already end before they send anything: a peer that comes late would take it for what it waits for,
// or still reads what stands there. So the peer waits until this rank leaves, or until its own time is up.

#ifndef MSCCLPP_COLLECTIVE_DEVICE_HPP_
#define MSCCLPP_COLLECTIVE_DEVICE_HPP_

#include "mscclpp/collective_direct_device.hpp"
#include "mscclpp/collective_group_device.hpp"
#include "mscclpp/collective_ll128_device.hpp"
#include "mscclpp/collective_ll16_device.hpp"
#include "mscclpp/collective_results_device.hpp"
#include "mscclpp/collective_rows_device.hpp"
#include "mscclpp/collective_simple_device.hpp"
#include "mscclpp/collective_sends_device.hpp"

#endif  // MSCCLPP_COLLECTIVE_DEVICE_HPP_
