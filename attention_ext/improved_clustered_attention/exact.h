// Attention of one cluster's queries over the cluster's top keys, forward and backward.
//
// Queries are processed in tiles. Rows are read and written in place; only the keys (backward: the values) are copied,
// to transpose them.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/rows.h"
#include "picked.h"
#include "softmax.h"

namespace attention_ext {
namespace {

constexpr int64_t query_tile = 48;

// Drop weights of some queries on their top keys and scale the others.
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

// Picked rows as operands of a product: in place if a row is a whole number of vectors, else a padded copy with rows
// numbered 0, 1, …
template <class T>
Rows<const T> picked_rows(
    const T* from, int64_t stride, const int32_t* picked, int64_t rows, int64_t size, T* copy, const int32_t* numbers) {
  if (size % Simd<T>::width == 0) return {from, stride, picked};
  gather_rows<T>(from, stride, picked, rows, rows, size, copy);
  return {copy, round_up(size, Simd<T>::width), numbers};
}

template <class T>
void prefetch_rows(const T* from, int64_t stride, const int32_t* picked, int64_t rows, int64_t size) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < size; j += 64 / static_cast<int64_t>(sizeof(T)))
      __builtin_prefetch(from + picked[i] * stride + j);
}

// Numbers 0 … count − 1.
inline int32_t* take_numbers(Scratch& scratch, int64_t count) {
  int32_t* numbers = scratch.take<int32_t>(count);
  for (int64_t i = 0; numbers && i < count; ++i) numbers[i] = static_cast<int32_t>(i);
  return numbers;
}

inline int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }

template <class T>
struct ExactScratch {
  T *rows, *keys_DK, *values_KE, *queries, *weights, *out;
  const T **values_at, **base_at;
  T** out_at;
  int32_t* numbers;
  int64_t bytes;
  ExactScratch(char* memory, int64_t D, int64_t E, int64_t K) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), padded_K = round_up(K, W);
    Scratch scratch{memory};
    rows = scratch.take<T>(padded_K * padded_D);
    keys_DK = scratch.take<T>(padded_D * padded_K);
    values_KE = scratch.take<T>(E % W ? padded_K * padded_E : 0);
    queries = scratch.take<T>(D % W ? query_tile * padded_D : 0);
    weights = scratch.take<T>(query_tile * padded_K);
    out = scratch.take<T>(E % W ? query_tile * padded_E : 0);
    values_at = scratch.take<const T*>(K);
    base_at = scratch.take<const T*>(query_tile);
    out_at = scratch.take<T*>(query_tile);
    numbers = take_numbers(scratch, D % W || E % W ? larger_of(query_tile, padded_K) : 0);
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
  const int64_t padded_E = round_up(E, W), padded_K = round_up(K, W);
  ExactScratch<T> scratch(task.scratch, D, E, K);
  const auto prefetch = [&](int64_t start) {
    const int64_t left = task.members - start;
    prefetch_rows<T>(task.q, task.stride_q, task.order + start, left < query_tile ? left : query_tile, D);
  };
  prefetch(0);
  gather_transposed<T>(task.k, task.stride_k, task.top, K, D, scratch.rows, scratch.keys_DK);
  const Rows<const T> v = picked_rows<T>(task.v, task.stride_v, task.top, K, E, scratch.values_KE, scratch.numbers);
  prefetch_rows<T>(v.data, v.stride, v.picked, K, E);
  find_rows<const T>(v, K, scratch.values_at);
  if (task.base_E) find_rows<const T>({task.base_E, 0}, query_tile, scratch.base_at);

  for (int64_t start = 0; start < task.members; start += query_tile) {
    const int64_t left = task.members - start, rows = left < query_tile ? left : query_tile;
    const int32_t* order = task.order + start;
    if (start > 0) prefetch(start);
    const Rows<const T> q = picked_rows<T>(task.q, task.stride_q, order, rows, D, scratch.queries, scratch.numbers);
    T* weights = task.kept ? task.kept + start * padded_K : scratch.weights;
    gemm<T, Order::rows, Picked::a>(
        {.rows = rows,
         .columns = padded_K,
         .K = D,
         .a = q,
         .b = {scratch.keys_DK, padded_K},
         .c = {weights, padded_K}});
    if (task.maximum_N)
      exp_rows<T>(rows, K, padded_K, task.scale, weights, order, task.maximum_N, task.sum_N);
    else
      softmax_rows<T>(rows, K, padded_K, task.scale, task.mass, weights);
    if (task.dropout.probability > 0) {
      if (task.kept) memcpy(scratch.weights, weights, rows * padded_K * sizeof(T));
      weights = scratch.weights;
      drop_rows<T>(order, rows, task.top, K, padded_K, task.dropout, task.first_row, weights);
    }
    const Rows<T> out = E % W ? Rows<T>{scratch.out, padded_E} : Rows<T>{task.out_NE, E, order};
    find_rows<T>(out, rows, scratch.out_at);
    picked_gemm<T, Order::rows>(
        {.rows = rows,
         .columns = padded_E,
         .K = K,
         .a = weights,
         .stride_a = padded_K,
         .b = scratch.values_at,
         .c = scratch.out_at,
         .plus = task.base_E ? scratch.base_at : nullptr});
    if (E % W)
      for (int64_t i = 0; i < rows; ++i) memcpy(task.out_NE + order[i] * E, scratch.out + i * padded_E, E * sizeof(T));
  }
}

template <class T>
struct ExactBackwardScratch {
  T *rows, *keys_KD, *keys_DK, *values_EK, *queries, *grads, *weights, *slopes, *out, *grad_keys, *grad_values;
  const T **keys_at, **queries_at, **grads_at, **grad_query_at;
  T **grad_q_at, **grad_k_at, **grad_v_at;
  int32_t* numbers;
  int64_t bytes;
  ExactBackwardScratch(char* memory, int64_t D, int64_t E, int64_t K) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), padded_K = round_up(K, W);
    Scratch scratch{memory};
    rows = scratch.take<T>(padded_K * larger_of(padded_D, padded_E));
    keys_KD = scratch.take<T>(D % W ? padded_K * padded_D : 0);
    keys_DK = scratch.take<T>(padded_D * padded_K);
    values_EK = scratch.take<T>(padded_E * padded_K);
    queries = scratch.take<T>(D % W ? query_tile * padded_D : 0);
    grads = scratch.take<T>(E % W ? query_tile * padded_E : 0);
    weights = scratch.take<T>(query_tile * padded_K);
    slopes = scratch.take<T>(query_tile * padded_K);
    out = scratch.take<T>(D % W ? query_tile * padded_D : 0);
    grad_keys = scratch.take<T>(padded_K * padded_D);
    grad_values = scratch.take<T>(padded_K * padded_E);
    keys_at = scratch.take<const T*>(K);
    queries_at = scratch.take<const T*>(query_tile);
    grads_at = scratch.take<const T*>(query_tile);
    grad_query_at = scratch.take<const T*>(query_tile);
    grad_q_at = scratch.take<T*>(query_tile);
    grad_k_at = scratch.take<T*>(K);
    grad_v_at = scratch.take<T*>(K);
    numbers = take_numbers(scratch, D % W || E % W ? larger_of(query_tile, padded_K) : 0);
    bytes = scratch.used;
  }
};

template <class T>
int64_t exact_backward_scratch(int64_t D, int64_t E, int64_t K) {
  return ExactBackwardScratch<T>(nullptr, D, E, K).bytes;
}

// to[picked rows] += from; the rows of `from` are padded.
template <class T>
void add_rows(const T* from, int64_t rows, int64_t size, const int32_t* picked, T* to) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded = round_up(size, W);
  for (int64_t i = 0; i < rows; ++i) {
    T* row = to + picked[i] * size;
    int64_t j = 0;
    for (; j + W <= size; j += W) store(row + j, load(row + j) + load(from + i * padded + j));
    for (; j < size; ++j) row[j] += from[i * padded + j];
  }
}

// to[picked rows] += the same row.
template <class T>
void add_to_rows(const T* from, int64_t rows, int64_t size, const int32_t* picked, T* to) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < rows; ++i) {
    T* row = to + picked[i] * size;
    int64_t j = 0;
    for (; j + W <= size; j += W) store(row + j, load(row + j) + load(from + j));
    for (; j < size; ++j) row[j] += from[j];
  }
}

// With a the softmax over the K keys and g = m̂ · (output gradient): da = g Vᵀ, ds = a ∘ (da − Σ a da).
template <class T>
void exact_backward_cluster(const ExactBackwardTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t D = task.D, E = task.E, K = task.K;
  const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), padded_K = round_up(K, W);
  ExactBackwardScratch<T> scratch(task.scratch, D, E, K);
  const auto prefetch = [&](int64_t start) {
    const int64_t left = task.members - start, rows = left < query_tile ? left : query_tile;
    prefetch_rows<T>(task.grad, task.stride_grad, task.order + start, rows, E);
    prefetch_rows<T>(task.q, task.stride_q, task.order + start, rows, D);
    if (task.share_D) prefetch_rows<T>(task.grad_q_ND, D, task.order + start, rows, D);
  };
  prefetch(0);
  if (task.grad_k_SD) {
    prefetch_rows<T>(task.grad_k_SD, D, task.top, K, D);
    prefetch_rows<T>(task.grad_v_SE, E, task.top, K, E);
  }
  gather_transposed<T>(task.v, task.stride_v, task.top, K, E, scratch.rows, scratch.values_EK);
  if (!task.kept) gather_transposed<T>(task.k, task.stride_k, task.top, K, D, scratch.rows, scratch.keys_DK);
  const Rows<const T> k = picked_rows<T>(task.k, task.stride_k, task.top, K, D, scratch.keys_KD, scratch.numbers);

  // The keys' gradients of a single tile are added to their rows directly; those of several tiles are summed first, so
  // that a key's row is the same sum of sums with or without a buffer.
  const bool direct = task.grad_k_SD && D % W == 0 && E % W == 0 && task.members <= query_tile;
  T* sum_k = task.grad_k_SD ? scratch.grad_keys : task.grad_keys_KD;
  T* sum_v = task.grad_k_SD ? scratch.grad_values : task.grad_values_KE;
  const Rows<T> grad_k = direct ? Rows<T>{task.grad_k_SD, D, task.top} : Rows<T>{sum_k, padded_D};
  const Rows<T> grad_v = direct ? Rows<T>{task.grad_v_SE, E, task.top} : Rows<T>{sum_v, padded_E};

  find_rows<const T>(k, K, scratch.keys_at);
  if (task.grad_query_D) find_rows<const T>({task.grad_query_D, 0}, query_tile, scratch.grad_query_at);
  find_rows<T>(grad_k, K, scratch.grad_k_at);
  find_rows<T>(grad_v, K, scratch.grad_v_at);

  for (int64_t start = 0; start < task.members; start += query_tile) {
    const int64_t left = task.members - start, rows = left < query_tile ? left : query_tile;
    const int32_t* order = task.order + start;
    if (start > 0) prefetch(start);
    const Rows<const T> q = picked_rows<T>(task.q, task.stride_q, order, rows, D, scratch.queries, scratch.numbers);
    const Rows<const T> grad =
        picked_rows<T>(task.grad, task.stride_grad, order, rows, E, scratch.grads, scratch.numbers);
    gemm<T, Order::rows, Picked::a>(
        {.rows = rows,
         .columns = padded_K,
         .K = E,
         .a = grad,
         .b = {scratch.values_EK, padded_K},
         .c = {scratch.slopes, padded_K}});
    // The weights a·m̂ give dV; the slopes a·m̂·(da − Σ a da)/√D are ds.
    const T* weights = task.kept ? task.kept + start * padded_K : scratch.weights;
    if (!task.kept) {
      gemm<T, Order::rows, Picked::a>(
          {.rows = rows,
           .columns = padded_K,
           .K = D,
           .a = q,
           .b = {scratch.keys_DK, padded_K},
           .c = {scratch.weights, padded_K}});
      if (task.maximum_N)
        given_weights<T>(rows, K, padded_K, task.scale, order, task.maximum_N, task.inverse_sum_N, scratch.weights);
      else
        softmax_rows<T>(rows, K, padded_K, task.scale, task.mass, scratch.weights);
    }
    if (task.dropout.probability > 0)
      drop_rows<T>(order, rows, task.top, K, padded_K, task.dropout, task.first_row, scratch.slopes);
    if (task.maximum_N)
      given_slopes<T>(rows, padded_K, task.scale, order, task.delta_N, weights, scratch.slopes);
    else
      softmax_slopes<T>(rows, padded_K, weights, task.mass, task.scale, scratch.slopes);
    if (task.dropout.probability > 0) {
      if (task.kept) memcpy(scratch.weights, weights, rows * padded_K * sizeof(T));
      weights = scratch.weights;
      drop_rows<T>(order, rows, task.top, K, padded_K, task.dropout, task.first_row, scratch.weights);
    }
    find_rows<const T>(q, rows, scratch.queries_at);
    find_rows<const T>(grad, rows, scratch.grads_at);
    const Rows<T> grad_q = D % W ? Rows<T>{scratch.out, padded_D} : Rows<T>{task.grad_q_ND, D, order};
    find_rows<T>(grad_q, rows, scratch.grad_q_at);
    if (task.share_D) add_to_rows<T>(task.share_D, rows, D, order, task.grad_q_ND);
    if (!task.grad_query_D) {
      if (D % W) gather_rows<T>(task.grad_q_ND, D, order, rows, rows, D, scratch.out);
      for (int64_t i = 0; i < rows; ++i) scratch.grad_query_at[i] = scratch.grad_q_at[i];
    }
    picked_gemm<T, Order::rows>(
        {.rows = rows,
         .columns = padded_D,
         .K = K,
         .a = scratch.slopes,
         .stride_a = padded_K,
         .b = scratch.keys_at,
         .c = scratch.grad_q_at,
         .plus = scratch.grad_query_at});
    if (D % W)
      for (int64_t i = 0; i < rows; ++i)
        memcpy(task.grad_q_ND + order[i] * D, scratch.out + i * padded_D, D * sizeof(T));
    const bool add = direct || start > 0;
    picked_gemm<T, Order::columns>(
        {.rows = K,
         .columns = padded_D,
         .K = rows,
         .a = scratch.slopes,
         .stride_a = padded_K,
         .b = scratch.queries_at,
         .c = scratch.grad_k_at,
         .plus = add ? scratch.grad_k_at : nullptr});
    picked_gemm<T, Order::columns>(
        {.rows = K,
         .columns = padded_E,
         .K = rows,
         .a = weights,
         .stride_a = padded_K,
         .b = scratch.grads_at,
         .c = scratch.grad_v_at,
         .plus = add ? scratch.grad_v_at : nullptr});
  }
  if (task.grad_k_SD && !direct) {
    add_rows<T>(sum_k, K, D, task.top, task.grad_k_SD);
    add_rows<T>(sum_v, K, E, task.top, task.grad_v_SE);
  }
}

}  // namespace
}  // namespace attention_ext
