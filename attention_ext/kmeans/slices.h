// Bit-sliced queries and their Hamming distances.
//
// A slice consists of bit planes: plane p is a vector whose bit i is bit p of query i. The distances of all queries of
// a slice to a centroid are sums of 63 one-bit numbers, computed at once by full adders; the search for the smallest
// compares six-bit numbers. See NOTES.md.
#pragma once

#include "../cpu/simd.h"

namespace attention_ext {
namespace {

constexpr int64_t slice_queries = VECTOR_BYTES * 8;

inline int64_t slice_bytes(int64_t queries) {
  return round_up(queries, slice_queries) / slice_queries * 64 * VECTOR_BYTES;
}

// Transpose hashes to bit planes, 64 queries per 64-bit lane, all lanes at once. Missing queries read as zero.
void slice(int64_t queries, const int64_t* hashes, uint64_t* planes) {
  for (int64_t start = 0; start < queries; start += slice_queries) {
    Word x[64];
    for (int i = 0; i < 64; ++i)
      for (int lane = 0; lane < word_lanes; ++lane) {
        const int64_t query = start + lane * 64 + i;
        x[i][lane] = query < queries ? static_cast<uint64_t>(hashes[query]) : 0;
      }
    uint64_t low = 0x00000000ffffffffull;
    for (int step = 32; step; step >>= 1, low ^= low << step)
      for (int i = 0; i < 64; i = ((i | step) + 1) & ~step) {
        const Word swap = ((x[i] >> step) ^ x[i | step]) & low;
        x[i | step] ^= swap;
        x[i] ^= swap << step;
      }
    memcpy(planes, x, sizeof(x));
    planes += 64 * word_lanes;
  }
}

// Full adder: sum = low bit of sum + a + b; returns the carry. Uses `sum` last, because it is available last.
inline __attribute__((always_inline)) Word add3(Word& sum, Word a, Word b) {
  const Word half = a ^ b;
  const Word carry = (a & b) | (half & sum);
  sum ^= half;
  return carry;
}

struct Pair {
  Word low, high;
};

// Tabulate, for each triple of planes and each pattern of three centroid bits, how many of the three differ, as two
// bits. Complementary patterns have complementary counts. The table stays in the L1 cache and leaves 36 adders per
// centroid, instead of 57 and 63 exclusive ors.
inline void differences(const uint64_t* planes, Pair* table) {
  for (int t = 0; t < triples; ++t, table += 8) {
    Word x[3];
    memcpy(x, planes + 3 * t * word_lanes, sizeof(x));
    const Word half = x[0] ^ x[1], both = x[0] & x[1], only = x[0] & ~x[1];
    const Word low = half ^ x[2];
    const Word high0 = both | (half & x[2]), high1 = (x[1] & ~x[0]) | (~half & x[2]);
    const Word high2 = only | (~half & x[2]), high4 = both | (half & ~x[2]);
    table[0] = {low, high0}, table[7] = {~low, ~high0};
    table[1] = {~low, high1}, table[6] = {low, ~high1};
    table[2] = {~low, high2}, table[5] = {low, ~high2};
    table[4] = {~low, high4}, table[3] = {low, ~high4};
  }
}

// Byte offsets of a centroid's patterns in the table.
inline void patterns_of(uint64_t centroid, uint16_t* patterns) {
  for (int t = 0; t < triples; ++t)
    patterns[t] = static_cast<uint16_t>((t * 8 + (centroid >> (3 * t) & 7)) * sizeof(Pair));
}

// Add four more triples; returns three carries of weight four.
#define TRIPLE(t) (*reinterpret_cast<const Pair*>(reinterpret_cast<const char*>(table) + patterns[t]))
template <int i>
inline __attribute__((always_inline)) void add_triples(
    const uint16_t* patterns, const Pair* table, Word& ones, Word& twos, Word fours[3]) {
  const Pair &a = TRIPLE(4 * i + 1), &b = TRIPLE(4 * i + 2), &c = TRIPLE(4 * i + 3), &d = TRIPLE(4 * i + 4);
  fours[0] = add3(twos, a.high, b.high);
  fours[1] = add3(twos, c.high, d.high);
  const Word first = add3(ones, a.low, b.low);
  const Word second = add3(ones, c.low, d.low);
  fours[2] = add3(twos, first, second);
}

// The six bits of the distance, lowest first. Carries are added as soon as they are available, to keep few of them in
// registers.
inline __attribute__((always_inline)) void distance(const uint16_t* patterns, const Pair* table, Word out[6]) {
  Word ones = TRIPLE(0).low, twos = TRIPLE(0).high;
  Word a[3], b[3];
  add_triples<0>(patterns, table, ones, twos, a);
  Word four = a[0];
  Word eight = add3(four, a[1], a[2]);
  add_triples<1>(patterns, table, ones, twos, b);
  const Word eight1 = add3(four, b[0], b[1]);
  add_triples<2>(patterns, table, ones, twos, a);
  const Word eight2 = add3(four, b[2], a[0]);
  Word sixteen = add3(eight, eight1, eight2);
  const Word eight3 = add3(four, a[1], a[2]);
  add_triples<3>(patterns, table, ones, twos, b);
  const Word eight4 = add3(four, b[0], b[1]);
  const Word sixteen1 = add3(eight, eight3, eight4);
  add_triples<4>(patterns, table, ones, twos, a);
  const Word eight5 = add3(four, b[2], a[0]);
  const Word eight6 = add3(four, a[1], a[2]);
  const Word sixteen2 = add3(eight, eight5, eight6);
  const Word thirty_two = add3(sixteen, sixteen1, sixteen2);
  out[0] = ones, out[1] = twos, out[2] = four, out[3] = eight, out[4] = sixteen, out[5] = thirty_two;
}
#undef TRIPLE

inline Word load_word(const void* from) {
  Word x;
  memcpy(&x, from, sizeof(x));
  return x;
}

inline void store_word(void* to, Word x) { memcpy(to, &x, sizeof(x)); }

// Bit planes of a slice's numbers: plane p holds bit p of each.
template <int bits>
inline void planes_of(const uint8_t* numbers, Word* out) {
  for (int p = 0; p < bits; ++p) {
    uint64_t words[word_lanes];
    for (int lane = 0; lane < word_lanes; ++lane) words[lane] = bits_of_bytes(numbers + lane * 64, p);
    out[p] = load_word(words);
  }
}

typedef uint8_t Bytes __attribute__((vector_size(VECTOR_BYTES)));

// For byte k of a vector: byte index and mask of its bit, in a word repeated every 64 bits.
struct Spread {
  Bytes byte, bit;
  Spread() {
    for (int k = 0; k < VECTOR_BYTES; ++k) {
      byte[k] = static_cast<uint8_t>(k / 16 * 16 + k / 8);  // within 16 bytes, where shuffles are cheap
      bit[k] = static_cast<uint8_t>(1 << k % 8);
    }
  }
};

// The numbers represented by a slice's bit planes.
template <int bits>
inline void numbers_of(const Word* planes, uint8_t* numbers) {
  const Spread spread;
  for (int64_t i = 0; i < slice_queries; i += VECTOR_BYTES) {
    Bytes sum = {};
#pragma GCC unroll 8
    for (int p = bits - 1; p >= 0; --p) {
      uint64_t word = 0;
      memcpy(&word, reinterpret_cast<const char*>(planes + p) + i / 8, VECTOR_BYTES / 8);
      const Bytes repeated = (Bytes)(word - Word{});
      const Bytes here = __builtin_shuffle(repeated, spread.byte) & spread.bit;
      sum += sum - (Bytes)(here == spread.bit);  // a comparison that holds is −1
    }
    store_word(numbers + i, (Word)sum);
  }
}

}  // namespace
}  // namespace attention_ext
