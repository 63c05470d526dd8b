// Backward pass of the near field of a block of queries.
#pragma once

#include "../local_attention/bands_backward.h"
#include "windows.h"

namespace attention_ext {
namespace {

// From both scores and `slopes` = G·v: with the weights p of the queries' own scores and f of the
// centroids', set band.scores to p − f after dropout, and the slopes to dL/d(own score) = p (G·v − δ) and, in the
// second set, dL/d(centroid's score) = −f (G·v − δ).
template <class T>
void near_slopes(
    const NearBackwardTask<T>& task, const BandScratch<T>& band, const BandPiece& piece, const int32_t* groups) {
  constexpr int64_t W = Simd<T>::width;
  const BandBlock<T>& block = task.block;
  const int64_t lanes = band.lanes, stride = band.stride;
  const bool dropout = block.dropout.probability > 0;
  if (dropout) {
    for (int64_t s = 0; s < piece.keys; ++s)
      memcpy(band.slopes + s * stride + lanes, band.slopes + s * stride, lanes * sizeof(T));
    drop_band<T>(block, band, piece, band.slopes);
    drop_shared<T>(block, band, piece, groups, task.rows_C, band.slopes + lanes);
  }
  for (int64_t j = 0; j < lanes; j += W) {
    const Vec<T> maximum = load(band.maximum + j), share = load(band.rescale + j), delta = load(band.sum + j);
    for (int64_t s = 0; s < piece.keys; ++s) {
      T *score = band.scores + s * stride + j, *slope = band.slopes + s * stride + j;
      const Vec<T> own = load(score);
      const Mask<T> unseen = own == lowest_score<T>();
      const Vec<T> weight = unseen ? Vec<T>{} : share * exp_vec(own - maximum);
      const Vec<T> taken = unseen ? Vec<T>{} : share * exp_vec(load(score + lanes) - maximum);
      const Vec<T> product = load(slope);
      store(slope + lanes, taken * (delta - (dropout ? load(slope + lanes) : product)));
      store(slope, weight * (product - delta));
      store(score, dropout ? weight : weight - taken);
      if (dropout) store(score + lanes, taken);
    }
  }
  if (dropout) drop_both<T>(block, band, piece, groups, task.rows_C, band.scores);
}

// rows[keys, size] += entries[keys, count] · b[count, padded size], by way of `copy` if a row is not a whole number of
// vectors.
template <class T>
void add_to_keys(
    const BandPiece& piece, int64_t count, int64_t size, const T* entries, int64_t stride, const T* b, T* rows,
    T* copy) {
  const int64_t padded = round_up(size, Simd<T>::width);
  T* to = padded == size ? rows : copy;
  gemm<T, Order::rows>(piece.keys, padded, count, entries, stride, b, padded, to, padded, padded == size);
  if (padded == size) return;
  for (int64_t s = 0; s < piece.keys; ++s)
    for (int64_t j = 0; j < size; ++j) rows[s * size + j] += copy[s * padded + j];
}

template <class T>
void near_backward_block(const NearBackwardTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const BandBlock<T>& block = task.block;
  const int64_t D = block.D, E = block.E, padded_D = round_up(D, W);
  const NearScratch<T> scratch(task.scratch, D, E, true);
  const BandScratch<T>& band = scratch.band;
  const BandBackwardTask<T> tile_task{
      .block = block,
      .grad = task.grad,
      .stride_grad = task.stride_grad,
      .maximum_N = task.maximum_N,
      .inverse_sum_N = task.inverse_sum_N,
      .delta_N = task.delta_N};
  for_tiles<T>(band, block.first, block.end, [&](int64_t query, int64_t count) {
    const int32_t* groups = task.groups_N + query;
    load_tile<T>(tile_task, band, query, count);
    for (int64_t i = 0; i < count; ++i)
      if (task.rescued_N[query + i]) {
        band.rescale[i] = 0;
        band.maximum[i] = -lowest_score<T>();  // a centroid's score may exceed the query's maximum
      }
    memset(band.out, 0, band.lanes * padded_D * sizeof(T));
    for_pieces<T>(block, query, count, [&](const BandPiece& piece) {
      const T *keys = block.k + piece.key * block.stride_k, *values = block.v + piece.key * block.stride_v;
      const T* own = task.kept;
      if (own)
        own += (query - block.first) / band.lanes * near_kept(block.left);
      else
        band_scores<T>(block, band, piece, band.lanes);
      take_centroid_scores<T>(
          band, piece, groups, task.scores_NC, task.padded_C, own ? own : band.scores, own ? band.lanes : band.stride);
      gemm<T, Order::rows>(
          piece.keys, band.lanes, E, values, block.stride_v, band.grads_EM, band.lanes, band.slopes, band.stride,
          false);
      near_slopes<T>(task, band, piece, groups);
      const Rows<const T> rows = whole_rows<T>(keys, block.stride_k, piece.keys, D, band.keys);
      sum_window<T>(block, band, piece, band.slopes, D, rows, band.out);
      add_to_keys<T>(
          piece, count, D, band.slopes, band.stride, band.queries, task.grad_k_ND + piece.key * D, band.keys);
      add_to_keys<T>(
          piece, count, E, band.scores, band.stride, band.grads, task.grad_v_NE + piece.key * E, band.values);
      // The dense pass multiplies these with centroids and keys, once per cluster.
      for (int64_t s = 0; s < piece.keys; ++s) {
        const T* from = band.slopes + s * band.stride + band.lanes;
        T* to = task.slopes_NC + (piece.key + s) * task.padded_C;
        for (int64_t i = 0; i < count; ++i) to[groups[i]] += from[i];
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      const T* from = band.out + i * padded_D;
      T* to = task.grad_q_ND + (query + i) * D;
      for (int64_t d = 0; d < D; ++d) to[d] = from[d] * block.scale;
    }
  });
}

}  // namespace
}  // namespace attention_ext
