// Matrix products C = A·B (+ D) with scattered rows of B and C; same bits as cpu/gemm.h.
//
// The sums are short, over the members or the top keys of one cluster, so that computing row addresses would cost as
// much as the sums. Addresses are therefore computed once, and each block of rows covers all columns before the next.
#pragma once

#include "../cpu/gemm.h"

namespace attention_ext {
namespace {

template <class T>
struct PickedProduct {
  int64_t rows, columns, K;
  const T* a;
  int64_t stride_a;
  const T* const* b;
  T* const* c;
  const T* const* plus;  // rows of D, or null
};

template <class T, Order order, int M, int V>
inline __attribute__((always_inline)) void picked_tile(const PickedProduct<T>& product, int64_t first, int64_t column) {
  const int64_t stride_a = product.stride_a;
  const T* a = product.a + first * (order == Order::rows ? stride_a : 1);
  gemm_tile<T, M, V>(
      product.K, [&](int i, int64_t k) { return order == Order::rows ? a[i * stride_a + k] : a[k * stride_a + i]; },
      [&](int64_t k) { return product.b[k] + column; }, [&](int i) { return product.c[first + i] + column; },
      product.plus, [&](int i) { return product.plus[first + i] + column; });
}

template <class T, Order order, int M>
inline __attribute__((noinline)) void picked_rows_product(const PickedProduct<T>& product, int64_t first, int64_t end) {
  constexpr int64_t W = Simd<T>::width;
  for (; first < end; first += M) {
    int64_t column = 0;
    for (; column + 2 * W <= product.columns; column += 2 * W) picked_tile<T, order, M, 2>(product, first, column);
    if (column < product.columns) picked_tile<T, order, M, 1>(product, first, column);
  }
}

template <class T, Order order, int M>
inline void picked_height(const PickedProduct<T>& product, int64_t height, int64_t first, int64_t end) {
  if (height == M)
    picked_rows_product<T, order, M>(product, first, end);
  else if constexpr (M > 1)
    picked_height<T, order, M - 1>(product, height, first, end);
}

// As few blocks as the registers allow, with heights that differ by at most one.
template <class T, Order order>
inline void picked_gemm(const PickedProduct<T>& product) {
  constexpr int tallest = VECTOR_BYTES == 64 ? 12 : 6;
  const int64_t blocks = (product.rows + tallest - 1) / tallest;
  const int64_t height = product.rows / blocks, taller = product.rows % blocks * (height + 1);
  if (taller) picked_height<T, order, tallest>(product, height + 1, 0, taller);
  picked_height<T, order, tallest>(product, height, taller, product.rows);
}

// Addresses of the picked rows, or of the first `count` rows if none are picked.
template <class T>
void find_rows(Rows<T> rows, int64_t count, T** found) {
  for (int64_t i = 0; i < count; ++i) found[i] = rows.data + (rows.picked ? rows.picked[i] : i) * rows.stride;
}

}  // namespace
}  // namespace attention_ext
