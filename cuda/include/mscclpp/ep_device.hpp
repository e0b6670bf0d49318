// The kernels of expert parallel layers: dispatch takes each token to the ranks of its experts, combine takes the experts' rows
// back and sums them.
//
// Ranks push. Each has scratch memory into which its peers write, a part of it for each micro-batch. Dispatch needs a place for
// `capacity` rows of each rank there; row n of a rank is its n-th token for this rank, so what comes, and in which order,
// depends on the routing alone. A rank with few tokens sends their rows as packets, which are valid by themselves (LL16 of
// packet_device.hpp); one with more stores them and signals. Which of both it does is in the header that it sends in any case,
// as packets, to every rank: the number of its rows, of its tokens, and of its rows for each expert. Combine needs no
// header: both sides know from the dispatch how many rows go back, and whether as packets.
//
// Epochs. Each call of a micro-batch and direction has a number, its epoch, which all ranks count alike, in device memory, so
// that graphs can be replayed: a word for each block that a call may have. A block reads its own word when it begins, and
// writes the next number when it ends; the words of blocks that a call does not have are written by all others.
//
// X1. What a block has stored in the scratch of a peer is visible to who has acquired its signal: all threads of the block
//     have met in a barrier before one of them adds to the peer's word EpArrived, with release at system scope. In each call
//     the blocks of a rank add EpHandle::maxBlocks together, whatever their number, so the receiver knows the sum of all
//     calls. It acquires it by one thread, and lets the others of its block know by a barrier.
// X2. A rank writes for epoch e into a place of its peer when the peer has freed what this rank wrote there in e - 1: the peer's
//     word EpFreed, stored with release at system scope by the last of its blocks, which knows by an atomic counter (with
//     acquire and release) that all others have read what came. The writer acquires it by one thread before a barrier. The
//     header, the packets and the rows of a direction are all freed together.
// X3. Rows of a dispatch that the caller reads where they arrived (EpLayoutRank) are freed by their combine or by a release:
//     both follow the kernels that read them, in a stream. They free them only if they are those of the last dispatch, since
//     EpFreed must not decrease.
// X4. The weights that combine sends before everything else have packets of their own, which need no word: a rank sends them
//     again only when it has taken all words of the rows that were made with those of the call before. Every warp that takes
//     weights of a row also makes words of it, so it has taken them by then.
//
// Bits. A sum is acc = fma(w, x, acc) from 0 in float, in the order of the choices. Exact: over all choices of a token, by the
// token's rank, rounded once. Otherwise each rank sums those of its experts and rounds, and the token's rank sums these in the
// order of the ranks. Neither depends on the number of tokens, on what arrives first, or on blocks.
//
// Giving up. A wait for a peer ends when the host aborts it, as it does when the peer is lost. Then the block says so in a word
// of the communicator (EpGaveUp), and later calls end before they send anything.

#ifndef MSCCLPP_EP_DEVICE_HPP_
#define MSCCLPP_EP_DEVICE_HPP_

#include "mscclpp/ep_combine_device.hpp"
#include "mscclpp/ep_dispatch_device.hpp"

#endif  // MSCCLPP_EP_DEVICE_HPP_
