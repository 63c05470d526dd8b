// Sign-random-projection hashing on the CPU.
#include <algorithm>
#include <cmath>

#include "../common.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

// Planes in 16-bit integers, as hashing/hash.h multiplies them: a lane holds elements d and d + width of one plane.
struct Quantised {
  std::vector<int32_t> pairs_JP, bounds_P;
  float norm;
};

constexpr int64_t most_quantised = 512;  // above, too few products would be sure

Quantised quantise(const double* planes_PD, int64_t P, int64_t D, int64_t width, int64_t pairs) {
  const int64_t columns = (P + 2 * width - 1) / (2 * width) * 2 * width;
  // Both quantisations err: in x by t·‖p‖₁ ~ √D, in the planes by the norm. This divides 31 bits about evenly.
  const double norm = std::floor(24576 * std::sqrt(static_cast<double>(D)));
  const double sum = norm * (1 + std::ldexp(1.0, -13)) + D;  // of a row's magnitudes, at most
  const double most = std::min(32767.0, std::floor(2147483647.0 / sum));
  Quantised result = {std::vector<int32_t>(pairs * columns), std::vector<int32_t>(columns, INT32_MAX),
                      static_cast<float>(norm)};
  for (int64_t p = 0; p < P; ++p) {
    const double* plane = planes_PD + p * D;
    double largest = 0, size = 0;
    for (int64_t d = 0; d < D; ++d) {
      largest = std::max(largest, std::abs(plane[d]));
      size += std::abs(plane[d]);
    }
    if (!(largest > 1e-200 && size < 1e200)) continue;  // float64 decides
    const double scale = most / largest;
    const double error = (0.5 + std::ldexp(1.0, -9)) * scale * size + (0.5 + std::ldexp(1.0, -30)) * sum;
    result.bounds_P[p] = static_cast<int32_t>(error) + 2;  // rounded up, and one
    for (int64_t d = 0; d < D; ++d) {
      const int32_t number = static_cast<int32_t>(plane[d] * scale + 32768.5) - 32768;
      const bool high = d / width % 2;
      int32_t& pair = result.pairs_JP[(d / (2 * width) * width + d % width) * columns + p];
      pair |= high ? static_cast<int32_t>(static_cast<uint32_t>(number) << 16) : number & 0xffff;
    }
  }
  return result;
}

template <class T>
void hash_all(const Tensor& x_BHND, const Tensor& planes_PD, int64_t* hashes_BHN) {
  const Kernels<T>& kernel = kernels<T>();
  const int64_t B = x_BHND.size(0), H = x_BHND.size(1), N = x_BHND.size(2), D = x_BHND.size(3);
  const int64_t bits = planes_PD.size(0), padded = kernel.padded(bits);
  const double* planes = static_cast<const double*>(planes_PD.const_data_ptr());
  const bool integers = kernel.hash_integers && D <= most_quantised;
  Quantised quantised;
  if (integers) quantised = quantise(planes, bits, D, kernel.width, kernel.padded_pairs(D));
  std::vector<T> transposed(integers ? 0 : D * padded, 0), largest(padded, 0);
  for (int64_t p = 0; p < bits; ++p)
    for (int64_t d = 0; d < D; ++d) {
      const T value = static_cast<T>(planes[p * D + d]);
      if (!integers) transposed[d * padded + p] = value;
      largest[p] = std::max(largest[p], std::abs(value));
    }
  const View<T> x(x_BHND);
  const int64_t blocks = (N + kernel.hash_rows - 1) / kernel.hash_rows;
  const int64_t columns = integers ? kernel.padded_pairs(D) : padded;
  const int64_t bytes = kernel.hash_rows * columns * static_cast<int64_t>(sizeof(T));
  parallel_with_scratch(B * H * blocks, bytes, [&](int64_t task, char* scratch) {
    const int64_t head = task / blocks, start = task % blocks * kernel.hash_rows;
    kernel.hash(
        {std::min(kernel.hash_rows, N - start), D, bits, x.head(head / H, head % H) + start * x.stride_n,
         x.stride_n, transposed.data(), largest.data(), planes, integers ? quantised.pairs_JP.data() : nullptr,
         quantised.bounds_P.data(), quantised.norm, hashes_BHN + head * N + start, reinterpret_cast<T*>(scratch)});
  });
}

Tensor hash_sign(const Tensor& x, const Tensor& planes) {
  require(x.dim() == 4, "x must be [B, H, N, D], found " + shape_of(x));
  require(planes.dim() == 2, "planes must be [P, D], found " + shape_of(planes));
  require_shape(planes, {planes.size(0), x.size(3)}, "planes");
  require(planes.size(0) <= 63, "at most 63 bits fit in a hash, found " + std::to_string(planes.size(0)) + " planes");
  require(floating(x.scalar_type()), "x must have a floating type");
  const ScalarType type = sum_type(x.scalar_type());
  const Tensor rows = with_contiguous_rows(as_type(x, type));
  const Tensor exact_planes = torch::stable::contiguous(as_type(planes, ScalarType::Double));
  const Tensor hashes = new_tensor(x, {x.size(0), x.size(1), x.size(2)}, ScalarType::Long);
  if (type == ScalarType::Double)
    hash_all<double>(rows, exact_planes, data_of<int64_t>(hashes));
  else
    hash_all<float>(rows, exact_planes, data_of<int64_t>(hashes));
  return hashes;
}

std::string choose(const std::string& name) {
  const char* chosen = choose_instruction_set(name.c_str());
  require(chosen, "instruction set '" + name + "' is not one of generic, avx2, avx512, or this machine lacks it");
  return chosen;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("hash_sign", TORCH_BOX(&hash_sign));
}

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CompositeExplicitAutograd, library) {
  library.impl("choose_instruction_set", TORCH_BOX(&choose));
}

}  // namespace attention_ext
