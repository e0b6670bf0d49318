// The kernels of expert parallel layers: dispatch takes each token to the ranks of its experts, combine takes the experts' rows
// back and sums them.
//
// Ranks push. Each has scratch memory into which its peers write, a part of it for each micro-batch. Dispatch needs a place for
// `capacity` rows of each rank there; row n of a rank is its n-th token for this rank, so what comes, and in which order,
// depends on the routing alone. A rank stores rows, and signals. Before that it sends what is small as packets, which are valid
// by themselves (LL16 of packet_device.hpp): with each row its token, experts, weights and places; and to every rank, whether
// it has rows for it or not, a header with the number of its rows, of its tokens, and of its rows for each expert. Combine
// needs no header: both sides know from the dispatch how many rows go back.
//
// Experts whose capacity is at most EpTokensAtOnce have kernels of their own, if lines arrive whole between all ranks. There the
// rows travel as packets, too (EpRowPackets): there are no signals, and nothing is freed. X1 to X3 are for the others, and X6 for
// these.
//
// Epochs. Each call of a micro-batch and direction has a number, its epoch, which all ranks count alike, in device memory, so
// that graphs can be replayed: a word for each block that a call may have. A block reads its own word when it begins, and
// writes the next number when it ends; the words of blocks that a call does not have are written by all others.
//
// X1. What a block has stored in the scratch of a peer is visible to who has acquired its signal: all threads of the block
//     have met in a barrier before one of them adds to the peer's word EpArrived, with release at system scope. The
//     blocks of a rank add EpHandle::maxBlocks together in each call, whatever their number, so the receiver knows the sum of
//     all calls. It acquires it by one thread, and lets the others of its block or warp know by a barrier. A combine of many
//     tokens has several phases, each with a word of its own.
// X2. A rank writes for epoch e into a place of its peer when the peer has freed what this rank wrote there in e - 1: the peer's
//     word EpFreed, stored with release at system scope by the last of its blocks, which knows by an atomic counter (with
//     acquire and release) that all others have read what came. The writer acquires it by one thread before a barrier. All
//     that a direction sends is freed together: headers, packets, weights and rows.
// X3. Rows of a dispatch that the caller reads where they arrived (EpLayoutRank) are freed by their combine or by a release:
//     both follow the kernels that read them, in a stream. They free them only if they are those of the last dispatch, since
//     EpFreed must not decrease.
// X4. Blocks learn from those before them how many tokens come before theirs. Each stores its counts, and behind a barrier the
//     epoch, with release at device scope. It reads the counts of the blocks before it after a barrier, behind which their
//     epochs were acquired. All blocks of a call run at once. The words are written again by a later call, which begins
//     after all blocks have ended. A word is twice the epoch, and one more when the block has also noted the rows of its tokens
//     in the tables.
//
// Bits. A sum is acc = fma(w, x, acc) from 0 in float, in the order of the choices. Exact: over all choices of a token, by the
// token's rank, rounded once. Otherwise each rank sums those of its experts and rounds, and the token's rank sums these in the
// order of the ranks. Neither depends on the number of tokens, on what arrives first, or on blocks.
//
// Giving up. A wait for a peer ends when the host aborts it, as it does when the peer is lost. Then the block says so in a word
// of the communicator (EpGaveUp), and later calls end before they send anything.
//
// X5. With EpHandle::patience, the block notes the peer in EpLost instead, and does the rest of the call: it signals, frees and
//     counts as always, so all words between ranks that live are those of a call without a loss. What the call stores has no
//     meaning, but every place that it stores to is checked, or follows from numbers that some call has sent. Later calls
//     read nothing of a rank that is lost, and send it no tokens. Nothing between two ranks depends on a third one, so ranks
//     need not agree on who is lost.

// X6. What travels as packets lies in memory that is there twice, for calls with even and with odd epochs. A rank writes for
//     epoch e where it wrote for e - 2. Its own call e - 1 has ended, and ended only when each peer had begun e - 1: a
//     dispatch has taken a header of each, and the last block of a combine has waited for the peer's word EpBegun, which a
//     launch that sends stores when it begins. In the peer's stream its call e - 2 has ended before that, with all that it
//     read. The rows in the layout EpLayoutRank are written by the rank that has them, out of packets.
//
// X7. If a combine sends many rows between two ranks, its warps share a counter of the parts of the rows. A warp adds 1 to it,
//     relaxed at device scope, and sends the part with the number that it gets, which no other warp has. The numbers only
//     grow. So a warp that gets a part of a later phase takes none of those before any more, and counts itself for these in the
//     shared memory of its block, with acquire and release at block scope. The last warp of a block that counts itself adds to
//     the word EpArrived, as in X1. Its threads meet between the two. Calls with even epochs have one counter, and those with
//     odd ones another. A call sets the counter of the next one to 0. Nobody uses that meanwhile, since the call before has
//     ended. A dispatch of many tokens between two ranks may have such a counter of parts of tokens (EpRows::AreShared). What
//     goes along with all rows is sent before, as in X8, and each block signals once, when all its warps have met.
//
// X8. If a rank has many tokens, whose rows travel as they are, and a layout that copies, half of its blocks send while the
//     others take rows to their places; those that have sent everything help them. A row is signalled by itself: each warp that
//     shares it stores the epoch in a word of the row (EpHandle::rowWords), with release at system scope, after all its threads
//     have met. Threads of the warp that takes the row acquire these words, and meet the others behind that. No earlier call has
//     stored this epoch, so nobody clears the words. A rank that sends in another way stores none; so who waits for them also
//     looks at EpArrived. This rank's own rows are not sent, but read where they are given. Warps take the next token, and the
//     next row, by counters like those of X7. Before a warp sends a token, it acquires the word of X4 of the block
//     that has noted the token's rows.

#ifndef MSCCLPP_EP_DEVICE_HPP_
#define MSCCLPP_EP_DEVICE_HPP_

#include "mscclpp/ep_combine_device.hpp"
#include "mscclpp/ep_dispatch_device.hpp"

#if defined(MSCCLPP_DEVICE_COMPILE)

// Calls in kernels of programs: a dispatch that sends what the kernel makes, such as numbers that it quantises in its own way,
// and a combine that does more with the sums, such as to add a residual. `Experts::dispatch_by` and `Experts::combine_by` launch
// them.
//
//   extern "C" __global__ void __launch_bounds__(1024)
//       my_dispatch(const float* x, const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpDispatch call) {
//     __shared__ EpDispatchShared shared;
//     extern __shared__ uint32_t counts[];
//     dispatchRows(ep, call, shared, counts, MyRows{x});
//   }
//   extern "C" __global__ void __launch_bounds__(1024)
//       my_combine(const float* x, const MSCCLPP_GRID_CONSTANT EpHandle ep, const MSCCLPP_GRID_CONSTANT EpCombine call) {
//     __shared__ EpCombineShared shared;
//     combineRows<ReduceBf16>(ep, call, shared, MySums{x});
//   }
//
// The struct of a dispatch has, besides its own members, the base EpMadeRows and two functions, which all 32 threads of a warp
// call together:
//
//   // Begins a token. Several warps may begin the same one.
//   __device__ void begin(uint32_t token);
//   // Returns bytes 16 i to 16 i + 15 of the token's row of a tensor, as they travel. Thread j of the warp asks for an i that is
//   // j plus a multiple of 32. What is behind the end of the row does not count, whatever is returned.
//   __device__ Bytes16 vector(uint32_t token, uint32_t tensor, uint32_t i) const;
//
// The struct of a combine has one function, which each thread calls for itself:
//
//   // Changes numbers `first` to `first` + Count - 1 of a token's sum, which are then rounded and stored.
//   template <uint32_t Count>
//   __device__ void finish(uint32_t token, uint32_t first, float (&numbers)[Count]) const;
namespace mscclpp {

// The base of a struct whose rows a kernel makes.
struct EpMadeRows {
  static constexpr bool AreGiven = false;
};

// The shared memory of a block.
struct EpDispatchShared {
  detail::EpHeads heads;
};
struct EpCombineShared {
  detail::EpTerms terms[EpMaxWarps];
  detail::EpHeads heads;
};

// Does a dispatch. All threads of the launch call it. `counts` has the block's dynamic shared memory.
template <class Rows>
MSCCLPP_DEVICE_INLINE void dispatchRows(const EpHandle& ep, const EpDispatch& call, EpDispatchShared& shared, uint32_t* counts,
                                        const Rows& rows) {
  if (ep.otherBytes != 0) {
    detail::dispatchExperts<detail::EpRows::ArePackets>(ep, call, shared.heads, counts, rows, EpBoth);
  } else {
    detail::dispatchExperts<detail::EpRows::AreStored>(ep, call, shared.heads, counts, rows, EpBoth);
  }
}

// Does a combine of numbers of a ReduceType, which is that of the set-up. All threads of the launch call it.
template <uint32_t Type, class Sums>
MSCCLPP_DEVICE_INLINE void combineRows(const EpHandle& ep, const EpCombine& call, EpCombineShared& shared, const Sums& sums) {
  detail::EpTerms& terms = shared.terms[threadOfBlock() / 32];
  if (ep.otherBytes != 0) {
    detail::EpCombiner<Type, true, Sums>(ep, call, terms, shared.heads, sums).run(EpBoth);
  } else {
    detail::EpCombiner<Type, false, Sums>(ep, call, terms, shared.heads, sums).run(EpBoth);
  }
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_COMPILE

#endif  // MSCCLPP_EP_DEVICE_HPP_
