// Attention of all centroids over one block of keys, forward and backward.
//
// Keys are processed in chunks whose C × chunk scores stay in the cache. Lanes hold clusters, so that softmax
// statistics and top-key search work on whole vectors without transposing anything. See clustered_attention/NOTES.md.
#pragma once

#include "../cpu/gemm.h"
#include "../cpu/kernels.h"
#include "../cpu/rows.h"
#include "topk.h"

namespace attention_ext {
namespace {

// Keys in a chunk: `largest`, halved until the scores fit into 240 KB.
template <class T>
int64_t chunk_keys(int64_t C, int64_t largest) {
  int64_t keys = largest;
  while (keys > 16 && keys * C * static_cast<int64_t>(sizeof(T)) > 240 * 1024) keys /= 2;
  return keys;
}

// Backward holds weights and slopes, so half as many keys fill the same part of the cache. Forward chunks of 256 made
// improved clustered attention 4 % slower.
constexpr int64_t forward_chunk = largest_chunk, backward_chunk = 256;

// Rows of whole vectors: in place if a row already is a whole number of vectors, else a padded copy.
template <class T>
struct PaddedRows {
  const T* data;
  int64_t stride;
};

template <class T>
PaddedRows<T> padded_rows(const T* from, int64_t stride, int64_t rows, int64_t size, T* copy) {
  const int64_t padded = round_up(size, Simd<T>::width);
  if (padded == size) return {from, stride};
  for (int64_t i = 0; i < rows; ++i) {
    memcpy(copy + i * padded, from + i * stride, size * sizeof(T));
    for (int64_t j = size; j < padded; ++j) copy[i * padded + j] = 0;
  }
  return {copy, padded};
}

template <class T>
struct DenseScratch {
  T *scores, *rows, *highest, *rescale;
  TopKeys<T> top;
  TopKeys<T> last;  // candidates before the chunk, if the top keys stay apart
  int32_t* last_count;
  int64_t bytes;
  DenseScratch(char* memory, int64_t C, int64_t E, int64_t K, bool apart) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t chunk = chunk_keys<T>(round_up(C, W), forward_chunk), copies = apart && K ? C : 0;
    Scratch scratch{memory};
    scores = scratch.take<T>(chunk * round_up(C, W));
    rows = scratch.take<T>(E % W ? chunk * round_up(E, W) : 0);
    highest = scratch.take<T>(round_up(C, W));
    rescale = scratch.take<T>(round_up(C, W));
    top.capacity = K + chunk;
    top.segments = scratch.take<T>(K ? chunk * W : 0);
    top.threshold = scratch.take<T>(K ? round_up(C, W) : 0);
    top.scores = scratch.take<Ordered<T>>(K ? C * top.capacity : 0);
    top.positions = scratch.take<int32_t>(K ? C * top.capacity : 0);
    last.capacity = top.capacity;
    last.scores = scratch.take<Ordered<T>>(copies * top.stride(K));
    last.positions = scratch.take<int32_t>(copies * top.stride(K));
    last_count = scratch.take<int32_t>(copies);
    bytes = scratch.used;
  }
};

template <class T>
int64_t dense_scratch(int64_t C, int64_t E, int64_t K, bool apart) {
  return DenseScratch<T>(nullptr, C, E, K, apart).bytes;
}

// Largest score of each column.
template <class T, int V>
inline void column_maxima(int64_t keys, const T* scores, int64_t stride, T* highest) {
  constexpr int64_t W = Simd<T>::width;
  Vec<T> top[V];
  for (int j = 0; j < V; ++j) top[j] = splat(lowest_score<T>());
  for (int64_t s = 0; s < keys; ++s)
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) top[j] = larger<T>(top[j], load(scores + s * stride + j * W));
  for (int j = 0; j < V; ++j) store(highest + j * W, top[j]);
}

// Update the running maximum, write weights exp(score − maximum), to the scores' place or another, and add to their
// sum; V vectors of clusters. With `Apart`, the weight of `lowest_score` is 0.
template <class T, int V, bool Apart = false>
void softmax_columns(
    int64_t keys, const T* scores, T* weights, int64_t stride, const T* highest, T* maximum, T* rescale, T* sum) {
  constexpr int64_t W = Simd<T>::width;
  Vec<T> before[V], top[V], total[V];
  for (int j = 0; j < V; ++j) {
    before[j] = load(maximum + j * W);
    top[j] = larger<T>(before[j], load(highest + j * W));
  }
  for (int j = 0; j < V; ++j) {
    const Vec<T> factor = exp_vec(before[j] - top[j]);
    store(rescale + j * W, factor);
    store(maximum + j * W, top[j]);
    total[j] = load(sum + j * W) * factor;
  }
  for (int64_t start = 0; start < keys; start += 16) {
    // A sum of sums: a single long sum of positive terms would lose two digits.
    Vec<T> part[V] = {};
    for (int64_t s = start; s < keys && s < start + 16; ++s)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) {
        const Vec<T> score = load(scores + s * stride + j * W);
        Vec<T> weight = exp_vec(score - top[j]);
        if constexpr (Apart) weight = score == lowest_score<T>() ? Vec<T>{} : weight;
        part[j] += weight;
        store(weights + s * stride + j * W, weight);
      }
    for (int j = 0; j < V; ++j) total[j] += part[j];
  }
  for (int j = 0; j < V; ++j) store(sum + j * W, total[j]);
}

// Drop weights and scale the others.
template <class T>
void drop_columns(
    int64_t first, int64_t keys, int64_t C, int64_t stride, double probability, const uint32_t* rows_C, T* values) {
  const uint32_t threshold = drop_threshold(probability);
  const T factor = static_cast<T>(1 / (1 - probability));
  for (int64_t s = 0; s < keys; ++s) {
    const uint32_t key = key_code(first + s);
    for (int64_t c = 0; c < C; ++c) values[s * stride + c] *= keep_factor(rows_C[c], key, threshold, factor);
  }
}

// Add one key to the sums of cluster c, and to its scores if they are stored.
template <class T>
void add_key(const DenseTask<T>& task, int64_t c, T score, int64_t position) {
  const int64_t padded_E = round_up(task.E, Simd<T>::width);
  if (task.scores) task.scores[position * round_up(task.C, Simd<T>::width) + c] = score;
  T &maximum = task.maximum_C[c], *values = task.values_CE + c * padded_E;
  if (score > maximum) {
    const T factor = exp_vec(splat(maximum - score))[0];
    task.sum_C[c] *= factor;
    for (int64_t e = 0; e < padded_E; ++e) values[e] *= factor;
    maximum = score;
  }
  T weight = exp_vec(splat(score - maximum))[0];
  task.sum_C[c] += weight;
  if (task.dropout > 0)
    weight *= keep_factor(
        task.rows_C[c], key_code(position), drop_threshold(task.dropout), static_cast<T>(1 / (1 - task.dropout)));
  const T* row = task.v + position * task.stride_v;
  for (int64_t e = 0; e < task.E; ++e) values[e] += weight * row[e];
}

// Copy the candidates of all clusters.
template <class T>
void remember_candidates(const DenseTask<T>& task, const DenseScratch<T>& scratch) {
  for (int64_t c = 0; c < task.C; ++c) {
    const int64_t count = scratch.last_count[c] = task.top_count_C[c];
    memcpy(scratch.last.list(c, task.K), scratch.top.list(c, task.K), count * sizeof(T));
    memcpy(scratch.last.places(c, task.K), scratch.top.places(c, task.K), count * sizeof(int32_t));
  }
}

// Add the keys that are candidates no longer to their clusters' sums.
template <class T>
void add_rejected(const DenseTask<T>& task, const DenseScratch<T>& scratch) {
  for (int64_t c = 0; c < task.C; ++c) {
    const int32_t *now = scratch.top.places(c, task.K), *end = now + task.top_count_C[c];
    const int32_t* before = scratch.last.places(c, task.K);
    for (int64_t i = 0; i < scratch.last_count[c]; ++i)
      if (now < end && *now == before[i])
        ++now;
      else
        add_key<T>(task, c, scratch.last.list(c, task.K)[i], before[i]);
  }
}

// Take the candidates of a chunk out of its scores.
template <class T>
void take_out_candidates(const DenseTask<T>& task, const TopKeys<T>& top, int64_t start, int64_t stride, T* scores) {
  for (int64_t c = 0; c < task.C; ++c) {
    const int32_t* places = top.places(c, task.K);
    for (int64_t i = task.top_count_C[c]; i > 0 && places[i - 1] >= start; --i)
      scores[(places[i - 1] - start) * stride + c] = lowest_score<T>();
  }
}

template <class T, bool Apart>
void dense_block(const DenseTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t C = task.C, padded_C = round_up(C, W), padded_E = round_up(task.E, W);
  const int64_t chunk = chunk_keys<T>(padded_C, forward_chunk);
  DenseScratch<T> scratch(task.scratch, C, task.E, task.K, Apart);
  for (int64_t c = 0; c < padded_C; c += W) {
    store(task.maximum_C + c, splat<T>(lowest_score<T>()));
    store(task.sum_C + c, Vec<T>{});
  }
  if (task.K) scratch.top.start(C, padded_C, task.top_count_C);

  for (int64_t start = task.first; start < task.first + task.keys; start += chunk) {
    const int64_t left = task.first + task.keys - start, keys = left < chunk ? left : chunk;
    T* scores = task.kept ? task.kept + start * padded_C : scratch.scores;
    T* const products = Apart && task.scores ? task.scores + start * padded_C : scores;
    gemm<T, Order::rows>(
        keys, padded_C, task.D, task.k + start * task.stride_k, task.stride_k, task.centroids_DC, padded_C, products,
        padded_C, false);
    if constexpr (Apart) remember_candidates<T>(task, scratch);
    if (task.K) scratch.top.search(C, padded_C, task.K, start, keys, products, task.top_count_C, scratch.highest);
    if constexpr (Apart) take_out_candidates<T>(task, scratch.top, start, padded_C, products);
    const bool maxima = Apart || !task.K;  // else the search has found them
    int64_t c = 0;
    for (; c + 2 * W <= padded_C; c += 2 * W) {
      if (maxima) column_maxima<T, 2>(keys, products + c, padded_C, scratch.highest + c);
      softmax_columns<T, 2, Apart>(
          keys, products + c, scores + c, padded_C, scratch.highest + c, task.maximum_C + c, scratch.rescale + c,
          task.sum_C + c);
    }
    if (c < padded_C) {
      if (maxima) column_maxima<T, 1>(keys, products + c, padded_C, scratch.highest + c);
      softmax_columns<T, 1, Apart>(
          keys, products + c, scores + c, padded_C, scratch.highest + c, task.maximum_C + c, scratch.rescale + c,
          task.sum_C + c);
    }
    if (task.kept) memcpy(task.kept_maxima + start / chunk * padded_C, task.maximum_C, padded_C * sizeof(T));
    if (task.dropout > 0) {
      if (task.kept) memcpy(scratch.scores, scores, keys * padded_C * sizeof(T));
      scores = scratch.scores;
      drop_columns<T>(start, keys, C, padded_C, task.dropout, task.rows_C, scores);
    }
    const bool add = start > task.first;
    if (add)
      for (int64_t i = 0; i < C; ++i)
        for (int64_t e = 0; e < padded_E; e += W)
          store(task.values_CE + i * padded_E + e, load(task.values_CE + i * padded_E + e) * scratch.rescale[i]);
    const PaddedRows<T> v = padded_rows<T>(task.v + start * task.stride_v, task.stride_v, keys, task.E, scratch.rows);
    // Blocks of 128 keys round less than one long sum, and their scores stay in the L1 cache.
    for (int64_t s = 0; s < keys; s += 128)
      gemm<T, Order::columns>(
          C, padded_E, keys - s < 128 ? keys - s : 128, scores + s * padded_C, padded_C, v.data + s * v.stride,
          v.stride, task.values_CE, padded_E, add || s > 0);
    if constexpr (Apart) add_rejected<T>(task, scratch);
  }
  if constexpr (Apart) remember_candidates<T>(task, scratch);
  if (task.K) scratch.top.finish(C, task.K, task.top_count_C, task.top_scores_CK, task.top_CK);
  if constexpr (Apart) add_rejected<T>(task, scratch);
}

template <class T>
struct DenseBackwardScratch {
  T *weights, *slopes, *rows, *out, *factors;
  int32_t* next;
  int64_t bytes;
  DenseBackwardScratch(char* memory, int64_t C, int64_t D, int64_t E) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t padded = round_up(C, W), chunk = chunk_keys<T>(padded, backward_chunk);
    const int64_t widest = round_up(D > E ? D : E, W);
    Scratch scratch{memory};
    weights = scratch.take<T>(chunk * padded);
    slopes = scratch.take<T>(chunk * padded);
    rows = scratch.take<T>(D % W ? chunk * round_up(D, W) : 0);
    out = scratch.take<T>(D % W || E % W ? chunk * widest : 0);
    factors = scratch.take<T>(padded);
    next = scratch.take<int32_t>(C);
    bytes = scratch.used;
  }
};

template <class T>
int64_t dense_backward_scratch(int64_t C, int64_t D, int64_t E) {
  return DenseBackwardScratch<T>(nullptr, C, D, E).bytes;
}

// to[rows, size] = a[rows, K] · b[K, padded size], or with `add` plus what is there, by way of `out` if a row is not a
// whole number of vectors.
template <class T>
void gemm_to_rows(
    int64_t rows, int64_t size, int64_t K, const T* a, int64_t stride_a, const T* b, T* to, T* out, bool add) {
  const int64_t padded = round_up(size, Simd<T>::width);
  T* target = padded == size ? to : out;
  gemm<T, Order::rows>(rows, padded, K, a, stride_a, b, padded, target, padded, add && target == to);
  if (target == to) return;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < size; ++j) to[i * size + j] = out[i * padded + j] + (add ? to[i * size + j] : 0);
}

// Set the entries of the top keys among a chunk's keys in a [keys, C] array to value(c). `next` holds each cluster's
// first top key that is not before the chunk.
template <class T, class Value>
inline void set_top(
    const DenseBackwardTask<T>& task, const int32_t* next, int64_t start, int64_t keys, int64_t stride, T* to,
    const Value& value) {
  for (int64_t c = 0; c < task.C; ++c)
    for (int32_t i = next[c]; i < task.top_count_C[c]; ++i) {
      const int64_t s = task.top_CK[c * task.K + i] - start;
      if (s >= keys) break;
      to[s * stride + c] = value(c);
    }
}

// Compute the scores of a block of keys, without the top keys.
template <class T>
void dense_scores_block(const DenseBackwardTask<T>& task) {
  const int64_t padded_C = round_up(task.C, Simd<T>::width), end = task.first + task.keys;
  gemm<T, Order::rows>(
      task.keys, padded_C, task.D, task.k + task.first * task.stride_k, task.stride_k, task.centroids_DC, padded_C,
      task.scores_SC + task.first * padded_C, padded_C, false);
  for (int64_t c = 0; c < task.C; ++c)
    for (int32_t i = 0; i < task.top_count_C[c]; ++i) {
      const int64_t s = task.top_CK[c * task.K + i];
      if (s >= task.first && s < end) task.scores_SC[s * padded_C + c] = lowest_score<T>();
    }
}

// With weights P and summed output gradients G: dV = Pᵀ G, dP = G Vᵀ, dS = P ∘ (dP − δ). The top keys belong to the
// exact part: they contribute no dV here, and their dP is the derivative with respect to the mass; with `Apart` they
// contribute nothing, and the results are added to those of the near field.
template <class T, bool Apart>
void dense_backward_block(const DenseBackwardTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t C = task.C, D = task.D, E = task.E, padded_C = round_up(C, W), padded_D = round_up(D, W);
  const int64_t chunk = chunk_keys<T>(padded_C, backward_chunk);
  DenseBackwardScratch<T> scratch(task.scratch, C, D, E);
  if (!Apart && task.K)
    for (int64_t c = 0; c < C; ++c) {
      int32_t next = 0;
      while (next < task.top_count_C[c] && task.top_CK[c * task.K + next] < task.first) ++next;
      scratch.next[c] = next;
    }
  for (int64_t i = 0; i < C * padded_D; i += W) store(task.grad_centroids_CD + i, Vec<T>{});

  for (int64_t start = task.first; start < task.first + task.keys; start += chunk) {
    const int64_t left = task.first + task.keys - start, keys = left < chunk ? left : chunk;
    const T* k = task.k + start * task.stride_k;
    const T* v = task.v + start * task.stride_v;
    const T* scores = Apart ? task.scores_SC + start * padded_C : scratch.weights;
    if (!Apart && !task.kept)
      gemm<T, Order::rows>(
          keys, padded_C, D, k, task.stride_k, task.centroids_DC, padded_C, scratch.weights, padded_C, false);
    gemm<T, Order::rows>(keys, padded_C, E, v, task.stride_v, task.grads_EC, padded_C, scratch.slopes, padded_C, false);
    if (task.dropout > 0) drop_columns<T>(start, keys, C, padded_C, task.dropout, task.rows_C, scratch.slopes);
    if (!Apart && task.K)
      set_top<T>(
          task, scratch.next, start, keys, padded_C, scratch.slopes, [&](int64_t c) { return task.grad_mass_C[c]; });
    if (task.kept) {
      // Forward kept exp(score − running maximum at this chunk).
      const T* maximum = task.kept_maxima + start / chunk_keys<T>(padded_C, forward_chunk) * padded_C;
      for (int64_t c = 0; c < padded_C; c += W)
        store(
            scratch.factors + c, exp_vec(load(maximum + c) - load(task.maximum_C + c)) * load(task.inverse_sum_C + c));
      for (int64_t s = 0; s < keys; ++s)
        for (int64_t c = 0; c < padded_C; c += W) {
          const Vec<T> weight = load(task.kept + (start + s) * padded_C + c) * load(scratch.factors + c);
          T* slope = scratch.slopes + s * padded_C + c;
          store(slope, weight * (load(slope) - load(task.delta_C + c)));
          store(scratch.weights + s * padded_C + c, weight);
        }
    } else {
      for (int64_t s = 0; s < keys; ++s)
        for (int64_t c = 0; c < padded_C; c += W) {
          const Vec<T> score = load(scores + s * padded_C + c);
          Vec<T> weight = exp_vec(score - load(task.maximum_C + c)) * load(task.inverse_sum_C + c);
          if constexpr (Apart) weight = score == lowest_score<T>() ? Vec<T>{} : weight;
          T* slope = scratch.slopes + s * padded_C + c;
          Vec<T> sum = weight * (load(slope) - load(task.delta_C + c));
          if constexpr (Apart) sum += load(task.slopes_SC + (start + s) * padded_C + c);
          store(slope, sum);
          store(scratch.weights + s * padded_C + c, weight);
        }
    }
    if (!Apart && task.K)
      for (int64_t c = 0; c < C; ++c) {
        int32_t& i = scratch.next[c];
        for (; i < task.top_count_C[c]; ++i) {
          const int64_t s = task.top_CK[c * task.K + i] - start;
          if (s >= keys) break;
          scratch.weights[s * padded_C + c] = 0;
        }
      }
    if (task.dropout > 0) drop_columns<T>(start, keys, C, padded_C, task.dropout, task.rows_C, scratch.weights);
    gemm_to_rows<T>(
        keys, E, C, scratch.weights, padded_C, task.grads_CE, task.grad_v_SE + start * E, scratch.out, Apart);
    gemm_to_rows<T>(
        keys, D, C, scratch.slopes, padded_C, task.centroids_CD, task.grad_k_SD + start * D, scratch.out, Apart);
    const PaddedRows<T> rows = padded_rows<T>(k, task.stride_k, keys, D, scratch.rows);
    gemm<T, Order::columns>(
        C, padded_D, keys, scratch.slopes, padded_C, rows.data, rows.stride, task.grad_centroids_CD, padded_D, true);
  }
  for (int64_t i = 0; i < C * padded_D; i += W)
    store(task.grad_centroids_CD + i, load(task.grad_centroids_CD + i) * task.scale);
}

}  // namespace
}  // namespace attention_ext
