// Vector types and operations for one instruction set, on GCC's vector extensions.
//
// This header and all that include it are compiled once per instruction set (isa.cpp). Everything is in an unnamed
// namespace and nothing comes from the C++ library: of an inline function shared by translation units the linker keeps
// one copy, perhaps compiled for an instruction set that this machine lacks.
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef ATTENTION_EXT_X86
#include <immintrin.h>
#endif

#ifndef VECTOR_BYTES
#error "isa.cpp sets VECTOR_BYTES"
#endif

namespace attention_ext {
namespace {

extern "C" double exp(double);

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float Vec __attribute__((vector_size(VECTOR_BYTES)));
  typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int64_t width = VECTOR_BYTES / 4;
};

template <>
struct Simd<double> {
  typedef double Vec __attribute__((vector_size(VECTOR_BYTES)));
  typedef int64_t Mask __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int64_t width = VECTOR_BYTES / 8;
};

template <class T>
using Vec = typename Simd<T>::Vec;
template <class T>
using Mask = typename Simd<T>::Mask;

typedef uint64_t Word __attribute__((vector_size(VECTOR_BYTES)));
constexpr int64_t word_lanes = VECTOR_BYTES / 8;

template <class T>
inline Vec<T> load(const T* from) {
  Vec<T> x;
  memcpy(&x, from, sizeof(x));
  return x;
}

template <class T>
inline void store(T* to, Vec<T> x) {
  memcpy(to, &x, sizeof(x));
}

template <class T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};
}

// Keeps a NaN in `a`, so that it reaches the output.
template <class T>
inline Vec<T> larger(Vec<T> a, Vec<T> b) {
  return (a < b) ? b : a;
}

// Bit i of the result is set if lane i of the comparison holds.
inline uint32_t bits_of(Mask<float> mask) {
#if defined(__AVX512DQ__) && VECTOR_BYTES == 64
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#elif defined(__SSE2__) && VECTOR_BYTES == 16
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)mask));
#else
  uint32_t bits = 0;
  for (int i = 0; i < Simd<float>::width; ++i) bits |= (mask[i] ? 1u : 0u) << i;
  return bits;
#endif
}

inline uint32_t bits_of(Mask<double> mask) {
#if defined(__AVX512DQ__) && VECTOR_BYTES == 64
  return _mm512_movepi64_mask((__m512i)mask);
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  return static_cast<uint32_t>(_mm256_movemask_pd((__m256d)mask));
#elif defined(__SSE2__) && VECTOR_BYTES == 16
  return static_cast<uint32_t>(_mm_movemask_pd((__m128d)mask));
#else
  uint32_t bits = 0;
  for (int i = 0; i < Simd<double>::width; ++i) bits |= (mask[i] ? 1u : 0u) << i;
  return bits;
#endif
}

// Bit i of the result is bit `place` of byte i, for 64 bytes.
inline uint64_t bits_of_bytes(const uint8_t* bytes, int place) {
#if defined(__AVX512BW__) && VECTOR_BYTES == 64
  return _mm512_movepi8_mask(_mm512_slli_epi16(_mm512_loadu_si512(bytes), 7 - place));
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + i));
    bits |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(x, 7 - place)))) << i;
  }
  return bits;
#elif defined(__SSE2__) && VECTOR_BYTES == 16
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    bits |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(_mm_slli_epi16(x, 7 - place)))) << i;
  }
  return bits;
#else
  uint64_t bits = 0;
  for (int i = 0; i < 64; ++i) bits |= static_cast<uint64_t>(bytes[i] >> place & 1) << i;
  return bits;
#endif
}

template <class T>
inline T sum_lanes(Vec<T> x) {
  T sum = x[0];
  for (int i = 1; i < Simd<T>::width; ++i) sum += x[i];
  return sum;
}

template <class T, int step, class Join>
inline __attribute__((always_inline)) Vec<T> fold(Vec<T> a, Vec<T> b, Join join) {
  Mask<T> first, second;
  for (int i = 0; i < Simd<T>::width; ++i) {
    const int from = i & step ? static_cast<int>(Simd<T>::width) : 0;
    first[i] = from + (i & ~step), second[i] = from + (i | step);
  }
  return join(__builtin_shuffle(a, b, first), __builtin_shuffle(a, b, second));
}

// Reduce W vectors at once: lane r of the result joins all lanes of vector r. Overwrites the vectors. A lane's result
// does not depend on the other vectors.
template <class T, class Join>
inline __attribute__((always_inline)) Vec<T> fold_lanes(Vec<T>* x, Join join) {
  constexpr int W = Simd<T>::width;
  for (int i = 0; i < W; i += 2) x[i] = fold<T, 1>(x[i], x[i + 1], join);
  if constexpr (W > 2)
    for (int i = 0; i < W; i += 4) x[i] = fold<T, 2>(x[i], x[i + 2], join);
  if constexpr (W > 4)
    for (int i = 0; i < W; i += 8) x[i] = fold<T, 4>(x[i], x[i + 4], join);
  if constexpr (W > 8) x[0] = fold<T, 8>(x[0], x[8], join);
  return x[0];
}

// In each lane: product of the low halves plus product of the high halves.
inline __attribute__((always_inline)) Mask<float> multiply_pairs(Mask<float> a, Mask<float> b) {
#if VECTOR_BYTES == 64 && defined(__AVX512BW__)
  return (Mask<float>)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif VECTOR_BYTES == 32 && defined(__AVX2__)
  return (Mask<float>)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && VECTOR_BYTES == 16
  return (Mask<float>)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// exp(x) for x ≤ 0 with an error below 2 ulp: x = n·ln 2 + r, a polynomial in r (Cephes), n added to the
// exponent. Arguments below −87 give exp(−87) ≈ 1e−38, negligible beside the largest weight, 1. Those above 0, which
// only invalid input has, give any number: bits without a sign, whose sum may overflow.
inline Vec<float> exp_vec(Vec<float> x) {
  typedef uint32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  const float lowest = -87.0f;
  const float shift = 12582912.0f;  // 1.5 · 2²³: adding it rounds to an integer, held in the low bits
  x = larger<float>(x, splat<float>(lowest));
  const Vec<float> shifted = x * 1.44269504f + shift;
  const Vec<float> n = shifted - shift;
  Vec<float> r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return (Vec<float>)((Bits)p + ((Bits)shifted << 23));
}

inline Vec<double> exp_vec(Vec<double> x) {
  for (int i = 0; i < Simd<double>::width; ++i) x[i] = exp(x[i]);
  return x;
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace
}  // namespace attention_ext
