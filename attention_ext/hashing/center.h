// The mean of a head's vectors, exact in any order of the sums, and its subtraction. See reference.py.
//
// Loops over the D elements of a row are vectorised by the compiler.
#pragma once

#include "../cpu/simd.h"

namespace attention_ext {
namespace {

// Largest magnitude; NaN is skipped. `scratch` holds D values.
template <class T>
T largest_value(int64_t rows, int64_t D, const T* x, int64_t stride, T* scratch) {
  for (int64_t d = 0; d < D; ++d) scratch[d] = 0;
  for (int64_t i = 0; i < rows; ++i, x += stride)
    for (int64_t d = 0; d < D; ++d) {
      const T size = x[d] < 0 ? -x[d] : x[d];
      scratch[d] = size > scratch[d] ? size : scratch[d];
    }
  T largest = 0;
  for (int64_t d = 0; d < D; ++d) largest = scratch[d] > largest ? scratch[d] : largest;
  return largest;
}

// sums[D] = Σ round(x / step). A division, because a compiler may fuse a product with the addition that rounds.
template <class T>
void sum_steps(int64_t rows, int64_t D, const T* x, int64_t stride, T step, double* sums) {
  const T shift = sizeof(T) == 4 ? T(12582912) : T(6755399441055744);  // 1.5 · 2²³ or 2⁵²: adding it rounds
  for (int64_t d = 0; d < D; ++d) sums[d] = 0;
  for (int64_t i = 0; i < rows; ++i, x += stride)
    for (int64_t d = 0; d < D; ++d) sums[d] += static_cast<double>(x[d] / step + shift - shift);
}

// to[rows, D] = x − mean.
template <class T>
void subtract_row(int64_t rows, int64_t D, const T* x, int64_t stride, const T* mean, T* to) {
  for (int64_t i = 0; i < rows; ++i, x += stride, to += D)
    for (int64_t d = 0; d < D; ++d) to[d] = x[d] - mean[d];
}

}  // namespace
}  // namespace attention_ext
