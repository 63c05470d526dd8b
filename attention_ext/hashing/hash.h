// Signs of projections: a small matrix product, then comparisons with error bounds.
//
// Products are computed in 16-bit integers (two multiply-adds per lane) or in floating point. Those too close to zero
// for a certain sign are recomputed in float64.
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

// The same with vectorised sums, unless the result is so close to zero that their order could matter.
inline bool above_zero(const float* x, const double* plane, int64_t D, double norm, double largest) {
  typedef float Half __attribute__((vector_size(VECTOR_BYTES / 2)));
  constexpr int64_t W = Simd<double>::width;
  Vec<double> sums = {};
  int64_t d = 0;
  for (; d + W <= D; d += W) {
    Half part;
    memcpy(&part, x + d, sizeof(part));
    sums += __builtin_convertvector(part, Vec<double>) * load(plane + d);
  }
  double sum = sum_lanes<double>(sums);
  for (; d < D; ++d) sum += static_cast<double>(x[d]) * plane[d];
  const double unit = 1.1102230246251565e-16;  // 2⁻⁵³
  // The bound covers the errors of both summation orders, each doubled.
  if (largest > 1e-30 && __builtin_fabs(sum) > 4 * static_cast<double>(D + 2) * unit * norm * largest) return sum > 0;
  return above_zero(x, plane, D);
}

// Whether there is an instruction that multiplies pairs of 16-bit numbers and adds the two products.
template <class T>
constexpr bool hash_integers = false;

#if defined(__SSE2__)
template <>
constexpr bool hash_integers<float> = true;

// Quantise rows to 16-bit integers and compute their 1-norms. Elements d and d + W of every 2·W share a lane. A row is
// scaled to the given norm, or less so that its largest element is at most 32,767.
inline void quantise(const HashTask<float>& task, int64_t pairs, int32_t* pairs_NJ, float* norms) {
  constexpr int64_t W = Simd<float>::width;
  const float shift = 12582912.0f;  // 1.5 · 2²³: adding it rounds to an integer, held in the low bits
  const int64_t whole = task.D / (2 * W) * W, rest = task.D - 2 * whole;
  for (int64_t start = 0; start < task.rows; start += W) {
    Vec<float> sums[W], largest[W], tails[W][2];
    for (int64_t i = 0; i < W; ++i) {
      sums[i] = largest[i] = tails[i][0] = tails[i][1] = Vec<float>{};
      if (start + i >= task.rows) continue;
      const float* x = task.x + (start + i) * task.stride_x;
      if (rest) memcpy(tails[i], x + 2 * whole, rest * sizeof(float));
      const auto take = [&](Vec<float> values) {
        const Vec<float> size = (Vec<float>)((Mask<float>)values & 0x7fffffff);
        sums[i] += size;
        largest[i] = larger<float>(largest[i], size);
      };
      for (int64_t d = 0; d < 2 * whole; d += W) take(load(x + d));
      if (rest) take(tails[i][0]), take(tails[i][1]);
    }
    const Vec<float> norm = fold_lanes<float>(sums, [](Vec<float> a, Vec<float> b) { return a + b; });
    const Vec<float> most = fold_lanes<float>(largest, [](Vec<float> a, Vec<float> b) { return larger<float>(a, b); });
    const Vec<float> by_norm = task.norm / norm, by_most = 32767.0f / most;
    const Vec<float> scales = by_norm < by_most ? by_norm : by_most;
    store(norms + start, norm);
    for (int64_t i = 0; i < W && start + i < task.rows; ++i) {
      const float* x = task.x + (start + i) * task.stride_x;
      int32_t* out = pairs_NJ + (start + i) * pairs;
      const float scale = scales[i];
      const auto put = [&](int64_t at, Vec<float> low, Vec<float> high) {
        const Mask<float> a = (Mask<float>)(low * scale + shift), b = (Mask<float>)(high * scale + shift);
        const Mask<float> both = (a & 0xffff) | (b << 16);
        memcpy(out + at, &both, sizeof(both));
      };
      for (int64_t j = 0; j < whole; j += W) put(j, load(x + 2 * j), load(x + 2 * j + W));
      if (rest) put(whole, tails[i][0], tails[i][1]);
    }
  }
}

// Products of M rows with all planes: bits of those above the bound, and bits of those beyond it on either side.
template <int M>
inline __attribute__((noinline)) void hash_tile(
    int64_t pairs, int64_t columns, const int32_t* pairs_MJ, const int32_t* pairs_JP, const int32_t* bounds_P,
    uint64_t* above_M, uint64_t* sure_M) {
  constexpr int64_t W = Simd<float>::width;
  typedef uint32_t Unsigned __attribute__((vector_size(VECTOR_BYTES)));
  const auto load_pairs = [](const int32_t* from) {
    Mask<float> x;
    memcpy(&x, from, sizeof(x));
    return x;
  };
  for (int i = 0; i < M; ++i) above_M[i] = sure_M[i] = 0;
  for (int64_t column = 0; column < columns; column += 2 * W) {
    Mask<float> sum[M][2];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) sum[i][0] = sum[i][1] = Mask<float>{};
    const int32_t* planes = pairs_JP + column;
#pragma GCC unroll 2
    for (int64_t j = 0; j < pairs; ++j, planes += columns) {
      const Mask<float> first = load_pairs(planes), second = load_pairs(planes + W);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const Mask<float> x = pairs_MJ[i * pairs + j] - Mask<float>{};
        // Unsigned, because sums of rows that cannot be scaled may overflow; they are not used.
        sum[i][0] = (Mask<float>)((Unsigned)sum[i][0] + (Unsigned)multiply_pairs(x, first));
        sum[i][1] = (Mask<float>)((Unsigned)sum[i][1] + (Unsigned)multiply_pairs(x, second));
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Mask<float> bound = load_pairs(bounds_P + column + v * W);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const uint64_t above = bits_of(sum[i][v] > bound), below = bits_of(-bound > sum[i][v]);
        above_M[i] |= above << (column + v * W);
        sure_M[i] |= (above | below) << (column + v * W);
      }
    }
  }
}

// Row x is quantised to s·x + e, plane p to t·p + f, where |e| ≤ ½ + 2⁻⁹ (s·x is rounded to float32 first) and
// |f| ≤ ½ + 2⁻³⁰. The integer sum of products differs from s·t·x·p by Σ e·t·p + Σ (s·x + e)·f, at most
//   (½ + 2⁻⁹)·t·‖p‖₁ + (½ + 2⁻³⁰)·(‖s·x‖₁ + D).
// The bound is this plus 1, with ‖s·x‖₁ at most the given norm times 1 + 2⁻¹³. t is chosen so that no sum exceeds 2³¹
// (see hashing/cpu.cpp). A product beyond the bound is at least 2⁻³¹·‖x‖₁·‖p‖∞ away from zero, so that float64 sums
// have the same sign.
inline void hash_by_integers(const HashTask<float>& task) {
  constexpr int64_t W = Simd<float>::width;
  constexpr int M = VECTOR_BYTES == 64 ? 12 : 6;
  static_assert(hash_rows % M == 0 && hash_rows % W == 0, "hash_rows must be a whole number of tiles");
  const int64_t pairs = round_up(task.D, 2 * W) / 2, columns = round_up(task.bits, 2 * W);
  const uint64_t used = (1ull << task.bits) - 1;
  int32_t* pairs_NJ = reinterpret_cast<int32_t*>(task.scratch);
  float norms[hash_rows];
  quantise(task, pairs, pairs_NJ, norms);
  const int64_t end = round_up(task.rows, M);
  memset(pairs_NJ + task.rows * pairs, 0, (end - task.rows) * pairs * sizeof(int32_t));
  for (int64_t start = 0; start < end; start += M) {
    uint64_t above_M[M], sure_M[M];
    hash_tile<M>(pairs, columns, pairs_NJ + start * pairs, task.pairs_JP, task.bounds_P, above_M, sure_M);
    for (int64_t i = start; i < start + M && i < task.rows; ++i) {
      const float* x = task.x + i * task.stride_x;
      const float norm = norms[i];
      const bool usable = norm > 1e-30f && norm < 1e30f;  // else the scale could overflow or be NaN
      uint64_t hash = usable ? above_M[i - start] : 0;
      uint64_t left = usable ? ~sure_M[i - start] & used : norm == 0 ? 0 : used;
      for (; left; left &= left - 1) {
        const int p = __builtin_ctzll(left);
        const bool above = above_zero(x, task.planes_PD + p * task.D, task.D, norm, task.largest_P[p]);
        hash |= static_cast<uint64_t>(above) << p;
      }
      task.hashes[i] = static_cast<int64_t>(hash & used);
    }
  }
}
#endif

// A sum of D products has an error of at most γ·Σ|x||p| ≤ γ·‖x‖₁·‖p‖∞, γ = D·u / (1 − D·u), in any summation
// order. Products closer to zero, and NaN, are decided in double precision. ‖x‖₂·‖p‖₂ would be a closer bound, but its
// squares could overflow or underflow.
inline void hash_block(const HashTask<float>& task, Simd<float>::Vec) {
#if defined(__SSE2__)
  if (task.pairs_JP) return hash_by_integers(task);
#endif
  constexpr int64_t W = Simd<float>::width;
  const int64_t padded = round_up(task.bits, W);
  const float unit = 5.9604645e-8f;  // 2⁻²⁴
  // 2·γ also covers the rounding of the bound; `underflow` covers products that underflow.
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
      // In this order, the bound of a product whose partial sums overflow is infinite.
      const Vec<float> bound = gamma * (norm * load(task.largest_P + p)) + underflow;
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
    for (int64_t p = 0; p < task.bits; ++p) hash |= static_cast<uint64_t>(task.scratch[i * padded + p] > 0) << p;
    task.hashes[i] = static_cast<int64_t>(hash);
  }
}

template <class T>
void hash_block(const HashTask<T>& task) {
  hash_block(task, Vec<T>{});
}

}  // namespace
}  // namespace attention_ext
