// Scratch memory, and chosen rows gathered, padded and transposed.
#pragma once

#include <utility>

#include "simd.h"

namespace attention_ext {
namespace {

// Allocates aligned pieces of a task's scratch; without memory it only computes the size needed.
struct Scratch {
  char* memory;
  int64_t used = 0;
  template <class T>
  T* take(int64_t count) {
    T* piece = memory ? reinterpret_cast<T*>(memory + used) : nullptr;
    used += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }
};

// Initial value of a maximum; finite, so that differences never subtract infinities.
template <class T>
constexpr T lowest_score() {
  return static_cast<T>(sizeof(T) == 4 ? -3.0e38 : -1.0e308);
}

// Shuffles with constant lanes, so that each compiles to one instruction.
template <class T, int... lane>
struct Exchange {
  static constexpr int W = Simd<T>::width;

  // Interleave two rows of floats within each 128 bits: a0 b0 a1 b1, or a2 b2 a3 b3.
  template <int from>
  static Vec<T> interleave(Vec<T> a, Vec<T> b) {
    return __builtin_shuffle(a, b, Mask<T>{(lane / 4 * 4 + lane % 4 / 2 + from + lane % 2 * W)...});
  }

  // The even, or the odd, blocks of `step` lanes of both vectors.
  template <int step>
  static Vec<T> even(Vec<T> a, Vec<T> b) {
    return __builtin_shuffle(a, b, Mask<T>{(lane & step ? W + lane - step : lane)...});
  }
  template <int step>
  static Vec<T> odd(Vec<T> a, Vec<T> b) {
    return __builtin_shuffle(a, b, Mask<T>{(lane & step ? W + lane : lane + step)...});
  }
};

template <class T, int... lane>
Exchange<T, lane...> exchange_of(std::integer_sequence<int, lane...>);

template <class T, int step>
inline __attribute__((always_inline)) void exchange_blocks(Vec<T>* x) {
  constexpr int W = Simd<T>::width;
  typedef decltype(exchange_of<T>(std::make_integer_sequence<int, W>{})) Lanes;
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    if (!(i & step)) {
      const Vec<T> a = x[i], b = x[i + step];
      x[i] = Lanes::template even<step>(a, b);
      x[i + step] = Lanes::template odd<step>(a, b);
    }
}

// Transpose W × W values in registers: first 4 × 4 floats within 128 bits, then swap blocks of growing size.
template <class T>
inline __attribute__((always_inline)) void transpose_square(Vec<T>* x) {
  constexpr int W = Simd<T>::width;
  typedef decltype(exchange_of<T>(std::make_integer_sequence<int, W>{})) Lanes;
  if constexpr (sizeof(T) == 4) {
#pragma GCC unroll 4
    for (int i = 0; i < W; i += 4) {
      const Vec<T> a = Lanes::template interleave<0>(x[i], x[i + 1]);
      const Vec<T> b = Lanes::template interleave<2>(x[i], x[i + 1]);
      const Vec<T> c = Lanes::template interleave<0>(x[i + 2], x[i + 3]);
      const Vec<T> d = Lanes::template interleave<2>(x[i + 2], x[i + 3]);
      x[i] = Lanes::template even<2>(a, c);
      x[i + 1] = Lanes::template odd<2>(a, c);
      x[i + 2] = Lanes::template even<2>(b, d);
      x[i + 3] = Lanes::template odd<2>(b, d);
    }
  } else {
    exchange_blocks<T, 1>(x);
    if constexpr (W >= 4) exchange_blocks<T, 2>(x);
  }
  if constexpr (W >= 8) exchange_blocks<T, 4>(x);
  if constexpr (W >= 16) exchange_blocks<T, 8>(x);
}

// Copy chosen rows of `size` values, zero-padded, to to[padded_rows, padded size].
template <class T>
void gather_rows(
    const T* from, int64_t stride, const int32_t* chosen, int64_t rows, int64_t padded_rows, int64_t size, T* to) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded = round_up(size, W);
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = from + chosen[i] * stride;
    T* target = to + i * padded;
    if (i + 4 < rows)
      for (int64_t j = 0; j < size; j += 16) __builtin_prefetch(from + chosen[i + 4] * stride + j);
    if (padded == size)
      for (int64_t j = 0; j < size; j += W) store(target + j, load(row + j));
    else {
      memcpy(target, row, size * sizeof(T));
      for (int64_t j = size; j < padded; ++j) target[j] = 0;
    }
  }
  for (int64_t j = rows * padded; j < padded_rows * padded; j += W) store(to + j, Vec<T>{});
}

// to[columns, rows] = from[rows, columns]ᵀ; both sizes are multiples of the vector width. `stride`: distance
// between rows of `to`.
template <class T>
void transpose(int64_t rows, int64_t columns, const T* from, T* to, int64_t stride) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < rows; i += W)
    for (int64_t j = 0; j < columns; j += W) {
      Vec<T> x[W];
#pragma GCC unroll 16
      for (int64_t r = 0; r < W; ++r) x[r] = load(from + (i + r) * columns + j);
      transpose_square<T>(x);
#pragma GCC unroll 16
      for (int64_t r = 0; r < W; ++r) store(to + (j + r) * stride + i, x[r]);
    }
}

template <class T>
void transpose(int64_t rows, int64_t columns, const T* from, T* to) {
  transpose<T>(rows, columns, from, to, rows);
}

// to[size, padded count] = chosen rows, transposed; by way of `rows` if a size is not a whole number of vectors.
template <class T>
void gather_transposed(
    const T* from, int64_t stride, const int32_t* chosen, int64_t count, int64_t size, T* rows, T* to) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded = round_up(count, W);
  if (count % W || size % W) {
    gather_rows<T>(from, stride, chosen, count, padded, size, rows);
    transpose<T>(padded, round_up(size, W), rows, to);
    return;
  }
  for (int64_t i = 0; i < count; i += W) {
    if (i + W < count)
      for (int64_t r = 0; r < W; ++r)
        for (int64_t j = 0; j < size; j += 64 / sizeof(T)) __builtin_prefetch(from + chosen[i + W + r] * stride + j);
    for (int64_t j = 0; j < size; j += W) {
      Vec<T> x[W];
#pragma GCC unroll 16
      for (int64_t r = 0; r < W; ++r) x[r] = load(from + chosen[i + r] * stride + j);
      transpose_square<T>(x);
#pragma GCC unroll 16
      for (int64_t r = 0; r < W; ++r) store(to + (j + r) * padded + i, x[r]);
    }
  }
}

}  // namespace
}  // namespace attention_ext
