// Angular hashing: argmax of a few projections and their negatives, with the result of float64.
#pragma once

#include "../cpu/gemm.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

constexpr int64_t bucket_rows = 96;

// argmax of [xR; −xR] in double precision, the lowest on ties.
template <class T>
inline int32_t exact_bucket(const T* x, const double* rotations_FD, int64_t F, int64_t D) {
  int64_t highest = 0, lowest = 0;
  double highest_value = 0, lowest_value = 0;
  for (int64_t f = 0; f < F; ++f) {
    double product = 0;
    for (int64_t d = 0; d < D; ++d) product += static_cast<double>(x[d]) * rotations_FD[f * D + d];
    if (f == 0 || product > highest_value) highest = f, highest_value = product;
    if (f == 0 || product < lowest_value) lowest = f, lowest_value = product;
  }
  return static_cast<int32_t>(-lowest_value > highest_value ? lowest + F : highest);
}

// Buckets of one round. The largest |product| wins if it exceeds the second largest by more than the error bound of
// both (see hash_block in hashing/hash.h). Closer calls, and NaN, are decided in double precision.
inline void bucket_block(const BucketTask<float>& task, Simd<float>::Vec) {
  constexpr int64_t W = Simd<float>::width;
  const int64_t F = task.F, D = task.D, padded = round_up(F, W);
  const float unit = 5.9604645e-8f;  // 2⁻²⁴
  const float gamma = 2.0f * static_cast<float>(D + 2) * unit;
  const float underflow = static_cast<float>(D + 2) * 2.0f * 1.1754944e-38f;

  gemm<float, Order::rows>(
      task.rows, padded, D, task.x, task.stride_x, task.rotations_DF, padded, task.scratch, padded, false);
  for (int64_t i = 0; i < task.rows; ++i) {
    const float* x = task.x + i * task.stride_x;
    const float* products = task.scratch + i * padded;
    float norm = 0;
    for (int64_t d = 0; d < D; ++d) norm += __builtin_fabsf(x[d]);
    Vec<float> best = {}, next = {};
    Mask<float> place = {};
    for (int64_t f = 0; f < padded; f += W) {
      const Vec<float> product = load(products + f), size = larger<float>(product, -product);
      const Mask<float> better = size > best, here = Mask<float>{} + static_cast<int32_t>(f);
      next = larger<float>(next, better ? best : size);
      place = better ? here : place;
      best = better ? size : best;
    }
    float first = best[0], second = next[0];
    int32_t bucket = place[0];
    for (int j = 1; j < W; ++j) {
      const float loser = best[j] > first ? first : best[j];
      second = loser > second ? loser : second;
      second = next[j] > second ? next[j] : second;
      if (best[j] > first) first = best[j], bucket = place[j] + j;
    }
    if (first - second > 2 * (gamma * (norm * task.largest) + underflow))
      task.buckets[i] = products[bucket] > 0 ? bucket : bucket + static_cast<int32_t>(F);
    else
      task.buckets[i] = exact_bucket(x, task.rotations_FD, F, D);
  }
}

inline void bucket_block(const BucketTask<double>& task, Simd<double>::Vec) {
  for (int64_t i = 0; i < task.rows; ++i)
    task.buckets[i] = exact_bucket(task.x + i * task.stride_x, task.rotations_FD, task.F, task.D);
}

template <class T>
void bucket_block(const BucketTask<T>& task) {
  bucket_block(task, Vec<T>{});
}

}  // namespace
}  // namespace attention_ext
