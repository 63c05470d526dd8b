// LSH attention of a block of sorted positions in one round, forward and backward.
//
// Keys and values of the block and the preceding chunk are gathered once. Then each chunk of queries, one per lane,
// attends to its own and the preceding chunk. See NOTES.md.
#pragma once

#include "../cpu/gemm.h"
#include "../cpu/kernels.h"
#include "../cpu/rows.h"

namespace attention_ext {
namespace {

constexpr int64_t window_lanes = 32;   // queries at a time
constexpr int64_t keys_per_sum = 128;  // longer sums are split, to round less

template <class T>
struct WindowScratch {
  int64_t lanes;
  T *keys, *values;         // rows of the block and the preceding chunk
  T *queries, *queries_DM;  // a tile's queries over √D, and their transpose
  T *scores, *out;
  T *maximum, *rescale, *sum;    // per query of the tile; backward: maximum, 1/sum, δ
  Ordered<T>* key_chunks;        // [rows, R]
  Ordered<T>* query_chunks;      // [R, lanes]
  T *grads, *grads_EM, *slopes;  // backward only
  T *grad_keys, *grad_values;    // backward only
  int64_t bytes;

  WindowScratch(char* memory, int64_t rows, int64_t window, int64_t R, int64_t D, int64_t E, bool backward) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t padded_D = round_up(D, W), padded_E = round_up(E, W), wide = backward ? 1 : 0;
    lanes = round_up(window / 2 < window_lanes ? window / 2 : window_lanes, W);
    Scratch scratch{memory};
    keys = scratch.take<T>(rows * padded_D);
    values = scratch.take<T>(rows * padded_E);
    queries = scratch.take<T>(lanes * padded_D);
    queries_DM = scratch.take<T>(lanes * padded_D);
    scores = scratch.take<T>(window * lanes);
    out = scratch.take<T>(lanes * (padded_D > padded_E ? padded_D : padded_E));
    maximum = scratch.take<T>(lanes);
    rescale = scratch.take<T>(lanes);
    sum = scratch.take<T>(lanes);
    key_chunks = scratch.take<Ordered<T>>(R > 1 ? rows * R : 0);
    query_chunks = scratch.take<Ordered<T>>(R > 1 ? lanes * R : 0);
    grads = scratch.take<T>(wide * lanes * padded_E);
    grads_EM = scratch.take<T>(wide * lanes * padded_E);
    slopes = scratch.take<T>(wide * window * lanes);
    grad_keys = scratch.take<T>(wide * rows * padded_D);
    grad_values = scratch.take<T>(wide * rows * padded_E);
    bytes = scratch.used;
  }
};

template <class T>
int64_t window_scratch(int64_t rows, int64_t window, int64_t R, int64_t D, int64_t E, bool backward) {
  return WindowScratch<T>(nullptr, rows, window, R, D, E, backward).bytes;
}

// Queries at places `place` … `place + count − 1` and the keys that they see, gathered rows `first_row` …
// `first_row + keys − 1`. Query i itself is row `own_row + i`.
struct WindowTile {
  int64_t place, count, first_row, keys, own_row;
};

// Gather the block's keys and values and call `attend` for each tile of queries.
template <class T, class F>
void for_tiles(const WindowBlock<T>& block, const WindowScratch<T>& scratch, const F& attend) {
  const int64_t start = block.first < block.chunk ? 0 : block.first - block.chunk, rows = block.end - start;
  const int32_t* places = block.order + start;
  gather_rows<T>(block.k, block.stride_k, places, rows, rows, block.D, scratch.keys);
  gather_rows<T>(block.v, block.stride_v, places, rows, rows, block.E, scratch.values);
  for (int64_t s = 0; s < rows && block.R > 1; ++s)
    for (int64_t r = 0; r < block.R; ++r)
      scratch.key_chunks[s * block.R + r] = block.chunk_RN[r * block.stride_chunk + places[s]];

  for (int64_t chunk = block.first; chunk < block.end; chunk += block.chunk) {
    const int64_t chunk_end = chunk + block.chunk < block.end ? chunk + block.chunk : block.end;
    const int64_t seen = chunk < block.chunk ? 0 : chunk - block.chunk;
    for (int64_t place = chunk; place < chunk_end; place += scratch.lanes) {
      const int64_t left = chunk_end - place, count = left < scratch.lanes ? left : scratch.lanes;
      attend(WindowTile{place, count, seen - start, chunk_end - seen, place - start});
    }
  }
}

// Gather the tile's queries over √D, their transpose, and their chunks in all rounds.
template <class T>
void gather_queries(const WindowBlock<T>& block, const WindowScratch<T>& scratch, const WindowTile& tile) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t padded_D = round_up(block.D, W), lanes = scratch.lanes;
  const int32_t* order = block.order + tile.place;
  gather_rows<T>(block.q, block.stride_q, order, tile.count, lanes, block.D, scratch.queries);
  for (int64_t j = 0; j < tile.count * padded_D; j += W)
    store(scratch.queries + j, load(scratch.queries + j) * block.scale);
  transpose<T>(lanes, padded_D, scratch.queries, scratch.queries_DM);
  for (int64_t r = 0; r < block.R && block.R > 1; ++r)
    for (int64_t i = 0; i < lanes; ++i)
      scratch.query_chunks[r * lanes + i] = i < tile.count ? block.chunk_RN[r * block.stride_chunk + order[i]] : 0;
}

// Compute scores[keys, lanes]; a query does not see itself.
template <class T>
void window_scores(const WindowBlock<T>& block, const WindowScratch<T>& scratch, const WindowTile& tile) {
  const int64_t padded_D = round_up(block.D, Simd<T>::width), lanes = scratch.lanes;
  gemm<T, Order::rows>(
      tile.keys, lanes, block.D, scratch.keys + tile.first_row * padded_D, padded_D, scratch.queries_DM, lanes,
      scratch.scores, lanes, false);
  T* itself = scratch.scores + (tile.own_row - tile.first_row) * lanes;
  for (int64_t i = 0; i < tile.count; ++i) itself[i * lanes + i] = lowest_score<T>();
}

// exp(score − maximum) / c for a vector of queries and one key, where c is the number of rounds in which the query sees
// the key. 0 for the query itself; NaN stays NaN.
template <class T>
inline Vec<T> window_weight(
    Vec<T> score, Vec<T> maximum, int64_t R, int64_t round, const Ordered<T>* of_key, const Ordered<T>* of_query,
    int64_t lanes) {
  Vec<T> weight = exp_vec(score - maximum);
  if (R > 1) {
    Mask<T> count = Mask<T>{} + 1;
    for (int64_t r = 0; r < R; ++r) {
      if (r == round) continue;
      Mask<T> behind;
      memcpy(&behind, of_query + r * lanes, sizeof(behind));
      count -= ((behind - of_key[r]) & ~1) == 0;  // the same chunk or the one before
    }
    weight /= __builtin_convertvector(count, Vec<T>);
  }
  return score == lowest_score<T>() ? Vec<T>{} : weight;
}

// Replace scores by weights, continuing the running maximum and sum of earlier rounds.
template <class T>
void window_softmax(const WindowBlock<T>& block, const WindowScratch<T>& scratch, const WindowTile& tile) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t lanes = scratch.lanes, R = block.R;
  for (int64_t j = 0; j < lanes; j += W) {
    const Vec<T> before = load(scratch.maximum + j);
    Vec<T> top = before;
    T* scores = scratch.scores + j;
    for (int64_t s = 0; s < tile.keys; ++s) top = larger<T>(top, load(scores + s * lanes));
    const Vec<T> factor = exp_vec(before - top);
    Vec<T> total = load(scratch.sum + j) * factor;
    for (int64_t start = 0; start < tile.keys; start += 16) {
      Vec<T> part = {};
      for (int64_t s = start; s < tile.keys && s < start + 16; ++s) {
        const Vec<T> weight = window_weight<T>(
            load(scores + s * lanes), top, R, block.round, scratch.key_chunks + (tile.first_row + s) * R,
            scratch.query_chunks + j, lanes);
        part += weight;
        store(scores + s * lanes, weight);
      }
      total += part;
    }
    store(scratch.maximum + j, top);
    store(scratch.rescale + j, factor);
    store(scratch.sum + j, total);
  }
}

// Dropout: multiply entries[keys, lanes] by 0 or 1 / (1 − p).
template <class T>
void drop_windows(const WindowBlock<T>& block, const WindowScratch<T>& scratch, const WindowTile& tile, T* entries) {
  const uint32_t threshold = drop_threshold(block.dropout.probability);
  const T factor = static_cast<T>(1 / (1 - block.dropout.probability));
  uint32_t rows[window_lanes];
  for (int64_t i = 0; i < tile.count; ++i) {
    const uint64_t query = block.first_row + block.order[tile.place + i];
    rows[i] = row_code(block.dropout.seed, query * block.R + block.round);
  }
  const int32_t* keys = block.order + tile.place - (tile.own_row - tile.first_row);
  for (int64_t s = 0; s < tile.keys; ++s) {
    const uint32_t key = key_code(keys[s]);
    for (int64_t i = 0; i < tile.count; ++i)
      entries[s * scratch.lanes + i] *= keep_factor(rows[i], key, threshold, factor);
  }
}

// to[lanes, size] = entries[keys, lanes]ᵀ · rows[keys, size].
template <class T>
void sum_window(
    const WindowScratch<T>& scratch, const WindowTile& tile, const T* entries, int64_t padded, const T* rows, T* to) {
  for (int64_t s = 0; s < tile.keys; s += keys_per_sum) {
    const int64_t left = tile.keys - s;
    gemm<T, Order::columns>(
        tile.count, padded, left < keys_per_sum ? left : keys_per_sum, entries + s * scratch.lanes, scratch.lanes,
        rows + (tile.first_row + s) * padded, padded, to, padded, s > 0);
  }
}

template <class T>
void window_block(const WindowTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const WindowBlock<T>& block = task.block;
  const int64_t E = block.E, padded_E = round_up(E, W), rows = block.end - block.first + block.chunk;
  const WindowScratch<T> scratch(task.scratch, rows, 2 * block.chunk, block.R, block.D, E, false);
  const bool first = block.round == 0, last = block.round == block.R - 1;

  for_tiles<T>(block, scratch, [&](const WindowTile& tile) {
    const int32_t* order = block.order + tile.place;
    gather_queries<T>(block, scratch, tile);
    for (int64_t i = 0; i < scratch.lanes; ++i) {
      const bool known = !first && i < tile.count;
      scratch.maximum[i] = known ? task.maximum_N[order[i]] : lowest_score<T>();
      scratch.sum[i] = known ? task.sum_N[order[i]] : 0;
    }
    window_scores<T>(block, scratch, tile);
    window_softmax<T>(block, scratch, tile);
    if (block.dropout.probability > 0) drop_windows<T>(block, scratch, tile, scratch.scores);
    sum_window<T>(scratch, tile, scratch.scores, padded_E, scratch.values, scratch.out);
    for (int64_t i = 0; i < tile.count; ++i) {
      const T* from = scratch.out + i * padded_E;
      T* to = task.out_NE + order[i] * E;
      const T sum = scratch.sum[i], rescale = scratch.rescale[i];
      const T share = !last ? 1 : (sum == 0 ? 0 : 1 / sum);
      task.maximum_N[order[i]] = scratch.maximum[i];
      task.sum_N[order[i]] = last ? share : sum;
      if (first)
        for (int64_t e = 0; e < E; ++e) to[e] = from[e] * share;
      else
        for (int64_t e = 0; e < E; ++e) to[e] = (to[e] * rescale + from[e]) * share;
      if (last && sum == 0)  // saw no other position in any round: takes its own value
        memcpy(to, scratch.values + (tile.own_row + i) * padded_E, E * sizeof(T));
    }
  });
}

// From scores and slopes = dL/dp, both [keys, lanes]: replace scores by the weights p after dropout, slopes by
// dL/dscore.
template <class T>
void window_slopes(const WindowBlock<T>& block, const WindowScratch<T>& scratch, const WindowTile& tile) {
  constexpr int64_t W = Simd<T>::width;
  const int64_t lanes = scratch.lanes, R = block.R;
  if (block.dropout.probability > 0) drop_windows<T>(block, scratch, tile, scratch.slopes);
  for (int64_t j = 0; j < lanes; j += W) {
    const Vec<T> maximum = load(scratch.maximum + j), share = load(scratch.rescale + j);
    const Vec<T> delta = load(scratch.sum + j);
    for (int64_t s = 0; s < tile.keys; ++s) {
      T *score = scratch.scores + s * lanes + j, *slope = scratch.slopes + s * lanes + j;
      const Vec<T> weight = share * window_weight<T>(
                                        load(score), maximum, R, block.round,
                                        scratch.key_chunks + (tile.first_row + s) * R, scratch.query_chunks + j, lanes);
      store(score, weight);
      store(slope, weight * (load(slope) - delta));
    }
  }
  if (block.dropout.probability > 0) drop_windows<T>(block, scratch, tile, scratch.scores);
}

// Add gradient rows to those of the block's own positions (overwrite them in the first round). Rows of the preceding
// chunk belong to another block and are stored in `spill`, padded.
template <class T>
void hand_over(const WindowBlock<T>& block, int64_t size, const T* rows, T* to, T* spill) {
  const int64_t padded = round_up(size, Simd<T>::width);
  const int64_t before = block.first < block.chunk ? block.first : block.chunk;
  memcpy(spill, rows, before * padded * sizeof(T));
  for (int64_t place = block.first; place < block.end; ++place) {
    const T* from = rows + (before + place - block.first) * padded;
    T* row = to + block.order[place] * size;
    if (block.round == 0)
      memcpy(row, from, size * sizeof(T));
    else
      for (int64_t j = 0; j < size; ++j) row[j] += from[j];
  }
}

template <class T>
void window_backward_block(const WindowBackwardTask<T>& task) {
  constexpr int64_t W = Simd<T>::width;
  const WindowBlock<T>& block = task.block;
  const int64_t D = block.D, E = block.E, padded_D = round_up(D, W), padded_E = round_up(E, W);
  const int64_t rows = block.end - block.first + block.chunk;
  const WindowScratch<T> scratch(task.scratch, rows, 2 * block.chunk, block.R, D, E, true);
  const int64_t lanes = scratch.lanes;
  memset(scratch.grad_keys, 0, rows * padded_D * sizeof(T));
  memset(scratch.grad_values, 0, rows * padded_E * sizeof(T));

  for_tiles<T>(block, scratch, [&](const WindowTile& tile) {
    const int32_t* order = block.order + tile.place;
    gather_queries<T>(block, scratch, tile);
    gather_rows<T>(task.grad, task.stride_grad, order, tile.count, lanes, E, scratch.grads);
    transpose<T>(lanes, padded_E, scratch.grads, scratch.grads_EM);
    for (int64_t i = 0; i < lanes; ++i) {
      const bool valid = i < tile.count;
      scratch.maximum[i] = valid ? task.maximum_N[order[i]] : 0;
      scratch.rescale[i] = valid ? task.inverse_sum_N[order[i]] : 0;
      scratch.sum[i] = valid ? task.delta_N[order[i]] : 0;
    }
    window_scores<T>(block, scratch, tile);
    gemm<T, Order::rows>(
        tile.keys, lanes, E, scratch.values + tile.first_row * padded_E, padded_E, scratch.grads_EM, lanes,
        scratch.slopes, lanes, false);
    window_slopes<T>(block, scratch, tile);

    sum_window<T>(scratch, tile, scratch.slopes, padded_D, scratch.keys, scratch.out);
    for (int64_t i = 0; i < tile.count; ++i) {
      const T* from = scratch.out + i * padded_D;
      T* to = task.grad_q_ND + order[i] * D;
      if (block.round == 0)
        for (int64_t d = 0; d < D; ++d) to[d] = from[d] * block.scale;
      else
        for (int64_t d = 0; d < D; ++d) to[d] += from[d] * block.scale;
      if (block.round == 0 && scratch.rescale[i] == 0) {  // the output was its own value
        T* own = scratch.grad_values + (tile.own_row + i) * padded_E;
        for (int64_t e = 0; e < E; ++e) own[e] += scratch.grads[i * padded_E + e];
      }
    }
    gemm<T, Order::rows>(
        tile.keys, padded_D, tile.count, scratch.slopes, lanes, scratch.queries, padded_D,
        scratch.grad_keys + tile.first_row * padded_D, padded_D, true);
    gemm<T, Order::rows>(
        tile.keys, padded_E, tile.count, scratch.scores, lanes, scratch.grads, padded_E,
        scratch.grad_values + tile.first_row * padded_E, padded_E, true);
  });
  hand_over<T>(block, D, scratch.grad_keys, task.grad_k_ND, task.spill_keys);
  hand_over<T>(block, E, scratch.grad_values, task.grad_v_NE, task.spill_values);
}

}  // namespace
}  // namespace attention_ext
