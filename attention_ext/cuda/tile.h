// The matrix product behind all CUDA kernels: a block of threads computes a tile of 64 × 64.
//
// Operands pass through shared memory in float32 as [k][row or column], 32 values of the summed index k at a time. A
// matrix with k along its rows is transposed on the way (`across`), one with k down its columns is not (`along`). Rows
// may be picked by an index; elements outside a matrix read as zero.
//
// float32 input uses fused multiply-adds. float16 and bfloat16 input uses tensor cores in TF32, which represents both
// types exactly; an operand that is always float32 (centroids, weights, gradients) is split into two TF32 numbers and
// multiplied twice, for a precision of 22 bits.
#pragma once

#include "device.h"

namespace attention_ext {
namespace {

constexpr int tile = 64, depth = 32;
constexpr int row_stride = tile + 8;  // rows 8 banks apart, so that reading tensor-core fragments causes no conflicts

struct TileMemory {
  alignas(16) float a[depth][row_stride];
  alignas(16) float b[depth][row_stride];
};

template <class T>
struct Matrix {
  const T* data;
  int64_t stride;        // between rows; the values of a row are contiguous
  const int32_t* index;  // row r is stored at index[r], or is zero if that is −1; null: stored at r
  int64_t rows, columns;
};

template <class T>
__device__ Matrix<T> matrix(
    const T* data, int64_t stride, int64_t rows, int64_t columns, const int32_t* index = nullptr) {
  return {.data = data, .stride = stride, .index = index, .rows = rows, .columns = columns};
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

// Load four adjacent values of a row; `vectors`: every row is aligned to four values.
template <class T>
__device__ inline void load_four(const Matrix<T>& from, bool vectors, int64_t row, int64_t column, float* to) {
  to[0] = to[1] = to[2] = to[3] = 0.0f;
  if (row >= from.rows || column >= from.columns) return;
  const int64_t at = from.index == nullptr ? row : from.index[row];
  if (at < 0) return;
  const T* source = from.data + at * from.stride + column;
  if (vectors && column + 4 <= from.columns) {
    const Four<T> four = *reinterpret_cast<const Four<T>*>(source);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = static_cast<float>(four.x[j]);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (column + j < from.columns) to[j] = static_cast<float>(source[j]);
  }
}

template <class T>
__device__ inline bool in_vectors(const Matrix<T>& x) {
  return reinterpret_cast<uintptr_t>(x.data) % sizeof(Four<T>) == 0 && x.stride % 4 == 0;
}

// What becomes of a value on the way; by default, nothing.
struct Same {
  __device__ float operator()(int64_t, int64_t, float x) const { return x; }
};

template <class T, class Change>
__device__ inline float changed(const Matrix<T>& from, int64_t row, int64_t column, float x, Change change) {
  return row < from.rows && column < from.columns ? change(row, column, x) : 0.0f;
}

template <class T>
__device__ inline float changed(const Matrix<T>&, int64_t, int64_t, float x, Same) {
  return x;
}

// to[k][i] = change(row, column, from[row][column]) with row = first + i and column = k0 + k; 0 outside the matrix.
// Each lane stays in one row, so that stores cause no bank conflicts and loads find the rest of a sector in the L1
// cache.
template <class T, class Change = Same>
__device__ inline void load_across(
    float (*to)[row_stride], const Matrix<T>& from, int64_t first, int64_t k0, Change change = {}) {
  const bool vectors = in_vectors(from);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int step = 2 * warp + i;  // 2 halves of the rows × 8 groups of four
    const int row = step / 8 * 32 + lane, k = step % 8 * 4;
    float four[4];
    load_four(from, vectors, first + row, k0 + k, four);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[k + j][row] = changed(from, first + row, k0 + k + j, four[j], change);
  }
}

// The same with row = k0 + k and column = first + i.
template <class T, class Change = Same>
__device__ inline void load_along(
    float (*to)[row_stride], const Matrix<T>& from, int64_t first, int64_t k0, Change change = {}) {
  const bool vectors = in_vectors(from);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = threadIdx.x + i * threads;
    const int k = at / (tile / 4), column = at % (tile / 4) * 4;
    float four[4];
    load_four(from, vectors, k0 + k, first + column, four);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[k][column + j] = changed(from, k0 + k, first + column + j, four[j], change);
  }
}

// First row and column of a warp's 16 × 32 part of the tile.
__device__ inline int warp_row() { return static_cast<int>(threadIdx.x) / 64 * 16; }
__device__ inline int warp_column() { return static_cast<int>(threadIdx.x) / 32 % 2 * 32; }

struct Fma {
  static constexpr bool split_a = false, split_b = false;
  static __device__ int row(int i) { return warp_row() + threadIdx.x % 32 / 8 * 4 + i / 4; }
  static __device__ int column(int i) { return warp_column() + threadIdx.x % 8 * 4 + i % 4; }

  static __device__ void add(float* sum, const TileMemory& memory) {
    const int row0 = row(0), column0 = column(0);
#pragma unroll 8
    for (int k = 0; k < depth; ++k) {
      const Four<float> a = *reinterpret_cast<const Four<float>*>(&memory.a[k][row0]);
      const Four<float> b = *reinterpret_cast<const Four<float>*>(&memory.b[k][column0]);
#pragma unroll
      for (int i = 0; i < 16; ++i) sum[i] = fmaf(a.x[i / 4], b.x[i % 4], sum[i]);
    }
  }
};

// The 11 leading bits of the significand; subtracting them from x is exact.
__device__ inline float high_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

template <bool SplitA, bool SplitB>
struct TensorCores {
  static __device__ int row(int i) { return warp_row() + threadIdx.x % 32 / 4 + i % 4 / 2 * 8; }
  static __device__ int column(int i) { return warp_column() + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

  static __device__ void add(float* sum, const TileMemory& memory) {
    const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    const int row0 = warp_row() + group, column0 = warp_column() + group;
#pragma unroll
    for (int k = 0; k < depth; k += 8) {
      float high_a[4], low_a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = memory.a[k + member + i / 2 * 4][row0 + i % 2 * 8];
        high_a[i] = high_part(x);
        low_a[i] = high_part(x - high_a[i]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float high_b[2], low_b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = memory.b[k + member + i * 4][column0 + n * 8];
          high_b[i] = high_part(x);
          low_b[i] = high_part(x - high_b[i]);
        }
        if constexpr (SplitB) tensor_product(sum + 4 * n, high_a, low_b);
        if constexpr (SplitA) tensor_product(sum + 4 * n, low_a, high_b);
        tensor_product(sum + 4 * n, high_a, high_b);
      }
    }
  }
};

// How to multiply for input of type T. `SplitA`, `SplitB`: the operand is always float32.
template <class T, bool SplitA, bool SplitB>
struct Multiplier {
  using type = TensorCores<SplitA, SplitB>;
};
template <bool SplitA, bool SplitB>
struct Multiplier<float, SplitA, SplitB> {
  using type = Fma;
};

// The tile, 16 values per thread.
template <class Way>
struct Tile {
  float sum[16];

  __device__ Tile() {
#pragma unroll
    for (int i = 0; i < 16; ++i) sum[i] = 0.0f;
  }

  // Add the product over k = first … last − 1. load_a(k) and load_b(k) fill memory.a and memory.b.
  template <class LoadA, class LoadB>
  __device__ void multiply(TileMemory& memory, int64_t first, int64_t last, LoadA load_a, LoadB load_b) {
    for (int64_t k = first; k < last; k += depth) {
      load_a(k);
      load_b(k);
      __syncthreads();
      Way::add(sum, memory);
      __syncthreads();
    }
  }

  // Call take(row, column, value) for each of this thread's values.
  template <class F>
  __device__ void each(F take) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) take(Way::row(i), Way::column(i), sum[i]);
  }
};

}  // namespace
}  // namespace attention_ext
