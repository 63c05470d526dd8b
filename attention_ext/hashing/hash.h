// Signs of projections: a small matrix product, then one comparison per vector of planes.
#pragma once

#include "../cpu/gemm.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

constexpr int64_t hash_rows = 96;

inline bool above_zero(const float* x, const double* plane, int64_t D) {
  double product = 0;
  for (int64_t d = 0; d < D; ++d) product += static_cast<double>(x[d]) * plane[d];
  return product > 0;
}

// A sum of D products differs from the true one by at most γ·Σ|x||p| ≤ γ·‖x‖₁·‖p‖∞, γ = D·u / (1 − D·u), in
// whatever order it is taken; what is nearer to zero than this is decided in double precision, and so is NaN.
inline void hash_block(const HashTask<float>& task, Simd<float>::Vec) {
  constexpr int64_t W = Simd<float>::width;
  const int64_t padded = round_up(task.bits, W);
  const float unit = 5.9604645e-8f;  // 2⁻²⁴
  // Twice γ covers the rounding of the bound itself; the second term covers products that underflow.
  const float gamma = 2.0f * static_cast<float>(task.D + 2) * unit;
  const float underflow = static_cast<float>(task.D + 2) * 2.0f * 1.1754944e-38f;
  const uint64_t used = task.bits == 64 ? ~0ull : (1ull << task.bits) - 1;

  gemm<float, Order::rows>(
      task.rows, padded, task.D, task.x, task.stride_x, task.planes_DP, padded, task.scratch, padded, false);
  for (int64_t i = 0; i < task.rows; ++i) {
    const float* x = task.x + i * task.stride_x;
    Vec<float> sizes = {};
    int64_t d = 0;
    for (; d + W <= task.D; d += W) sizes += (Vec<float>)((Mask<float>)load(x + d) & 0x7fffffff);
    float norm = sum_lanes<float>(sizes);
    for (; d < task.D; ++d) norm += __builtin_fabsf(x[d]);
    uint64_t hash = 0, unsure = 0;
    for (int64_t p = 0; p < padded; p += W) {
      const Vec<float> product = load(task.scratch + i * padded + p);
      const Vec<float> bound = gamma * norm * load(task.largest_P + p) + underflow;
      const uint64_t above = bits_of(product > bound), below = bits_of(product < -bound);
      hash |= above << p;
      unsure |= (~(above | below) & ((1ull << W) - 1)) << p;
    }
    for (uint64_t left = unsure & used; left; left &= left - 1) {
      const int p = __builtin_ctzll(left);
      hash |= static_cast<uint64_t>(above_zero(x, task.planes_PD + p * task.D, task.D)) << p;
    }
    task.hashes[i] = static_cast<int64_t>(hash & used);
  }
}

inline void hash_block(const HashTask<double>& task, Simd<double>::Vec) {
  constexpr int64_t W = Simd<double>::width;
  const int64_t padded = round_up(task.bits, W);
  gemm<double, Order::rows>(
      task.rows, padded, task.D, task.x, task.stride_x, task.planes_DP, padded, task.scratch, padded, false);
  for (int64_t i = 0; i < task.rows; ++i) {
    uint64_t hash = 0;
    for (int64_t p = 0; p < task.bits; ++p)
      hash |= static_cast<uint64_t>(task.scratch[i * padded + p] > 0) << p;
    task.hashes[i] = static_cast<int64_t>(hash);
  }
}

template <class T>
void hash_block(const HashTask<T>& task) {
  hash_block(task, Vec<T>{});
}

}  // namespace
}  // namespace attention_ext
