// Local attention on tiles of bfloat16, forward and backward; with windows that hold all keys, full attention.
//
// As in bands.h, lanes hold queries: scores are [keys, queries], so that neither softmax nor masks reduce across lanes,
// and keys are an operand as they lie. Keys and values of a head are packed once. See NOTES.md.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/tiles.h"
#include "sight.h"

namespace attention_ext {
namespace {

constexpr float log2_of_e = 1.44269504f;

// Sizes in a head's packed keys and values.
struct TileSizes {
  int64_t keys, D, E;  // multiples of 32

  explicit TileSizes(const TileBand& band)
      : keys(round_up(band.length, 32)), D(round_up(band.D, 32)), E(round_up(band.E, 32)) {}
};

struct PackedKeys {
  uint16_t *keys, *values;                // as A, by rows
  uint16_t *key_columns, *value_columns;  // their transposes as A
  int64_t bytes;

  PackedKeys(char* memory, const TileBand& band, bool backward) {
    const TileSizes sizes(band);
    Scratch scratch{memory};
    keys = scratch.take<uint16_t>(sizes.keys * sizes.D);
    values = scratch.take<uint16_t>(backward ? sizes.keys * sizes.E : 0);
    key_columns = scratch.take<uint16_t>(backward ? sizes.keys * sizes.D : 0);
    value_columns = scratch.take<uint16_t>(backward ? 0 : sizes.keys * sizes.E);
    bytes = scratch.used;
  }
};

int64_t tile_packed_bytes(const TileBand& band, bool backward) { return PackedKeys(nullptr, band, backward).bytes; }

void tile_pack(const TileBand& band, bool backward, char* memory) {
  const PackedKeys packed(memory, band, backward);
  const HalfRows k{band.k, band.stride_k, band.length, band.D}, v{band.v, band.stride_v, band.length, band.E};
  pack_rows(k, packed.keys);
  if (backward)
    pack_rows(v, packed.values), pack_columns(k, packed.key_columns);
  else
    pack_columns(v, packed.value_columns);
}

// Keys from `first` to `end` in scores [keys, queries], and of these the ones that all queries of the tile see. Both
// are even numbers of keys from the piece's first.
struct TilePiece {
  int64_t first, end, all_first, all_end;

  TilePiece(const Sight& sight, int64_t first_, int64_t end_) : first(first_), end(end_) {
    const auto inside = [&](int64_t key) { return later(0, earlier(key, end) - first); };
    all_first = first + round_up(inside(sight.all_from), 2);
    all_end = first + inside(sight.all_end) / 2 * 2;
    if (all_first >= all_end) all_first = all_end = first;
  }
};

// Set the scores of keys that a query does not see to `lowest_score`.
inline void hide_keys(const TileBand& band, const TilePiece& piece, int64_t query, int64_t queries, float* scores) {
  Mask<float> lane;
  for (int i = 0; i < 16; ++i) lane[i] = i;
  for (int64_t key = piece.first; key < piece.end; ++key) {
    if (key >= piece.all_first && key < piece.all_end) {
      key = piece.all_end - 1;
      continue;
    }
    const Seers seers(band, query, key);
    for (int64_t j = 0; j < queries; j += 16) {
      const auto first = static_cast<int32_t>(key < band.length ? later(earlier(seers.first - j, 16), 0) : 16);
      const auto end = static_cast<int32_t>(later(earlier(seers.end - j, 16), 0));
      float* score = scores + (key - piece.first) * queries + j;
      store(score, (lane >= first) & (lane < end) ? load(score) : splat(lowest_score<float>()));
    }
  }
}

// Factors in units of log 2: a score is `score · factor + addend`.
struct TileScale {
  float factor;
  float addends[256];

  TileScale(const TileBand& band) : factor(band.scale * log2_of_e), addends{} {}
  void read(const TileBand& band, const TilePiece& piece) {
    for (int64_t key = piece.first; band.bias && key < earlier(piece.end, band.length); ++key)
      addends[key - piece.first] = band.bias[key] * log2_of_e;
  }
};

template <bool hidden>
inline Vec<float> tile_weight(Vec<float> score, Vec<float> maximum, float factor, float addend) {
  const Vec<float> weight = power_of_2(score * factor + addend - maximum);
  return hidden ? (score == lowest_score<float>() ? Vec<float>{} : weight) : weight;
}

// Dropout of 16 queries' weights of a key: 0 or 1 / (1 − p).
inline Vec<float> tile_kept(Bits rows, int64_t key, const Dropout& dropout) {
  Bits x = rows ^ key_code(key);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  x ^= x >> 16;
  const Mask<float> dropped = (Mask<float>)(x < drop_threshold(dropout.probability));
  return dropped ? Vec<float>{} : splat(static_cast<float>(1 / (1 - dropout.probability)));
}

// Row codes of 16 queries from `query`.
inline Bits tile_rows(const TileBand& band, int64_t query) {
  Bits rows;
  for (int i = 0; i < 16; ++i) rows[i] = row_code(band.dropout.seed, band.first_row + query + i);
  return rows;
}

constexpr int64_t attend_queries = 32, attend_keys = 256;  // of a tile and a piece, forward

struct TileScratch {
  uint16_t *queries, *weights;
  float *scores, *out;

  TileScratch(char* memory, int64_t D, int64_t E) {
    Scratch scratch{memory};
    queries = scratch.take<uint16_t>(attend_queries * round_up(D, 32));
    weights = scratch.take<uint16_t>(attend_queries * attend_keys);
    scores = scratch.take<float>(attend_queries * attend_keys);
    out = scratch.take<float>(attend_queries * round_up(E, 32));
    bytes = scratch.used;
  }
  int64_t bytes;
};

int64_t tile_scratch(int64_t D, int64_t E) { return TileScratch(nullptr, D, E).bytes; }

// Weights of the keys first … end − 1 of a piece, in pairs of keys as B; adds to the sums of two vectors of queries.
template <bool hidden, bool dropped>
inline void weigh_keys(
    const TileBand& band, const TilePiece& piece, int64_t first, int64_t end, const TileScale& scale,
    const float* scores, const Vec<float>* maximum, const Bits* rows, Vec<float>* sums, uint16_t* weights) {
  for (int64_t key = first; key < end; key += 2) {
    const int64_t s = key - piece.first;
    uint16_t* to = weights + s / 32 * 2 * tile + s % 32 * 16;
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      Vec<float> one = tile_weight<hidden>(load(scores + s * 32 + 16 * g), maximum[g], scale.factor, scale.addends[s]);
      Vec<float> two =
          tile_weight<hidden>(load(scores + (s + 1) * 32 + 16 * g), maximum[g], scale.factor, scale.addends[s + 1]);
      sums[g] += one + two;
      if constexpr (dropped) {
        one *= tile_kept(rows[g], band.first_key + key, band.dropout);
        two *= tile_kept(rows[g], band.first_key + key + 1, band.dropout);
      }
      const Bits pairs = halves_in_pairs(one, two);
      memcpy(to + g * tile, &pairs, 64);
    }
  }
}

template <bool dropped>
inline void weigh_piece(
    const TileBand& band, const TilePiece& piece, const TileScale& scale, const float* scores,
    const Vec<float>* maximum, const Bits* rows, Vec<float>* sums, uint16_t* weights) {
  weigh_keys<true, dropped>(band, piece, piece.first, piece.all_first, scale, scores, maximum, rows, sums, weights);
  weigh_keys<false, dropped>(band, piece, piece.all_first, piece.all_end, scale, scores, maximum, rows, sums, weights);
  weigh_keys<true, dropped>(band, piece, piece.all_end, piece.end, scale, scores, maximum, rows, sums, weights);
}

// Write the first `count` lanes, at most 16.
template <class Lanes, class To>
inline void store_lanes(const Lanes& lanes, int64_t count, To* to) {
  if (count >= 16)
    memcpy(to, &lanes, sizeof(lanes));
  else
    memcpy(to, &lanes, count * sizeof(To));
}
inline void store_part(Vec<float> x, int64_t count, float* to) { store_lanes(x, count, to); }
inline void store_part(Vec<float> x, int64_t count, uint16_t* to) { store_lanes(rounded_halves(x), count, to); }

// Write rows of [size, 16] transposed: 16 rows of `size` numbers, of which `count` are wanted.
template <class To>
inline void store_columns(const float* from, int64_t stride, Vec<float> factor, int64_t count, int64_t size, To* to) {
  for (int64_t e = 0; e < size; e += 16) {
    Vec<float> x[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) x[r] = load(from + (e + r) * stride) * factor;
    transpose_square<float>(x);
    for (int64_t r = 0; r < count; ++r) store_part(x[r], size - e, to + r * size + e);
  }
}

void tile_attend(const TileTask& task) {
  const TileBand& band = task.band;
  const TileSizes sizes(band);
  const PackedKeys packed(task.packed, band, false);
  const TileScratch scratch(task.scratch, band.D, band.E);
  const TileUnit unit;
  TileScale scale(band);
  constexpr int64_t Q = attend_queries;
  for (int64_t query = task.first; query < task.end; query += Q) {
    const int64_t count = earlier(Q, task.end - query);
    pack_rows_in_pairs({band.q + query * band.stride_q, band.stride_q, count, band.D}, scratch.queries);
    Vec<float> maximum[2], sums[2] = {};
    Bits rows[2] = {};
    for (int g = 0; g < 2; ++g) {
      maximum[g] = splat(lowest_score<float>());
      if (band.dropout.probability > 0) rows[g] = tile_rows(band, query + 16 * g);
    }
    const Sight sight(band, query, count);
    bool first = true;
    const int64_t end = round_up(sight.end, 32);
    for (int64_t key = sight.from / 32 * 32; key < end; key += attend_keys) {
      const TilePiece piece(sight, key, earlier(key + attend_keys, end));
      const int64_t keys = piece.end - key;
      scale.read(band, piece);
      for (int64_t s = 0; s < keys; s += 32) {
        const uint16_t* from = packed.keys + (key + s) * sizes.D;
        multiply_tiles(
            sizes.D / 32, from, from + 16 * sizes.D, tile, scratch.queries, scratch.queries + tile, 2 * tile,
            scratch.scores + s * Q, Q, false);
      }
      hide_keys(band, piece, query, Q, scratch.scores);

      Vec<float> top[2] = {maximum[0], maximum[1]}, other[2] = {maximum[0], maximum[1]};
      for (int64_t s = 0; s < keys; s += 2)
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const float* score = scratch.scores + s * Q + 16 * g;
          top[g] = larger<float>(top[g], load(score) * scale.factor + scale.addends[s]);
          other[g] = larger<float>(other[g], load(score + Q) * scale.factor + scale.addends[s + 1]);
        }
      for (int g = 0; g < 2; ++g) {
        top[g] = larger<float>(top[g], other[g]);
        const Vec<float> factor = power_of_2(maximum[g] - top[g]);
        sums[g] *= factor;
        maximum[g] = top[g];
        for (int64_t e = 0; e < sizes.E && !first; ++e) {
          float* out = scratch.out + e * Q + 16 * g;
          store(out, load(out) * factor);
        }
      }
      if (band.dropout.probability > 0)
        weigh_piece<true>(band, piece, scale, scratch.scores, maximum, rows, sums, scratch.weights);
      else
        weigh_piece<false>(band, piece, scale, scratch.scores, maximum, rows, sums, scratch.weights);
      for (int64_t e = 0; e < sizes.E; e += 32) {
        const uint16_t* from = packed.value_columns + key * sizes.E + e / 16 * tile;
        multiply_tiles(
            keys / 32, from, from + tile, sizes.E * 32, scratch.weights, scratch.weights + tile, 2 * tile,
            scratch.out + e * Q, Q, !first);
      }
      first = false;
    }
    for (int64_t g = 0; g < 2 && 16 * g < count; ++g) {
      const int64_t i = query + 16 * g, rest = earlier(16, count - 16 * g);
      const Vec<float> share = 1 / sums[g], natural = maximum[g] / log2_of_e;
      if (task.wide_out_NE)
        store_columns(scratch.out + 16 * g, Q, share, rest, band.E, task.wide_out_NE + i * band.E);
      else
        store_columns(scratch.out + 16 * g, Q, share, rest, band.E, task.out_NE + i * band.E);
      memcpy(task.inverse_sum_N + i, &share, 4 * rest);
      memcpy(task.maximum_N + i, &natural, 4 * rest);
    }
  }
}

constexpr int64_t backward_queries = 64, backward_keys = 128;

struct TileBackwardScratch {
  uint16_t *queries, *grads;                   // as B, transposed
  uint16_t *query_columns, *grad_columns;      // as B
  uint16_t *weights, *slopes, *slope_columns;  // [keys, queries] as A; the slopes as B, too
  float *scores, *raw;                         // of 32 keys: scores, and products of gradients and values
  float *grad_q, *grad_k, *grad_v;             // transposed; rows of the whole head
  int64_t bytes;

  TileBackwardScratch(char* memory, const TileBand& band) {
    const TileSizes sizes(band);
    constexpr int64_t Q = backward_queries, S = backward_keys;
    Scratch scratch{memory};
    queries = scratch.take<uint16_t>(Q * sizes.D);
    grads = scratch.take<uint16_t>(Q * sizes.E);
    query_columns = scratch.take<uint16_t>(Q * sizes.D);
    grad_columns = scratch.take<uint16_t>(Q * sizes.E);
    weights = scratch.take<uint16_t>(S * Q);
    slopes = scratch.take<uint16_t>(S * Q);
    slope_columns = scratch.take<uint16_t>(S * Q);
    scores = scratch.take<float>(32 * Q);
    raw = scratch.take<float>(32 * Q);
    grad_q = scratch.take<float>(Q * sizes.D);
    grad_k = scratch.take<float>(sizes.keys * sizes.D);
    grad_v = scratch.take<float>(sizes.keys * sizes.E);
    bytes = scratch.used;
  }
};

int64_t tile_backward_scratch(const TileBand& band) { return TileBackwardScratch(nullptr, band).bytes; }

inline float dot(const uint16_t* a, const uint16_t* b, int64_t size) {
  Vec<float> sums = {};
  for (int64_t j = 0; j < size; j += 16) {
    Halves x = {}, y = {};
    memcpy(&x, a + j, 2 * earlier(16, size - j));
    memcpy(&y, b + j, 2 * earlier(16, size - j));
    sums += (Vec<float>)(__builtin_convertvector(x, Bits) << 16) * (Vec<float>)(__builtin_convertvector(y, Bits) << 16);
  }
  return sum_lanes<float>(sums);
}

// What backward needs of a tile's queries; δ is gradient · output.
struct TileQueries {
  Vec<float> maximum[backward_queries / 16], share[backward_queries / 16], delta[backward_queries / 16];
  Bits rows[backward_queries / 16];

  TileQueries(const TileBackwardTask& task, int64_t query, int64_t count) : rows{} {
    for (int64_t g = 0; g < backward_queries / 16; ++g)
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t n = query + 16 * g + i;
        const bool there = 16 * g + i < count;  // the others weigh nothing
        maximum[g][i] = there ? task.maximum_N[n] * log2_of_e : -lowest_score<float>();
        share[g][i] = there ? task.inverse_sum_N[n] : 0;
        delta[g][i] = there ? dot(task.grad + n * task.stride_grad, task.out + n * task.stride_out, task.band.E) : 0;
      }
    if (task.band.dropout.probability > 0)
      for (int64_t g = 0; g < backward_queries / 16; ++g) rows[g] = tile_rows(task.band, query + 16 * g);
  }
};

// Weights and slopes (gradients of the scores over the scale) of keys of a strip of 32, `strip` keys into the piece.
template <bool hidden, bool dropped>
inline void slope_keys(
    const TileBand& band, const TilePiece& piece, int64_t first, int64_t end, int64_t strip, const TileScale& scale,
    const TileQueries& queries, const TileBackwardScratch& scratch) {
  constexpr int64_t Q = backward_queries;
  for (int64_t key = first; key < end; key += 2) {
    const int64_t s = key - piece.first, row = s - strip;
    for (int64_t g = 0; g < Q / 16; g += 2) {
      Vec<float> weights[2][2], slopes[2][2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const int64_t place = (row + i) * Q + 16 * (g + h);
          Vec<float> weight = tile_weight<hidden>(
              load(scratch.scores + place), queries.maximum[g + h], scale.factor, scale.addends[s + i]);
          weight *= queries.share[g + h];
          Vec<float> raw = load(scratch.raw + place);
          weights[i][h] = weight;
          if constexpr (dropped) {
            const Vec<float> kept = tile_kept(queries.rows[g + h], band.first_key + key + i, band.dropout);
            raw *= kept;
            weights[i][h] *= kept;
          }
          slopes[i][h] = weight * (raw - queries.delta[g + h]);
        }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int64_t place = ((s + i) / 16 * (Q / 32) + g / 2) * tile + (s + i) % 16 * 32;
        const Bits weight = halves_in_turn(weights[i][0], weights[i][1]);
        const Bits slope = halves_in_turn(slopes[i][0], slopes[i][1]);
        memcpy(scratch.weights + place, &weight, 64);
        memcpy(scratch.slopes + place, &slope, 64);
      }
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const Bits pairs = halves_in_pairs(slopes[0][h], slopes[1][h]);
        memcpy(scratch.slope_columns + (s / 32 * (Q / 16) + g + h) * tile + s % 32 * 16, &pairs, 64);
      }
    }
  }
}

template <bool dropped>
inline void slope_strip(
    const TileBand& band, const TilePiece& piece, int64_t strip, const TileScale& scale, const TileQueries& queries,
    const TileBackwardScratch& scratch) {
  const int64_t first = piece.first + strip, end = first + 32;
  const int64_t from = later(first, earlier(piece.all_first, end)), until = later(from, earlier(piece.all_end, end));
  slope_keys<true, dropped>(band, piece, first, from, strip, scale, queries, scratch);
  slope_keys<false, dropped>(band, piece, from, until, strip, scale, queries, scratch);
  slope_keys<true, dropped>(band, piece, until, end, strip, scale, queries, scratch);
}

// Write rounded rows of `size` numbers.
inline void store_rows(const float* from, int64_t stride, float factor, int64_t rows, int64_t size, uint16_t* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < size; j += 16)
      store_part(load(from + i * stride + j) * factor, size - j, to + i * size + j);
}

void tile_backward(const TileBackwardTask& task) {
  const TileBand& band = task.band;
  const TileSizes sizes(band);
  const PackedKeys packed(task.packed, band, true);
  const TileBackwardScratch scratch(task.scratch, band);
  const TileUnit unit;
  TileScale scale(band);
  constexpr int64_t Q = backward_queries;
  memset(scratch.grad_k, 0, sizes.keys * sizes.D * sizeof(float));
  memset(scratch.grad_v, 0, sizes.keys * sizes.E * sizeof(float));
  for (int64_t query = 0; query < task.queries; query += Q) {
    const int64_t count = earlier(Q, task.queries - query);
    const HalfRows q{band.q + query * band.stride_q, band.stride_q, count, band.D};
    const HalfRows grad{task.grad + query * task.stride_grad, task.stride_grad, count, band.E};
    const int64_t groups = round_up(count, 32) / 16;  // of 16 queries; what is computed of more is not read
    pack_rows_in_pairs(q, scratch.queries), pack_rows_in_pairs(grad, scratch.grads);
    pack_columns_in_pairs(q, scratch.query_columns), pack_columns_in_pairs(grad, scratch.grad_columns);
    memset(scratch.grad_q, 0, Q * sizes.D * sizeof(float));
    const TileQueries queries(task, query, count);
    const Sight sight(band, query, count);
    const int64_t end = round_up(sight.end, 32);
    for (int64_t key = sight.from / 32 * 32; key < end; key += backward_keys) {
      const TilePiece piece(sight, key, earlier(key + backward_keys, end));
      const int64_t keys = piece.end - key;
      scale.read(band, piece);
      for (int64_t s = 0; s < keys; s += 32) {
        const uint16_t* k = packed.keys + (key + s) * sizes.D;
        const uint16_t* v = packed.values + (key + s) * sizes.E;
        for (int64_t g = 0; g < groups; g += 2) {
          multiply_tiles(
              sizes.D / 32, k, k + 16 * sizes.D, tile, scratch.queries + g * tile, scratch.queries + (g + 1) * tile,
              groups * tile, scratch.scores + 16 * g, Q, false);
          multiply_tiles(
              sizes.E / 32, v, v + 16 * sizes.E, tile, scratch.grads + g * tile, scratch.grads + (g + 1) * tile,
              groups * tile, scratch.raw + 16 * g, Q, false);
        }
        const TilePiece strip(sight, key + s, key + s + 32);
        hide_keys(band, strip, query, Q, scratch.scores);
        if (band.dropout.probability > 0)
          slope_strip<true>(band, piece, s, scale, queries, scratch);
        else
          slope_strip<false>(band, piece, s, scale, queries, scratch);
        const uint16_t* weights = scratch.weights + s * Q;
        const uint16_t* slopes = scratch.slopes + s * Q;
        for (int64_t e = 0; e < sizes.E; e += 32) {
          const uint16_t* from = scratch.grad_columns + e / 16 * tile;
          multiply_tiles(
              groups / 2, weights, weights + 16 * Q, tile, from, from + tile, sizes.E * 32,
              scratch.grad_v + (key + s) * sizes.E + e, sizes.E, true);
        }
        for (int64_t d = 0; d < sizes.D; d += 32) {
          const uint16_t* from = scratch.query_columns + d / 16 * tile;
          multiply_tiles(
              groups / 2, slopes, slopes + 16 * Q, tile, from, from + tile, sizes.D * 32,
              scratch.grad_k + (key + s) * sizes.D + d, sizes.D, true);
        }
      }
      for (int64_t d = 0; d < sizes.D; d += 32)
        for (int64_t g = 0; g < groups; g += 2) {
          const uint16_t* from = packed.key_columns + key * sizes.D + d / 16 * tile;
          const uint16_t* slopes = scratch.slope_columns + g * tile;
          multiply_tiles(
              keys / 32, from, from + tile, sizes.D * 32, slopes, slopes + tile, Q * 32,
              scratch.grad_q + d * Q + 16 * g, Q, true);
        }
    }
    for (int64_t i = 0; i < count; i += 16) {
      const int64_t rest = earlier(16, count - i), place = (query + i) * band.D;
      if (task.wide_grad_q)
        store_columns(scratch.grad_q + i, Q, splat(band.scale), rest, band.D, task.wide_grad_q + place);
      else
        store_columns(scratch.grad_q + i, Q, splat(band.scale), rest, band.D, task.grad_q + place);
    }
  }
  store_rows(scratch.grad_k, sizes.D, band.scale, band.length, band.D, task.grad_k);
  store_rows(scratch.grad_v, sizes.E, 1, band.length, band.E, task.grad_v);
}

}  // namespace
}  // namespace attention_ext
