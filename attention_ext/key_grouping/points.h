// K-means in the metric of the keys: covariance, its factor, points on a grid, nearest centroids. See NOTES.md.
#pragma once

#include "../cpu/gemm.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

constexpr int64_t key_steps = 2;  // power iterations; a third gains 0.001 of the distance from full attention
constexpr double key_singular = 9.094947017729e-13;  // 2⁻⁴⁰: least share of the variance
constexpr double key_grid = 8192;
constexpr uint64_t code_base = 2654435769, code_prime = 4294967291;  // of `point_codes` in reference.py

// The numbers at `from` in float64, W at once.
inline Vec<double> load_doubles(const double* from) { return load(from); }
inline Vec<double> load_doubles(const float* from) {
  typedef float Half __attribute__((vector_size(VECTOR_BYTES / 2)));
  Half x;
  memcpy(&x, from, sizeof(x));
  return __builtin_convertvector(x, Vec<double>);
}

// to[count, padded size] = rows − first in float64, zero-padded; the rows of `chosen`, or consecutive ones if null.
template <class T>
void shift_rows(
    int64_t count, int64_t size, const int32_t* chosen, const T* rows, int64_t stride, const T* first, double* to) {
  constexpr int64_t W = Simd<double>::width, ahead = 16;
  for (int64_t i = 0; i < count; ++i, to += round_up(size, W)) {
    const T* row = rows + (chosen ? chosen[i] : i) * stride;
    const T* later = chosen ? rows + chosen[i + ahead < count ? i + ahead : i] * stride : row + ahead * stride;
    for (int64_t d = 0; d < size; d += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(later + d);
    int64_t d = 0;
    for (; d + W <= size; d += W) store(to + d, load_doubles(row + d) - load_doubles(first + d));
    for (; d < size; ++d) to[d] = static_cast<double>(row[d]) - static_cast<double>(first[d]);
    for (; d < round_up(size, W); ++d) to[d] = 0;
  }
}

// covariance[D, padded D] = xᵀx − ssᵀ/count, with s the sum of the rows of x, [count, padded D].
inline void key_covariance(int64_t count, int64_t D, const double* x, double* covariance) {
  constexpr int64_t W = Simd<double>::width, block = W;
  const int64_t padded = round_up(D, W);
  for (int64_t i = 0; i < padded; i += block) {  // the upper triangle, in blocks of rows
    const int64_t rows = padded - i < block ? padded - i : block;
    gemm<double, Order::columns>(
        rows, padded - i, count, x + i, padded, x + i, padded, covariance + i * padded + i, padded, false);
  }
  for (int64_t i = 0; i < padded; ++i)
    for (int64_t j = 0; j < i; ++j) covariance[i * padded + j] = covariance[j * padded + i];
  double sum[most_key_dims];
  for (int64_t d = 0; d < padded; ++d) sum[d] = 0;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < padded; ++d) sum[d] += x[i * padded + d];
  for (int64_t i = 0; i < padded; ++i) {
    const double share = sum[i] / static_cast<double>(count);
    for (int64_t j = 0; j < padded; ++j) covariance[i * padded + j] -= share * sum[j];
  }
}

// factor[padded D, padded rank] ← ΣU, where U spans the columns of the factor and UᵀΣU = 1, by Cholesky's algorithm.
// `rest` holds (padded D + rank) rows.
inline void nystrom_step(int64_t D, int64_t rank, const double* covariance, double* factor, double* rest) {
  constexpr int64_t W = Simd<double>::width;
  const int64_t rows = round_up(D, W), columns = round_up(rank, W);
  double* gram = rest + rows * columns;
  gemm<double, Order::rows>(rows, columns, rows, covariance, rows, factor, columns, rest, columns, false);
  gemm<double, Order::columns>(rank, columns, rows, factor, columns, rest, columns, gram, columns, false);
  double least = 0, pivots[most_key_dims];
  for (int64_t j = 0; j < rank; ++j) least += key_singular * gram[j * columns + j];
  for (int64_t j = 0; j < columns; ++j) pivots[j] = 0;
  for (int64_t j = 0; j < rank; ++j) {
    const double pivot = gram[j * columns + j], scale = pivot > least ? 1 / __builtin_sqrt(pivot) : 0;
    for (int64_t i = j; i < rank; ++i) pivots[i] = gram[i * columns + j] * scale;
    const int64_t from = j / W * W;
    for (int64_t x = 0; x < rows + rank; ++x) {
      double* row = rest + x * columns;
      const double value = row[j] * scale;
      for (int64_t i = from; i < columns; i += W) store(row + i, load(row + i) - value * load(pivots + i));
      if (x < rows) factor[x * columns + j] = value;
    }
    pivots[j] = 0;  // so that later columns leave this one alone
  }
}

// factor[padded D, padded rank] = R with R Rᵀ ≈ Σ.
inline void key_factor(int64_t D, int64_t rank, const double* covariance, double* factor, double* scratch) {
  const int64_t rows = round_up(D, Simd<double>::width), columns = round_up(rank, Simd<double>::width);
  for (int64_t d = 0; d < rows; ++d)
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t number = 256 * (j + 1) + d + 1;
      factor[d * columns + j] =
          d < D && j < rank ? static_cast<double>(number * number * number % 1021) / 1021 - 0.5 : 0;
    }
  for (int64_t step = 0; step < key_steps; ++step) nystrom_step(D, rank, covariance, factor, scratch);
}

// points[count, padded rank] = x · R. Returns the largest squared norm of a row.
inline double project_points(
    int64_t count, int64_t D, int64_t rank, const double* x, const double* factor, double* points) {
  constexpr int64_t W = Simd<double>::width;
  const int64_t padded = round_up(D, W), columns = round_up(rank, W);
  gemm<double, Order::rows>(count, columns, padded, x, padded, factor, columns, points, columns, false);
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Vec<double> squares = {};
    for (int64_t j = 0; j < columns; j += W) {
      const Vec<double> point = load(points + i * columns + j);
      squares += point * point;
    }
    const double norm = sum_lanes<double>(squares);
    if (norm > largest) largest = norm;
  }
  return largest;
}

// Queries compared at once.
constexpr int point_vectors = VECTOR_BYTES == 64 ? 4 : 2;
constexpr int64_t point_block = point_vectors * Simd<float>::width;

// Round the points, in place, to integers: ±key_grid for the farthest one, 0 for NaN. Pack them as 16-bit integers:
// pairs[block of queries, pair of coordinates, query]. Equal points have equal codes, sums of weighted coordinates
// below 2⁵³, exact in any order.
inline void round_points(int64_t count, int64_t rank, double farthest, double* points, int32_t* pairs, int64_t* codes) {
  constexpr int64_t W = Simd<double>::width;
  const int64_t columns = round_up(rank, W), halves = (rank + 1) / 2;
  const double scale = key_grid / (farthest > 1e-290 ? farthest : 1e-290);
  const double shift = 6755399441055744.0;  // 1.5 · 2⁵²: adding it rounds to an integer
  for (int64_t i = 0; i < count * columns; i += W) {
    const Vec<double> x = load(points + i) * scale;
    const Mask<double> valid = (x <= key_grid) & (x >= -key_grid);
    store(points + i, (Vec<double>)((Mask<double>)(x + shift - shift) & valid));
  }
  double weights[most_key_dims] = {};
  uint64_t weight = 1;
  for (int64_t j = 0; j < rank; ++j) weights[j] = static_cast<double>(weight = weight * code_base % code_prime);
  for (int64_t i = 0; i < count; ++i) {
    Vec<double> sums = {};
    for (int64_t j = 0; j < columns; j += W) sums += load(points + i * columns + j) * load(weights + j);
    codes[i] = static_cast<int64_t>(sum_lanes<double>(sums));
  }
  for (int64_t start = 0; start < count; start += point_block, pairs += halves * point_block)
    for (int64_t i = 0; i < point_block; ++i) {
      const double* point = points + (start + i) * columns;
      for (int64_t j = 0; j < halves; ++j) {
        const bool used = start + i < count, both = used && 2 * j + 1 < rank;
        const int32_t low = used ? static_cast<int32_t>(point[2 * j]) : 0;
        const int32_t high = both ? static_cast<int32_t>(point[2 * j + 1]) : 0;
        pairs[j * point_block + i] = (low & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(high) << 16);
      }
    }
}

// Centroids for `nearest_points`: 2·c as pairs and −‖c‖², where a sum starts, so that comparing needs no subtraction.
// Fills up with centroids that are never nearest.
inline void pack_centroids(int64_t C, int64_t rank, const double* centroids, int32_t* pairs, int32_t* squares) {
  const int64_t columns = round_up(rank, Simd<double>::width), halves = (rank + 1) / 2;
  for (int64_t c = 0; c < round_up(C, nearest_tile); ++c) {
    const double* centroid = centroids + c * columns;
    int32_t square = c < C ? 0 : 1 << 30;
    for (int64_t j = 0; j < rank && c < C; ++j)
      square += static_cast<int32_t>(centroid[j]) * static_cast<int32_t>(centroid[j]);
    squares[c] = -square;
    for (int64_t j = 0; j < halves; ++j) {
      const int32_t low = c < C ? 2 * static_cast<int32_t>(centroid[2 * j]) : 0;
      const int32_t high = c < C && 2 * j + 1 < rank ? 2 * static_cast<int32_t>(centroid[2 * j + 1]) : 0;
      pairs[c * halves + j] = (low & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(high) << 16);
    }
  }
}

// The nearest centroid of each point: the largest 2·x·c − ‖c‖², the first among equals.
inline void nearest_points(
    int64_t count, int64_t C, int64_t rank, const int32_t* points, const int32_t* centroids, const int32_t* squares,
    int32_t* groups) {
  constexpr int64_t W = Simd<float>::width;
  constexpr int V = point_vectors, M = nearest_tile;
  const int64_t halves = (rank + 1) / 2;
  for (int64_t start = 0; start < count; start += point_block, points += halves * point_block) {
    Mask<float> best[V], place[V];
    for (int v = 0; v < V; ++v) best[v] = Mask<float>{} - 2147483647, place[v] = Mask<float>{};
    for (int64_t c = 0; c < C; c += M) {
      Mask<float> score[M][V];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) score[m][v] = Mask<float>{} + squares[c + m];
      for (int64_t j = 0; j < halves; ++j) {
        Mask<float> x[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) memcpy(&x[v], points + j * point_block + v * W, sizeof(x[v]));
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const Mask<float> pair = Mask<float>{} + centroids[(c + m) * halves + j];
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) score[m][v] += multiply_pairs(x[v], pair);
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          const Mask<float> nearer = score[m][v] > best[v];
          best[v] = nearer ? score[m][v] : best[v];
          place[v] = nearer ? Mask<float>{} + static_cast<int32_t>(c + m) : place[v];
        }
    }
    int32_t found[point_block];
    for (int v = 0; v < V; ++v) memcpy(found + v * W, &place[v], sizeof(place[v]));
    for (int64_t i = 0; i < point_block && start + i < count; ++i) groups[start + i] = found[i];
  }
}

}  // namespace
}  // namespace attention_ext
