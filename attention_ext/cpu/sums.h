// Sums over chosen rows.
#pragma once

#include "simd.h"

namespace attention_ext {
namespace {

// sum[V vectors] += Σ weight · row over the chosen rows. Rows are scattered, hence the prefetch.
template <class T, int V>
inline void sum_columns(int64_t count, const int32_t* chosen, const T* rows, int64_t stride, const T* weights, T* sum) {
  constexpr int64_t W = Simd<T>::width, ahead = 6;
  Vec<T> total[V];
#pragma GCC unroll 8
  for (int j = 0; j < V; ++j) total[j] = load(sum + j * W);
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count)
#pragma GCC unroll 8
      for (int j = 0; j < V * VECTOR_BYTES; j += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(rows + chosen[i + ahead] * stride) + j);
    const T* row = rows + chosen[i] * stride;
    const T weight = weights ? weights[i] : T(1);
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j) total[j] += weight * load(row + j * W);
  }
#pragma GCC unroll 8
  for (int j = 0; j < V; ++j) store(sum + j * W, total[j]);
}

// sum[size] += Σ weight · row over the chosen rows; without `weights`, all are 1.
template <class T>
void sum_rows(
    int64_t count, int64_t size, const int32_t* chosen, const T* rows, int64_t stride, const T* weights, T* sum) {
  constexpr int64_t W = Simd<T>::width;
  int64_t j = 0;
  for (; j + 8 * W <= size; j += 8 * W) sum_columns<T, 8>(count, chosen, rows + j, stride, weights, sum + j);
  for (; j + 4 * W <= size; j += 4 * W) sum_columns<T, 4>(count, chosen, rows + j, stride, weights, sum + j);
  for (; j + W <= size; j += W) sum_columns<T, 1>(count, chosen, rows + j, stride, weights, sum + j);
  for (; j < size; ++j)
    for (int64_t i = 0; i < count; ++i) sum[j] += (weights ? weights[i] : T(1)) * rows[chosen[i] * stride + j];
}

// sums[group of row i] += row i for consecutive rows. The bits are those of sum_rows for each group with its rows in
// ascending order. Reading rows sequentially is faster if they are not cached.
template <class T>
void sum_groups(
    int64_t count, int64_t size, const int32_t* groups, const T* rows, int64_t stride, T* sums, int64_t stride_sums) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < count; ++i) {
    const T* row = rows + i * stride;
    T* sum = sums + groups[i] * stride_sums;
    int64_t j = 0;
#pragma GCC unroll 4
    for (; j + W <= size; j += W) store(sum + j, load(sum + j) + load(row + j));
    for (; j < size; ++j) sum[j] += row[j];
  }
}

// Σ a · b over the chosen rows.
template <class T>
T dot_rows(
    int64_t count, int64_t size, const int32_t* chosen, const T* a, int64_t stride_a, const T* b, int64_t stride_b) {
  constexpr int64_t W = Simd<T>::width, ahead = 6;
  Vec<T> total = {};
  T rest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const T *x = a + chosen[i] * stride_a, *y = b + chosen[i] * stride_b;
    if (i + ahead < count)
      for (int64_t d = 0; d < size; d += 64 / static_cast<int64_t>(sizeof(T))) {
        __builtin_prefetch(a + chosen[i + ahead] * stride_a + d);
        __builtin_prefetch(b + chosen[i + ahead] * stride_b + d);
      }
    Vec<T> low = {}, high = {};
    int64_t j = 0;
    for (; j + 2 * W <= size; j += 2 * W) {
      low += load(x + j) * load(y + j);
      high += load(x + j + W) * load(y + j + W);
    }
    for (; j + W <= size; j += W) low += load(x + j) * load(y + j);
    T tail = 0;
    for (; j < size; ++j) tail += x[j] * y[j];
    total += low + high;
    rest += tail;
  }
  return sum_lanes<T>(total) + rest;
}

// to[chosen row] = a · b for each of the chosen rows; W rows at a time share the sums over lanes.
template <class T>
void dot_each(
    int64_t count, int64_t size, const int32_t* chosen, const T* a, int64_t stride_a, const T* b, int64_t stride_b,
    T* to) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t start = 0; start < count; start += W) {
    const int64_t rows = count - start < W ? count - start : W;
    Vec<T> lanes[W] = {};
    T rest[W] = {}, sums[W];
    for (int64_t i = 0; i < rows; ++i) {
      const T *x = a + chosen[start + i] * stride_a, *y = b + chosen[start + i] * stride_b;
      int64_t j = 0;
      for (; j + W <= size; j += W) lanes[i] += load(x + j) * load(y + j);
      for (; j < size; ++j) rest[i] += x[j] * y[j];
    }
    store(sums, fold_lanes<T>(lanes, [](Vec<T> x, Vec<T> y) { return x + y; }));
    for (int64_t i = 0; i < rows; ++i) to[chosen[start + i]] = sums[i] + rest[i];
  }
}

}  // namespace
}  // namespace attention_ext
