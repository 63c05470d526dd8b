// Backward pass of local attention: the block's queries in their windows, and the global queries in the block's keys.
#pragma once

#include "bands.h"

namespace attention_ext {
namespace {

// Load a tile's queries and gradients, and what forward saved of its softmax.
template <class T>
void load_tile(const BandBackwardTask<T>& task, const BandScratch<T>& scratch, int64_t query, int64_t count) {
  const BandBlock<T>& block = task.block;
  const int64_t padded_E = round_up(block.E, Simd<T>::width), lanes = scratch.lanes;
  load_queries<T>(block, scratch, query, count);
  copy_rows<T>(task.grad + query * task.stride_grad, task.stride_grad, count, block.E, scratch.grads);
  memset(scratch.grads + count * padded_E, 0, (lanes - count) * padded_E * sizeof(T));
  transpose<T>(lanes, padded_E, scratch.grads, scratch.grads_EM);
  for (int64_t i = 0; i < lanes; ++i) {
    const bool valid = i < count;
    scratch.maximum[i] = valid ? task.maximum_N[query + i] : 0;
    scratch.rescale[i] = valid ? task.inverse_sum_N[query + i] : 0;
    scratch.sum[i] = valid ? task.delta_N[query + i] : 0;
  }
}

// From scores and slopes = dL/dp, both [keys, lanes]: replace scores by the weights p after dropout, slopes by
// dL/dscore.
template <class T>
void band_slopes(const BandBlock<T>& block, const BandScratch<T>& scratch, const BandPiece& piece) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t lanes = scratch.lanes;
  if (block.dropout.probability > 0) drop_band<T>(block, scratch, piece, scratch.slopes);
  for (int64_t j = 0; j < lanes; j += W) {
    const Vec<T> maximum = load(scratch.maximum + j), share = load(scratch.rescale + j);
    const Vec<T> delta = load(scratch.sum + j);
    for (int64_t s = 0; s < piece.keys; ++s) {
      T *score = scratch.scores + s * lanes + j, *slope = scratch.slopes + s * lanes + j;
      const Vec<T> weight = share * band_weight<T>(load(score), maximum);
      store(score, weight);
      store(slope, weight * (load(slope) - delta));
    }
  }
  if (block.dropout.probability > 0) drop_band<T>(block, scratch, piece, scratch.scores);
}

// Add the piece's share to the gradients of its keys and values, rows of padded_D and padded_E values, and to the
// tile's gradient of the queries in scratch.out.
template <class T>
void slope_piece(
    const BandBlock<T>& block, const BandScratch<T>& scratch, const BandPiece& piece, T* grad_keys, T* grad_values,
    bool first) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded_D = round_up(block.D, W), padded_E = round_up(block.E, W), lanes = scratch.lanes;
  const T* keys = block.k + piece.key * block.stride_k;
  band_scores<T>(block, scratch, piece, scratch.lanes);
  gemm<T, Order::rows>(
      piece.keys, lanes, block.E, block.v + piece.key * block.stride_v, block.stride_v, scratch.grads_EM, lanes,
      scratch.slopes, lanes, false);
  band_slopes<T>(block, scratch, piece);
  sum_band<T>(
      scratch, piece, scratch.slopes, block.D, whole_rows<T>(keys, block.stride_k, piece.keys, block.D, scratch.keys),
      scratch.out, !first);
  gemm<T, Order::rows>(
      piece.keys, padded_D, piece.count, scratch.slopes, lanes, scratch.queries, padded_D, grad_keys, padded_D, true);
  gemm<T, Order::rows>(
      piece.keys, padded_E, piece.count, scratch.scores, lanes, scratch.grads, padded_E, grad_values, padded_E, true);
}

// Store or add the tile's gradient of the queries, rows of padded_D values.
template <class T>
void store_queries(const BandBlock<T>& block, const BandScratch<T>& scratch, int64_t count, T* to) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded = round_up(block.D, W);
  for (int64_t j = 0; j < count * padded; j += W) store(to + j, load(scratch.out + j) * block.scale);
}

template <class T>
void band_backward_block(const BandBackwardTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const BandBlock<T>& block = task.block;
  const int64_t padded_D = round_up(block.D, W), padded_E = round_up(block.E, W), globals = block.globals;
  const BandScratch<T> scratch(task.scratch, block.D, block.E, true, 1, lanes_of(block));
  memset(task.spill_keys, 0, globals * padded_D * sizeof(T));
  memset(task.spill_values, 0, globals * padded_E * sizeof(T));

  for_tiles<T>(scratch, later(block.first, globals), block.end, [&](int64_t query, int64_t count) {
    load_tile<T>(task, scratch, query, count);
    bool first = true;
    for_pieces<T>(block, query, count, [&](const BandPiece& piece) {
      T* keys = (piece.banded ? task.grad_k : task.spill_keys) + piece.key * padded_D;
      T* values = (piece.banded ? task.grad_v : task.spill_values) + piece.key * padded_E;
      slope_piece<T>(block, scratch, piece, keys, values, first);
      first = false;
    });
    store_queries<T>(block, scratch, count, task.grad_q + query * padded_D);
  });
  for_tiles<T>(scratch, 0, globals, [&](int64_t query, int64_t count) {
    load_tile<T>(task, scratch, query, count);
    bool first = true;
    for_run(query, count, block.first, block.end, false, [&](const BandPiece& piece) {
      slope_piece<T>(
          block, scratch, piece, task.grad_k + piece.key * padded_D, task.grad_v + piece.key * padded_E, first);
      first = false;
    });
    store_queries<T>(block, scratch, count, task.spill_queries + query * padded_D);
  });
}

}  // namespace
}  // namespace attention_ext
