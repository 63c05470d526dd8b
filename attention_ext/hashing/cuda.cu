// Sign-random-projection hashing on CUDA, a tile of 64 vectors × 64 planes per block, and the mean to subtract before.
#include "../cuda/launch.h"
#include "../cuda/tile.h"

namespace attention_ext {
namespace {

// Bits as on the CPU (hash.h): products too close to zero for float32 are recomputed in float64.
// Grid (tiles of vectors, heads).
template <class T>
__global__ void __launch_bounds__(threads) hash_tile(
    Rows<T> x_BHND, int64_t H, int64_t N, int D, int bits, const float* planes_PD, const double* exact_PD,
    int64_t* hashes) {
  __shared__ TileMemory memory;
  __shared__ float norm[tile], largest[tile];
  __shared__ unsigned words[tile][2];
  const int64_t head = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * tile;
  const T* x = x_BHND.head(head, H);
  const Matrix<T> vectors = matrix(x, x_BHND.stride_n, N, D);
  const Matrix<float> planes = matrix(planes_PD, D, bits, D);
  const int thread = threadIdx.x;

  if (thread < tile) norm[thread] = largest[thread] = 0.0f, words[thread][0] = words[thread][1] = 0;
  Tile<Fma> products;
  for (int k = 0; k < D; k += depth) {
    load_across(memory.a, vectors, first, k);
    load_across(memory.b, planes, 0, k);
    __syncthreads();
    Fma::add(products.sum, memory);
    if (thread < tile)
      for (int i = 0; i < depth; ++i) {
        norm[thread] += fabsf(memory.a[i][thread]);
        largest[thread] = fmaxf(largest[thread], fabsf(memory.b[i][thread]));
      }
    __syncthreads();
  }
  const float gamma = 2.0f * static_cast<float>(D + 2) * 5.9604645e-8f;
  const float underflow = static_cast<float>(D + 2) * 2.0f * 1.1754944e-38f;
  products.each([&](int row, int plane, float product) {
    if (first + row >= N || plane >= bits) return;
    const float bound = gamma * (norm[row] * largest[plane]) + underflow;
    bool above = product > bound;
    if (!above && !(product < -bound)) {
      const T* vector = x + (first + row) * x_BHND.stride_n;
      double exact = 0;
      for (int d = 0; d < D; ++d)
        exact += static_cast<double>(static_cast<float>(vector[d])) * exact_PD[plane * static_cast<int64_t>(D) + d];
      above = exact > 0;
    }
    if (above) atomicOr(&words[row][plane / 32], 1u << plane % 32);
  });
  __syncthreads();
  if (thread < tile && first + thread < N)
    hashes[head * N + first + thread] =
        static_cast<int64_t>(static_cast<uint64_t>(words[thread][1]) << 32 | words[thread][0]);
}

Tensor hash_sign(const Tensor& x, const Tensor& planes) {
  check_hash(x, planes);
  require_type(x, "x");
  require_heads(x);
  const Launcher launch(x);
  const int64_t B = x.size(0), H = x.size(1), N = x.size(2), D = x.size(3);
  const Tensor rows = with_contiguous_rows(x);
  const Tensor exact = contiguous_as(planes, ScalarType::Double);
  const Tensor rounded = contiguous_as(planes, ScalarType::Float);
  const Tensor hashes = new_tensor(x, {B, H, N}, ScalarType::Long);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(
        "hash_tile", hash_tile<T>, ceil_div(N, tile), B * H, 1, Rows<T>(rows), H, N, D, planes.size(0),
        static_cast<const float*>(rounded.const_data_ptr()), static_cast<const double*>(exact.const_data_ptr()),
        data_of<int64_t>(hashes));
  });
  return hashes;
}

constexpr int mean_rows = 256, mean_columns = 64;  // of a block
constexpr int mean_lanes = threads / mean_columns;

// This thread's elements of a block: a column, every fourth row. Grid (blocks of rows, heads, blocks of columns).
template <class F>
__device__ inline void for_elements(int64_t rows, int D, F take) {
  const int column = blockIdx.z * mean_columns + threadIdx.x % mean_columns;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * mean_rows;
  if (column >= D) return;
  for (int64_t i = first + threadIdx.x / mean_columns; i < first + mean_rows && i < rows; i += mean_lanes)
    take(i, column);
}

// Largest magnitude of each head, as bits: they order like the numbers.
template <class T>
__global__ void __launch_bounds__(threads)
    largest_values(Rows<T> x_BHND, int64_t H, int64_t N, int D, const int64_t* length_B, unsigned* largest) {
  const int64_t head = blockIdx.y;
  const T* x = x_BHND.head(head, H);
  float most = 0;
  for_elements(length_of(length_B, head, H, N), D, [&](int64_t i, int column) {
    most = fmaxf(most, fabsf(static_cast<float>(x[i * x_BHND.stride_n + column])));
  });
  if (most > 0) atomicMax(&largest[head], __float_as_uint(most));
}

__device__ inline float step_of(unsigned largest) {
  return fmaxf(__uint_as_float(largest) / (1 << 22), 1.1754944e-38f);  // at least the smallest normal number
}

template <class T>
__global__ void __launch_bounds__(threads) sum_steps(
    Rows<T> x_BHND, int64_t H, int64_t N, int D, const int64_t* length_B, const unsigned* largest,
    unsigned long long* sums) {
  const int64_t head = blockIdx.y;
  const T* x = x_BHND.head(head, H);
  const float step = step_of(largest[head]);
  const int column = blockIdx.z * mean_columns + threadIdx.x % mean_columns;
  int64_t sum = 0;
  for_elements(length_of(length_B, head, H, N), D, [&](int64_t i, int column) {
    sum += static_cast<int64_t>(rintf(static_cast<float>(x[i * x_BHND.stride_n + column]) / step));
  });
  if (sum != 0) atomicAdd(&sums[head * D + column], static_cast<unsigned long long>(sum));
}

template <class T>
__global__ void __launch_bounds__(threads) subtract_means(
    Rows<T> x_BHND, int64_t H, int64_t N, int D, const int64_t* length_B, const unsigned* largest,
    const unsigned long long* sums, float* centred) {
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const T* x = x_BHND.head(head, H);
  const double step = static_cast<double>(step_of(largest[head]));
  for_elements(N, D, [&](int64_t i, int column) {
    float value = 0;
    if (i < n) {
      const double sum = static_cast<double>(static_cast<int64_t>(sums[head * D + column]));
      const float mean = static_cast<float>(sum / static_cast<double>(n) * step);
      value = static_cast<float>(x[i * x_BHND.stride_n + column]) - mean;
    }
    centred[(head * N + i) * D + column] = value;
  });
}

Tensor subtract_mean(const Tensor& x, const Tensor& lengths) {
  check_mean(x, lengths);
  require_type(x, "x");
  require_heads(x);
  const Launcher launch(x);
  const int64_t B = x.size(0), H = x.size(1), N = x.size(2), D = x.size(3), heads = B * H;
  const Tensor rows = with_contiguous_rows(x), lengths_B = lengths_on_device(lengths);
  const int64_t* length_B = static_cast<const int64_t*>(lengths_B.const_data_ptr());
  Tensor largest = new_tensor(x, {heads}, ScalarType::Int), sums = new_tensor(x, {heads, D}, ScalarType::Long);
  torch::stable::zero_(largest);
  torch::stable::zero_(sums);
  const Tensor centred = new_tensor(x, {B, H, N, D}, ScalarType::Float);
  unsigned* most = reinterpret_cast<unsigned*>(data_of<int32_t>(largest));
  auto* sum = reinterpret_cast<unsigned long long*>(data_of<int64_t>(sums));
  const int64_t blocks = ceil_div(N, mean_rows), columns = ceil_div(D, mean_columns);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch("largest_values", largest_values<T>, blocks, heads, columns, Rows<T>(rows), H, N, D, length_B, most);
    launch("sum_steps", sum_steps<T>, blocks, heads, columns, Rows<T>(rows), H, N, D, length_B, most, sum);
    launch(
        "subtract_means", subtract_means<T>, blocks, heads, columns, Rows<T>(rows), H, N, D, length_B, most, sum,
        data_of<float>(centred));
  });
  return centred;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, ATTENTION_EXT_DEVICE, library) {
  library.impl("hash_sign", TORCH_BOX(&hash_sign));
  library.impl("subtract_mean", TORCH_BOX(&subtract_mean));
}

}  // namespace attention_ext
