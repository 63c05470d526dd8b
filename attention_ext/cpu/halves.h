// Conversion of rows between bfloat16 and float32, and sums, in plain loops that compilers turn into vectors.
#pragma once

#include <stdint.h>
#include <string.h>

namespace attention_ext {
namespace {

// to[rows, size] = rows of bfloat16, `stride` apart.
void widen_rows(int64_t rows, int64_t size, const uint16_t* from, int64_t stride, float* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < size; ++j) {
      const uint32_t bits = static_cast<uint32_t>(from[i * stride + j]) << 16;
      memcpy(to + i * size + j, &bits, sizeof(bits));
    }
}

// sums[group of row] += row; the rows of `sums` have `size` numbers.
void sum_half_groups(
    int64_t rows, int64_t size, const int32_t* groups, const uint16_t* from, int64_t stride, float* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    float* sum = sums + groups[i] * size;
    for (int64_t j = 0; j < size; ++j) {
      const uint32_t bits = static_cast<uint32_t>(from[i * stride + j]) << 16;
      float x;
      memcpy(&x, &bits, sizeof(x));
      sum[j] += x;
    }
  }
}

// to = from, rounded to the nearest bfloat16, to even in the middle, as PyTorch does.
void narrow_values(int64_t count, const float* from, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, from + i, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

}  // namespace
}  // namespace attention_ext
