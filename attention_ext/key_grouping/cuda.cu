// K-means in the metric of the keys on CUDA: float64 until points are on the grid, integers from there on.
//
// Everything per head: covariance [D, D] and factor R [D, R] in float64, points [N, R] in int32, sums of the members of
// each cluster [C, R + 1] in int64, whose last entry counts them.
#include "../clusters/cuda_starts.h"

namespace attention_ext {
namespace {

constexpr int key_tile = 32;                            // rows and columns of the covariance in a block
constexpr int64_t key_samples = 128;                    // most keys in the covariance
constexpr int key_steps = 2;                            // power iterations
constexpr double key_singular = 9.094947017729282e-13;  // 2⁻⁴⁰: least share of the variance
constexpr double key_grid = 8192;
constexpr int most_head = 256;                                       // of D
constexpr uint64_t code_base = 2654435769, code_prime = 4294967291;  // of `point_codes` in reference.py
constexpr int short_rank = 8;         // coordinates of points in registers, this many or twice as many
constexpr int shared_numbers = 4096;  // of centroids, or of sums, in shared memory

// Covariance of the keys, but for a factor. Grid (tiles of rows, tiles of columns, heads).
template <class T>
__global__ void __launch_bounds__(threads)
    key_covariance(Rows<T> k_BHSD, int64_t H, int64_t S, int D, const int64_t* length_B, double* covariance) {
  __shared__ double rows[key_tile][key_tile + 1], columns[key_tile][key_tile + 1];
  __shared__ double row_sums[key_tile], column_sums[key_tile];
  const int64_t head = blockIdx.z, n = length_of(length_B, head, H, S), used = n < key_samples ? n : key_samples;
  const T* k = k_BHSD.head(head, H);
  const int thread = threadIdx.x, row0 = blockIdx.x * key_tile, column0 = blockIdx.y * key_tile;
  double sum[4] = {};
  if (thread < key_tile) row_sums[thread] = column_sums[thread] = 0.0;
  for (int64_t start = 0; start < used; start += key_tile) {
    for (int i = thread; i < key_tile * key_tile; i += threads) {
      const int key = i / key_tile, d = i % key_tile;
      const T* row = k + (start + key) * n / used * k_BHSD.stride_n;
      const auto shifted = [&](int at) {
        return start + key < used && at < D
                   ? static_cast<double>(static_cast<float>(row[at])) - static_cast<double>(static_cast<float>(k[at]))
                   : 0.0;
      };
      rows[key][d] = shifted(row0 + d);
      columns[key][d] = shifted(column0 + d);
    }
    __syncthreads();
    for (int key = 0; key < key_tile; ++key)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += rows[key][thread / key_tile * 4 + i] * columns[key][thread % key_tile];
    if (thread < key_tile)
      for (int key = 0; key < key_tile; ++key)
        row_sums[thread] += rows[key][thread], column_sums[thread] += columns[key][thread];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    const int row = thread / key_tile * 4 + i, column = thread % key_tile;
    if (row0 + row < D && column0 + column < D)
      covariance[(head * D + row0 + row) * D + column0 + column] =
          used > 0 ? sum[i] - row_sums[row] * column_sums[column] / static_cast<double>(used) : 0.0;
  }
}

// R ← ΣU, in each step, where U spans the columns of R and UᵀΣU = 1. `rest` holds D + rank rows. Grid (1, heads).
__global__ void __launch_bounds__(threads)
    key_factor(int D, int rank, const double* covariance, double* factor, double* rest) {
  const int64_t head = blockIdx.y;
  const int thread = threadIdx.x;
  const double* sigma = covariance + head * D * D;
  double *r = factor + head * D * rank, *image = rest + head * (D + rank) * rank, *gram = image + D * rank;
  for (int i = thread; i < D * rank; i += threads) {
    const int64_t number = 256 * (i % rank + 1) + i / rank + 1;
    r[i] = static_cast<double>(number * number * number % 1021) / 1021 - 0.5;
  }
  __syncthreads();
  for (int step = 0; step < key_steps; ++step) {
    for (int i = thread; i < D * rank; i += threads) {
      double sum = 0;
      for (int d = 0; d < D; ++d) sum += sigma[i / rank * D + d] * r[d * rank + i % rank];
      image[i] = sum;
    }
    __syncthreads();
    for (int i = thread; i < rank * rank; i += threads) {
      double sum = 0;
      for (int d = 0; d < D; ++d) sum += r[d * rank + i / rank] * image[d * rank + i % rank];
      gram[i] = sum;
    }
    __syncthreads();
    double least = 0;
    for (int j = 0; j < rank; ++j) least += key_singular * gram[j * rank + j];
    for (int j = 0; j < rank; ++j) {
      const double pivot = gram[j * rank + j], scale = pivot > least ? 1 / sqrt(pivot) : 0.0;
      for (int i = thread; i < D; i += threads) r[i * rank + j] = image[i * rank + j] * scale;
      __syncthreads();
      // Column j stays as it is: it holds the multipliers that all threads read. Row j does so too.
      for (int i = thread; i < (D + rank) * rank; i += threads) {
        const int row = i / rank, column = i % rank;
        if (column > j && row != D + j) image[i] -= image[row * rank + j] * scale * (gram[j * rank + column] * scale);
      }
      __syncthreads();
    }
  }
}

// Points before rounding, and the largest squared norm of each head as bits. Grid (blocks of queries, heads).
template <class T>
__global__ void __launch_bounds__(threads) project_points(
    Rows<T> q_BHND, int64_t H, int64_t N, int D, int rank, const int64_t* length_B, const double* factor,
    double* points, unsigned long long* largest) {
  __shared__ double columns[most_head][short_rank];
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (static_cast<int64_t>(blockIdx.x) * threads >= n) return;  // uniform within the block
  const T *first = q_BHND.head(head, H), *q = first + (at < n ? at : 0) * q_BHND.stride_n;
  double norm = 0;
  for (int from = 0; from < rank; from += short_rank) {
    __syncthreads();
    for (int i = threadIdx.x; i < D * short_rank; i += threads) {
      const int d = i / short_rank, j = from + i % short_rank;
      columns[d][i % short_rank] = j < rank ? factor[(head * D + d) * rank + j] : 0.0;
    }
    __syncthreads();
    double sum[short_rank] = {};
#pragma unroll 8
    for (int d = 0; d < D; ++d) {
      const double x =
          static_cast<double>(static_cast<float>(q[d])) - static_cast<double>(static_cast<float>(first[d]));
#pragma unroll
      for (int j = 0; j < short_rank; ++j) sum[j] += x * columns[d][j];
    }
#pragma unroll
    for (int j = 0; j < short_rank; ++j)
      if (from + j < rank && at < n) {
        points[(head * N + at) * rank + from + j] = sum[j];
        norm += sum[j] * sum[j];
      }
  }
  if (norm > 0) atomicMax(&largest[head], static_cast<unsigned long long>(__double_as_longlong(norm)));
}

// Points on the grid; 0 for NaN. Grid (blocks of coordinates, heads).
__global__ void __launch_bounds__(threads) round_points(
    int64_t H, int64_t N, int rank, const int64_t* length_B, const unsigned long long* largest, const double* points,
    int32_t* rounded) {
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (at >= n * rank) return;
  const double farthest = sqrt(__longlong_as_double(static_cast<long long>(largest[head])));
  const double x = points[head * N * rank + at] * (key_grid / (farthest > 1e-290 ? farthest : 1e-290));
  rounded[head * N * rank + at] = x >= -key_grid && x <= key_grid ? static_cast<int32_t>(rint(x)) : 0;
}

// Equal points have equal codes. Grid (blocks of queries, heads).
__global__ void __launch_bounds__(threads)
    code_points(int64_t H, int64_t N, int rank, const int64_t* length_B, const int32_t* points, int64_t* code_N) {
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (at >= n) return;
  uint64_t weight = 1;
  int64_t code = 0;
  for (int j = 0; j < rank; ++j) {
    weight = weight * code_base % code_prime;
    code += points[(head * N + at) * rank + j] * static_cast<int64_t>(weight);
  }
  code_N[head * N + at] = code;
}

// The previous iteration's groups, for `choose_restarts`.
struct PointGroups {
  int rank;
  const int32_t *points, *centroids, *groups;
  const int64_t* sums;
  __device__ bool empty(int64_t head, int64_t c, int64_t C) const {
    return sums[(head * C + c) * (rank + 1) + rank] == 0;
  }
  __device__ uint64_t distance(int64_t head, int64_t i, int64_t N, int64_t C) const {
    const int32_t *x = points + (head * N + i) * rank, *c = centroids + (head * C + groups[head * N + i]) * rank;
    int64_t sum = 0;
    for (int j = 0; j < rank; ++j) sum += static_cast<int64_t>(x[j] - c[j]) * (x[j] - c[j]);
    return static_cast<uint64_t>(sum);
  }
};

// Centroids and their squared norms: the initial points, then the means of the members or, if there are none, another
// point or the old centroid. Zeroes the sums. Grid (blocks of clusters, heads).
__global__ void __launch_bounds__(threads) move_centroids(
    bool first, Distinct distinct, const int32_t* restart_C, int64_t H, int64_t N, int C, int rank,
    const int64_t* length_B, const int32_t* points, int64_t* sums, int32_t* centroids, int32_t* squares) {
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (c >= C || n <= C) return;
  int32_t* centroid = centroids + (head * C + c) * rank;
  int64_t* sum = sums + (head * C + c) * (rank + 1);
  const double members = first ? 0.0 : static_cast<double>(sum[rank]);
  const int64_t restart = first ? distinct.start(head, N, c, C) : restart_C[head * C + c];
  int32_t square = 0;
  for (int j = 0; j < rank; ++j) {
    if (restart >= 0) centroid[j] = points[(head * N + restart) * rank + j];
    if (members > 0)
      centroid[j] = static_cast<int32_t>(floor((2 * static_cast<double>(sum[j]) + members) / (2 * members)));
    square += centroid[j] * centroid[j];
    sum[j] = 0;
  }
  sum[rank] = 0;
  squares[head * C + c] = square;
}

// Nearest centroid of each query, and sums over the members. R is at least the rank, or 0: points of any rank stay in
// memory. Grid (blocks of queries, heads).
template <int R>
__global__ void __launch_bounds__(threads) nearest_centroids(
    bool last, int block_queries, int64_t H, int64_t N, int C, int rank, const int64_t* length_B, const int32_t* points,
    const int32_t* centroids, const int32_t* squares, int64_t* sums, int32_t* groups) {
  __shared__ __align__(16) int32_t shared_centroids[shared_numbers];
  __shared__ int32_t shared_squares[most_clusters], shared_sums[shared_numbers];
  const int thread = threadIdx.x;
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * block_queries;
  const int64_t end = first + block_queries < N ? first + block_queries : N;
  if (n <= C || first >= n) {  // uniform within the block
    for (int64_t i = first + thread; i < end; i += threads) groups[head * N + i] = i < n ? static_cast<int32_t>(i) : -1;
    return;
  }
  const bool in_shared = C * (rank + 1) <= shared_numbers;
  const int width = R > 0 ? R : rank, few = shared_numbers / width;  // centroids at a time, zeros after their rank
  if (in_shared)
    for (int i = thread; i < C * (rank + 1); i += threads) shared_sums[i] = 0;
  for (int c = thread; c < C; c += threads) shared_squares[c] = squares[head * C + c];
  for (int64_t start = first; start < end; start += threads) {
    const int64_t at = start + thread;
    const int32_t* x = points + (head * N + (at < n ? at : 0)) * rank;
    int32_t own[R > 0 ? R : 1] = {};
#pragma unroll
    for (int j = 0; j < R; ++j) own[j] = j < rank ? x[j] : 0;
    int32_t best = -2147483647, group = 0;
    for (int from = 0; from < C; from += few) {
      const int count = C - from < few ? C - from : few;
      if (start == first || few < C) {
        __syncthreads();
        for (int i = thread; i < count * width; i += threads)
          shared_centroids[i] = i % width < rank ? centroids[(head * C + from + i / width) * rank + i % width] : 0;
        __syncthreads();
      }
      for (int c = 0; c < count; ++c) {
        const int32_t* centroid = shared_centroids + c * width;
        int32_t product = 0;
        if constexpr (R > 0) {
#pragma unroll
          for (int j = 0; j < R; ++j) product += own[j] * centroid[j];
        } else {
          for (int j = 0; j < rank; ++j) product += x[j] * centroid[j];
        }
        const int32_t score = 2 * product - shared_squares[from + c];
        if (score > best) best = score, group = from + c;
      }
    }
    if (at < end) groups[head * N + at] = at < n ? group : -1;
    if (last || at >= n) continue;
    for (int j = 0; j <= rank; ++j) {
      const int32_t value = j < rank ? x[j] : 1;
      if (in_shared)
        atomicAdd(&shared_sums[group * (rank + 1) + j], value);
      else
        atomicAdd(
            reinterpret_cast<unsigned long long*>(&sums[(head * C + group) * (rank + 1) + j]),
            static_cast<unsigned long long>(static_cast<int64_t>(value)));
    }
  }
  if (last || !in_shared) return;
  __syncthreads();
  for (int i = thread; i < C * (rank + 1); i += threads)
    if (shared_sums[i] != 0)
      atomicAdd(
          reinterpret_cast<unsigned long long*>(&sums[head * C * (rank + 1) + i]),
          static_cast<unsigned long long>(static_cast<int64_t>(shared_sums[i])));
}

Tensor key_groups(
    const Tensor& q, const Tensor& k, const Tensor& query_lengths, const Tensor& key_lengths, int64_t clusters,
    int64_t rank, int64_t iterations) {
  check_key_groups(q, k, query_lengths, key_lengths, clusters, rank, iterations);
  require_type(q, "q");
  require_heads(q);
  const Launcher launch(q);
  const int64_t B = q.size(0), H = q.size(1), N = q.size(2), S = k.size(2), D = q.size(3), heads = B * H;
  rank = std::min(rank, D);
  const Tensor queries = with_contiguous_rows(q), keys = with_contiguous_rows(k);
  const Tensor lengths_B = lengths_on_device(query_lengths), key_lengths_B = lengths_on_device(key_lengths);
  const int64_t* length_B = static_cast<const int64_t*>(lengths_B.const_data_ptr());
  const int64_t* key_length_B = static_cast<const int64_t*>(key_lengths_B.const_data_ptr());
  const auto numbers = [&](int64_t size, ScalarType type) { return new_tensor(q, {heads, size}, type); };
  const Tensor covariance = numbers(D * D, ScalarType::Double), factor = numbers(D * rank, ScalarType::Double);
  const Tensor rest = numbers((D + rank) * rank, ScalarType::Double), points = numbers(N * rank, ScalarType::Double);
  const Tensor rounded = numbers(N * rank, ScalarType::Int), centroids = numbers(clusters * rank, ScalarType::Int);
  const Tensor squares = numbers(clusters, ScalarType::Int), sums = numbers(clusters * (rank + 1), ScalarType::Long);
  const Tensor groups = new_tensor(q, {B, H, N}, ScalarType::Int);
  const Tensor codes = numbers(N, ScalarType::Long), restarts = numbers(clusters, ScalarType::Int);
  Tensor largest = numbers(1, ScalarType::Long);
  torch::stable::zero_(largest);
  unsigned long long* squared_norms = reinterpret_cast<unsigned long long*>(data_of<int64_t>(largest));
  double *points_NR = data_of<double>(points), *factor_DR = data_of<double>(factor);
  int32_t *grid_NR = data_of<int32_t>(rounded), *centroids_CR = data_of<int32_t>(centroids);

  const int64_t tiles = ceil_div(D, key_tile);
  with_type(q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(
        "key_covariance", key_covariance<T>, tiles, tiles, heads, Rows<T>(keys), H, S, D, key_length_B,
        data_of<double>(covariance));
    launch(
        "key_factor", key_factor, 1, heads, 1, D, rank, data_of<double>(covariance), factor_DR, data_of<double>(rest));
    launch(
        "project_points", project_points<T>, ceil_div(N, threads), heads, 1, Rows<T>(queries), H, N, D, rank, length_B,
        factor_DR, points_NR, squared_norms);
  });
  launch(
      "round_points", round_points, ceil_div(N * rank, threads), heads, 1, H, N, rank, length_B, squared_norms,
      points_NR, grid_NR);
  launch(
      "code_points", code_points, ceil_div(N, threads), heads, 1, H, N, rank, length_B, grid_NR,
      data_of<int64_t>(codes));
  const DistinctCodes distinct(launch, codes, heads, H, N, length_B);
  const PointGroups point_groups{
      static_cast<int>(rank), grid_NR, centroids_CR, data_of<int32_t>(groups), data_of<int64_t>(sums)};
  // At most 1,024 queries of a block, so that their sums fit into 32 bits.
  const int block_queries = N * heads <= 65536 ? 256 : 1024;
  const auto nearest = rank <= short_rank       ? nearest_centroids<short_rank>
                       : rank <= 2 * short_rank ? nearest_centroids<2 * short_rank>
                                                : nearest_centroids<0>;
  for (int64_t i = 0; i < iterations; ++i) {
    if (i > 0)
      launch(
          "choose_restarts", choose_restarts<PointGroups>, heads, 1, 1, point_groups, distinct.found(), H, N, clusters,
          length_B, data_of<int32_t>(restarts));
    launch(
        "move_centroids", move_centroids, ceil_div(clusters, threads), heads, 1, i == 0, distinct.found(),
        data_of<int32_t>(restarts), H, N, clusters, rank, length_B, grid_NR, data_of<int64_t>(sums), centroids_CR,
        data_of<int32_t>(squares));
    launch(
        "nearest_centroids", nearest, ceil_div(N, block_queries), heads, 1, i + 1 == iterations, block_queries, H, N,
        clusters, rank, length_B, grid_NR, centroids_CR, data_of<int32_t>(squares), data_of<int64_t>(sums),
        data_of<int32_t>(groups));
  }
  return groups;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, ATTENTION_EXT_DEVICE, library) {
  library.impl("key_groups", TORCH_BOX(&key_groups));
}

}  // namespace attention_ext
