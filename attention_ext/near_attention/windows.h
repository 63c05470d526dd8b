// The near field of a block of queries: exact keys in their windows, in place of what the centroids give to these keys.
//
// Lanes hold consecutive queries, as in local attention. A tile computes two scores of every key in its windows, the
// query's own and that of its cluster's centroid. With the same keys' weights under both, exp(own) − exp(centroid's),
// one product adds the first and takes the second out of the cluster's sums over far keys. See NOTES.md.
#pragma once

#include "../local_attention/bands.h"

namespace attention_ext {
namespace {

static_assert(near_tile == band_lanes && near_most_keys == band_piece);

template <class T>
struct NearScratch {
  BandScratch<T> band;  // the second set: centroids
  T *factors, *far;     // per lane
  int64_t bytes;

  NearScratch(char* memory, int64_t D, int64_t E, bool backward) : band(memory, D, E, backward, 2) {
    Scratch scratch{memory, band.bytes};
    factors = scratch.take<T>(band.lanes);
    far = scratch.take<T>(band.lanes);
    bytes = scratch.used;
  }
};

template <class T>
int64_t near_scratch(int64_t D, int64_t E, bool backward) {
  return NearScratch<T>(nullptr, D, E, backward).bytes;
}

// Copy the centroids of a tile's queries, and transpose them.
template <class T>
void load_centroids(
    const BandBlock<T>& block, const BandScratch<T>& band, int64_t count, const int32_t* groups,
    const T* centroids_CD) {
  const int64_t padded = round_up(block.D, Simd<T>::width), lanes = band.lanes;
  T* centroids = band.queries + lanes * padded;
  for (int64_t i = 0; i < count; ++i)
    memcpy(centroids + i * padded, centroids_CD + groups[i] * padded, padded * sizeof(T));
  memset(centroids + count * padded, 0, (lanes - count) * padded * sizeof(T));
  transpose<T>(lanes, padded, centroids, band.queries_DM + lanes, band.stride);
}

// Take the centroids' scores of a piece from the dense pass, whose bits are those of a product here, and the queries'
// own from `own_scores`, rows of `stride` values. Top keys of its cluster get `lowest_score` as a query's own score.
template <class T>
void take_centroid_scores(
    const BandScratch<T>& band, const BandPiece& piece, const int32_t* groups, const T* scores_NC, int64_t padded_C,
    const T* own_scores, int64_t stride) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t s = 0; s < piece.keys; ++s) {
    const T *from = scores_NC + (piece.key + s) * padded_C, *own_from = own_scores + s * stride;
    T *own = band.scores + s * band.stride, *to = own + band.lanes;
    for (int64_t i = 0; i < piece.count; ++i) to[i] = from[groups[i]];
    for (int64_t i = piece.count; i < band.lanes; ++i) to[i] = 0;
    for (int64_t j = 0; j < band.lanes; j += W)
      store(own + j, load(to + j) == lowest_score<T>() ? splat<T>(lowest_score<T>()) : load(own_from + j));
  }
}

// Compute both scores of a piece. Keys that a query does not see, and top keys of its cluster, get `lowest_score` as
// the query's own score.
template <class T>
void near_scores(
    const BandBlock<T>& block, const BandScratch<T>& band, const BandPiece& piece, const int32_t* groups,
    const int32_t* top_CK, int64_t K) {
  band_scores<T>(block, band, piece, band.stride);
  const int64_t end = piece.key + piece.keys;
  for (int64_t i = 0; i < piece.count; ++i) {
    const int32_t* top = top_CK + groups[i] * K;
    int64_t low = 0, high = K;  // find the first top key that is not before the piece
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (top[middle] >= 0 && top[middle] < piece.key)
        low = middle + 1;
      else
        high = middle;
    }
    for (; low < K && top[low] >= 0 && top[low] < end; ++low)
      band.scores[(top[low] - piece.key) * band.stride + i] = lowest_score<T>();
  }
}

// to[count, size] += entries[keys, stride]ᵀ · rows[keys, size], without the keys that no query of a half tile sees.
template <class T>
void sum_window(
    const BandBlock<T>& block, const BandScratch<T>& band, const BandPiece& piece, const T* entries, int64_t size,
    Rows<const T> rows, T* to) {
  constexpr int64_t half = band_lanes / 2;
  const int64_t padded = round_up(size, Simd<T>::width);
  for (int64_t i = 0; i < piece.count; i += half) {
    const int64_t count = earlier(half, piece.count - i), query = piece.query + i - piece.key;
    const int64_t first = later(query - block.left, 0), end = earlier(query + count + block.right, piece.keys);
    if (first < end)
      gemm<T, Order::columns>(
          count, padded, end - first, entries + first * band.stride + i, band.stride, rows.data + first * rows.stride,
          rows.stride, to + i * padded, padded, true);
  }
}

// Dropout of the centroids' entries[keys, stride]: the members of a cluster share a mask.
template <class T>
void drop_shared(
    const BandBlock<T>& block, const BandScratch<T>& band, const BandPiece& piece, const int32_t* groups,
    const uint32_t* rows_C, T* entries) {
  const uint32_t threshold = drop_threshold(block.dropout.probability);
  const T factor = static_cast<T>(1 / (1 - block.dropout.probability));
  for (int64_t i = 0; i < piece.count; ++i)
    for (int64_t s = 0; s < piece.keys; ++s)
      entries[s * band.stride + i] *= keep_factor(rows_C[groups[i]], key_code(piece.key + s), threshold, factor);
}

// Dropout of both weights; then subtract the centroids'.
template <class T>
void drop_both(
    const BandBlock<T>& block, const BandScratch<T>& band, const BandPiece& piece, const int32_t* groups,
    const uint32_t* rows_C, T* entries) {
  constexpr int64_t W = Simd<T>::width;
  drop_band<T>(block, band, piece, entries);
  drop_shared<T>(block, band, piece, groups, rows_C, entries + band.lanes);
  for (int64_t s = 0; s < piece.keys; ++s)
    for (int64_t j = s * band.stride; j < s * band.stride + band.lanes; j += W)
      store(entries + j, load(entries + j) - load(entries + band.lanes + j));
}

// Replace the queries' own scores by the differences of weights, continuing the running maximum and sum.
template <class T, bool Dropout>
void near_softmax(const BandScratch<T>& band, int64_t keys) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t lanes = band.lanes, stride = band.stride;
  for (int64_t j = 0; j < lanes; j += W) {
    const Vec<T> before = load(band.maximum + j);
    Vec<T> top = before;
    T *scores = band.scores + j, *shared = scores + lanes;
    for (int64_t s = 0; s < keys; ++s) top = larger<T>(top, load(scores + s * stride));
    const Vec<T> factor = exp_vec(before - top);
    Vec<T> total = load(band.sum + j) * factor;
    for (int64_t start = 0; start < keys; start += 16) {
      Vec<T> part = {};
      for (int64_t s = start; s < keys && s < start + 16; ++s) {
        const Vec<T> score = load(scores + s * stride);
        const Mask<T> unseen = score == lowest_score<T>();
        const Vec<T> own = exp_vec(score - top), centroid = exp_vec(load(shared + s * stride) - top);
        const Vec<T> difference = unseen ? Vec<T>{} : own - centroid;
        part += difference;
        store(scores + s * stride, Dropout ? (unseen ? Vec<T>{} : own) : difference);
        if (Dropout) store(shared + s * stride, unseen ? Vec<T>{} : centroid);
      }
      total += part;
    }
    store(band.maximum + j, top);
    store(band.rescale + j, factor);
    store(band.sum + j, total);
  }
}

// Start the tile's softmax with the top keys and the cluster's far keys.
template <class T>
void start_tile(const NearTask<T>& task, const NearScratch<T>& scratch, int64_t query, int64_t count) {
  constexpr int64_t W = Simd<T>::width;
  const BandScratch<T>& band = scratch.band;
  const int64_t E = task.block.E, padded_E = round_up(E, W);
  const int32_t* groups = task.groups_N + query;
  for (int64_t i = 0; i < band.lanes; ++i) {
    const bool valid = i < count;
    band.maximum[i] = valid ? task.maximum_N[query + i] : 0;
    band.sum[i] = valid ? task.sum_N[query + i] : 0;
    scratch.far[i] = valid ? task.far_maximum_C[groups[i]] : 0;
    scratch.factors[i] = valid ? task.far_sum_C[groups[i]] : 0;
  }
  for (int64_t j = 0; j < band.lanes; j += W) {
    const Vec<T> before = load(band.maximum + j), far = load(scratch.far + j), top = larger<T>(before, far);
    const Vec<T> rescale = exp_vec(before - top), factor = exp_vec(far - top);
    store(band.maximum + j, top);
    store(band.rescale + j, rescale);
    store(band.sum + j, load(band.sum + j) * rescale + load(scratch.factors + j) * factor);
    store(scratch.factors + j, factor);
  }
  for (int64_t i = 0; i < count; ++i) {
    const T *own = task.out_NE + (query + i) * E, *far = task.far_values_CE + groups[i] * E;
    T* out = band.out + i * padded_E;
    for (int64_t e = 0; e < E; ++e) out[e] = own[e] * band.rescale[i] + far[e] * scratch.factors[i];
    for (int64_t e = E; e < padded_E; ++e) out[e] = 0;
  }
}

template <class T>
void near_block(const NearTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const BandBlock<T>& block = task.block;
  const int64_t E = block.E, padded_E = round_up(E, W);
  const NearScratch<T> scratch(task.scratch, block.D, E, false);
  const BandScratch<T>& band = scratch.band;
  for_tiles<T>(band, block.first, block.end, [&](int64_t query, int64_t count) {
    const int32_t* groups = task.groups_N + query;
    load_queries<T>(block, band, query, count);
    if (!task.scores_NC) load_centroids<T>(block, band, count, groups, task.centroids_CD);
    start_tile<T>(task, scratch, query, count);
    for_pieces<T>(block, query, count, [&](const BandPiece& piece) {
      if (task.scores_NC) {
        band_scores<T>(block, band, piece, band.lanes);
        take_centroid_scores<T>(band, piece, groups, task.scores_NC, task.padded_C, band.scores, band.stride);
      } else {
        near_scores<T>(block, band, piece, groups, task.top_CK, task.K);
      }
      if (task.kept) {
        T* to = task.kept + (query - block.first) / band.lanes * near_kept(block.left);
        for (int64_t s = 0; s < piece.keys; ++s)
          for (int64_t j = 0; j < band.lanes; j += W)
            store(to + s * band.lanes + j, load(band.scores + s * band.stride + j));
      }
      if (block.dropout.probability > 0) {
        near_softmax<T, true>(band, piece.keys);
        drop_both<T>(block, band, piece, groups, task.rows_C, band.scores);
      } else {
        near_softmax<T, false>(band, piece.keys);
      }
      for (int64_t i = 0; i < count; ++i)
        for (int64_t e = 0; e < padded_E; e += W) {
          T* out = band.out + i * padded_E + e;
          store(out, load(out) * band.rescale[i]);
        }
      const Rows<const T> values =
          whole_rows<T>(block.v + piece.key * block.stride_v, block.stride_v, piece.keys, E, band.values);
      sum_window<T>(block, band, piece, band.scores, E, values, band.out);
    });
    // What the cluster gives to its far keys, relative to the final maximum.
    for (int64_t j = 0; j < band.lanes; j += W)
      store(scratch.factors + j, exp_vec(load(scratch.far + j) - load(band.maximum + j)));
    for (int64_t i = 0; i < count; ++i) {
      const bool rescued = task.far_sum_C[groups[i]] * scratch.factors[i] > near_least_share * band.sum[i];
      task.rescued_N[query + i] = rescued;
      if (rescued) continue;
      const T share = 1 / band.sum[i];
      const T* from = band.out + i * padded_E;
      T* to = task.out_NE + (query + i) * E;
      for (int64_t e = 0; e < E; ++e) to[e] = from[e] * share;
      task.maximum_N[query + i] = band.maximum[i];
      task.sum_N[query + i] = share;
    }
  });
}

}  // namespace
}  // namespace attention_ext
