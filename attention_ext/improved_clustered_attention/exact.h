// Attention of one cluster's queries over the cluster's top keys, forward and backward.
//
// The keys' rows are gathered once per cluster, and their transpose; then tiles of queries pass over them.
#pragma once

#include "../clustered_attention/dense.h"

namespace attention_ext {
namespace {

constexpr int64_t query_tile = 48;

// Softmax over K of each row's padded values, scaled to `total` (gradients need it unscaled: 1).
template <class T>
void softmax_rows(int64_t rows, int64_t K, int64_t padded_K, T scale, T total, T* scores) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < rows; ++i) {
    T* row = scores + i * padded_K;
    for (int64_t j = K; j < padded_K; ++j) row[j] = lowest_score<T>();
    Vec<T> top = load(row);
    for (int64_t j = W; j < padded_K; j += W) top = larger<T>(top, load(row + j));
    T highest = top[0];
    for (int j = 1; j < W; ++j) highest = highest < top[j] ? top[j] : highest;
    Vec<T> sum = {};
    for (int64_t j = 0; j < padded_K; j += W) {
      const Vec<T> weight = exp_vec((load(row + j) - highest) * scale);
      sum += weight;
      store(row + j, weight);
    }
    const T factor = total / sum_lanes<T>(sum);
    for (int64_t j = 0; j < padded_K; j += W) store(row + j, load(row + j) * factor);
  }
}

// Drop weights of some queries to the chosen keys, and scale those that stay.
template <class T>
void drop_rows(
    const int32_t* order, int64_t rows, const int32_t* top, int64_t K, int64_t padded_K, Dropout dropout,
    uint64_t first_row, T* values) {
  const uint32_t threshold = drop_threshold(dropout.probability);
  const T factor = static_cast<T>(1 / (1 - dropout.probability));
  for (int64_t i = 0; i < rows; ++i) {
    const uint32_t row = row_code(dropout.seed, first_row + order[i]);
    for (int64_t j = 0; j < K; ++j) values[i * padded_K + j] *= keep_factor(row, key_code(top[j]), threshold, factor);
  }
}

template <class T>
struct ExactScratch {
  T *rows, *keys_DK, *values_KE, *queries, *weights, *out;
  int64_t bytes;
  ExactScratch(char* memory, int64_t D, int64_t E, int64_t K) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), padded_K = round_up(K, W);
    Scratch scratch{memory};
    rows = scratch.take<T>(padded_K * padded_D);
    keys_DK = scratch.take<T>(padded_D * padded_K);
    values_KE = scratch.take<T>(padded_K * padded_E);
    queries = scratch.take<T>(query_tile * padded_D);
    weights = scratch.take<T>(query_tile * padded_K);
    out = scratch.take<T>(query_tile * padded_E);
    bytes = scratch.used;
  }
};

template <class T>
int64_t exact_scratch(int64_t D, int64_t E, int64_t K) {
  return ExactScratch<T>(nullptr, D, E, K).bytes;
}

template <class T>
void exact_cluster(const ExactTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t D = task.D, E = task.E, K = task.K;
  const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), padded_K = round_up(K, W);
  ExactScratch<T> scratch(task.scratch, D, E, K);
  gather_transposed<T>(task.k, task.stride_k, task.top, K, D, scratch.rows, scratch.keys_DK);
  gather_rows<T>(task.v, task.stride_v, task.top, K, padded_K, E, scratch.values_KE);

  for (int64_t start = 0; start < task.members; start += query_tile) {
    const int64_t left = task.members - start, rows = left < query_tile ? left : query_tile;
    const int32_t* order = task.order + start;
    gather_rows<T>(task.q, task.stride_q, order, rows, rows, D, scratch.queries);
    gemm<T, Order::rows>(
        rows, padded_K, D, scratch.queries, padded_D, scratch.keys_DK, padded_K, scratch.weights, padded_K, false);
    softmax_rows<T>(rows, K, padded_K, task.scale, task.mass, scratch.weights);
    if (task.dropout.probability > 0)
      drop_rows<T>(order, rows, task.top, K, padded_K, task.dropout, task.first_row, scratch.weights);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t e = 0; e < padded_E; e += W) store(scratch.out + i * padded_E + e, load(task.base_E + e));
    gemm<T, Order::rows>(
        rows, padded_E, K, scratch.weights, padded_K, scratch.values_KE, padded_E, scratch.out, padded_E, true);
    for (int64_t i = 0; i < rows; ++i)
      memcpy(task.out_NE + order[i] * E, scratch.out + i * padded_E, E * sizeof(T));
  }
}

template <class T>
struct ExactBackwardScratch {
  T *keys_KD, *keys_DK, *values_KE, *values_EK, *queries, *grads, *weights, *slopes, *out;
  int64_t bytes;
  ExactBackwardScratch(char* memory, int64_t D, int64_t E, int64_t K) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), padded_K = round_up(K, W);
    Scratch scratch{memory};
    keys_KD = scratch.take<T>(padded_K * padded_D);
    keys_DK = scratch.take<T>(padded_D * padded_K);
    values_KE = scratch.take<T>(padded_K * padded_E);
    values_EK = scratch.take<T>(padded_E * padded_K);
    queries = scratch.take<T>(query_tile * padded_D);
    grads = scratch.take<T>(query_tile * padded_E);
    weights = scratch.take<T>(query_tile * padded_K);
    slopes = scratch.take<T>(query_tile * padded_K);
    out = scratch.take<T>(query_tile * padded_D);
    bytes = scratch.used;
  }
};

template <class T>
int64_t exact_backward_scratch(int64_t D, int64_t E, int64_t K) {
  return ExactBackwardScratch<T>(nullptr, D, E, K).bytes;
}

// With a the softmax over the K keys and g = m̂ · (gradient of the output): da = g Vᵀ, ds = a ∘ (da − Σ a da).
template <class T>
void exact_backward_cluster(const ExactBackwardTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t D = task.D, E = task.E, K = task.K;
  const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), padded_K = round_up(K, W);
  ExactBackwardScratch<T> scratch(task.scratch, D, E, K);
  gather_rows<T>(task.k, task.stride_k, task.top, K, padded_K, D, scratch.keys_KD);
  transpose<T>(padded_K, padded_D, scratch.keys_KD, scratch.keys_DK);
  gather_rows<T>(task.v, task.stride_v, task.top, K, padded_K, E, scratch.values_KE);
  transpose<T>(padded_K, padded_E, scratch.values_KE, scratch.values_EK);

  for (int64_t start = 0; start < task.members; start += query_tile) {
    const int64_t left = task.members - start, rows = left < query_tile ? left : query_tile;
    const int32_t* order = task.order + start;
    gather_rows<T>(task.q, task.stride_q, order, rows, rows, D, scratch.queries);
    gather_rows<T>(task.grad, task.stride_grad, order, rows, rows, E, scratch.grads);
    gemm<T, Order::rows>(
        rows, padded_K, D, scratch.queries, padded_D, scratch.keys_DK, padded_K, scratch.weights, padded_K, false);
    gemm<T, Order::rows>(
        rows, padded_K, E, scratch.grads, padded_E, scratch.values_EK, padded_K, scratch.slopes, padded_K, false);
    // From here on the weights carry m̂, the slopes 1/√D: a·m̂ gives dV, and a·m̂·(da − Σ a da)/√D gives ds.
    softmax_rows<T>(rows, K, padded_K, task.scale, task.mass, scratch.weights);
    if (task.dropout.probability > 0)
      drop_rows<T>(order, rows, task.top, K, padded_K, task.dropout, task.first_row, scratch.slopes);
    for (int64_t i = 0; i < rows; ++i) {
      T* weight = scratch.weights + i * padded_K;
      T* slope = scratch.slopes + i * padded_K;
      Vec<T> sum = {};
      for (int64_t j = 0; j < padded_K; j += W) sum += load(weight + j) * load(slope + j);
      const T mean = sum_lanes<T>(sum) / task.mass;
      for (int64_t j = 0; j < padded_K; j += W)
        store(slope + j, load(weight + j) * ((load(slope + j) - mean) * task.scale));
    }
    if (task.dropout.probability > 0)
      drop_rows<T>(order, rows, task.top, K, padded_K, task.dropout, task.first_row, scratch.weights);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t d = 0; d < padded_D; d += W)
        store(scratch.out + i * padded_D + d, load(task.grad_query_D + d));
    gemm<T, Order::rows>(
        rows, padded_D, K, scratch.slopes, padded_K, scratch.keys_KD, padded_D, scratch.out, padded_D, true);
    for (int64_t i = 0; i < rows; ++i)
      memcpy(task.grad_q_ND + order[i] * D, scratch.out + i * padded_D, D * sizeof(T));
    gemm<T, Order::columns>(
        K, padded_D, rows, scratch.slopes, padded_K, scratch.queries, padded_D, task.grad_keys_KD, padded_D,
        start > 0);
    gemm<T, Order::columns>(
        K, padded_E, rows, scratch.weights, padded_K, scratch.grads, padded_E, task.grad_values_KE, padded_E,
        start > 0);
  }
}

}  // namespace
}  // namespace attention_ext
