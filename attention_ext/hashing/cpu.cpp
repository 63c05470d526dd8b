// Sign-random-projection hashing on the CPU, and the mean to subtract before.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../common.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

// Planes in float64: as given, and transposed to zero-padded columns.
struct Planes {
  int64_t bits, D, columns;
  std::vector<double> normals_PD, normals_DP, largest_P;  // largest magnitude in each plane
  template <class T>
  Planes(const T* planes, int64_t stride, int64_t bits, int64_t D, int64_t columns)
      : bits(bits), D(D), columns(columns), normals_PD(bits * D), normals_DP(D * columns), largest_P(columns) {
    for (int64_t p = 0; p < bits; ++p)
      for (int64_t d = 0; d < D; ++d) normals_PD[p * D + d] = static_cast<double>(planes[p * stride + d]);
    for (int64_t p = 0; p < bits; ++p)
      for (int64_t d = 0; d < D; ++d) normals_DP[d * columns + p] = normals_PD[p * D + d];
    for (int64_t d = 0; d < D; ++d)
      for (int64_t p = 0; p < columns; ++p) largest_P[p] = std::max(largest_P[p], std::abs(column(d)[p]));
  }
  const double* column(int64_t d) const { return normals_DP.data() + d * columns; }
};

// Reads float32 planes in place: PyTorch's conversion would take longer than the rest.
Planes planes_of(const Tensor& planes, int64_t columns) {
  const int64_t bits = planes.size(0), D = planes.size(1);
  if (planes.scalar_type() == ScalarType::Float && (D == 1 || planes.stride(1) == 1))
    return {static_cast<const float*>(planes.const_data_ptr()), planes.stride(0), bits, D, columns};
  const Tensor exact = contiguous_as(planes, ScalarType::Double);
  return {static_cast<const double*>(exact.const_data_ptr()), D, bits, D, columns};
}

// Planes in 16-bit integers as hashing/hash.h multiplies them: a lane holds elements d and d + width of a plane.
struct Quantised {
  std::vector<int32_t> pairs_JP, bounds_P;
  float norm;
};

constexpr int64_t most_quantised = 512;  // with more elements, too few products have a certain sign

Quantised quantise(const Planes& planes, int64_t width, int64_t pairs) {
  const int64_t D = planes.D, columns = planes.columns;
  // The errors are about t·‖p‖₁ ~ √D for rows and the norm for planes; this norm splits the 31 bits evenly.
  const double norm = std::floor(24576 * std::sqrt(static_cast<double>(D)));
  const double sum = norm * (1 + std::ldexp(1.0, -13)) + D;  // upper bound on the 1-norm of a quantised row
  const double most = std::min(32767.0, std::floor(2147483647.0 / sum));
  Quantised result = {
      .pairs_JP = std::vector<int32_t>(pairs * columns),
      .bounds_P = std::vector<int32_t>(columns, INT32_MAX),
      .norm = static_cast<float>(norm)};
  std::vector<double> size_P(columns), scale_P(columns), number_P(columns);
  for (int64_t d = 0; d < D; ++d)
    for (int64_t p = 0; p < columns; ++p) size_P[p] += std::abs(planes.column(d)[p]);
  for (int64_t p = 0; p < planes.bits; ++p) {
    if (!(planes.largest_P[p] > 1e-200 && size_P[p] < 1e200)) continue;  // decided in float64
    scale_P[p] = most / planes.largest_P[p];
    const double error = (0.5 + std::ldexp(1.0, -9)) * scale_P[p] * size_P[p] + (0.5 + std::ldexp(1.0, -30)) * sum;
    result.bounds_P[p] = static_cast<int32_t>(error) + 2;  // rounded up, plus one
  }
  for (int64_t d = 0; d < D; ++d) {
    const double* plane = planes.column(d);
    int32_t* pair = result.pairs_JP.data() + (d / (2 * width) * width + d % width) * columns;
    const int shift = d / width % 2 * 16;  // the first of a pair is in the low half
    const int32_t mask = shift ? -1 : 0xffff;
    for (int64_t p = 0; p < columns; ++p) number_P[p] = scale_P[p] ? plane[p] * scale_P[p] : 0;
    for (int64_t p = 0; p < columns; ++p) {
      const int32_t number = (static_cast<int32_t>(number_P[p] + 32768.5) - 32768) & mask;
      pair[p] |= static_cast<int32_t>(static_cast<uint32_t>(number) << shift);
    }
  }
  return result;
}

template <class T>
void hash_all(const Tensor& x_BHND, const Tensor& planes_PD, int64_t* hashes_BHN) {
  const Kernels<T>& kernel = kernels<T>();
  const int64_t B = x_BHND.size(0), H = x_BHND.size(1), N = x_BHND.size(2), D = x_BHND.size(3);
  const int64_t bits = planes_PD.size(0), padded = kernel.padded(bits);
  const bool integers = kernel.hash_integers && D <= most_quantised;
  const int64_t two_vectors = 2 * kernel.width;
  const Planes planes = planes_of(planes_PD, integers ? (bits + two_vectors - 1) / two_vectors * two_vectors : padded);
  Quantised quantised;
  std::vector<T> transposed;
  if (integers)
    quantised = quantise(planes, kernel.width, kernel.padded_pairs(D));
  else
    transposed.assign(planes.normals_DP.begin(), planes.normals_DP.end());
  const std::vector<T> largest(planes.largest_P.begin(), planes.largest_P.end());
  // Rows in bfloat16 are converted by block.
  const bool halves = x_BHND.scalar_type() == ScalarType::BFloat16;
  const View<uint16_t> half(x_BHND);
  const View<T> x(x_BHND);
  const int64_t blocks = (N + kernel.hash_rows - 1) / kernel.hash_rows;
  const int64_t columns = integers ? kernel.padded_pairs(D) : padded;
  const int64_t numbers = kernel.hash_rows * columns, copied = halves ? kernel.hash_rows * D : 0;
  const int64_t bytes = (numbers + copied) * static_cast<int64_t>(sizeof(T));
  parallel_with_scratch(B * H * blocks, bytes, [&](int64_t task, char* scratch) {
    const int64_t head = task / blocks, start = task % blocks * kernel.hash_rows;
    const int64_t b = head / H, h = head % H, rows = std::min(kernel.hash_rows, N - start);
    T* const copy = reinterpret_cast<T*>(scratch) + numbers;
    if constexpr (sizeof(T) == 4)
      if (halves) instruction_set().halves.widen(rows, D, half.head(b, h) + start * half.stride_n, half.stride_n, copy);
    kernel.hash(
        {.rows = rows,
         .D = D,
         .bits = bits,
         .x = halves ? copy : x.head(b, h) + start * x.stride_n,
         .stride_x = halves ? D : x.stride_n,
         .planes_DP = transposed.data(),
         .largest_P = largest.data(),
         .planes_PD = planes.normals_PD.data(),
         .pairs_JP = integers ? quantised.pairs_JP.data() : nullptr,
         .bounds_P = quantised.bounds_P.data(),
         .norm = quantised.norm,
         .hashes = hashes_BHN + head * N + start,
         .scratch = reinterpret_cast<T*>(scratch)});
  });
}

Tensor hash_sign(const Tensor& x, const Tensor& planes) {
  check_hash(x, planes);
  const ScalarType type = sum_type(x.scalar_type());
  const bool halves = x.scalar_type() == ScalarType::BFloat16;
  const Tensor rows = with_contiguous_rows(halves ? x : as_type(x, type));
  const Tensor hashes = new_tensor(x, {x.size(0), x.size(1), x.size(2)}, ScalarType::Long);
  if (type == ScalarType::Double)
    hash_all<double>(rows, planes, data_of<int64_t>(hashes));
  else
    hash_all<float>(rows, planes, data_of<int64_t>(hashes));
  return hashes;
}

template <class T>
void subtract_means(const Tensor& x_BHND, const std::vector<int64_t>& length_B, T* centred_BHND) {
  const Kernels<T>& kernel = kernels<T>();
  const int64_t B = x_BHND.size(0), H = x_BHND.size(1), N = x_BHND.size(2), D = x_BHND.size(3);
  const View<T> view(x_BHND);
  parallel(B * H, [&](int64_t head) {
    const int64_t n = length_B[head / H];
    const T* x = view.head(head / H, head % H);
    T* to = centred_BHND + head * N * D;
    std::vector<T> mean(D);
    std::vector<double> sums(D);
    const T largest = kernel.largest_value(n, D, x, view.stride_n, mean.data());
    const T step = std::max(largest / (1 << 22), std::numeric_limits<T>::min());
    kernel.sum_steps(n, D, x, view.stride_n, step, sums.data());
    for (int64_t d = 0; d < D && n > 0; ++d)
      mean[d] = static_cast<T>(sums[d] / static_cast<double>(n) * static_cast<double>(step));
    kernel.subtract_row(n, D, x, view.stride_n, mean.data(), to);
    std::fill(to + n * D, to + N * D, T(0));
  });
}

Tensor subtract_mean(const Tensor& x, const Tensor& lengths) {
  check_mean(x, lengths);
  const ScalarType type = sum_type(x.scalar_type());
  const Tensor rows = with_contiguous_rows(as_type(x, type));
  const std::vector<int64_t> length_B = lengths_of(lengths, x.size(2), "lengths");
  const Tensor centred = new_tensor(x, {x.size(0), x.size(1), x.size(2), x.size(3)}, type);
  if (type == ScalarType::Double)
    subtract_means(rows, length_B, data_of<double>(centred));
  else
    subtract_means(rows, length_B, data_of<float>(centred));
  return centred;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("hash_sign", TORCH_BOX(&hash_sign));
  library.impl("subtract_mean", TORCH_BOX(&subtract_mean));
}

}  // namespace attention_ext
