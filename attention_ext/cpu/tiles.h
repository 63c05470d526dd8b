// Products of tiles in bfloat16, summed in float32, and the layouts that they need: on AMX, or by the dot products of
// AVX512_BF16.
//
// A tile has 16 rows of 64 bytes. A product adds A[16, 32] · B[32, 16] to a tile of 16 × 16 floats, where B lies in
// pairs: row r holds the rows 2r and 2r + 1 of B, element by element. All tiles of operands are contiguous (512
// numbers), so that sizes that are no whole number of tiles are padded with zeros when they are packed.
//
// The tests define ATTENTION_EXT_EMULATE_AMX: plain loops, for machines without either.
#pragma once

#include "rows.h"

#if VECTOR_BYTES != 64
#error "rows of tiles are vectors of 64 bytes"
#endif

namespace attention_ext {
namespace {

constexpr int64_t tile = 512;  // numbers in bfloat16

typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));  // 16 numbers in bfloat16

#ifdef ATTENTION_EXT_EMULATE_AMX

thread_local float emulated_sums[4][16][16];
thread_local uint16_t emulated_operands[4][512];

// Tiles 0 to 3 hold sums, 4 to 7 operands.
#define TILE_LOAD(number, from) memcpy(emulated_operands[(number) - 4], from, 1024)
#define TILE_LOAD_SUMS(number, from, stride) \
  for (int r = 0; r < 16; ++r) memcpy(emulated_sums[number][r], (from) + r * (stride), 64)
#define TILE_STORE(number, to, stride) \
  for (int r = 0; r < 16; ++r) memcpy((to) + r * (stride), emulated_sums[number][r], 64)
#define TILE_CLEAR(number) memset(emulated_sums[number], 0, 1024)
#define TILE_MULTIPLY(sum, a, b) \
  emulated_multiply(emulated_sums[sum], emulated_operands[(a) - 4], emulated_operands[(b) - 4])

inline float emulated_float(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

inline void emulated_multiply(float (*sums)[16], const uint16_t* a, const uint16_t* b) {
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 32; ++k)
      for (int n = 0; n < 16; ++n)
        sums[m][n] += emulated_float(a[32 * m + k]) * emulated_float(b[32 * (k / 2) + 2 * n + k % 2]);
}

class TileUnit {};

#elif defined(__AMX_BF16__)

#define TILE_LOAD(number, from) _tile_loadd(number, from, 64)
#define TILE_LOAD_SUMS(number, from, stride) _tile_loadd(number, from, 4 * (stride))
#define TILE_STORE(number, to, stride) _tile_stored(number, to, 4 * (stride))
#define TILE_CLEAR(number) _tile_zero(number)
#define TILE_MULTIPLY(sum, a, b) _tile_dpbf16ps(sum, a, b)

struct TileShapes {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Configures this thread's tiles, and restores the configuration of other code, e.g. of oneDNN.
class TileUnit {
 public:
  TileUnit() {
    _tile_storeconfig(&before_);
    TileShapes shapes = {};
    shapes.palette = 1;
    for (int i = 0; i < 8; ++i) shapes.row_bytes[i] = 64, shapes.rows[i] = 16;
    _tile_loadconfig(&shapes);
  }
  ~TileUnit() {
    if (before_.palette)
      _tile_loadconfig(&before_);
    else
      _tile_release();
  }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;

 private:
  TileShapes before_;
};

#else

struct TileUnit {
  TileUnit() {}  // without it, a compiler calls the variable unused
};

#endif

// sums[32, 32] = A[32, 32 · steps] · B, or added to what is there. Tiles of the first and second 16 rows of A follow
// each other in steps of `step_a` numbers, those of the columns of B in steps of `step_b`.
#if defined(ATTENTION_EXT_EMULATE_AMX) || defined(__AMX_BF16__)
inline __attribute__((always_inline)) void multiply_tiles(
    int64_t steps, const uint16_t* a_first, const uint16_t* a_second, int64_t step_a, const uint16_t* b_first,
    const uint16_t* b_second, int64_t step_b, float* sums, int64_t stride, bool add) {
  if (add) {
    TILE_LOAD_SUMS(0, sums, stride);
    TILE_LOAD_SUMS(1, sums + 16, stride);
    TILE_LOAD_SUMS(2, sums + 16 * stride, stride);
    TILE_LOAD_SUMS(3, sums + 16 * stride + 16, stride);
  } else {
    TILE_CLEAR(0);
    TILE_CLEAR(1);
    TILE_CLEAR(2);
    TILE_CLEAR(3);
  }
  for (int64_t s = 0; s < steps; ++s) {
    TILE_LOAD(4, a_first + s * step_a);
    TILE_LOAD(6, b_first + s * step_b);
    TILE_LOAD(7, b_second + s * step_b);
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD(5, a_second + s * step_a);
    TILE_MULTIPLY(1, 4, 7);
    TILE_MULTIPLY(2, 5, 6);
    TILE_MULTIPLY(3, 5, 7);
  }
  TILE_STORE(0, sums, stride);
  TILE_STORE(1, sums + 16, stride);
  TILE_STORE(2, sums + 16 * stride, stride);
  TILE_STORE(3, sums + 16 * stride + 16, stride);
}
#else
// Eight rows of sums at a time stay in registers.
inline __attribute__((always_inline)) void multiply_tiles(
    int64_t steps, const uint16_t* a_first, const uint16_t* a_second, int64_t step_a, const uint16_t* b_first,
    const uint16_t* b_second, int64_t step_b, float* sums, int64_t stride, bool add) {
  constexpr int64_t rows = 8;
  for (int64_t m = 0; m < 32; m += rows) {
    const uint16_t* a = (m < 16 ? a_first : a_second) + m % 16 * 32;
    float* to = sums + m * stride;
    __m512 x[rows][2];
#pragma GCC unroll 8
    for (int64_t i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int64_t j = 0; j < 2; ++j) x[i][j] = add ? _mm512_loadu_ps(to + i * stride + 16 * j) : _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; ++s)
      for (int64_t k = 0; k < 16; ++k) {
        const __m512bh first = (__m512bh)_mm512_loadu_si512(b_first + s * step_b + 32 * k);
        const __m512bh second = (__m512bh)_mm512_loadu_si512(b_second + s * step_b + 32 * k);
#pragma GCC unroll 8
        for (int64_t i = 0; i < rows; ++i) {
          int pair;
          memcpy(&pair, a + s * step_a + 32 * i + 2 * k, sizeof(pair));
          const __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
          x[i][0] = _mm512_dpbf16_ps(x[i][0], row, first);
          x[i][1] = _mm512_dpbf16_ps(x[i][1], row, second);
        }
      }
#pragma GCC unroll 8
    for (int64_t i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int64_t j = 0; j < 2; ++j) _mm512_storeu_ps(to + i * stride + 16 * j, x[i][j]);
  }
}
#endif

// Two vectors rounded to bfloat16: `low` in the low halves of the result's lanes, `high` in the high halves.
inline __attribute__((always_inline)) Bits halves_in_pairs(Vec<float> low, Vec<float> high) {
#ifdef __AVX512BF16__
  typedef uint16_t Places __attribute__((vector_size(64)));
  constexpr Places places = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                             8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (Bits)_mm512_permutexvar_epi16((__m512i)places, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
#else
  const Bits a = (Bits)low, b = (Bits)high;
  return (a + 0x7fff + (a >> 16 & 1)) >> 16 | ((b + 0x7fff + (b >> 16 & 1)) & 0xffff0000u);
#endif
}

// Two vectors rounded to bfloat16, one after the other.
inline __attribute__((always_inline)) Bits halves_in_turn(Vec<float> first, Vec<float> second) {
#ifdef __AVX512BF16__
  return (Bits)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
  const Bits a = (Bits)first, b = (Bits)second;
  const Halves x = __builtin_convertvector((a + 0x7fff + (a >> 16 & 1)) >> 16, Halves);
  const Halves y = __builtin_convertvector((b + 0x7fff + (b >> 16 & 1)) >> 16, Halves);
  Bits z;
  memcpy(&z, &x, 32);
  memcpy(reinterpret_cast<char*>(&z) + 32, &y, 32);
  return z;
#endif
}

inline Halves rounded_halves(Vec<float> x) {
  const Bits bits = (Bits)x;
  return __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, Halves);
}

// Rows of a matrix in bfloat16.
struct HalfRows {
  const uint16_t* data;
  int64_t stride, rows, size;

  // Up to `most` numbers of a row from `column`, zero-padded.
  void read(int64_t row, int64_t column, int64_t most, uint16_t* to) const {
    const int64_t there = row < rows ? size - column : 0;
    const uint16_t* from = data + row * stride + column;
    if (there >= most) {
      memcpy(to, from, most * 2);
      return;
    }
    memset(to, 0, most * 2);
    for (int64_t i = 0; i < there; ++i) to[i] = from[i];
  }

  // 16 rows of 32 numbers; each lane of a vector has two.
  void rows_of_32(int64_t row, int64_t column, Vec<float>* x) const {
    for (int64_t r = 0; r < 16; ++r) read(row + r, column, 32, reinterpret_cast<uint16_t*>(x + r));
  }

  // 16 pairs of rows of 16 numbers, in pairs.
  void pairs_of_16(int64_t row, int64_t column, Vec<float>* x) const {
    for (int64_t r = 0; r < 16; ++r) {
      Halves low, high;
      read(row + 2 * r, column, 16, reinterpret_cast<uint16_t*>(&low));
      read(row + 2 * r + 1, column, 16, reinterpret_cast<uint16_t*>(&high));
      x[r] = (Vec<float>)(__builtin_convertvector(low, Bits) | __builtin_convertvector(high, Bits) << 16);
    }
  }
};

inline void store_tile(const Vec<float>* x, uint16_t* to) {
  for (int64_t r = 0; r < 16; ++r) memcpy(to + 32 * r, x + r, 64);
}

// For matrices X with rows n and columns d, padded to multiples of 32: the tiles of ...
// ... X as A: [n / 16][d / 32].
inline void pack_rows(const HalfRows& x, uint16_t* to) {
  for (int64_t n = 0; n < round_up(x.rows, 32); n += 16)
    for (int64_t d = 0; d < x.size; d += 32, to += tile) {
      Vec<float> rows[16];
      x.rows_of_32(n, d, rows);
      store_tile(rows, to);
    }
}

// ... Xᵀ as B: [d / 32][n / 16].
inline void pack_rows_in_pairs(const HalfRows& x, uint16_t* to) {
  for (int64_t d = 0; d < x.size; d += 32)
    for (int64_t n = 0; n < round_up(x.rows, 32); n += 16, to += tile) {
      Vec<float> rows[16];
      x.rows_of_32(n, d, rows);
      transpose_square<float>(rows);
      store_tile(rows, to);
    }
}

// ... X as B: [n / 32][d / 16].
inline void pack_columns_in_pairs(const HalfRows& x, uint16_t* to) {
  for (int64_t n = 0; n < x.rows; n += 32)
    for (int64_t d = 0; d < round_up(x.size, 32); d += 16, to += tile) {
      Vec<float> rows[16];
      x.pairs_of_16(n, d, rows);
      store_tile(rows, to);
    }
}

// ... Xᵀ as A: [n / 32][d / 16].
inline void pack_columns(const HalfRows& x, uint16_t* to) {
  for (int64_t n = 0; n < x.rows; n += 32)
    for (int64_t d = 0; d < round_up(x.size, 32); d += 16, to += tile) {
      Vec<float> rows[16];
      x.pairs_of_16(n, d, rows);
      transpose_square<float>(rows);
      store_tile(rows, to);
    }
}

// 2ˣ for x ≤ 0, with a relative error below 5e-6: enough for weights that are rounded to bfloat16. Below −126 it is
// 2^−126; NaN stays NaN.
inline Vec<float> power_of_2(Vec<float> x) {
  const float shift = 12582912.0f;  // 1.5 · 2²³: adding it rounds to an integer, held in the low bits
  x = larger<float>(x, splat<float>(-126.0f));
  const Vec<float> shifted = x + shift;
  const Vec<float> f = x - (shifted - shift);
  Vec<float> p = f * 0.00961813f + 0.05550411f;
  p = p * f + 0.24022651f;
  p = p * f + 0.69314718f;
  p = p * f + 1.0f;
  return (Vec<float>)((Bits)p + ((Bits)shifted << 23));
}

}  // namespace
}  // namespace attention_ext
