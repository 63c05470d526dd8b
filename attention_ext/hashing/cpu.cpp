// Sign-random-projection hashing on the CPU.
#include <algorithm>
#include <cmath>

#include "../common.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

template <class T>
void hash_all(const Tensor& x_BHND, const Tensor& planes_PD, int64_t* hashes_BHN) {
  const Kernels<T>& kernel = kernels<T>();
  const int64_t B = x_BHND.size(0), H = x_BHND.size(1), N = x_BHND.size(2), D = x_BHND.size(3);
  const int64_t bits = planes_PD.size(0), padded = kernel.padded(bits);
  const double* planes = static_cast<const double*>(planes_PD.const_data_ptr());
  std::vector<T> transposed(D * padded, 0), largest(padded, 0);
  for (int64_t p = 0; p < bits; ++p)
    for (int64_t d = 0; d < D; ++d) {
      transposed[d * padded + p] = static_cast<T>(planes[p * D + d]);
      largest[p] = std::max(largest[p], std::abs(transposed[d * padded + p]));
    }
  const View<T> x(x_BHND);
  const int64_t blocks = (N + kernel.hash_rows - 1) / kernel.hash_rows;
  const int64_t bytes = kernel.hash_rows * padded * static_cast<int64_t>(sizeof(T));
  parallel_with_scratch(B * H * blocks, bytes, [&](int64_t task, char* scratch) {
    const int64_t head = task / blocks, start = task % blocks * kernel.hash_rows;
    kernel.hash(
        {std::min(kernel.hash_rows, N - start), D, bits, x.head(head / H, head % H) + start * x.stride_n,
         x.stride_n, transposed.data(), largest.data(), planes, hashes_BHN + head * N + start,
         reinterpret_cast<T*>(scratch)});
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
