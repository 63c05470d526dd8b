// K-means of queries in the metric of the keys on the CPU: heads in parallel, or blocks of queries if heads are few.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "../clusters/starts.h"
#include "../common.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

constexpr int64_t most_keys = 128;       // in the covariance, so that its cost doesn't grow with the length
constexpr int64_t least_queries = 1024;  // of a block, if a head is split

// One head: its queries in blocks, each with points and sums of its own.
template <class T>
struct Head {
  const Kernels<T>& kernel;
  const PointKernels& points;
  const T *q, *k;
  int64_t stride_q, stride_k, n, keys, D, rank, C, block;
  int32_t* groups;
  int64_t columns, blocks;
  std::vector<double> covariance, factor, coordinates, centroids, sums, largest;
  std::vector<int64_t> codes;
  std::vector<int32_t> counts, pairs, packed, squares, distinct;  // the last: positions of the distinct points
  bool done = false;

  Head(
      const View<T>& q, const View<T>& k, int64_t b, int64_t h, int64_t n, int64_t keys, int64_t D, int64_t rank,
      int64_t C, int64_t block, int32_t* groups)
      : kernel(attention_ext::kernels<T>()),
        points(instruction_set().points),
        q(q.head(b, h)),
        k(k.head(b, h)),
        stride_q(q.stride_n),
        stride_k(k.stride_n),
        n(n),
        keys(keys),
        D(D),
        rank(rank),
        C(C),
        block(block),
        groups(groups),
        columns(points.padded(rank)),
        blocks((n + block - 1) / block) {}

  // Memory, and R.
  void start() {
    const int64_t rows = points.padded(D), halves = (rank + 1) / 2, tiled = points.tiled(C);
    factor.resize(rows * columns);
    coordinates.resize(n * columns);
    pairs.resize(blocks * points.rounded(block) * halves);
    centroids.resize(C * columns);
    packed.resize(tiled * halves);
    squares.resize(tiled);
    sums.resize(blocks * C * columns);
    counts.resize(blocks * C);
    largest.assign(blocks, 0);
    codes.resize(n);
    if (keys == 0) return;
    const int64_t used = std::min(keys, most_keys);
    std::vector<int32_t> chosen(used);
    for (int64_t i = 0; i < used; ++i) chosen[i] = static_cast<int32_t>(i * keys / used);
    std::vector<double> x(used * rows), covariance(rows * rows), scratch((rows + rank) * columns);
    kernel.shift_rows(used, D, chosen.data(), k, stride_k, k, x.data());
    points.covariance(used, D, x.data(), covariance.data());
    points.factor(D, rank, covariance.data(), factor.data(), scratch.data());
  }

  int64_t first(int64_t i) const { return i * block; }
  int64_t count(int64_t i) const { return std::min(block, n - first(i)); }

  void project(int64_t i) {
    constexpr int64_t few = 24;  // rows that stay in the cache
    const int64_t rows = points.padded(D);
    std::vector<double> x(few * rows);
    for (int64_t at = first(i), end = at + count(i); at < end; at += few) {
      const int64_t now = std::min(few, end - at);
      kernel.shift_rows(now, D, nullptr, q + at * stride_q, stride_q, q, x.data());
      const double norm = points.project(now, D, rank, x.data(), factor.data(), coordinates.data() + at * columns);
      largest[i] = std::max(largest[i], norm);
    }
  }

  void round(int64_t i) {
    const double norm = std::sqrt(*std::max_element(largest.begin(), largest.end()));
    points.round(
        count(i), rank, norm, coordinates.data() + first(i) * columns, pairs.data() + i * block_pairs(),
        codes.data() + first(i));
  }

  int64_t block_pairs() const { return points.rounded(block) * ((rank + 1) / 2); }

  const double* point(int64_t i) const { return coordinates.data() + i * columns; }

  void start_centroids() {
    distinct = distinct_positions(n, codes.data());
    for (int64_t j = 0; j < C; ++j)
      std::copy_n(point(start_position(distinct, j, C)), columns, centroids.data() + j * columns);
    pack();
  }

  void pack() { points.pack(C, rank, centroids.data(), packed.data(), squares.data()); }

  void assign(int64_t i) {
    points.nearest(
        count(i), C, rank, pairs.data() + i * block_pairs(), packed.data(), squares.data(), groups + first(i));
  }

  void sum(int64_t i) {
    double* sum = sums.data() + i * C * columns;
    std::fill_n(sum, C * columns, 0);
    std::fill_n(counts.data() + i * C, C, 0);
    points.sum(count(i), columns, groups + first(i), coordinates.data() + first(i) * columns, columns, sum, columns);
    for (int64_t at = first(i), end = at + count(i); at < end; ++at) ++counts[i * C + groups[at]];
  }

  uint64_t distance(int64_t i) const {
    const double *x = point(i), *centroid = centroids.data() + groups[i] * columns;
    double sum = 0;
    for (int64_t d = 0; d < columns; ++d) sum += (x[d] - centroid[d]) * (x[d] - centroid[d]);
    return static_cast<uint64_t>(sum);
  }

  // Sums are integers, so that the split into blocks does not change the result. If no centroid changes, further
  // iterations would not change any either.
  void update() {
    std::vector<double> means(C * columns);
    std::vector<int32_t> empty;
    for (int64_t j = 0; j < C; ++j) {
      double members = 0;
      for (int64_t i = 0; i < blocks; ++i) members += counts[i * C + j];
      if (members == 0) empty.push_back(static_cast<int32_t>(j));
      for (int64_t d = 0; d < columns; ++d) {
        double sum = 0;
        for (int64_t i = 0; i < blocks; ++i) sum += sums[(i * C + j) * columns + d];
        means[j * columns + d] =
            members == 0 ? centroids[j * columns + d] : std::floor((2 * sum + members) / (2 * members));
      }
    }
    if (!empty.empty())
      refill(
          distinct, empty, [&](int64_t i) { return distance(i); },
          [&](int64_t j, int64_t i) { std::copy_n(point(i), columns, means.data() + j * columns); });
    done = means == centroids;
    centroids.swap(means);
    pack();
  }
};

template <class T>
void group_heads(
    const Tensor& q, const Tensor& k, const std::vector<int64_t>& length_B, const std::vector<int64_t>& keys_B,
    int64_t clusters, int64_t rank, int64_t iterations, int32_t* groups_BHN) {
  const int64_t B = q.size(0), H = q.size(1), N = q.size(2), D = q.size(3), threads = torch::stable::get_num_threads();
  const View<T> q_BHND(q), k_BHSD(k);
  const bool split = B * H < threads;
  std::vector<Head<T>> heads;
  for (int64_t s = 0; s < B * H; ++s) {
    const int64_t n = length_B[s / H];
    int32_t* groups = groups_BHN + s * N;
    if (n <= clusters) {
      std::iota(groups, groups + n, 0);
      continue;
    }
    const int64_t block = split ? std::max(least_queries, (n + threads - 1) / threads) : n;
    heads.emplace_back(q_BHND, k_BHSD, s / H, s % H, n, keys_B[s / H], D, std::min(rank, D), clusters, block, groups);
  }
  if (!split) {
    parallel(heads.size(), [&](int64_t s) {
      Head<T> head = heads[s];  // its memory is released with it
      head.start();
      for (int64_t i = 0; i < head.blocks; ++i) head.project(i);
      for (int64_t i = 0; i < head.blocks; ++i) head.round(i);
      head.start_centroids();
      for (int64_t iteration = 0; iteration < iterations; ++iteration) {
        if (iteration) {
          for (int64_t i = 0; i < head.blocks; ++i) head.sum(i);
          head.update();
          if (head.done) break;
        }
        for (int64_t i = 0; i < head.blocks; ++i) head.assign(i);
      }
    });
    return;
  }
  for (Head<T>& head : heads) {
    const auto blocks = [&](auto method) { parallel(head.blocks, [&](int64_t i) { (head.*method)(i); }); };
    head.start();
    blocks(&Head<T>::project);
    blocks(&Head<T>::round);
    head.start_centroids();
    blocks(&Head<T>::assign);
    for (int64_t iteration = 1; iteration < iterations; ++iteration) {
      blocks(&Head<T>::sum);
      head.update();
      if (head.done) break;
      blocks(&Head<T>::assign);
    }
  }
}

Tensor key_groups(
    const Tensor& q, const Tensor& k, const Tensor& query_lengths, const Tensor& key_lengths, int64_t clusters,
    int64_t rank, int64_t iterations) {
  check_key_groups(q, k, query_lengths, key_lengths, clusters, rank, iterations);
  const int64_t B = q.size(0), H = q.size(1), N = q.size(2);
  const std::vector<int64_t> length_B = lengths_of(query_lengths, N, "query_lengths");
  const std::vector<int64_t> keys_B = lengths_of(key_lengths, k.size(2), "key_lengths");
  const ScalarType type = sum_type(q.scalar_type());
  const Tensor queries = with_contiguous_rows(as_type(q, type)), keys = with_contiguous_rows(as_type(k, type));
  const Tensor groups = new_tensor(q, {B, H, N}, ScalarType::Int);
  int32_t* groups_BHN = data_of<int32_t>(groups);
  std::fill_n(groups_BHN, B * H * N, -1);
  if (type == ScalarType::Double)
    group_heads<double>(queries, keys, length_B, keys_B, clusters, rank, iterations, groups_BHN);
  else
    group_heads<float>(queries, keys, length_B, keys_B, clusters, rank, iterations, groups_BHN);
  return groups;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) { library.impl("key_groups", TORCH_BOX(&key_groups)); }

}  // namespace attention_ext
