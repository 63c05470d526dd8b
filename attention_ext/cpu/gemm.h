// Small matrix products C = A·B (+ D), the inner loop of all attention kernels.
//
// A block of C stays in registers during the summation: a few elements of A, each broadcast to a vector, times one row
// of B. Rows of B and C are contiguous and a whole number of vectors wide. Each element is summed in index order in
// any block, so that its bits do not depend on the matrix sizes.
#pragma once

#include "simd.h"

namespace attention_ext {
namespace {

// Memory layout of A[i, k]: row i, column k, or (stored transposed) row k, column i.
enum class Order { rows, columns };

// Whether A's rows are consecutive or picked by an index.
enum class Picked { none, a };

template <class T>
struct Rows {
  T* data;
  int64_t stride;
  const int32_t* picked = nullptr;  // row numbers; null: consecutive rows
};

template <class T>
struct Product {
  int64_t rows, columns, K;
  Rows<const T> a, b;
  Rows<T> c;
  // D, if it has data: as many rows as C, or a single row with stride 0.
  Rows<const T> plus = {nullptr, 0};
};

// Longer sums are computed in parts of half this length: the rounding error of a float32 sum grows with its length.
constexpr int64_t LONGEST_SUM = 128;

// M rows and V vectors of columns of C. factor(i, k) is element (i, k) of A; row(k), out(i) and, if `add`, plus(i) are
// the addresses of the rows of B, C and D.
template <class T, int M, int V, class Factor, class Row, class Out, class Plus>
inline __attribute__((always_inline)) void gemm_tile(int64_t K, Factor factor, Row row, Out out, bool add, Plus plus) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t part = K <= LONGEST_SUM ? LONGEST_SUM : LONGEST_SUM / 2;
  for (int64_t start = 0; start == 0 || start < K; start += part) {
    const int64_t end = start + part < K ? start + part : K;
    Vec<T> sum[M][V];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sum[i][j] = Vec<T>{};
#pragma GCC unroll 2
    for (int64_t k = start; k < end; ++k) {
      const T* from = row(k);
      Vec<T> b[V];
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) b[j] = load(from + j * W);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const T a = factor(i, k);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) sum[i][j] += a * b[j];
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      T* to = out(i);
      if (add || start > 0) {
        const T* more = start > 0 ? to : plus(i);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) sum[i][j] += load(more + j * W);
      }
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) store(to + j * W, sum[i][j]);
    }
  }
}

template <class T, Order order, Picked picked, int M, int V>
inline __attribute__((noinline)) void gemm_rows(const Product<T>& product, int64_t first, int64_t end, int64_t column) {
  const int64_t K = product.K, stride_a = product.a.stride, stride_b = product.b.stride, stride_c = product.c.stride;
  const T *b = product.b.data + column, *a_data = product.a.data, *plus_data = product.plus.data;
  T* c_data = product.c.data + column;
  for (int64_t i = first; i < end; i += M) {
    const T *a[M], *plus[M];
    T* c[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      a[m] = a_data + (picked == Picked::a ? product.a.picked[i + m] : i + m) * (order == Order::rows ? stride_a : 1);
      c[m] = c_data + (i + m) * stride_c;
      plus[m] = plus_data + column + (i + m) * product.plus.stride;
    }
    const auto tile = [&](bool add) __attribute__((always_inline)) {
      gemm_tile<T, M, V>(
          K, [&](int m, int64_t k) { return order == Order::rows ? a[m][k] : a[0][k * stride_a + m]; },
          [&](int64_t k) { return b + k * stride_b; }, [&](int m) { return c[m]; }, add,
          [&](int m) { return plus[m]; });
    };
    if (plus_data)
      tile(true);
    else
      tile(false);
  }
}

template <class T, Order order, Picked picked, int V, int M>
inline void gemm_height(const Product<T>& product, int64_t height, int64_t first, int64_t end, int64_t column) {
  if (height == M)
    gemm_rows<T, order, picked, M, V>(product, first, end, column);
  else if constexpr (M > 1)
    gemm_height<T, order, picked, V, M - 1>(product, height, first, end, column);
}

// A panel of V vectors of columns, in as few blocks as the registers allow: 6 rows × 2 vectors of sums, 2 vectors of B
// and one of A fill 15 of AVX2's 16 registers; AVX-512 has twice as many. Heights differ by at most one: ten rows are
// 5 + 5, because the four rows of 6 + 4 would leave multipliers waiting for their sums.
template <class T, Order order, Picked picked, int V>
inline void gemm_panel(const Product<T>& product, int64_t column) {
  constexpr int tallest = (V == 4 ? 2 : V == 3 ? 4 : 6) * (VECTOR_BYTES == 64 && V < 4 ? 2 : 1);
  const int64_t blocks = (product.rows + tallest - 1) / tallest;
  const int64_t height = product.rows / blocks, taller = product.rows % blocks * (height + 1);
  if (taller) gemm_height<T, order, picked, V, tallest>(product, height + 1, 0, taller, column);
  gemm_height<T, order, picked, V, tallest>(product, height, taller, product.rows, column);
}

// `columns` is a multiple of the vector width.
template <class T, Order order, Picked picked = Picked::none>
inline void gemm(const Product<T>& product) {
  constexpr int64_t W = Simd<T>::width;
  if (product.rows == 0) return;
  for (int64_t column = 0; column < product.columns;) {
    const int64_t left = (product.columns - column) / W;
    // Three vectors at the end rather than two and one: too few independent sums stall the multipliers. For the same
    // reason one or two rows use four vectors.
    const int wide = left >= 4 && product.rows <= 2 ? 4 : left == 3 ? 3 : left >= 2 ? 2 : 1;
    if (wide == 4) gemm_panel<T, order, picked, 4>(product, column);
    if (wide == 3) gemm_panel<T, order, picked, 3>(product, column);
    if (wide == 2) gemm_panel<T, order, picked, 2>(product, column);
    if (wide == 1) gemm_panel<T, order, picked, 1>(product, column);
    column += wide * W;
  }
}

// C[rows, columns] (+)= A[rows, K] · B[K, columns] with consecutive rows.
template <class T, Order order>
inline void gemm(
    int64_t rows, int64_t columns, int64_t K, const T* a, int64_t stride_a, const T* b, int64_t stride_b, T* c,
    int64_t stride_c, bool add) {
  gemm<T, order>(
      {.rows = rows,
       .columns = columns,
       .K = K,
       .a = {a, stride_a},
       .b = {b, stride_b},
       .c = {c, stride_c},
       .plus = {add ? c : nullptr, stride_c}});
}

}  // namespace
}  // namespace attention_ext
