// All CPU kernels of one instruction set; setup.py compiles this file once for each.
#if defined(__AVX512F__) || defined(ATTENTION_EXT_EMULATE_AVX512)  // the latter is defined by a test
#define VECTOR_BYTES 64
#define ISA_TABLE instruction_set_avx512
#define ISA_NAME "avx512"
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define ISA_TABLE instruction_set_avx2
#define ISA_NAME "avx2"
#else
#define VECTOR_BYTES 16
#define ISA_TABLE instruction_set_generic
#define ISA_NAME "generic"
#endif

#include "clusters/dense.h"
#include "hashing/center.h"
#include "hashing/hash.h"
#include "improved_clustered_attention/exact.h"
#include "key_grouping/points.h"
#include "kmeans/assign.h"
#include "local_attention/bands_backward.h"
#include "lsh_attention/buckets.h"
#include "lsh_attention/windows.h"
#include "near_attention/rescue.h"
#include "near_attention/windows_backward.h"
#include "cpu/halves.h"
#include "cpu/kernels.h"
#include "cpu/sums.h"

namespace attention_ext {

extern const InstructionSet ISA_TABLE;

namespace {

template <class T>
constexpr Kernels<T> kernel_table = {
    .width = Simd<T>::width,
    .hash_rows = hash_rows,
    .hash_integers = hash_integers<T>,
    .hash = hash_block<T>,
    .largest_value = largest_value<T>,
    .sum_steps = sum_steps<T>,
    .subtract_row = subtract_row<T>,
    .shift_rows = shift_rows<T>,
    .sum_rows = sum_rows<T>,
    .sum_groups = sum_groups<T>,
    .dot_rows = dot_rows<T>,
    .dot_each = dot_each<T>,
    .dense_scratch = dense_scratch<T>,
    .dense = dense_block<T, false>,
    .dense_apart = dense_block<T, true>,
    .select = select_top<T>,
    .weigh_top = weigh_top<T>,
    .dense_backward_scratch = dense_backward_scratch<T>,
    .dense_backward = dense_backward_block<T, false>,
    .dense_scores = dense_scores_block<T>,
    .dense_backward_apart = dense_backward_block<T, true>,
    .exact_scratch = exact_scratch<T>,
    .exact = exact_cluster<T>,
    .exact_backward_scratch = exact_backward_scratch<T>,
    .exact_backward = exact_backward_cluster<T>,
    .bucket_rows = bucket_rows,
    .bucket = bucket_block<T>,
    .window_scratch = window_scratch<T>,
    .window = window_block<T>,
    .window_backward = window_backward_block<T>,
    .band_scratch = band_scratch<T>,
    .band = band_block<T>,
    .band_backward = band_backward_block<T>,
    .near_scratch = near_scratch<T>,
    .near = near_block<T>,
    .near_backward = near_backward_block<T>,
    .rescue = rescue_cluster<T>,
    .rescue_backward = rescue_backward_cluster<T>,
};

}  // namespace

const InstructionSet ISA_TABLE = {
    .name = ISA_NAME,
    .single_precision = kernel_table<float>,
    .double_precision = kernel_table<double>,
    .words =
        {.block = slice_queries,
         .most_members = most_members,
         .slice_bytes = slice_bytes,
         .slice = slice,
         .assign = assign_block,
         .update = update_centroids},
    .points =
        {.width = Simd<double>::width,
         .block = point_block,
         .covariance = key_covariance,
         .factor = key_factor,
         .project = project_points,
         .round = round_points,
         .pack = pack_centroids,
         .nearest = nearest_points,
         .sum = sum_groups<double>},
    .halves = {.widen = widen_rows, .sum_groups = sum_half_groups, .narrow = narrow_values},
};

}  // namespace attention_ext
