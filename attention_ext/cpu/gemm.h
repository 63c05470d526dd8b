// Small matrix products C = A·B or C += A·B, the one inner loop of all attention kernels.
//
// A block of C stays in registers while the summed index runs: a few elements of A, each spread over a
// vector, times one row of B. B and C have their last index contiguous and a whole number of vectors wide.
#pragma once

#include "simd.h"

namespace attention_ext {
namespace {

// How A[i, k] lies in memory: `rows` at a[i · stride + k], `columns` at a[k · stride + i] (A is stored
// transposed).
enum class Order { rows, columns };

template <class T, Order order, int M, int V>
inline __attribute__((always_inline)) void gemm_tile(
    int64_t K, const T* a, int64_t stride_a, const T* b, int64_t stride_b, T* c, int64_t stride_c, bool add) {
  constexpr int64_t W = Simd<T>::width;
  Vec<T> sum[M][V];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) sum[i][j] = Vec<T>{};
#pragma GCC unroll 2
  for (int64_t k = 0; k < K; ++k) {
    Vec<T> row[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) row[j] = load(b + k * stride_b + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const T factor = order == Order::rows ? a[i * stride_a + k] : a[k * stride_a + i];
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sum[i][j] += factor * row[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      T* to = c + i * stride_c + j * W;
      store(to, add ? load(to) + sum[i][j] : sum[i][j]);
    }
}

template <class T, Order order, int M, int V>
inline __attribute__((noinline)) int64_t gemm_rows(
    int64_t i, int64_t rows, int64_t K, const T* a, int64_t stride_a, const T* b, int64_t stride_b, T* c,
    int64_t stride_c, bool add) {
  for (; i + M <= rows; i += M) {
    const T* from = order == Order::rows ? a + i * stride_a : a + i;
    gemm_tile<T, order, M, V>(K, from, stride_a, b, stride_b, c + i * stride_c, stride_c, add);
  }
  return i;
}

// A panel of V vectors of columns; the tallest blocks first, what is left over in smaller ones.
template <class T, Order order, int V>
inline void gemm_panel(
    int64_t rows, int64_t K, const T* a, int64_t stride_a, const T* b, int64_t stride_b, T* c,
    int64_t stride_c, bool add) {
  int64_t i = 0;
  if (VECTOR_BYTES == 64)  // 32 registers
    i = gemm_rows<T, order, V == 3 ? 8 : 12, V>(i, rows, K, a, stride_a, b, stride_b, c, stride_c, add);
  if (V < 3) i = gemm_rows<T, order, 6, V>(i, rows, K, a, stride_a, b, stride_b, c, stride_c, add);
  i = gemm_rows<T, order, 4, V>(i, rows, K, a, stride_a, b, stride_b, c, stride_c, add);
  i = gemm_rows<T, order, 2, V>(i, rows, K, a, stride_a, b, stride_b, c, stride_c, add);
  gemm_rows<T, order, 1, V>(i, rows, K, a, stride_a, b, stride_b, c, stride_c, add);
}

// C[rows, columns] (+)= A[rows, K] · B[K, columns]; `columns` is a multiple of the vector width.
template <class T, Order order>
inline void gemm(
    int64_t rows, int64_t columns, int64_t K, const T* a, int64_t stride_a, const T* b, int64_t stride_b, T* c,
    int64_t stride_c, bool add) {
  constexpr int64_t W = Simd<T>::width;
  int64_t left = columns / W;
  while (left > 0) {
    // Three vectors at the end rather than two and one: a single one leaves the multipliers waiting.
    const int64_t wide = left == 3 ? 3 : (left >= 2 ? 2 : 1);
    if (wide == 3) gemm_panel<T, order, 3>(rows, K, a, stride_a, b, stride_b, c, stride_c, add);
    if (wide == 2) gemm_panel<T, order, 2>(rows, K, a, stride_a, b, stride_b, c, stride_c, add);
    if (wide == 1) gemm_panel<T, order, 1>(rows, K, a, stride_a, b, stride_b, c, stride_c, add);
    b += wide * W;
    c += wide * W;
    left -= wide;
  }
}

}  // namespace
}  // namespace attention_ext
