// Local attention of a block of queries, forward and backward.
//
// Lanes hold the queries of a tile. A tile sees runs of consecutive keys, whose rows are used where they lie; runs are
// cut into pieces with a running softmax, so that scratch does not grow with the window. See NOTES.md.
#pragma once

#include "../cpu/gemm.h"
#include "../cpu/kernels.h"
#include "../cpu/rows.h"
#include "sight.h"

namespace attention_ext {
namespace {

// Queries of a tile, if the vectors are no wider. It reads 2·window + 16 keys, of which each query sees 2·window + 1:
// wider tiles would read more for nothing.
constexpr int64_t band_lanes = 16;
constexpr int64_t band_piece = 256;  // keys at a time
// From this window on, two vectors of queries gain more by sharing the loads of keys.
constexpr int64_t wide_band = 128;
// Of more keys and values than a core's share of the caches, memory is read for this many queries at a time.
constexpr int64_t long_band_lanes = 128, long_band_bytes = 1 << 22;

// Queries of a tile; depends on the utterance alone, so that its bits are the same in any batch.
template <class T>
int64_t lanes_of(const BandBlock<T>& block) {
  const int64_t bytes = block.length * (block.D + block.E) * static_cast<int64_t>(sizeof(T));
  if (later(block.left, block.right) >= block.length && bytes >= long_band_bytes) return long_band_lanes;
  const int64_t window = earlier(block.left, block.length) + earlier(block.right, block.length);
  return window < wide_band ? band_lanes : later(band_lanes, 2 * Simd<T>::width);
}

// `sets`: vectors for every query of a tile, 1 or, in near attention, 2: its own and its cluster's centroid. Those of
// the second set follow the first in rows of `queries_DM`, `scores` and `slopes`, and after the rows of `queries`.
template <class T>
struct BandScratch {
  int64_t lanes, stride;    // queries of a tile; length of a row
  T *queries, *queries_DM;  // a tile's queries over √D, and their transpose
  T *scores, *out;
  T *keys, *values;              // rows of a piece, if a row is not a whole number of vectors
  T *maximum, *rescale, *sum;    // per query of the tile; backward: maximum, 1/sum, δ
  T *grads, *grads_EM, *slopes;  // backward only
  int64_t bytes;

  BandScratch(char* memory, int64_t D, int64_t E, bool backward, int64_t sets = 1, int64_t tile = band_lanes) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), wide = backward ? 1 : 0;
    lanes = round_up(tile, W);
    stride = sets * lanes;
    Scratch scratch{memory};
    queries = scratch.take<T>(stride * padded_D);
    queries_DM = scratch.take<T>(stride * padded_D);
    scores = scratch.take<T>(band_piece * stride);
    out = scratch.take<T>(stride * (padded_D > padded_E ? padded_D : padded_E));
    keys = scratch.take<T>(D == padded_D ? 0 : band_piece * padded_D);
    values = scratch.take<T>(E == padded_E ? 0 : band_piece * padded_E);
    maximum = scratch.take<T>(lanes);
    rescale = scratch.take<T>(lanes);
    sum = scratch.take<T>(lanes);
    grads = scratch.take<T>(wide * lanes * padded_E);
    grads_EM = scratch.take<T>(wide * lanes * padded_E);
    slopes = scratch.take<T>(wide * band_piece * stride);
    bytes = scratch.used;
  }
};

template <class T>
int64_t band_scratch(int64_t D, int64_t E, bool backward) {
  return BandScratch<T>(nullptr, D, E, backward, 1, long_band_lanes).bytes;
}

// Queries `query` … `query + count − 1` and the keys `key` … `key + keys − 1`. With `banded`, a query sees only keys
// within the window.
struct BandPiece {
  int64_t query, count, key, keys;
  bool banded;
};

template <class F>
void for_run(int64_t query, int64_t count, int64_t key, int64_t end, bool banded, const F& attend) {
  for (; key < end; key += band_piece) attend(BandPiece{query, count, key, earlier(band_piece, end - key), banded});
}

// Call attend(piece) for all pieces of a tile of queries that are not global: the global keys, then the window.
template <class T, class F>
void for_pieces(const BandBlock<T>& block, int64_t query, int64_t count, const F& attend) {
  for_run(query, count, 0, block.globals, false, attend);
  const Sight sight(block, query, count);
  for_run(query, count, later(sight.from, block.globals), sight.end, true, attend);
}

// Copy `count` consecutive rows, zero-padded to a whole number of vectors.
template <class T>
void copy_rows(const T* from, int64_t stride, int64_t count, int64_t size, T* to) {
  const int64_t padded = round_up(size, Simd<T>::width);
  for (int64_t i = 0; i < count; ++i) {
    memcpy(to + i * padded, from + i * stride, size * sizeof(T));
    for (int64_t j = size; j < padded; ++j) to[i * padded + j] = 0;
  }
}

// Rows that may be read in whole vectors: the given ones, or a copy in `to`.
template <class T>
Rows<const T> whole_rows(const T* from, int64_t stride, int64_t count, int64_t size, T* to) {
  const int64_t padded = round_up(size, Simd<T>::width);
  if (padded == size) return {from, stride};
  copy_rows<T>(from, stride, count, size, to);
  return {to, padded};
}

// Copy a tile's queries over √D, and transpose them.
template <class T>
void load_queries(const BandBlock<T>& block, const BandScratch<T>& scratch, int64_t query, int64_t count) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded = round_up(block.D, W), lanes = scratch.lanes;
  copy_rows<T>(block.q + query * block.stride_q, block.stride_q, count, block.D, scratch.queries);
  for (int64_t j = 0; j < count * padded; j += W) store(scratch.queries + j, load(scratch.queries + j) * block.scale);
  memset(scratch.queries + count * padded, 0, (lanes - count) * padded * sizeof(T));
  transpose<T>(lanes, padded, scratch.queries, scratch.queries_DM, scratch.stride);
}

// Compute the first columns of scores[keys, stride]; those of queries outside their windows become `lowest_score`.
template <class T>
void band_scores(const BandBlock<T>& block, const BandScratch<T>& scratch, const BandPiece& piece, int64_t columns) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t lanes = scratch.lanes, stride = scratch.stride;
  gemm<T, Order::rows>(
      piece.keys, columns, block.D, block.k + piece.key * block.stride_k, block.stride_k, scratch.queries_DM, stride,
      scratch.scores, stride, false);
  for (int64_t s = 0; s < piece.keys && block.bias; ++s)
    for (int64_t j = 0; j < columns; j += W) {
      T* score = scratch.scores + s * stride + j;
      store(score, load(score) + block.bias[piece.key + s]);
    }
  if (!piece.banded) return;
  Mask<T> lane;
  for (int i = 0; i < W; ++i) lane[i] = i;
  const Sight sight(block, piece.query, piece.count);
  for (int64_t s = 0; s < piece.keys; ++s) {
    const int64_t key = piece.key + s;
    if (key >= sight.all_from && key < sight.all_end) continue;
    const Seers seers(block, piece.query, key);
    for (int64_t j = 0; j < lanes; j += W) {
      // In numbers that fit the mask's type.
      const auto first = static_cast<Ordered<T>>(later(earlier(seers.first - j, W), 0));
      const auto end = static_cast<Ordered<T>>(later(earlier(seers.end - j, W), 0));
      T* score = scratch.scores + s * stride + j;
      const Mask<T> seen = (lane >= first) & (lane < end);
      store(score, seen ? load(score) : splat<T>(lowest_score<T>()));
    }
  }
}

// exp(score − maximum); 0 where a query does not see the key. NaN stays NaN.
template <class T>
inline Vec<T> band_weight(Vec<T> score, Vec<T> maximum) {
  const Vec<T> weight = exp_vec(score - maximum);
  return score == lowest_score<T>() ? Vec<T>{} : weight;
}

// Replace scores by weights, continuing the running maximum and sum.
template <class T>
void band_softmax(const BandScratch<T>& scratch, int64_t keys) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t lanes = scratch.lanes;
  for (int64_t j = 0; j < lanes; j += W) {
    const Vec<T> before = load(scratch.maximum + j);
    Vec<T> top = before;
    T* scores = scratch.scores + j;
    for (int64_t s = 0; s < keys; ++s) top = larger<T>(top, load(scores + s * lanes));
    const Vec<T> factor = exp_vec(before - top);
    Vec<T> total = load(scratch.sum + j) * factor;
    for (int64_t start = 0; start < keys; start += 16) {
      Vec<T> part = {};
      for (int64_t s = start; s < keys && s < start + 16; ++s) {
        const Vec<T> weight = band_weight<T>(load(scores + s * lanes), top);
        part += weight;
        store(scores + s * lanes, weight);
      }
      total += part;
    }
    store(scratch.maximum + j, top);
    store(scratch.rescale + j, factor);
    store(scratch.sum + j, total);
  }
}

// Dropout: multiply entries[keys, stride] of queries by 0 or 1 / (1 − p).
template <class T>
void drop_band(const BandBlock<T>& block, const BandScratch<T>& scratch, const BandPiece& piece, T* entries) {
  const uint32_t threshold = drop_threshold(block.dropout.probability);
  const T factor = static_cast<T>(1 / (1 - block.dropout.probability));
  for (int64_t i = 0; i < piece.count; ++i) {
    const uint32_t row = row_code(block.dropout.seed, block.first_row + piece.query + i);
    for (int64_t s = 0; s < piece.keys; ++s)
      entries[s * scratch.stride + i] *= keep_factor(row, key_code(piece.key + s), threshold, factor);
  }
}

// to[count, size] += entries[keys, lanes]ᵀ · rows[keys, size]; `add`: whether `to` holds a sum already.
template <class T>
void sum_band(
    const BandScratch<T>& scratch, const BandPiece& piece, const T* entries, int64_t size, Rows<const T> rows, T* to,
    bool add) {
  const int64_t padded = round_up(size, Simd<T>::width);
  gemm<T, Order::columns>(
      piece.count, padded, piece.keys, entries, scratch.lanes, rows.data, rows.stride, to, padded, add);
}

// Add the piece's share to the tile's running softmax and output.
template <class T>
void attend_piece(const BandBlock<T>& block, const BandScratch<T>& scratch, const BandPiece& piece, bool first) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded = round_up(block.E, W);
  band_scores<T>(block, scratch, piece, scratch.lanes);
  band_softmax<T>(scratch, piece.keys);
  if (block.dropout.probability > 0) drop_band<T>(block, scratch, piece, scratch.scores);
  if (!first)
    for (int64_t i = 0; i < piece.count; ++i)
      for (int64_t e = 0; e < padded; e += W) {
        T* out = scratch.out + i * padded + e;
        store(out, load(out) * scratch.rescale[i]);
      }
  const Rows<const T> values =
      whole_rows<T>(block.v + piece.key * block.stride_v, block.stride_v, piece.keys, block.E, scratch.values);
  sum_band<T>(scratch, piece, scratch.scores, block.E, values, scratch.out, !first);
}

// Call tile(query, count) for the block's queries from `first` to `end`.
template <class T, class F>
void for_tiles(const BandScratch<T>& scratch, int64_t first, int64_t end, const F& tile) {
  for (; first < end; first += scratch.lanes) tile(first, earlier(scratch.lanes, end - first));
}

template <class T>
void band_block(const BandTask<T>& task) {
  const BandBlock<T>& block = task.block;
  const int64_t E = block.E, padded_E = round_up(E, Simd<T>::width);
  const BandScratch<T> scratch(task.scratch, block.D, E, false, 1, lanes_of(block));

  const auto attend = [&](int64_t query, int64_t count, bool global) {
    load_queries<T>(block, scratch, query, count);
    for (int64_t i = 0; i < scratch.lanes; ++i) scratch.maximum[i] = lowest_score<T>(), scratch.sum[i] = 0;
    bool first = true;
    const auto next = [&](const BandPiece& piece) {
      attend_piece<T>(block, scratch, piece, first);
      first = false;
    };
    if (global)
      for_run(query, count, 0, block.length, false, next);
    else
      for_pieces<T>(block, query, count, next);
    for (int64_t i = 0; i < count; ++i) {
      const T share = 1 / scratch.sum[i];
      const T* from = scratch.out + i * padded_E;
      T* to = task.out_NE + (query + i) * E;
      for (int64_t e = 0; e < E; ++e) to[e] = from[e] * share;
      task.maximum_N[query + i] = scratch.maximum[i];
      task.inverse_sum_N[query + i] = share;
    }
  };
  const int64_t globals = earlier(later(block.globals, block.first), block.end);
  for_tiles<T>(scratch, block.first, globals, [&](int64_t query, int64_t count) { attend(query, count, true); });
  for_tiles<T>(scratch, globals, block.end, [&](int64_t query, int64_t count) { attend(query, count, false); });
}

}  // namespace
}  // namespace attention_ext
