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
//     after all blocks have ended.
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

#ifndef MSCCLPP_EP_DEVICE_HPP_
#define MSCCLPP_EP_DEVICE_HPP_

#include "mscclpp/ep_combine_device.hpp"
#include "mscclpp/ep_dispatch_device.hpp"

#endif  // MSCCLPP_EP_DEVICE_HPP_
